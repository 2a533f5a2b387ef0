"""Inputs as a user gives them, brought to the two forms that everything further down knows, or refused with a sentence.

Images are [rows, channels, height, width], uint8 or float32; feature vectors [rows, features] float32. What lies in an .npy
file in one of the two types stays there and is read as needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from selfens.data.rows import Source, Turned, is_mapped, pieces
from selfens.errors import DataError

CHANNEL_COUNTS = (1, 3, 4)
PIECE = 5000  # rows read at a time of what may not fit into memory

Inputs = NDArray[Any]


def read_npy(path: Path) -> NDArray[Any]:
    """The array in an .npy file, left there and read as needed."""
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
        raise DataError(f"{path} is an .npz archive by another name; call it .npz.")
    return array


def read_inputs(path: Path, names: Sequence[str] = ("x", "inputs", "x_test", "images")) -> tuple[NDArray[Any], str]:
    """The inputs in an .npy file, or in an .npz file under one of these names or alone; and the name, where it was a choice."""
    if path.suffix == ".npy":
        return read_npy(path), ""
    arrays = read_npz(path)
    for name in names:
        if name in arrays:
            return arrays[name], name if len(arrays) > 1 else ""
    if len(arrays) == 1:
        return next(iter(arrays.values())), ""
    raise DataError(f"{path} holds {', '.join(sorted(arrays)) or 'no arrays'}; name the inputs '{names[0]}'.")


def read_npz(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of an .npz file, without unpickling anything."""
    try:
        with path.open("rb") as file:  # numpy leaves a file that it cannot read open
            archive = np.load(file, allow_pickle=False)
            if isinstance(archive, np.ndarray):
                raise DataError(f"{path} is a single array, not an .npz archive; save it with numpy.savez.")
            with archive:
                return {key: archive[key] for key in archive.files}
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


def fits_bytes(inputs: ArrayLike) -> bool:
    """Whether these are whole numbers from 0 to 255."""
    x = np.asarray(inputs) if not isinstance(inputs, list | tuple) else np.array(inputs, dtype=object)
    if x.dtype == object:
        return False
    if x.dtype == np.uint8:
        return x.size > 0
    return x.dtype.kind in "iu" and x.size > 0 and bool(x.min() >= 0) and bool(x.max() <= 255)


def check_same_scale(inputs: ArrayLike, test_inputs: ArrayLike) -> None:
    """Bytes are divided by 255 and floats are not, so one of each would be on different scales."""
    train, test = np.asarray(inputs), np.asarray(test_inputs)
    if train.ndim > 2 and (train.dtype.kind in "iu") != (test.dtype.kind in "iu"):
        raise DataError(
            f"the training images are {train.dtype} and the test images {test.dtype}; whole numbers are taken for bytes "
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
    """The same; what lies in a file in one of the two types stays there."""
    try:
        x = np.asarray(inputs)
    except ValueError:
        raise DataError(f"{what} are of mixed shapes; every row must have the same shape.") from None
    if x.dtype == object:
        raise DataError(f"{what} are of mixed shapes or not numbers; every row must be numbers of the same shape.")
    if x.dtype.kind not in "buif":
        raise DataError(f"{what} have type {x.dtype}; expected numbers (uint8 images, or floats).")
    if x.ndim not in (2, 3, 4):
        raise DataError(
            f"{what} have shape {x.shape}; expected [rows, features], or images [rows, height, width(, channels)]."
        )
    if 0 in x.shape[1:] or len(x) == 0:
        raise DataError(
            f"{what} have shape {x.shape}, which is empty; expected at least one row of at least one number."
        )
    take_bytes = x.ndim > 2 and bytes_allowed and fits_bytes(x)
    stays = is_mapped(x) and x.dtype == (np.uint8 if take_bytes else np.float32)
    source = _channels_first(x, layout, what, stays) if x.ndim > 2 else x
    if not stays:
        with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite and is refused below
            source = np.ascontiguousarray(source, dtype=np.uint8 if take_bytes else np.float32)
    if not take_bytes:
        _check_finite(source, what, given=x)
    return source


def _channels_first(x: Inputs, layout: str, what: str, stays: bool) -> Source:
    if x.ndim == 3:
        return x[:, None]
    if layout not in ("auto", "NHWC", "NCHW"):
        raise DataError(f"layout '{layout}' is not known; expected NHWC, NCHW or auto.")
    if layout == "auto":
        if x.shape[3] in CHANNEL_COUNTS:
            layout = "NHWC"
        elif x.shape[1] in CHANNEL_COUNTS:
            layout = "NCHW"
        else:
            raise DataError(
                f"{what} have shape {x.shape}, and neither the second nor the last number is a count of channels "
                "(1, 3 or 4); say layout='NHWC' or layout='NCHW'."
            )
    if layout == "NCHW":
        return x
    if stays:
        return Turned(x, (3, 1, 2))
    first = np.ascontiguousarray(x.transpose(0, 3, 1, 2))
    return first.reshape(-1).reshape(first.shape)  # a channel alone keeps odd strides otherwise, and other rounding


def matching(extra: Source, main: Source, name: str) -> Source:
    """Extra inputs in the main ones' shape and type, or a sentence why they cannot be."""
    if isinstance(extra, np.ndarray):
        if extra.dtype.kind not in "uif":
            raise DataError(f"{name} holds {extra.dtype}; expected numbers of the type {main.dtype}.")
        extra = _same_layout(extra, main.shape[1:])
    if 0 in extra.shape[:1]:
        raise DataError(f"{name} holds no rows; give it some, or leave the extra rows out.")
    if extra.ndim == 0 or extra.shape[1:] != main.shape[1:]:
        raise DataError(
            f"{name} holds an array of shape {extra.shape}; expected rows of shape {main.shape[1:]}, as the training inputs "
            "are, and arrays are not resized: bring them to that shape (the images of a folder are resized)."
        )
    if extra.dtype != main.dtype:
        extra = _same_type(extra, main, name)
    if extra.dtype.kind == "f":
        _check_finite(extra, name)
    return extra


def _same_layout(extra: NDArray[Any], shape: tuple[int, ...]) -> Source:
    """Channels last turned to channels first, and a channel put in where images have only one."""
    if len(shape) == 3 and extra.shape[1:] == (*shape[1:], shape[0]) != shape:
        return Turned(extra, (3, 1, 2))
    if len(shape) == 3 and shape[0] == 1 and extra.shape[1:] == shape[1:]:
        return extra[:, None]
    return extra


def _same_type(extra: Source, main: Source, name: str) -> Inputs:
    whole = extra.dtype.kind in "iu"
    if main.dtype == np.uint8 and whole and fits_bytes(values := np.asarray(extra)):
        return values.astype(np.uint8)
    if main.dtype == np.float32 and (main.ndim == 2 or not whole):
        with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite and is refused
            return np.asarray(extra).astype(np.float32)
    if main.dtype == np.uint8 and whole:
        raise DataError(
            f"{name} holds {extra.dtype} from {values.min()} to {values.max()}; the training inputs are bytes, so expected "
            "0 to 255."
        )
    raise DataError(
        f"{name} holds {extra.dtype} and the training inputs are {main.dtype}; bytes are scaled to 0..1 and floats are "
        "not, so give both in the same type."
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
