"""Read a user's arrays, and convert images to [rows, channels, height, width] and features to [rows, features]."""

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from selfens.data.rows import Array, Rows, is_mapped, pieces
from selfens.errors import DataError, plural
from selfens.files import check_regular

CHANNEL_COUNTS = (1, 3, 4)
PIXELS = (0.0, 1.0)  # the range of pixels as floats; bytes are divided by 255
TOLERANCE = 0.01  # how far floats may lie outside 0..1 and still be pixels
PIECE = 5000  # rows read at a time, because all of them may not fit into memory

Range = tuple[float, float]


# Files


def read_npy(path: Path) -> NDArray[Any]:
    """Return the array in an .npy file, memory-mapped."""
    with _file_errors(path):
        return np.lib.format.open_memmap(path, mode="r")


def read_npz(path: Path) -> dict[str, NDArray[Any]]:
    """Return the arrays of an .npz file. Arrays of Python objects are refused: reading them could run code."""
    with _file_errors(path), path.open("rb") as file:  # numpy leaves the file open if it cannot read it
        archive = np.load(file, allow_pickle=False)
        if isinstance(archive, np.ndarray):
            raise ValueError("it is a single array; save it with numpy.savez")
        with archive:
            return {key: archive[key] for key in archive.files}


def npz_shape(path: Path, name: str) -> tuple[int, ...] | None:
    """Return the shape of an array in an .npz file, from its header only; None if there is no such array."""
    with _file_errors(path), zipfile.ZipFile(path) as archive:
        if f"{name}.npy" not in archive.namelist():
            return None
        with archive.open(f"{name}.npy") as member:
            np.lib.format.read_magic(member)
            return np.lib.format.read_array_header_1_0(member)[0]  # the version that numpy writes for plain numbers


@contextmanager
def _file_errors(path: Path) -> Iterator[None]:
    """Turn any exception from reading a damaged file into one sentence."""
    try:
        check_regular(path)
        yield
    except (FileNotFoundError, IsADirectoryError):
        raise DataError(f"there is no file {path}; expected an array saved by numpy.") from None
    except Exception as error:  # zipfile, zlib and numpy raise a dozen kinds for damaged files
        reason = str(error).rstrip(".")
        if "allow_pickle" in reason:
            reason = "it holds Python objects, and reading them could run code"
        kind = path.suffix or "numpy"
        raise DataError(f"{path} is not a readable {kind} file of numbers or strings ({reason}).") from None


# Ranges of values


def fits_bytes(inputs: ArrayLike) -> bool:
    """Return True for an array of whole numbers from 0 to 255."""
    if isinstance(inputs, list | tuple):
        return False
    x = np.asarray(inputs)
    if x.dtype.kind not in "iu" or x.size == 0:
        return False
    return x.dtype == np.uint8 or bool(x.min() >= 0 and x.max() <= 255)


def value_range(images: Array) -> Range:
    """Return the smallest and largest value in images; always 0 and 255 for bytes."""
    if images.dtype == np.uint8:
        return 0.0, 255.0
    found = [(float(piece.min()), float(piece.max())) for piece in pieces(images, PIECE)]
    return min(low for low, _ in found), max(high for _, high in found)


def is_unit_range(limits: Range) -> bool:
    """Return True if all values lie in 0..1, up to a tolerance."""
    return limits[0] >= -TOLERANCE and limits[1] <= 1 + TOLERANCE


def same_scale(limits: Range, others: Range) -> bool:
    """Return True if `others` is plausibly on the same scale as `limits`: within one range of it on either side."""
    low, high = PIXELS if is_unit_range(limits) else limits
    return low - (high - low) < others[0] and others[1] < high + (high - low)


def are_pixels(images: Array) -> bool:
    """Return True for bytes, or floats in 0..1, if some are in the upper half; otherwise it is unknown what white is."""
    if images.dtype == np.uint8:
        return any(bool(piece.max() > 127) for piece in pieces(images, PIECE))
    limits = value_range(images)
    return is_unit_range(limits) and limits[1] > 0.5


# Training, test and new inputs


def standard_inputs(
    inputs: ArrayLike, *, layout: str = "auto", what: str = "the inputs", bytes_allowed: bool = True
) -> NDArray[Any]:
    """Return images as [rows, channels, height, width] and features as [rows, features].

    Bytes become uint8 and everything else float32. A memory-mapped array of one of these types stays mapped.
    """
    if np.ma.is_masked(inputs):
        raise DataError(f"{what} have masked values; fill them first.")
    try:
        x = np.asarray(inputs)
    except ValueError:
        raise DataError(f"{what} have mixed shapes; every row must have the same shape.") from None
    if x.dtype.kind not in "buif":
        raise DataError(f"{what} have type {x.dtype}; expected numbers, in rows of one shape.")
    channels_last = is_channels_last(x.shape, layout, what)
    kind = np.uint8 if x.ndim > 2 and bytes_allowed and fits_bytes(x) else np.float32
    if x.ndim == 3 or (channels_last and x.shape[3] == 1):
        x = x.reshape(len(x), 1, *x.shape[1:3])
    elif channels_last:
        x = x.transpose(0, 3, 1, 2)
    if not is_mapped(x) or x.dtype != kind:
        with np.errstate(over="ignore"):  # values that overflow float32 become infinite and are refused below
            x = np.ascontiguousarray(x, dtype=kind)
    if kind == np.float32:
        bad = [~np.isfinite(piece.reshape(len(piece), -1)).all(axis=1) for piece in pieces(x, PIECE)]
        refuse_rows(np.concatenate(bad), f"{what} hold NaN or infinite values (or beyond 3.4e38)")
    return x


def as_trained(
    inputs: ArrayLike, shape: tuple[int, ...], limits: Range | None, of_bytes: bool, where: str, what: str
) -> NDArray[Any]:
    """Return new inputs in the form that a network was trained on.

    Parameters
    ----------
    shape
        Shape of a training row.
    limits
        Range of the training images; None for vectors. Integers on this scale are used unchanged. If the limits are
        those of pixels, other integers from 0 to 255 are taken as bytes.
    of_bytes
        Whether the training images were bytes.
    where, what
        Names of the model and of the inputs in an error message.
    """
    raw = standard_inputs(inputs, layout=_layout_of(np.shape(inputs)[1:], shape), what=what)
    if raw.shape[1:] != shape:
        raise DataError(f"{what} have shape {raw.shape[1:]} per row; {where} was trained on {shape}.")
    is_bytes = raw.dtype == np.uint8
    if limits is None or (is_bytes and of_bytes):
        return raw
    limits = PIXELS if of_bytes else limits
    given, pixels = (float(raw.min()), float(raw.max())), is_unit_range(limits)
    if same_scale(limits, given):
        return raw.astype(np.float32, copy=False)
    if is_bytes and pixels:
        return raw
    trained = "bytes, or floats from 0 to 1" if pixels else f"images from {limits[0]:g} to {limits[1]:g}"
    ours = f"{given[0]:g} to {given[1]:g}"
    raise DataError(f"{what} range from {ours}, but {where} was trained on {trained}; use the same scale.")


def is_channels_last(shape: tuple[int, ...], layout: str = "auto", what: str = "the inputs") -> bool:
    """Return True if inputs of this shape are images with channels last; refuse a shape that cannot be trained on."""
    if len(shape) not in (2, 3, 4) or 0 in shape:
        found = f"{shape}{', which is empty' if 0 in shape else ''}"
        raise DataError(f"{what} have shape {found}; expected [rows, features] or [rows, height, width(, channels)].")
    if layout not in ("auto", "NHWC", "NCHW"):
        raise DataError(f"layout is '{layout}'; expected NHWC, NCHW or auto.")
    if len(shape) < 4 or layout != "auto":
        return len(shape) == 4 and layout == "NHWC"
    if shape[3] not in CHANNEL_COUNTS and shape[1] not in CHANNEL_COUNTS:
        unclear = f"{shape}, and neither the second nor the last number is a channel count (1, 3 or 4)"
        raise DataError(f"{what} have shape {unclear}; pass layout='NHWC' or layout='NCHW' to Dataset.from_arrays.")
    return shape[3] in CHANNEL_COUNTS


def _layout_of(given: tuple[int, ...], shape: tuple[int, ...]) -> str:
    """Return the layout of images of shape `given`, which are to be used with images of `shape`, [channels, height, width]."""
    return "NHWC" if given == (*shape[1:], *shape[:1]) != shape else "NCHW"


def image_side(shape: tuple[int, ...]) -> int | None:
    """Return the smaller side of images of this shape; None for feature vectors."""
    sides = shape[1:3] if is_channels_last(shape) else shape[-2:]
    return min(sides) if len(shape) > 2 else None


def matching(extra: Array, main: Array, name: str) -> Array:
    """Return extra inputs in the shape and type of the main ones, or refuse them."""
    if main.dtype.kind in "OU" and extra.dtype.kind in "OU" and extra.ndim == main.ndim:
        return extra  # strings or other objects, which the encoder checks
    is_bytes, given = main.dtype == np.uint8, extra.dtype
    mixed = given.kind not in "uif" or (main.ndim == 4 and (given.kind == "f") == is_bytes)
    if isinstance(extra, np.ndarray) and not mixed:
        layout = _layout_of(extra.shape[1:], main.shape[1:])
        extra = standard_inputs(extra, layout=layout, what=name, bytes_allowed=is_bytes)
    if mixed or extra.dtype != main.dtype or extra.shape[1:] != main.shape[1:]:
        ours = f"the training inputs {main.shape[1:]} and {main.dtype}"
        hint = "expected the same (arrays are not resized, and images of integers from 0 to 255 are bytes)"
        raise DataError(f"{name} holds rows of shape {extra.shape[1:]} and type {given}, {ours}; {hint}.")
    if main.ndim == 4 and len(extra) and not same_scale(limits := value_range(main), others := value_range(extra)):
        ours = f"the training images range from {limits[0]:g} to {limits[1]:g}"
        raise DataError(f"{name} holds images from {others[0]:g} to {others[1]:g}, and {ours}; use the same scale.")
    return extra


def refuse_rows(bad: NDArray[np.bool_], found: str, numbers: Rows | None = None) -> None:
    """Raise a DataError that names the first bad row, if there is one. `numbers` are the rows' numbers; default: 0, 1, ..."""
    rows = np.flatnonzero(bad) if numbers is None else numbers[bad]
    if len(rows):
        first = f"{plural(len(rows), 'row')} (the first is row {rows[0]})"
        raise DataError(f"{found} in {first}; fill, remove or rescale them.")
