"""The problem that a schedule is chosen for: a GEMM's sizes and types, and the device."""

from __future__ import annotations

import math
from typing import Any

import attrs

from tmapipe.bind.memory import check_kind
from tmapipe.bind.tensors import last_but_one
from tmapipe.dtypes import DType, as_dtype, bf16, dtype_of, fp8_e4m3, fp8_e5m2, fp16, fp32, int32
from tmapipe.errors import InputError
from tmapipe.fields import is_count, must

__all__ = ["H200", "LINE", "Device", "Problem"]

LINE = 128  # bytes of a line of L2


def _positive(instance: Any, attribute: Any, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"Problem({attribute.name})", value, "is a positive number of elements", "pass the extent")


def _of_operands(problem: Any, attribute: Any, value: DType) -> None:
    value.check_held("Problem(dtype)")


def _of_sums(problem: Any, attribute: Any, value: DType) -> None:
    known = (int32, bf16, fp16, fp32) if problem.dtype.integer else (bf16, fp16, fp32, fp8_e4m3, fp8_e5m2)
    if value not in known:
        rule = f"is a type that sums of {problem.dtype} products are stored in"
        raise InputError("Problem(out)", value, rule, f"one of {', '.join(dtype.name for dtype in known)}")


def _of_a_and_b(problem: Any, attribute: Any, value: Any) -> None:
    if not isinstance(value, tuple) or value not in [(of_a, of_b) for of_a in "km" for of_b in "kn"]:
        raise InputError("Problem(majors)", value, 'is "k" or "m" of a, and "k" or "n" of b', 'e.g. ("k", "n")')


def _of_rows(problem: Any, attribute: Any, value: Any) -> None:
    powers = (1, 2, 4, 8, 16, 32, 64, 128)
    if value is not None and not (isinstance(value, tuple) and len(value) == 3 and all(n in powers for n in value)):
        rule = "is what the bytes at which rows of a, b and d begin are multiples of: powers of 2 up to 128"
        raise InputError("Problem(aligned)", value, rule, "leave it out, or use Problem.of(a, b, out)")


@attrs.frozen
class Problem:
    """``d[l, m, n] = sum over k of a[l, m, k] * b[l, n, k]``.

    Args:
        m, n, k, batch: Extents (elements).
        dtype: Element type of a and b.
        out: Element type of d.
        majors: The dimensions along which a and b are contiguous, as in `tmapipe.schedules.Gemm`.
        aligned: What the bytes at which rows of a, b and d begin are multiples of: powers of 2, at most 128. None: their
            rows lie next to each other. Rows that begin within lines of 128 bytes are read more slowly.

    Raises:
        InputError: An extent is no positive integer, or `out`, `majors` or `aligned` do not go with the rest.
    """

    m: int = attrs.field(validator=_positive)
    n: int = attrs.field(validator=_positive)
    k: int = attrs.field(validator=_positive)
    dtype: DType = attrs.field(default=bf16, converter=as_dtype, validator=_of_operands)
    out: DType = attrs.field(default=bf16, converter=as_dtype, validator=_of_sums)
    batch: int = attrs.field(default=1, validator=_positive)
    majors: tuple[str, str] = attrs.field(default=("k", "k"), validator=_of_a_and_b)
    aligned: tuple[int, int, int] | None = attrs.field(default=None, validator=_of_rows)

    @classmethod
    def of(cls, a: Any, b: Any, out: Any = None, *, tf32: bool = False) -> Problem:
        """The problem of multiplying *a* by *b*; `majors` and `aligned` follow from their strides and addresses.

        Args:
            a: Torch tensor or NumPy array [m, k], or [l, m, k].
            b: The same [n, k], or [l, n, k].
            out: The result's tensor, or its element type; by default that of a, or int32 for int8.
            tf32: Whether fp32 operands are multiplied as tf32.

        Raises:
            InputError: The shapes or types do not fit.
        """
        for name, tensor in (("a", a), ("b", b)):
            check_kind(name, tensor)
            if tensor.ndim not in (2, 3):
                raise InputError(name, tuple(tensor.shape), "has two dimensions, or three with a batch", "reshape it")
        if a.ndim != b.ndim or a.shape[-1] != b.shape[-1] or tuple(a.shape[:-2]) != tuple(b.shape[:-2]):
            rule = f"agrees with a {tuple(a.shape)} in batch and k, as (n, k)"
            raise InputError("b", tuple(b.shape), rule, "transpose b if it is (k, n)")
        batch = int(a.shape[0]) if a.ndim == 3 else 1
        dtype = dtype_of(a, "a")
        d = out if hasattr(out, "strides") or hasattr(out, "data_ptr") else None
        if d is not None:
            check_kind("out", d)
            if tuple(d.shape) != (*a.shape[:-1], b.shape[-2]):
                rule = f"has the shape of the result, {(*a.shape[:-1], b.shape[-2])}"
                raise InputError("out", tuple(d.shape), rule, "pass the result's tensor, or its element type")
            out = dtype_of(d, "out")
        elif out is None:
            out = int32 if dtype.integer else dtype
        if tf32:
            if dtype != fp32:
                raise InputError("tf32", True, f"is for operands of fp32, these are {dtype}", "leave it out")
            dtype = as_dtype("tf32")
        majors = ("m" if last_but_one(a) else "k", "n" if last_but_one(b) else "k")
        found = cls(int(a.shape[-2]), int(b.shape[-2]), int(a.shape[-1]), dtype, out, batch, majors)
        rows = found.rows_at
        aligned = _rows_of(a, majors[0] == "m"), _rows_of(b, majors[1] == "n"), rows[2] if d is None else _rows_of(d)
        return found if aligned == rows else attrs.evolve(found, aligned=aligned)

    @property
    def rows_at(self) -> tuple[int, int, int]:
        """What the bytes at which rows of a, b and d begin are multiples of, up to 128."""
        if self.aligned is not None:
            return self.aligned
        of_a, of_b = (
            self.k if major == "k" else rows for rows, major in zip((self.m, self.n), self.majors, strict=True)
        )
        size = self.dtype.bytes
        return math.gcd(LINE, of_a * size), math.gcd(LINE, of_b * size), math.gcd(LINE, self.n * self.out.bytes)

    @property
    def flops(self) -> float:
        return 2.0 * self.batch * self.m * self.n * self.k

    @property
    def bytes(self) -> float:
        """Bytes that must cross the device's memory at least once."""
        inputs = (self.m + self.n) * self.k * self.dtype.bytes
        return float(self.batch * (inputs + self.m * self.n * self.out.bytes))

    def __str__(self) -> str:
        batch = f"{self.batch} x " if self.batch > 1 else ""
        majors = "" if self.majors == ("k", "k") else f", {self.majors[0]}- and {self.majors[1]}-major"
        rows = "" if self.aligned is None else ", rows at multiples of {}, {} and {} bytes".format(*self.aligned)
        return f"{batch}{self.m}x{self.n}x{self.k} {self.dtype} to {self.out}{majors}{rows}"


def _rows_of(tensor: Any, transposed: bool = False) -> int:
    """As `Problem.rows_at`, of a tensor. transposed: whether its last dimension but one is contiguous."""
    torch = hasattr(tensor, "data_ptr")
    size = tensor.element_size() if torch else tensor.itemsize
    start = tensor.data_ptr() if torch and tensor.is_cuda else 0  # no kernel reads it elsewhere
    strides = [s * size for s in tensor.stride()] if torch else list(tensor.strides)
    along = len(strides) - (2 if transposed else 1)
    pitches = (s for i, s in enumerate(strides) if i != along and tensor.shape[i] > 1)
    return math.gcd(LINE, start, *pitches)


def _of_clusters(value: Any) -> bool:
    return isinstance(value, tuple) and all(len(each) == 2 and all(map(is_count, each)) for each in value)


@attrs.frozen
class Device:
    """What the estimate knows of a GPU.

    Args:
        name: As CUDA reports it.
        multiprocessors: Number of SMs.
        clusters: (CTAs of a cluster, clusters that are resident at once) for each size, as cudaOccupancyMaxActiveClusters
            reports them with one CTA per SM.
        memory: GB/s of its memory: twice its clock, times the bytes of its bus.

    Raises:
        InputError: For any other value.
    """

    name: str = attrs.field(
        validator=must(lambda name: isinstance(name, str) and name != "", "is a name", 'e.g. "NVIDIA H200"')
    )
    multiprocessors: int = attrs.field(
        validator=must(lambda n: is_count(n) and n < 2**16, "is a positive number of SMs below 2^16", "e.g. 132")
    )
    clusters: tuple[tuple[int, int], ...] = attrs.field(
        validator=must(_of_clusters, "is a tuple of (CTAs of a cluster, resident clusters)", "e.g. ((1, 132), (2, 66))")
    )
    memory: float = attrs.field(
        default=4800.0,
        validator=must(
            lambda n: not isinstance(n, bool) and 0 < n < float("inf"), "is a positive number of GB/s", "e.g. 4800.0"
        ),
    )

    def resident(self, cluster_size: int) -> int:
        """How many clusters of *cluster_size* CTAs run at once."""
        return dict(self.clusters).get(cluster_size, self.multiprocessors // cluster_size)


#: The default device of `choose` and `ranked`.
H200 = Device("NVIDIA H200", 132, ((1, 132), (2, 66), (3, 39), (4, 30), (8, 15)))
