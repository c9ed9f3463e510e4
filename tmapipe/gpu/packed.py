"""The arguments of a launch in memory, as the C convention of Apache TVM FFI has them. A launch writes addresses and a stream
there and calls the kernel's host code: no tensor is converted.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import tvm_ffi

from tmapipe.dtypes import DType

INT, POINTER, TENSOR, ARRAY = 1, 4, 7, 71  # of TVM FFI, kinds of values
CUDA = 2  # of DLPack
CODES = {"bf": 4, "fp": 2, "in": 0}  # of DLPack
LOW = (1 << 64) - 1
REFERENCES = (1 << 32) + (1 << 20)  # nobody frees what is not counted down to 0

#: The words of one launch, where the arguments begin among them, and where the result is written.
Memory = tuple[Any, Any, Any]


class Packed:
    """A kernel's host code, with all arguments but addresses and the stream.

    Args:
        function: As `Code.function`.
        tensors: (type code, bits, extents, strides) of each, as DLPack has them.
        numbers: The launch's numbers.
        device: On which the tensors lie.
    """

    def __init__(
        self,
        function: Any,
        tensors: Sequence[tuple[int, int, Sequence[int], Sequence[int]]],
        numbers: Sequence[int],
        device: int,
    ):
        self.function = function
        self.words: list[int] = []
        self.inner: list[tuple[int, int]] = []  # words that are addresses of other words
        self.places: list[int] = []  # of the tensors' addresses
        words = self.words
        words += [0, 0, ARRAY, 0, ARRAY, 0, POINTER, 0]  # the result, then three arguments
        self.stream = 7
        self._array(3, [self._tensor(*tensor, device) for tensor in tensors])
        self._array(5, [(INT, number & LOW, None) for number in numbers])
        library = ctypes.PyDLL(tvm_ffi.libinfo.find_libtvm_ffi())  # which keeps the GIL: nobody else writes meanwhile
        self.call = library.TVMFFIFunctionCall
        self.call.restype = ctypes.c_int
        self.handle, self.count = ctypes.c_void_p(function.__chandle__()), ctypes.c_int(3)
        self.free: list[Memory] = []  # each is one thread's while it launches

    def _point(self, word: int, at: int) -> None:
        self.inner.append((word, at))

    def _tensor(
        self, code: int, bits: int, shape: Sequence[int], strides: Sequence[int], device: int
    ) -> tuple[int, int, int]:
        """A DLTensor; the value that points to it."""
        words, first = self.words, len(self.words)
        words += [0, CUDA | device << 32, len(shape) | code << 32 | bits << 40 | 1 << 48, 0, 0, 0]
        for word, values in ((first + 3, shape), (first + 4, strides)):
            self._point(word, len(words))
            words += [int(value) & LOW for value in values] or [0]
        self.places.append(first)
        return TENSOR, 0, first

    def _array(self, argument: int, values: Sequence[tuple[int, int, int | None]]) -> None:
        """An Array of values; *argument*: the word that points to it."""
        words = self.words
        first = len(words)
        self._point(argument, first)
        words += [REFERENCES, ARRAY, 0, 0, len(values), len(values), 0]
        self._point(first + 3, len(words))
        for kind, value, to in values:
            if to is not None:
                self._point(len(words) + 1, to)
            words += [kind, value]

    def make(self, addresses: Sequence[int] = ()) -> Memory:
        """New memory of a launch, with the tensors' addresses if they are known."""
        buffer = (ctypes.c_uint64 * len(self.words))(*self.words)
        base = ctypes.addressof(buffer)
        for word, at in self.inner:
            buffer[word] = base + 8 * at
        for place, address in zip(self.places, addresses, strict=False):
            buffer[place] = address
        return memoryview(buffer).cast("B").cast("Q"), ctypes.c_void_p(base + 16), ctypes.c_void_p(base)

    def launch(self, addresses: Sequence[int], stream: int) -> bool:
        """Launches with tensors at these addresses; whether that could be done."""
        memory = self.take()
        words, arguments, result = memory
        for place, address in zip(self.places, addresses, strict=True):
            words[place] = address
        words[self.stream] = stream
        failed = self.call(self.handle, arguments, self.count, result)
        self.free.append(memory)
        return not failed

    def take(self) -> Memory:
        """Memory of a launch, which is put back into `free` after it."""
        try:
            return self.free.pop()
        except IndexError:
            return self.make()


def type_of(dtype: DType) -> tuple[int, int]:
    """(code, bits) of an element type in DLPack."""
    eight = {"fp8_e4m3": 10, "fp8_e5m2": 12}
    return eight.get(dtype.name, CODES.get(dtype.name[:2], 2)), 8 * dtype.bytes
