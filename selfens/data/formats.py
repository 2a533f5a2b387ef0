"""Two file formats, read without trusting the file: pickles of arrays, and MATLAB 5.

Unpickling a stranger's file can run code, so here a pickle is never unpickled: `pickletools` cuts it into operations, and
`PickleReader` carries out the few that the official files are made of, on plain values. A name in the file (`numpy.dtype`,
`os.system`) only selects a member of `_Word`; nothing is ever imported or called because a file says so. MATLAB's files
are taken apart here too, because `scipy.io.loadmat` crashes the whole process on some damaged ones.

What is wrong with a file is raised as ValueError (or one of the few others that reading bytes raises) for the caller to
put into a sentence.
"""

from __future__ import annotations

import pickletools
import struct
import zlib
from collections.abc import Iterator
from enum import Enum
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

LARGEST_CONTENT = 2**30  # the largest official file has 182 MB; a foreign one must not fill the memory first
Images = NDArray[np.uint8]
_MAT_MATRIX, _MAT_COMPRESSED = 14, 15
_MAT_NUMBERS = {1: "<i1", 2: "<u1", 3: "<i2", 4: "<u2", 5: "<i4", 6: "<u4", 7: "<f4", 9: "<f8", 12: "<i8", 13: "<u8"}


def matlab_arrays(content: bytes) -> dict[str, NDArray[Any]]:
    """The numeric arrays X and y of a MATLAB 5 file: a header, then elements, each perhaps compressed."""
    if content[124:128] != b"\x00\x01IM":  # version 1, little-endian
        raise ValueError("it does not begin as files of MATLAB 5 to 7 do")
    arrays = {}
    for kind, element in _mat_elements(memoryview(content)[128:]):
        if kind == _MAT_COMPRESSED:
            ((kind, element),) = _mat_elements(_decompressed(element))
        if kind == _MAT_MATRIX:
            _flags, (_, lengths), (_, name), (number_kind, numbers) = islice(_mat_elements(element), 4)
            if bytes(name) in (b"X", b"y"):
                arrays[bytes(name).decode()] = _mat_array(lengths, number_kind, numbers)
    return arrays


def _mat_elements(content: memoryview) -> Iterator[tuple[int, memoryview]]:
    """The kind and content of each element; one of up to four bytes shares the eight bytes of its header."""
    start = 0
    while start < len(content):
        kind, size = struct.unpack_from("<II", content, start)
        if kind >> 16:
            kind, size, first, following = kind & 0xFFFF, kind >> 16, start + 4, start + 8
        else:
            first = start + 8
            following = first + size + (0 if kind == _MAT_COMPRESSED else -size % 8)
        if following > len(content) or first + size > following:
            raise ValueError("it is cut short or damaged")
        yield kind, content[first : first + size]
        start = following


def _decompressed(content: memoryview) -> memoryview:
    stream = zlib.decompressobj()
    plain = stream.decompress(content, LARGEST_CONTENT)
    if not stream.eof:
        raise ValueError("its compressed part is cut short or too large")
    return memoryview(plain)


def _mat_array(lengths: memoryview, kind: int, numbers: memoryview) -> NDArray[Any]:
    if kind not in _MAT_NUMBERS:
        raise ValueError("it holds something other than numbers")
    shape = np.frombuffer(lengths, "<i4").tolist()
    if len(shape) > 4 or min(shape, default=0) < 0:
        raise ValueError("it holds an array of no possible shape")
    return np.frombuffer(numbers, _MAT_NUMBERS[kind]).reshape(shape, order="F")


class _Word(Enum):
    """All that a name in a pickle can mean."""

    NEW_ARRAY = "a function that makes an empty array"
    ARRAY = "the type of arrays"
    ELEMENT = "the function that makes a type of elements"
    UINT8 = "the only type of elements there is"
    ENCODE = "the function by which Python 3 writes bytes under protocol 2"


_WORDS = {
    "numpy.core.multiarray _reconstruct": _Word.NEW_ARRAY,
    "numpy._core.multiarray _reconstruct": _Word.NEW_ARRAY,
    "numpy ndarray": _Word.ARRAY,
    "numpy dtype": _Word.ELEMENT,
    "_codecs encode": _Word.ENCODE,
}
_NUMBERS = {"BININT1", "BININT2", "BININT", "INT", "LONG", "LONG1"}
_TEXTS = {"BINUNICODE", "SHORT_BINUNICODE", "UNICODE", "BINBYTES", "SHORT_BINBYTES"}
_MARK = object()


class PickledArray:
    """An array under construction: one operation makes it empty, a later one fills it."""

    values: Images | None = None

    def fill(self, state: Any) -> None:
        _version, shape, element, column_major, content = state
        if element is not _Word.UINT8 or not isinstance(content, bytes):
            raise ValueError("it holds an array of something other than uint8")
        rows, columns = shape
        if not (type(rows) is int and type(columns) is int and rows >= 0 and rows * columns == len(content)):
            raise ValueError("it holds an array whose shape does not fit its content")
        self.values = np.frombuffer(content, np.uint8).reshape(rows, columns, order="F" if column_major else "C")


class PickleReader:
    """Carries out the operations of a pickle on a stack of plain values."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.bytes_to_encode = len(content)  # encoding one long text again and again would fill the memory

    def read(self) -> Any:
        for operation, argument, _position in pickletools.genops(self.content):
            self._step(operation.name, argument)
        return self.stack.pop()

    def _step(self, operation: str, argument: Any) -> None:
        stack = self.stack
        match operation:
            case _ if operation in _NUMBERS or operation in _TEXTS:
                stack.append(argument)
            case "BINPUT" | "LONG_BINPUT" | "PUT":
                self.memo[argument] = stack[-1]
            case "MEMOIZE":
                self.memo[len(self.memo)] = stack[-1]
            case "SHORT_BINSTRING" | "BINSTRING" | "STRING":  # Python 2's bytes, which pickletools gives as text
                stack.append(argument.encode("latin-1"))
            case "BINGET" | "LONG_BINGET" | "GET":
                if argument not in self.memo:
                    raise ValueError("it refers to a value that it does not hold")
                stack.append(self.memo[argument])
            case "MARK":
                stack.append(_MARK)
            case "NONE" | "NEWTRUE" | "NEWFALSE":
                stack.append({"NONE": None, "NEWTRUE": True, "NEWFALSE": False}[operation])
            case "EMPTY_LIST" | "EMPTY_DICT" | "EMPTY_TUPLE":
                stack.append({"EMPTY_LIST": list, "EMPTY_DICT": dict, "EMPTY_TUPLE": tuple}[operation]())
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                stack.append(tuple(self._pop(int(operation[-1]))))
            case "TUPLE" | "LIST":
                values = self._pop_to_mark()
                stack.append(tuple(values) if operation == "TUPLE" else values)
            case "DICT":
                values = self._pop_to_mark()
                stack.append({})
                self._set_items(values)
            case "APPEND" | "APPENDS":
                values = self._pop(1) if operation == "APPEND" else self._pop_to_mark()
                self._top(list).extend(values)
            case "SETITEM" | "SETITEMS":
                self._set_items(self._pop(2) if operation == "SETITEM" else self._pop_to_mark())
            case "GLOBAL":
                stack.append(_word(argument))
            case "STACK_GLOBAL":
                stack.append(_word(" ".join(as_text(part) for part in self._pop(2))))
            case "REDUCE":
                function, arguments = self._pop(2)
                stack.append(self._call(function, arguments))
            case "BUILD":
                (state,) = self._pop(1)
                if stack[-1] is not _Word.UINT8:  # its state is the byte order, of which one byte has none
                    self._top(PickledArray).fill(state)
            case "PROTO" | "FRAME" | "STOP":
                pass
            case _:
                raise ValueError(f"it uses the operation {operation}, which no official file needs")

    def _call(self, function: Any, arguments: Any) -> Any:
        """The only three calls that the official files make: CIFAR's."""
        match function, arguments:
            case _Word.NEW_ARRAY, (_Word.ARRAY, _, _):
                return PickledArray()
            case _Word.ELEMENT, ("u1" | b"u1", _, _):
                return _Word.UINT8
            case _Word.ENCODE, (str(text), "latin1" | b"latin1"):
                self.bytes_to_encode -= len(text)
                if self.bytes_to_encode >= 0:
                    return text.encode("latin-1")
        raise ValueError("it makes a call that no official file makes")

    def _set_items(self, items: list[Any]) -> None:
        target = self._top(dict)
        for key, value in zip(items[::2], items[1::2], strict=True):
            target[as_text(key)] = value

    def _top(self, kind: type) -> Any:
        if not isinstance(self.stack[-1], kind):
            raise ValueError(f"it changes a {type(self.stack[-1]).__name__} as if it were a {kind.__name__}")
        return self.stack[-1]

    def _pop(self, count: int) -> list[Any]:
        if len(self.stack) < count:
            raise ValueError("it takes a value that is not there")
        values = self.stack[-count:]
        del self.stack[-count:]
        return values

    def _pop_to_mark(self) -> list[Any]:
        values = []
        while (value := self.stack.pop()) is not _MARK:
            values.append(value)
        return values[::-1]


def _word(name: str) -> _Word:
    if name not in _WORDS:
        raise ValueError(f"it asks for {name[:60]!r}, which no official file needs and which was not run")
    return _WORDS[name]


def as_text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if not isinstance(value, str):
        raise ValueError(f"it holds a {type(value).__name__} where a name belongs")
    return value
