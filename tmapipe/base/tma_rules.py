"""The rules of the TMA engine for tensors and boxes, as the driver has them, and the windows of convolutions that it
finds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from tmapipe.base.arithmetic import DType
from tmapipe.errors import InputError, is_count, require

# ---- tma rules -------------------------------------------------------------------------------------------------------
#
# The rules of the TMA engine for tensors and boxes, as the driver has them (``cuTensorMapEncodeTiled``, ``...Im2col``).
#
# Sequences have one entry a dimension, the contiguous one last.


#: Bytes. Multiples of it are a tensor's address, its strides but the last, the rows of a box, and where a tile starts along
#: the contiguous dimension (https://github.com/triton-lang/triton/issues/7385).
ALIGNMENT = 16
MAX_BOX = 256  # elements along one extent of a box
MOST_EXTENT = 2**31 - 2**18  # of a tensor: places up to a tile beyond its end are numbers of 32 bits
MAX_BYTES = 227 * 1024  # of a box: shared memory of a CTA. Not documented; the driver (13.0, H200) refuses 240 KB
MAX_STRIDE = 2**40  # bytes
MAX_STEP = 8  # elements
MAX_PIXELS = 1024  # of one im2col load
CORNERS = {3: 2**15, 4: 2**7, 5: 2**4}  # dimensions of a tensor -> an im2col corner is in [-value, value)

#: Option of a descriptor -> the driver's type of it, the prefix of its names, and what is allowed, the default first, with how
#: the driver calls that.
OPTIONS: dict[str, tuple[str, str, dict[Any, str]]] = {
    "interleave": ("Interleave", "INTERLEAVE", {0: "NONE", 16: "16B", 32: "32B"}),
    "swizzle": ("Swizzle", "SWIZZLE", {
        0: "NONE", 32: "32B", 64: "64B", 128: "128B",
        "128 atom 32": "128B_ATOM_32B", "128 atom 32 flip 8": "128B_ATOM_32B_FLIP_8B", "128 atom 64": "128B_ATOM_64B",
    }),
    "l2_promotion": ("L2promotion", "L2_PROMOTION", {0: "NONE", 64: "L2_64B", 128: "L2_128B", 256: "L2_256B"}),
    "fill": ("FloatOOBfill", "FLOAT_OOB_FILL", {"zeros": "NONE", "nan": "NAN_REQUEST_ZERO_FMA"}),
}  # fmt: skip


@attrs.frozen
class TensorType:
    """An element type of descriptors.

    Args:
        driver: The driver's name for it.
        bits: How many bits an element has.
        floating: Whether it is a floating type.
        unit: Of how many elements the last extent must be a multiple.
        swizzles: The swizzles that it allows; None for all.
    """

    driver: str
    bits: int
    floating: bool = False
    unit: int = 1
    swizzles: tuple[int | str, ...] | None = None

    @property
    def padded(self) -> bool:
        """Whether 16 elements take 16 bytes of shared memory, with gaps."""
        return self.unit == 128

    def shared_bytes(self, elements: int) -> float:
        """How many bytes of shared memory a number of elements takes."""
        return elements if self.padded else elements * self.bits / 8


TYPES = {
    "uint8": TensorType("UINT8", 8),
    "uint16": TensorType("UINT16", 16),
    "uint32": TensorType("UINT32", 32),
    "int32": TensorType("INT32", 32),
    "uint64": TensorType("UINT64", 64),
    "int64": TensorType("INT64", 64),
    "fp16": TensorType("FLOAT16", 16, True),
    "fp32": TensorType("FLOAT32", 32, True),
    "fp64": TensorType("FLOAT64", 64, True),
    "bf16": TensorType("BFLOAT16", 16, True),
    "fp32_ftz": TensorType("FLOAT32_FTZ", 32, True),
    "tf32": TensorType("TFLOAT32", 32, True),
    "tf32_ftz": TensorType("TFLOAT32_FTZ", 32, True),
    "16u4_align8b": TensorType("16U4_ALIGN8B", 4, unit=2),
    "16u4_align16b": TensorType("16U4_ALIGN16B", 4, unit=128, swizzles=(0, 128, "128 atom 32")),
    "16u6_align16b": TensorType("16U6_ALIGN16B", 6, unit=128, swizzles=(0, 128, "128 atom 32", "128 atom 64")),
}


def type_of(dtype: DType) -> str:
    """The descriptor's name for the type of a stage's elements."""
    return "uint8" if dtype.bytes == 1 else "uint16" if dtype.name == "int16" else dtype.name


def check_option(name: str, value: Any) -> None:
    """Raises `InputError` unless the option called *name* can have this value."""
    *_, known = OPTIONS[name]
    if isinstance(value, bool) or not isinstance(value, (int, str)) or value not in known:
        raise InputError(name, value, f"is one of {', '.join(map(repr, known))}", "use one of these")


# ---- tensors -------------------------------------------------------------------------------------------------------------


def check_rank(argument: str, shape: Sequence[int], interleave: int, im2col: bool) -> None:
    """Raises `InputError` unless the engine takes tensors with this number of dimensions."""
    rule = "has 3 to 5 dimensions for im2col: images, one to three of their own, channels"
    require(not im2col or 3 <= len(shape) <= 5, argument, tuple(shape), rule, "add dimensions of extent 1")
    require(1 <= len(shape) <= 5, argument, tuple(shape), "has 1 to 5 dimensions", "merge some")
    if interleave and len(shape) < 3:
        raise InputError(argument, tuple(shape), "has 3 to 5 dimensions if it is interleaved", "add some of extent 1")


def check_address(argument: str, address: int, unit: int = ALIGNMENT) -> None:
    """Raises `InputError` unless an address is a multiple of *unit* bytes."""
    if address % unit:
        rule = f"must be a multiple of {unit} bytes"
        raise InputError(argument, hex(address), rule, "start the view at such an offset")


def check_contiguous(argument: str, shape: Sequence[int], strides: Sequence[int], fix: str) -> None:
    """Raises `InputError` unless the last dimension is contiguous."""
    if strides[-1] != 1 and shape[-1] > 1:
        raise InputError(argument, tuple(strides), "the last dimension must be contiguous (stride 1)", fix)


def check_strides(
    argument: str,
    shape: Sequence[int],
    strides: Sequence[int],
    size: int,
    unit: int = ALIGNMENT,
    who: str = "TMA needs",
    other: str = "",
) -> None:
    """Checks the strides of all dimensions except the last. Along an extent of 1, every stride is right.

    Args:
        argument: The name for errors.
        shape: The extents (elements).
        strides: The strides (elements).
        size: Bytes of an element.
        unit: Of how many bytes strides must be multiples.
        who: Who needs that, for errors.
        other: What else the user can do, for errors.

    Raises:
        InputError: A stride is no positive multiple of *unit* bytes below 2^40.
    """
    for extent, stride in zip(shape[:-1], strides[:-1], strict=True):
        if extent > 1 and (stride * size % unit or stride <= 0):
            rule = f"{stride} x {size} bytes is no positive multiple of {unit}, as {who}"
            fix = f"pad the rows to a multiple of {max(unit // size, 1)} elements" + (other and f", or {other}")
            fix = "copy it to a dense tensor" if stride <= 0 else fix
            raise InputError(argument, tuple(strides), rule, fix)
        if extent > 1 and stride * size >= MAX_STRIDE:
            raise InputError(argument, tuple(strides), "TMA strides are below 2^40 bytes", "use smaller tensors")


def check_extents(argument: str, shape: Sequence[int], dtype: str) -> None:
    """Raises `InputError` unless a descriptor can have these extents (elements of *dtype*)."""
    if not all(1 <= extent <= 2**32 for extent in shape):
        raise InputError(argument, tuple(shape), "has extents from 1 to 2^32 elements", "pass another tensor")
    unit = TYPES[dtype].unit
    rule = f"has a last extent that is a multiple of {unit} elements of {dtype}"
    require(shape[-1] % unit == 0, argument, tuple(shape), rule, "pad the rows")


# ---- boxes ---------------------------------------------------------------------------------------------------------------


def check_box(argument: str, box: Sequence[int], rows: int = MAX_BOX) -> None:
    """Raises `InputError` unless a box has 1 to 256 elements along each dimension, up to *rows* along the first."""
    for most, extent in zip((rows, *(MAX_BOX,) * (len(box) - 1)), box, strict=True):
        rule = f"a TMA box has at most {most} elements along an extent, and at least 1"
        require(is_count(extent) and extent <= most, argument, tuple(box), rule, "move smaller boxes")


def check_bytes(argument: str, box: Any, elements: int, dtype: str) -> None:
    """Raises `InputError` unless a box of *elements* elements fits into shared memory."""
    nbytes = TYPES[dtype].shared_bytes(elements)
    rule = f"is a box of {nbytes:g} bytes, more than the {MAX_BYTES} of a CTA's shared memory"
    require(nbytes <= MAX_BYTES, argument, box, rule, "move smaller boxes")


def check_im2col(
    shape: Sequence[int], lower: tuple[int, ...], upper: tuple[int, ...], channels: int, pixels: int
) -> None:
    """Raises `InputError` unless these make an im2col box of a tensor."""
    images, bound = len(shape) - 2, CORNERS[len(shape)]
    for name, corner in (("lower", lower), ("upper", upper)):
        if len(corner) != images or not all(type(x) is int and -bound <= x < bound for x in corner):
            many = "s" * (images > 1)
            rule = f"is {images} offset{many} from {-bound} to {bound - 1}, for {len(shape)} dimensions"
            raise InputError(f"Im2colBox({name})", corner, rule, "use a smaller window")
    if any(extent + high - low < 1 for extent, low, high in zip(shape[1:-1], lower, upper, strict=True)):
        rule = f"begins before it ends, in images of {' x '.join(map(str, shape[1:-1]))}"
        raise InputError("Im2colBox(lower, upper)", (lower, upper), rule, "move the corners apart")
    for name, value, most in (("channels", channels, MAX_BOX), ("pixels", pixels, MAX_PIXELS)):
        if not is_count(value) or value > most:
            raise InputError(f"Im2colBox({name})", value, f"is from 1 to {most}", "move smaller boxes")


def check_inner(argument: str, inner: int, dtype: str, interleave: int, swizzle: int | str) -> None:
    """Raises `InputError` unless *inner* elements along the contiguous dimension go with the type, interleave and swizzle."""
    kind = TYPES[dtype]
    nbytes = kind.shared_bytes(inner)
    if kind.padded and inner != 128:
        raise InputError(argument, inner, f"has 128 elements of {dtype} along the last dimension", "use 128")
    if nbytes % ALIGNMENT:  # documented without interleave; the driver wants it always
        rule = f"is {nbytes:g} bytes along the last dimension, no multiple of {ALIGNMENT}"
        raise InputError(argument, inner, rule, f"e.g. {ALIGNMENT * 8 // kind.bits} elements")
    if kind.swizzles is not None and swizzle not in kind.swizzles:
        raise InputError("swizzle", swizzle, f"is one of {kind.swizzles} for {dtype}", "leave it 0")
    require(dtype != "16u6_align16b" or not interleave, "interleave", interleave, f"is 0 for {dtype}", "leave it 0")
    require(interleave != 32 or swizzle == 32, "swizzle", swizzle, "is 32 with an interleave of 32", "pass swizzle=32")
    span = swizzle if isinstance(swizzle, int) else 128
    rule = f"is {nbytes:g} bytes along the last dimension, more than the swizzle span of {span}"
    require(not span or interleave or nbytes <= span, argument, inner, rule, f"e.g. {span * 8 // kind.bits} elements")


def check_steps(argument: str, steps: Sequence[int]) -> None:
    """Raises `InputError` unless element strides are 1 to 8."""
    for step in steps:
        if not is_count(step) or step > MAX_STEP:
            raise InputError(argument, tuple(steps), f"are from 1 to {MAX_STEP} elements", "use smaller ones")


# ---- windows ---------------------------------------------------------------------------------------------------------
#
# Windows: where a window of a convolution lies in an image, for loads in im2col mode.


MAX_OFFSETS = {1: 2**16 - 1, 2: 2**8 - 1, 3: 2**5 - 1}  # dimensions of an image -> the largest im2col offset (PTX ISA)


@attrs.frozen(init=False)
class Windows:
    """The windows of a convolution over images of 1 to 3 dimensions.

    Args:
        size: Elements of a window along each dimension of an image, such as (3, 3).
        padding: Zeros before the image's first element and after its last: one number, or one for each dimension.
        stride: How far apart neighbouring windows begin, 1 to 8: one number, or one for each dimension.
        dilation: How far apart neighbouring elements of a window are: one number, or one for each dimension.

    Raises:
        InputError: For any other value, or a window that is too large for the descriptors of im2col.
    """

    size: tuple[int, ...]
    padding: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]

    def __init__(
        self,
        size: Sequence[int],
        *,
        padding: int | Sequence[int] = 0,
        stride: int | Sequence[int] = 1,
        dilation: int | Sequence[int] = 1,
    ):
        sizes = tuple(size) if isinstance(size, (tuple, list)) else ()
        if not 1 <= len(sizes) <= 3 or not all(map(is_count, sizes)):
            raise InputError("Windows(size)", size, "is one to three extents, 1 or more", "e.g. (3, 3)")
        self.__attrs_init__(
            sizes,
            _numbers("padding", padding, len(sizes), 0, 2**15),
            _numbers("stride", stride, len(sizes), 1, MAX_STEP),
            _numbers("dilation", dilation, len(sizes), 1, 2**15),
        )
        corner, offset = CORNERS[len(sizes) + 2], MAX_OFFSETS[len(sizes)]
        for low, high, last in zip(*self.corners, self.last, strict=True):
            if low < -corner or not -corner <= high < corner or last > offset:
                rule = f"reaches {last} from its first element, {-low} before the image; at most {offset} and {corner}"
                raise InputError("Windows", self, rule, "use a smaller window, padding or dilation")

    @property
    def last(self) -> tuple[int, ...]:
        """From the first element of a window to its last one, along each dimension."""
        return tuple(step * (n - 1) for n, step in zip(self.size, self.dilation, strict=True))

    @property
    def corners(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """(where the first window begins, relative to the image's first element; where the last window, with stride 1, begins,
        relative to the image's last element)."""
        high = tuple(pad - last for pad, last in zip(self.padding, self.last, strict=True))
        return tuple(-pad for pad in self.padding), high

    def counts(self, image: Sequence[Any]) -> tuple[Any, ...]:
        """How many windows an image of these extents has along each dimension; run-time values too."""
        sides = zip(image, *self.corners, self.stride, strict=True)
        return tuple((extent - 1 + high - low) // step + 1 for extent, low, high, step in sides)

    def start(self, number: Any, image: Sequence[Any]) -> tuple[Any, ...]:
        """(image, where in it) window *number* begins, of all windows of images of these extents, in order, the last dimension
        fastest. Run-time values too."""
        place: list[Any] = []
        for count, low, step in reversed(list(zip(self.counts(image), self.corners[0], self.stride, strict=True))):
            place.insert(0, number % count * step + low)
            number = number // count
        return (number, *place)

    def check_image(self, argument: str, image: Sequence[int]) -> None:
        """Raises `InputError`, which names *argument*, unless images of the extents *image* have a window."""
        if any(count < 1 for count in self.counts(image)):
            raise InputError(argument, tuple(image), f"holds a window of {self}", "use larger images or more padding")


def _numbers(name: str, value: Any, many: int, least: int, most: int) -> tuple[int, ...]:
    numbers = (value,) * many if type(value) is int else tuple(value) if isinstance(value, (tuple, list)) else ()
    if len(numbers) != many or not all(type(x) is int and least <= x <= most for x in numbers):
        rule = f"is a number from {least} to {most}, or {many} of them"
        raise InputError(f"Windows({name})", value, rule, f"e.g. {least}")
    return numbers
