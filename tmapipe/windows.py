"""Windows: where a window of a convolution lies in an image, for loads in im2col mode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from tmapipe.errors import InputError
from tmapipe.fields import is_count
from tmapipe.tma_rules import CORNERS, MAX_STEP

__all__ = ["Windows"]

MAX_OFFSETS = {1: 2**16 - 1, 2: 2**8 - 1, 3: 2**5 - 1}  # dimensions of an image -> the largest im2col offset (PTX ISA)


@attrs.frozen(init=False)
class Windows:
    """The windows of a convolution over images of 1 to 3 dimensions.

    Args:
        size: Elements of a window along each dimension of an image, such as (3, 3).
        padding: Zeros before the image's first element and after its last one: one number, or one a dimension.
        stride: From one window to the next, 1 to 8, likewise.
        dilation: From one element of a window to the next, likewise.

    Raises:
        InputError: For any other value, or a window too large for the descriptors of im2col.
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
        found = tuple(size) if isinstance(size, (tuple, list)) else ()
        if not 1 <= len(found) <= 3 or not all(map(is_count, found)):
            raise InputError("Windows(size)", size, "is one to three extents, 1 or more", "e.g. (3, 3)")
        self.__attrs_init__(
            found,
            _numbers("padding", padding, len(found), 0, 2**15),
            _numbers("stride", stride, len(found), 1, MAX_STEP),
            _numbers("dilation", dilation, len(found), 1, 2**15),
        )
        corner, offset = CORNERS[len(found) + 2], MAX_OFFSETS[len(found)]
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
        """Where windows begin: the first from the image's first element, the last (without a stride) from its last one."""
        high = tuple(pad - last for pad, last in zip(self.padding, self.last, strict=True))
        return tuple(-pad for pad in self.padding), high

    def counts(self, image: Sequence[Any]) -> tuple[Any, ...]:
        """How many windows an image of these extents has along each dimension; run-time values too."""
        sides = zip(image, *self.corners, self.stride, strict=True)
        return tuple((extent - 1 + high - low) // step + 1 for extent, low, high, step in sides)

    def start(self, number: Any, image: Sequence[Any]) -> tuple[Any, ...]:
        """(image, where in it) window *number* begins, of all windows of images of these extents, in order, the last dimension
        fastest. Run-time values too."""
        found: list[Any] = []
        for count, low, step in reversed(list(zip(self.counts(image), self.corners[0], self.stride, strict=True))):
            found.insert(0, number % count * step + low)
            number = number // count
        return (number, *found)

    def check_image(self, argument: str, image: Sequence[int]) -> None:
        """Raises `InputError`, which names *argument*, unless images of the extents *image* have a window."""
        if any(count < 1 for count in self.counts(image)):
            raise InputError(argument, tuple(image), f"holds a window of {self}", "use larger images or more padding")


def _numbers(name: str, value: Any, many: int, least: int, most: int) -> tuple[int, ...]:
    found = (value,) * many if type(value) is int else tuple(value) if isinstance(value, (tuple, list)) else ()
    if len(found) != many or not all(type(x) is int and least <= x <= most for x in found):
        rule = f"is a number from {least} to {most}, or {many} of them"
        raise InputError(f"Windows({name})", value, rule, f"e.g. {least}")
    return found
