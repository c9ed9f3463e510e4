"""Element types: one small table that every part of the library reads.

A `DType` knows its size in bytes, its NumPy type (used by the machine model) and the names under which torch, NumPy and
CuTe DSL know it. Nothing here imports torch or cutlass.
"""

from __future__ import annotations

from typing import Any

import attrs
import ml_dtypes
import numpy as np

from tmapipe.errors import InputError

__all__ = [
    "DType", "as_dtype", "bf16", "dtype_of", "fp8_e4m3", "fp8_e5m2", "fp16", "fp32", "fp64", "int8", "int16",
    "int32", "int64", "tf32",
]  # fmt: skip


@attrs.frozen(repr=False)
class DType:
    """An element type.

    Args:
        name: The library's name, such as "bf16".
        bytes: Of an element.
        numpy: The NumPy scalar type of the machine model.
        torch: Name of the attribute in ``torch``.
        cute: Name of the attribute in ``cutlass``.
    """

    name: str
    bytes: int
    numpy: Any = attrs.field(eq=False)
    torch: str
    cute: str

    def __repr__(self) -> str:
        return self.name

    @property
    def integer(self) -> bool:
        return self.name.startswith("int")

    @property
    def kind(self) -> str:
        """Of what fragments hold of it: "int32" or "fp32". Raises `InputError` as `check_held`."""
        self.check_held("dtype")
        return "int32" if self.integer else "fp32"

    def check_held(self, where: str) -> None:
        """Raises `InputError` for types of 64 bits, which fragments do not hold. *where*: what is read or written."""
        if self.bytes > 4:
            rule = "is moved and reduced by the engine alone: what threads read and write has at most 32 bits"
            raise InputError(where, self.name, rule, "store from the slot (source=), or convert the tensor first")

    @property
    def in_memory(self) -> DType:
        """The element type of the tensors that this one is loaded from: fp32 for tf32, itself for all others."""
        return _BY_NAME[self.torch]


bf16 = DType("bf16", 2, ml_dtypes.bfloat16, "bfloat16", "BFloat16")
fp16 = DType("fp16", 2, np.float16, "float16", "Float16")
fp32 = DType("fp32", 4, np.float32, "float32", "Float32")
tf32 = DType("tf32", 4, np.float32, "float32", "Float32")  # fp32 rounded to 10 bits after the point, in 4 bytes
fp8_e4m3 = DType("fp8_e4m3", 1, ml_dtypes.float8_e4m3fn, "float8_e4m3fn", "Float8E4M3FN")
fp8_e5m2 = DType("fp8_e5m2", 1, ml_dtypes.float8_e5m2, "float8_e5m2", "Float8E5M2")
int8 = DType("int8", 1, np.int8, "int8", "Int8")
int16 = DType("int16", 2, np.int16, "int16", "Int16")
int32 = DType("int32", 4, np.int32, "int32", "Int32")
int64 = DType("int64", 8, np.int64, "int64", "Int64")
fp64 = DType("fp64", 8, np.float64, "float64", "Float64")

ALL = (bf16, fp16, fp32, tf32, fp8_e4m3, fp8_e5m2, int8, int16, int32, int64, fp64)
_BY_NAME = {d.name: d for d in ALL} | {d.torch: d for d in ALL if d is not tf32}


def as_dtype(value: DType | str) -> DType:
    """The `DType` named by *value* (``"bf16"``, ``"bfloat16"`` or a `DType`). Raises `InputError` for any other."""
    if isinstance(value, DType):
        return value
    if isinstance(value, str) and value in _BY_NAME:
        return _BY_NAME[value]
    rule = f"must be one of {', '.join(d.name for d in ALL)}"
    raise InputError("dtype", value, rule, "pass one of these names or a tmapipe.DType")


def dtype_of(array: Any, argument: str) -> DType:
    """The `DType` of a torch tensor or NumPy array. Raises `InputError` naming *argument* if it is not supported."""
    found = str(array.dtype).removeprefix("torch.")
    if found in _BY_NAME:
        return _BY_NAME[found]
    rule = f"element type must be one of {', '.join(dict.fromkeys(d.torch for d in ALL))}"
    raise InputError(argument, found, rule, "convert the tensor first")
