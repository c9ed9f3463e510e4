"""The lowest package. This file has groups of CTAs in a cluster (`MulticastGroup`) and the descriptor of a tensor
(`TensorMap`).

Other files: `arithmetic` has numbers and their types, `tma_rules` the rules of the TMA engine, and `disk` files that processes
share.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import attrs
import numpy as np

from tmapipe.base import tma_rules
from tmapipe.errors import IS_BOOL, InputError, MissingGpuError, as_tuple, is_count, must, optional, require

T = TypeVar("T")
# ---- multicast -------------------------------------------------------------------------------------------------------
#
# MulticastGroup, and the arithmetic of CTAs in a cluster: ranks, peers and masks, for any shape up to 16 CTAs.


MAX_CLUSTER = 16  # CTAs; above 8 the kernel asks for a non-portable cluster size (CUDA programming guide)


def _differ(axes: Any) -> bool:
    return bool(axes) and all(isinstance(axis, str) for axis in axes) and len(set(axes)) == len(axes)


@attrs.frozen(init=False, repr=False)
class MulticastGroup:
    """The CTAs of a cluster that want the same tile: all CTAs that differ only along *axes* of the cluster.

    In a GEMM, CTAs along ``"n"`` share the tile of A, and CTAs along ``"m"`` share the tile of B. So the stage of A has
    ``multicast=MulticastGroup("n")``. Each of the g peers loads 1/g of the tile, and the hardware writes it to all g peers.
    Along an axis of extent 1, the group is a single CTA, and nothing is multicast.

    Args:
        axes: Names of axes of the cluster.
        whole: Whether the first CTA of the group loads all of the tile, and the other CTAs nothing, as for a tile that cannot
            be cut into g equal parts.
        ctas: How many CTAs side by side along the one axis make a group, if not all of them do. With 2, in a cluster of four,
            the first two CTAs share one tile and the last two another tile.

    Raises:
        InputError: *axes* are not one or more different names, or *ctas* is less than two or given with several axes.
    """

    axes: tuple[str, ...] = attrs.field(
        validator=must(_differ, "needs the names of one or more different axes", "name each axis once")
    )

    whole: bool = attrs.field(default=False, validator=IS_BOOL)

    ctas: int | None = attrs.field(default=None)

    def __init__(self, *axes: str, whole: bool = False, ctas: int | None = None):
        self.__attrs_init__(axes, whole, ctas)

    @ctas.validator
    def _check_ctas(self, field: object, ctas: object) -> None:
        if ctas is not None and (not is_count(ctas) or ctas == 1 or len(self.axes) > 1):
            rule = "is a number of CTAs side by side along one axis, two or more"
            raise InputError("MulticastGroup(ctas)", ctas, rule, "leave it out for all along the axes")

    def __repr__(self) -> str:
        unlike = (", whole=True" if self.whole else "") + (f", ctas={self.ctas}" if self.ctas else "")
        return f"MulticastGroup({', '.join(map(repr, self.axes))}{unlike})"

    def along(self, cluster: Mapping[str, int]) -> tuple[Along, ...]:
        """How the CTAs of a group lie in a *cluster* of these extents by axis; empty if each CTA is alone. Raises `InputError`
        unless groups of `ctas` CTAs divide an axis."""
        axes = along(cluster, self.axes)
        if self.ctas is None:
            return axes
        (axis,), extent = self.axes, cluster.get(self.axes[0], 1)
        if extent % self.ctas:
            rule = f"divides the cluster's {extent} CTAs along {axis}"
            raise InputError("MulticastGroup(ctas)", self.ctas, rule, f'e.g. cluster = {{"{axis}": {2 * self.ctas}}}')
        return (axes[0]._replace(ctas=self.ctas),)

    def size(self, cluster: Mapping[str, int]) -> int:
        """CTAs in a group. Axes that the cluster lacks count 1."""
        return math.prod(each.ctas for each in self.along(cluster))


#: Validators of fields that hold a group, or None.
_RULE = ("is a MulticastGroup: the CTAs of the cluster that differ only along these axes", 'e.g. MulticastGroup("n")')
optional_group = must(optional(lambda group: isinstance(group, MulticastGroup)), *_RULE)


def check_cluster(cluster: Mapping[str, int], most: int = MAX_CLUSTER) -> None:
    """Raises `InputError` unless *cluster* maps axes to positive extents of at most *most* CTAs in all."""
    if not isinstance(cluster, Mapping):
        raise InputError("cluster", cluster, "maps dimensions of the output to numbers of CTAs", 'e.g. {"m": 2}')
    for axis, size in cluster.items():
        require(is_count(size), f"cluster[{axis!r}]", size, "a cluster extent is a positive integer", "use 1, 2 or 4")
    total = math.prod(cluster.values())
    if total > most:
        shape = " x ".join(map(str, cluster.values())) + f" = {total}" * (len(cluster) > 1)
        raise InputError("cluster", cluster, f"is {shape} CTAs, but a cluster has at most {most}", "use a smaller one")


def rank_stride(cluster: Mapping[str, int], axis: str) -> int:
    """By how much a CTA's rank grows with one step along *axis*."""
    names = list(cluster)
    return math.prod(cluster[name] for name in names[: names.index(axis)])


class Along(NamedTuple):
    """CTAs of a group, side by side along one axis of the cluster.

    ctas: how many; extent: CTAs along the axis in all; stride: by how much the rank grows from one to the next.
    """

    axis: str
    ctas: int
    extent: int
    stride: int

    def __str__(self) -> str:
        return self.axis if self.ctas == self.extent else f"{self.axis} ({self.ctas} of {self.extent} CTAs)"


def along(cluster: Mapping[str, int], axes: Iterable[str]) -> tuple[Along, ...]:
    """All CTAs along each of *axes*, without axes along which there is only one CTA."""
    several = ((axis, cluster[axis]) for axis in axes if cluster.get(axis, 1) > 1)
    return tuple(Along(axis, extent, extent, rank_stride(cluster, axis)) for axis, extent in several)


def peer_pattern(group: Iterable[Along]) -> int:
    """The mask of the peers of the CTA at the cluster's origin: bit r is set for rank r."""
    ranks = [0]
    for each in group:
        ranks = [rank + i * each.stride for rank in ranks for i in range(each.ctas)]
    return sum(1 << rank for rank in ranks)


# ---- tensor map ------------------------------------------------------------------------------------------------------
#
# TensorMap: the descriptor through which the TMA engine finds tiles, with every rule of the driver checked on a CPU.


_FLOAT8 = ("e4m3", "e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz", "e8m0fnu")
#: What torch and NumPy call an element type -> what descriptors do, where that differs.
_TYPES_OF_TENSORS = {
    "bool": "uint8", "int8": "uint8", "int16": "uint16", "float16": "fp16", "bfloat16": "bf16", "float32": "fp32",
    "float64": "fp64", **{f"float8_{form}": "uint8" for form in _FLOAT8},
}  # fmt: skip


_corner = must(
    lambda corner: isinstance(corner, tuple), "has a number for each dimension of the image", "e.g. (-1, -1)"
)


@attrs.frozen
class Im2colBox:
    """The box of one im2col load: some channels of some pixels, in the order in which a convolution's windows meet them.

    Args:
        lower: Where the first pixels of windows begin, relative to the image's first pixel: one number for each of the image's
            1 to 3 dimensions, negative with padding.
        upper: Where they end, relative to the image's last pixel.
        channels: Elements along the contiguous dimension, 1 to 256.
        pixels: How many pixels, 1 to 1024.
    """

    lower: tuple[int, ...] = attrs.field(converter=as_tuple, validator=_corner)
    upper: tuple[int, ...] = attrs.field(converter=as_tuple, validator=_corner)
    channels: int
    pixels: int


@attrs.frozen(init=False, repr=False)
class TensorMap:
    """The descriptor (128 bytes) of a tensor, and of the boxes in which the TMA engine moves it.

    Every rule of ``cuTensorMapEncodeTiled`` and ``cuTensorMapEncodeIm2col`` is checked here; only `encode` needs a driver.
    Sequences have one entry for each dimension of the tensor, in the tensor's order, so the entry for the contiguous dimension
    is the last.

    Args:
        tensor: A torch tensor, a NumPy array, or an object that has a ``__cuda_array_interface__``. The descriptor does not
            keep the tensor: see that it lives.
        box: How many elements one load or store moves, 1 to 256 along each dimension; or an `Im2colBox`.
        dtype: How the engine sees the elements, by default as their own type: uint8, uint16, uint32, int32, uint64, int64,
            fp16, bf16, fp32, fp64, fp32_ftz, tf32, tf32_ftz. For a tensor of bytes also 16u4_align8b, 16u4_align16b and
            16u6_align16b (not on sm_90), whose box counts numbers of 4 or 6 bits.
        steps: A step of s, 1 to 8, along a dimension moves every s-th element. A box of n x s elements then moves n. Along the
            contiguous dimension a step counts only with interleave.
        interleave: 0, 16 or 32 (bytes of channels that lie together).
        swizzle: The swizzle span (bytes) 0, 32, 64 or 128; "128 atom 32", "128 atom 32 flip 8" or "128 atom 64" (not on
            sm_90).
        l2_promotion: How many bytes L2 fetches at once: 0 (as many as are asked for), 64, 128 or 256.
        fill: What loads find outside of the tensor: "zeros", or for floating types "nan".

    Raises:
        InputError: A rule is broken.
    """

    address: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # bytes, of all dimensions but the last
    box: tuple[int, ...] | Im2colBox
    steps: tuple[int, ...]
    interleave: int
    swizzle: int | str
    l2_promotion: int
    fill: str

    def __init__(
        self,
        tensor: Any,
        box: Sequence[int] | Im2colBox,
        *,
        dtype: str | None = None,
        steps: Sequence[int] | None = None,
        interleave: int = 0,
        swizzle: int | str = 0,
        l2_promotion: int = 0,
        fill: str = "zeros",
    ):
        options: Any = {"interleave": interleave, "swizzle": swizzle, "l2_promotion": l2_promotion, "fill": fill}
        for name, value in options.items():
            tma_rules.check_option(name, value)
        address, shape, strides, size, own = _memory(tensor)
        tma_rules.check_rank("tensor.shape", shape, interleave, isinstance(box, Im2colBox))
        kind = _dtype(dtype, own, size)
        seen = (*shape[:-1], shape[-1] * size * 8 // tma_rules.TYPES[kind].bits)
        tma_rules.check_extents("tensor.shape", seen, kind)
        unit = 32 if interleave == 32 or tma_rules.TYPES[kind].padded else tma_rules.ALIGNMENT
        tma_rules.check_address("tensor.data_ptr()", address, unit)
        tma_rules.check_contiguous("tensor.stride", shape, strides, "make it so, or put the contiguous dimension last")
        tma_rules.check_strides("tensor.stride", shape, strides, size, unit)
        given = (1,) * len(shape) if steps is None else _sequence("steps", steps, len(shape))
        tma_rules.check_steps("steps", given)
        if isinstance(box, Im2colBox):
            tma_rules.check_im2col(seen, box.lower, box.upper, box.channels, box.pixels)
            tma_rules.check_inner("Im2colBox(channels)", box.channels, kind, interleave, swizzle)
            tma_rules.check_bytes("Im2colBox(channels, pixels)", box, box.channels * box.pixels, kind)
        else:
            box = _sequence("box", box, len(shape))
            tma_rules.check_box("box", box)
            tma_rules.check_inner("box[-1]", box[-1], kind, interleave, swizzle)
            moved = [math.ceil(extent / step) for extent, step in zip(box[:-1], given, strict=False)]
            tma_rules.check_bytes("box", box, math.prod(moved) * box[-1], kind)
        if fill == "nan" and not tma_rules.TYPES[kind].floating:
            raise InputError("fill", fill, f"is for floating types, not for {kind}", 'leave it "zeros"')
        nbytes = tuple(stride * size for stride in _valid(shape, strides, size, unit))
        self.__attrs_init__(address, kind, seen, nbytes, box, given, **options)

    def encode(self) -> bytes:
        """The 128 bytes, for a kernel's ``const __grid_constant__ CUtensorMap`` or, aligned to 64 bytes, for its memory.

        Raises:
            MissingGpuError: There is no CUDA driver.
            InputError: The driver refuses what passes all documented rules.
        """
        from cuda.bindings import driver

        def named(kind: str, what: str) -> Any:
            return getattr(getattr(driver, f"CUtensorMap{kind}"), what)

        count = driver.cuuint64_t
        small = driver.cuuint32_t
        kind = named("DataType", f"CU_TENSOR_MAP_DATA_TYPE_{tma_rules.TYPES[self.dtype].driver}")
        # Of one dimension none counts, but some must be given.
        strides = _reversed(count, self.strides) or [count(tma_rules.ALIGNMENT)]
        tensor = (kind, len(self.shape), self.address, _reversed(count, self.shape), strides)
        how = [_reversed(small, self.steps)]
        for name, (option, prefix, known) in tma_rules.OPTIONS.items():
            how.append(named(option, f"CU_TENSOR_MAP_{prefix}_{known[getattr(self, name)]}"))
        try:
            if isinstance(self.box, Im2colBox):
                corners = _reversed(int, self.box.lower), _reversed(int, self.box.upper)
                error, made = driver.cuTensorMapEncodeIm2col(
                    *tensor, *corners, self.box.channels, self.box.pixels, *how
                )
            else:
                error, made = driver.cuTensorMapEncodeTiled(*tensor, _reversed(small, self.box), *how)
        except RuntimeError as missing:
            raise MissingGpuError("there is no CUDA driver here, and it is what encodes a TensorMap.") from missing
        require(not error, "TensorMap", self, f"is refused by the driver ({error.name})", "see its documentation")
        return b"".join(int(word).to_bytes(8, "little") for word in made.opaque)

    def __repr__(self) -> str:
        text = [self.dtype, f"shape={self.shape}", f"strides={self.strides} bytes", f"box={self.box}"]
        if set(self.steps) != {1}:
            text.append(f"steps={self.steps}")
        given = ((name, getattr(self, name), known) for name, (*_, known) in tma_rules.OPTIONS.items())
        text += [f"{name}={value!r}" for name, value, known in given if value != next(iter(known))]
        return f"TensorMap({', '.join(text)}, address={self.address:#x})"


# ---- what is given -------------------------------------------------------------------------------------------------------


def _valid(shape: Sequence[int], strides: Sequence[int], size: int, unit: int) -> list[int]:
    """Strides (elements) of all dimensions but the last; valid ones along extents of 1, where any will do."""
    valid: list[int] = []
    reach = shape[-1] * size
    for extent, stride in zip(reversed(shape[:-1]), reversed(strides[:-1]), strict=True):
        if extent == 1:
            stride = min(math.ceil(reach / unit) * unit, tma_rules.MAX_STRIDE - unit) // size
        valid.insert(0, stride)
        reach = stride * size * extent
    return valid


def _sequence(argument: str, value: Any, rank: int) -> tuple[Any, ...]:
    numbers = tuple(value) if isinstance(value, (tuple, list)) else ()
    if len(numbers) != rank:
        raise InputError(argument, value, f"has one number for each of the tensor's {rank} dimensions", "give so many")
    return numbers


def _reversed(make: Callable[[int], Any], values: Sequence[int]) -> list[Any]:
    """The values for the driver, whose order begins with the contiguous dimension."""
    return [make(value) for value in reversed(values)]


def _dtype(given: str | None, own: str | None, size: int) -> str:
    """The name of the element type. own: the tensor's type, None for a type that descriptors lack; size: bytes of an
    element."""
    name = own if given is None else given
    kind = tma_rules.TYPES.get(name) if isinstance(name, str) else None
    if kind is None or name is None:
        raise InputError("dtype", name, f"is one of {', '.join(tma_rules.TYPES)}", "use one of these")
    rule = f"has as many bytes as the tensor's elements ({size})" if kind.bits >= 8 else "is for a tensor of bytes"
    require(size == max(kind.bits // 8, 1), "dtype", name, rule, "view the tensor as another type")
    return name


def _memory(tensor: Any) -> tuple[int, tuple[int, ...], tuple[int, ...], int, str | None]:
    """(address, shape, strides in elements, bytes of an element, name of the element type or None)."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(tensor, torch.Tensor):
        size, kind = tensor.element_size(), str(tensor.dtype).removeprefix("torch.")
        return tensor.data_ptr(), tuple(tensor.shape), tuple(tensor.stride()), size, _TYPES_OF_TENSORS.get(kind, kind)
    if isinstance(tensor, np.ndarray):
        size, kind = tensor.itemsize, str(tensor.dtype)
        address, shape, nbytes = tensor.ctypes.data, tensor.shape, tensor.strides
    elif hasattr(tensor, "__cuda_array_interface__"):
        interface = tensor.__cuda_array_interface__
        size, kind = np.dtype(interface["typestr"]).itemsize, str(np.dtype(interface["typestr"]))
        address, shape = interface["data"][0], tuple(interface["shape"])
        dense = tuple(size * math.prod(shape[i + 1 :]) for i in range(len(shape)))
        nbytes = dense if interface.get("strides") is None else tuple(interface["strides"])
    else:
        rule = "is a torch tensor, a NumPy array, or has a __cuda_array_interface__"
        raise InputError("tensor", type(tensor).__name__, rule, "pass one of these")
    if any(extent > 1 and step % size for extent, step in zip(shape, nbytes, strict=True)):
        raise InputError("tensor.stride", nbytes, f"are whole elements of {size} bytes", "make it contiguous")
    return address, tuple(shape), tuple(step // size for step in nbytes), size, _TYPES_OF_TENSORS.get(kind, kind)


# ---- for a while -----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def replaced(owner: Any, name: str, value: T) -> Iterator[T]:
    """Gives an attribute another value, which it yields, until the scope is left."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield value
    finally:
        setattr(owner, name, before)


_rests = itertools.count()
_frozen = False  # whether there were frozen objects when that was last looked at: 40 ms where there are many


@contextlib.contextmanager
def collector_at_rest() -> Iterator[None]:
    """Turns the garbage collector off, where all that is made lives until the end: it would go over it again and again. What
    is still there then counts as old, or the collector would go over it at once. Not so if the user has frozen objects, which
    would come back."""
    global _frozen
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            number = next(_rests) % 16
            if number == 0:
                _frozen = gc.get_freeze_count() > 0
            if number == 15 and not _frozen:  # or cycles of many checks would pile up among what is old
                gc.collect()
            elif not _frozen:
                gc.freeze()
                gc.unfreeze()
            gc.enable()
