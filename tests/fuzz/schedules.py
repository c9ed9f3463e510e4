"""The schedules that are called, small, and what NumPy says that they compute.

This is the only file of the generator that spells out the options of schedules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs
import ml_dtypes
import numpy as np

import tmapipe as tp

__all__ = ["SCHEDULES", "Schedule", "product"]

S = tp.schedules
TYPES = {
    "bf16": ml_dtypes.bfloat16, "fp16": np.float16, "fp32": np.float32, "int8": np.int8, "int32": np.int32,
    "fp8_e4m3": ml_dtypes.float8_e4m3fn, "fp8_e5m2": ml_dtypes.float8_e5m2,
}  # fmt: skip
Arrays = Mapping[str, np.ndarray]
Expected = tuple[np.ndarray, np.ndarray]  # the value, and the sum of magnitudes that it was rounded in


@attrs.frozen
class Schedule:
    """A schedule to call.

    Args:
        name: of it
        make: makes it
        dims: of each input, by name, e.g. "m k"
        dtypes: element types of its inputs
        expected: what comes of the inputs; None if their shapes do not go together
    """

    name: str
    make: Callable[[], Any]
    dims: Mapping[str, str]
    dtypes: tuple[str, ...]
    expected: Callable[[Arrays], Expected | None]
    _made: list[Any] = attrs.field(factory=list)

    @property
    def schedule(self) -> Any:
        if not self._made:
            self._made.append(self.make())
        return self._made[0]

    @property
    def inputs(self) -> tuple[str, ...]:
        return tuple(self.dims)

    def tensors(self, sizes: Mapping[str, int], dtype: str, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Inputs of these sizes: small whole numbers."""
        made = {}
        for name, dims in self.dims.items():
            shape = tuple(sizes[dim] for dim in dims.split())
            kind = TYPES["int32" if name == "offsets" else dtype]
            values = rng.integers(-3, 4, shape)
            if name == "offsets":
                values = np.sort(rng.integers(0, sizes["m"] + 1, shape))
                values[-1] = sizes["m"]
            made[name] = values.astype(kind)
        return made

    def named(self, positional: list[Any], named: Mapping[str, Any]) -> dict[str, Any]:
        """The inputs by name."""
        return {**dict(zip((name for name in self.inputs if name not in named), positional, strict=False)), **named}


def product(a: np.ndarray, b: np.ndarray) -> Expected | None:
    """a b^T in float64, of matrices or of stacks of as many."""
    if not (2 <= a.ndim <= 3 and 2 <= b.ndim <= 3) or a.shape[-1] != b.shape[-1]:
        return None
    stacks = [x.shape[0] if x.ndim == 3 else 1 for x in (a, b)]
    if stacks[0] != stacks[1]:
        return None
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    value, size = wide_a @ wide_b.swapaxes(-1, -2), np.abs(wide_a) @ np.abs(wide_b).swapaxes(-1, -2)
    return (value, size) if a.ndim == 3 else (value.reshape(value.shape[-2:]), size.reshape(value.shape[-2:]))


def _gemm(given: Arrays) -> Expected | None:
    return product(given["a"], given["b"])


def _split(given: Arrays) -> Expected | None:
    return product(given["a"], given["b"]) if given["a"].ndim == given["b"].ndim == 2 else None


def _gated(given: Arrays) -> Expected | None:
    gate, up = (product(given["a"], given[name]) for name in ("gate", "up"))
    if gate is None or up is None or gate[0].shape != up[0].shape:
        return None
    return gate[0] * 2 - up[0], gate[1] * 2 + up[1]


def _grouped(given: Arrays) -> Expected | None:
    a, b, offsets = given["a"], given["b"], given["offsets"]
    b = b[None] if b.ndim == 2 else b  # one group
    if a.ndim != 2 or b.ndim != 3 or a.shape[1] != b.shape[2] or offsets.shape != (b.shape[0],):
        return None
    value, size = np.zeros((2, a.shape[0], b.shape[1]))
    start = 0
    for end, weights in zip(offsets.tolist(), b, strict=True):
        part = product(a[start:end], weights)
        assert part is not None
        value[start:end], size[start:end] = part
        start = end
    return value, size


def _with_bias(given: Arrays) -> Expected | None:
    found, bias = product(given["a"], given["b"]), given["bias"]
    if found is None or bias.shape != (found[0].shape[-1],):
        return None
    return np.maximum(found[0] + bias, 0), found[1] + np.abs(bias.astype(np.float64))


def _sum(given: Arrays) -> Expected | None:
    x = given["x"].astype(np.float64)
    x = x[None] if x.ndim == 2 else x  # one part
    if x.ndim not in (3, 4):
        return None
    return x.sum(-3), np.abs(x).sum(-3) * max(1, x.shape[-3])  # of each matrix of a batch


def _same(given: Arrays) -> Expected | None:
    return given["x"].astype(np.float64), np.zeros(given["x"].shape)


SMALL: tuple[Any, ...] = ((64, 64, 32), (1, 1), 2)
FLOATS = ("bf16", "fp16")
SCHEDULES = (
    Schedule("Copy", lambda: S.Copy((4, 64), 3, 1), {"x": "m n"}, tuple(TYPES), _same),
    Schedule("Gemm", lambda: S.Gemm(*SMALL), {"a": "m k", "b": "n k"}, FLOATS, _gemm),
    Schedule("Gemm, batch", lambda: S.Gemm(*SMALL), {"a": "l m k", "b": "l n k"}, (*FLOATS, "int8", "fp8_e4m3"), _gemm),
    Schedule("Gemm, clusters", lambda: S.Gemm((128, 64, 64), (2, 1)), {"a": "m k", "b": "n k"}, FLOATS, _gemm),
    Schedule("PingPong", lambda: S.PingPong(*SMALL), {"a": "m k", "b": "n k"}, FLOATS, _gemm),
    Schedule(
        "GatedGemm",
        lambda: S.GatedGemm(*SMALL, epilogue=lambda gate, up: gate * 2 - up),
        {"a": "m k", "gate": "n k", "up": "n k"},
        FLOATS,
        _gated,
    ),
    Schedule(
        "GroupedGemm", lambda: S.GroupedGemm(*SMALL), {"a": "m k", "b": "l n k", "offsets": "l"}, FLOATS, _grouped
    ),
    Schedule("SplitK", lambda: S.SplitK(2, *SMALL), {"a": "m k", "b": "n k"}, FLOATS, _gemm),
    Schedule("SplitK, added", lambda: S.SplitK(2, *SMALL, reduce="add"), {"a": "m k", "b": "n k"}, FLOATS, _split),
    Schedule("StreamK", lambda: S.StreamK(3, *SMALL), {"a": "m k", "b": "n k"}, FLOATS, _split),
    Schedule("AddParts", lambda: S.AddParts((4, 64), 2), {"x": "s m n"}, (*FLOATS, "fp32", "int32"), _sum),
)
