"""A user's arrays, brought to the two forms that the rest of the library knows, or refused with a sentence.

Images become [rows, channels, height, width], uint8 or float32; feature vectors [rows, features] float32. An .npy file of one
of the two types stays on disk and is read as needed.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from selfens.data.rows import Source, Transposed, is_mapped, pieces
from selfens.errors import DataError

CHANNEL_COUNTS = (1, 3, 4)
PIECE = 5000  # rows read at a time of what may not fit into memory

Inputs = NDArray[Any]


# Files


def read_npy(path: Path) -> NDArray[Any]:
    """The array in an .npy file, mapped."""
    try:
        array: Any = np.load(path, mmap_mode="r", allow_pickle=False)
    except (FileNotFoundError, IsADirectoryError):
        raise DataError(f"there is no file {path}; expected an array saved by numpy.save.") from None
    except (OSError, ValueError, EOFError) as error:
        reason = str(error).rstrip(".")
        raise DataError(
            f"{path} is not a readable .npy file ({reason}); save an array of numbers by numpy.save."
        ) from None
    if not isinstance(array, np.ndarray):
        array.close()
        raise DataError(f"{path} is an .npz archive with the wrong ending; rename it to .npz.")
    return array


def read_npz(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of an .npz file. Arrays of Python objects are refused: reading them could run code."""
    with _npz_errors(path), path.open("rb") as file:  # numpy leaves a file open that it cannot read
        archive = np.load(file, allow_pickle=False)
        if isinstance(archive, np.ndarray):
            raise DataError(f"{path} is a single array, not an .npz archive; save it with numpy.savez.")
        with archive:
            return {key: archive[key] for key in archive.files}


def npz_shape(path: Path, names: Sequence[str]) -> tuple[int, ...] | None:
    """The shape of the first of these arrays that an .npz file has, from its header only."""
    with _npz_errors(path), zipfile.ZipFile(path) as archive:
        for name in names:
            if f"{name}.npy" in archive.namelist():
                with archive.open(f"{name}.npy") as member:
                    version, _ = np.lib.format.read_magic(member)
                    headers = np.lib.format.read_array_header_1_0, np.lib.format.read_array_header_2_0
                    return headers[version > 1](member)[0]
    return None


@contextmanager
def _npz_errors(path: Path) -> Iterator[None]:
    """Whatever a damaged archive raises, as one sentence."""
    try:
        yield
    except (FileNotFoundError, IsADirectoryError):
        raise DataError(f"there is no file {path}; give the path of an .npz file.") from None
    except DataError:
        raise
    except Exception as error:  # zipfile, zlib and numpy raise a dozen kinds for damaged files
        if "allow_pickle" in str(error):
            raise DataError(
                f"{path} holds an array of Python objects, which is not read because it could run code; "
                "save labels as integers (-1 for unknown) or as a string array ('' for unknown)."
            ) from None
        raise DataError(
            f"{path} is not a readable .npz file ({error}); it may be cut short or of another kind."
        ) from None


def read_inputs(path: Path, names: Sequence[str] = ("x", "inputs", "x_test", "images")) -> tuple[NDArray[Any], str]:
    """The inputs in an .npy or .npz file: the first of `names`, or the only array; and its name if there are several."""
    if path.suffix == ".npy":
        return read_npy(path), ""
    arrays = read_npz(path)
    chosen = next((name for name in (*names, *arrays) if name in arrays), None)
    if chosen is None or (chosen not in names and len(arrays) > 1):
        raise DataError(f"{path} holds {', '.join(sorted(arrays)) or 'no arrays'}; name the inputs '{names[0]}'.")
    return arrays[chosen], chosen if len(arrays) > 1 else ""


# Training and test inputs


def fits_bytes(inputs: ArrayLike) -> bool:
    """Whether these are an array of whole numbers from 0 to 255."""
    if isinstance(inputs, list | tuple):
        return False
    x = np.asarray(inputs)
    if x.dtype.kind not in "iu" or x.size == 0:
        return False
    return x.dtype == np.uint8 or bool(x.min() >= 0 and x.max() <= 255)


def check_same_scale(inputs: ArrayLike, test_inputs: ArrayLike) -> None:
    """Bytes are divided by 255 and floats are not, so one of each would be on different scales."""
    train, test = np.asarray(inputs), np.asarray(test_inputs)
    if train.ndim > 2 and (train.dtype.kind in "iu") != (test.dtype.kind in "iu"):
        raise DataError(
            f"the training images are {train.dtype} and the test images {test.dtype}; integers are taken as bytes "
            "and scaled to 0..1, floats are not, so give both in the same type."
        )


def standard_inputs(
    inputs: ArrayLike, *, layout: str = "auto", what: str = "the inputs", bytes_allowed: bool = True
) -> Inputs:
    """Images as [rows, channels, height, width], features as [rows, features]; bytes become uint8, all else float32."""
    return np.asarray(standard_source(inputs, layout=layout, what=what, bytes_allowed=bytes_allowed))


def standard_source(
    inputs: ArrayLike, *, layout: str = "auto", what: str = "the inputs", bytes_allowed: bool = True
) -> Source:
    """The same; a mapped file of one of the two types stays mapped."""
    try:
        x = np.asarray(inputs)
    except ValueError:
        raise DataError(f"{what} are of mixed shapes; every row must have the same shape.") from None
    if x.dtype == object:
        raise DataError(f"{what} are of mixed shapes or not numbers; every row must be numbers of the same shape.")
    if x.dtype.kind not in "buif":
        raise DataError(f"{what} have type {x.dtype}; expected numbers (uint8 images, or floats).")
    channels_last = is_channels_last(x.shape, layout, what)
    take_bytes = x.ndim > 2 and bytes_allowed and fits_bytes(x)
    kind = np.uint8 if take_bytes else np.float32
    source: Source = x[:, None] if x.ndim == 3 else x
    if is_mapped(x) and x.dtype == kind:
        source = Transposed(x, (3, 1, 2)) if channels_last else source
    else:
        if channels_last:
            first = np.ascontiguousarray(x.transpose(0, 3, 1, 2))
            source = first.reshape(-1).reshape(first.shape)  # one channel would keep odd strides, and other rounding
        with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite and is refused below
            source = np.ascontiguousarray(source, dtype=kind)
    if not take_bytes:
        _check_finite(source, what, given=x)
    return source


def as_trained(
    inputs: ArrayLike, input_shape: tuple[int, ...], takes_bytes: bool, where: str, what: str = "the inputs"
) -> Inputs:
    """Inputs to predict on, as the network was trained on them: `where` names it in a refusal."""
    shape, (channels, *sides) = tuple(np.shape(inputs)[1:]), input_shape
    layout = {input_shape: "NCHW", (*sides, channels): "NHWC"}.get(shape, "auto")
    raw = standard_inputs(inputs, layout=layout, what=what, bytes_allowed=takes_bytes)
    if tuple(raw.shape[1:]) != input_shape:
        raise DataError(f"{what} have shape {tuple(raw.shape[1:])} per row; {where} was trained on {input_shape}.")
    if takes_bytes and raw.dtype != np.uint8 and raw.max() > 1:
        raise DataError(
            f"{what} are {raw.dtype} up to {raw.max():g}, but {where} was trained on bytes; give uint8 images, or floats from "
            "0 to 1."
        )
    return raw


def is_channels_last(shape: tuple[int, ...], layout: str = "auto", what: str = "the inputs") -> bool:
    """Whether inputs of this shape are images with their channels last; refuses a shape that cannot be trained on."""
    if len(shape) not in (2, 3, 4):
        raise DataError(
            f"{what} have shape {shape}; expected [rows, features], or images [rows, height, width(, channels)]."
        )
    if 0 in shape:
        raise DataError(f"{what} have shape {shape}, which is empty; expected at least one row of at least one number.")
    if layout not in ("auto", "NHWC", "NCHW"):
        raise DataError(f"layout '{layout}' is not known; expected NHWC, NCHW or auto.")
    if len(shape) < 4 or layout != "auto":
        return len(shape) == 4 and layout == "NHWC"
    if shape[3] not in CHANNEL_COUNTS and shape[1] not in CHANNEL_COUNTS:
        raise DataError(
            f"{what} have shape {shape}, and neither the second nor the last number is a count of channels "
            "(1, 3 or 4); say layout='NHWC' or layout='NCHW'."
        )
    return shape[3] in CHANNEL_COUNTS


def image_side(shape: tuple[int, ...]) -> int | None:
    """The smaller side of images of this shape; None for feature vectors."""
    sides = shape[1:3] if is_channels_last(shape) else shape[-2:]
    return min(sides) if len(shape) > 2 else None


# Extra inputs


def matching(extra: Source, main: Source, name: str) -> Source:
    """Extra inputs in the main ones' shape and type, or a sentence why they cannot be."""
    given = extra.dtype
    if isinstance(extra, np.ndarray):
        is_bytes, images = main.dtype == np.uint8, main.ndim == 4
        if extra.dtype.kind not in "uif" or (images and (extra.dtype.kind != "f") != is_bytes):
            raise _other_type(extra.dtype, main, name)
        last = images and extra.shape[1:] == (*main.shape[2:], main.shape[1]) != main.shape[1:]
        extra = standard_source(extra, layout="NHWC" if last else "NCHW", what=name, bytes_allowed=is_bytes)
    if extra.shape[1:] != main.shape[1:]:
        raise DataError(
            f"{name} holds rows of shape {extra.shape[1:]}; expected {main.shape[1:]} as the training inputs have, and arrays "
            "are not resized: bring them to that shape (the images of a folder are resized)."
        )
    if extra.dtype != main.dtype:
        raise _other_type(given, main, name)
    return extra


def _other_type(given: np.dtype[Any], main: Source, name: str) -> DataError:
    return DataError(
        f"{name} holds {given} and the training inputs are {main.dtype}; expected numbers of the same type: integers from 0 to "
        "255 are bytes, which are scaled to 0..1, and floats are not."
    )


def _check_finite(x: Source, what: str, given: Inputs | None = None) -> None:
    """Refuse rows that are not finite; `given` tells those that only became so in float32."""
    bad = [~np.isfinite(piece.reshape(len(piece), -1)).all(axis=1) for piece in pieces(x, PIECE)]
    rows = np.flatnonzero(np.concatenate(bad))
    if len(rows):
        too_large = given is not None and np.isfinite(given[rows]).all()
        values, cure = (
            ("values beyond 3.4e38", "rescale") if too_large else ("NaN or infinite values", "fill or remove")
        )
        raise DataError(f"{what} hold {values} in {len(rows)} rows (the first is row {rows[0]}); {cure} them first.")
