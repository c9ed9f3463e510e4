"""Dim: a dimension whose extent is fixed, bounded, or follows from that of another."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from tmapipe.errors import InputError
from tmapipe.fields import is_count, is_whole, must, optional, shown
from tmapipe.integers import ceil_div

__all__ = ["Dim"]


@attrs.frozen(repr=False)
class Dim:
    """The extent of a dimension: ``Dim("r", size=3)``, at most ``Dim("n", at_most=1024)``, or that of another one,
    ``* times / per``, rounded up, ``+ plus``.

    A schedule lists them in `relations`. Tensors that do not fit are refused by name, and an output that a call leaves out can
    have such a dimension.

    Args:
        name: As stages name it.
        size: Its extent (elements).
        of: The dimension that it follows from.
        per: Elements of that for one of its own: ``Dim("kb", of="k", per=128)`` for one scale for each 128 elements of k.
        times: Elements of its own for each of that: ``Dim("s", of="l", times=4)`` for four parts of each matrix.
        plus: How many more it has, perhaps a negative number: ``Dim("p", of="h", plus=-2)`` for a convolution without padding.
        at_most: The largest extent (elements) that bodies are right for: of rows that have to lie in one tile, that of the
            tile. By itself, or besides `of`.

    Raises:
        InputError: For any other value.
    """

    name: str = attrs.field(
        validator=must(lambda name: isinstance(name, str) and name.isidentifier(), "names a dimension", 'e.g. "kb"')
    )
    size: int | None = attrs.field(
        default=None, kw_only=True, validator=must(optional(is_count), "is a positive extent", "e.g. 3")
    )
    of: str | None = attrs.field(default=None, kw_only=True)
    per: int = attrs.field(default=1, kw_only=True, validator=must(is_count, "is a positive number", "e.g. 128"))
    times: int = attrs.field(default=1, kw_only=True, validator=must(is_count, "is a positive number", "e.g. 2"))
    plus: int = attrs.field(default=0, kw_only=True, validator=must(is_whole, "is a whole number", "e.g. -2"))
    at_most: int | None = attrs.field(
        default=None, kw_only=True, validator=must(optional(is_count), "is a positive extent", "e.g. 1024")
    )

    def __attrs_post_init__(self) -> None:
        named = isinstance(self.of, str) and self.of.isidentifier() and self.of != self.name
        ways = [self.size is not None, self.of is not None, self.at_most is not None]
        if not any(ways) or (self.size is not None and sum(ways) > 1) or not (self.of is None or named):
            rule = "has either a size, or another dimension that it follows from, or a largest extent"
            raise InputError("Dim(size, of, at_most)", (self.size, self.of, self.at_most), rule, 'e.g. of="k"')

    def extent(self, extents: Mapping[str, int]) -> int | None:
        """What *extents* of others make of it; None if that is not known. At least 0."""
        if self.size is not None or self.of is None:
            return self.size
        found = extents.get(str(self.of))
        return None if found is None else max(0, ceil_div(found * self.times, self.per) + self.plus)

    def longest_of(self, extent: int) -> int:
        """The largest extent of the other dimension for which this one is at most *extent*."""
        return max(0, extent - self.plus) * self.per // self.times

    @property
    def formula(self) -> str:
        """How it is computed, e.g. ``ceil(k / 128)``, of one that has a size or follows from another."""
        text = str(self.size or self.of) + (f" * {self.times}" if self.times > 1 else "")
        text = text if self.per == 1 else f"ceil({text} / {self.per})"
        return text + (f" {'+' if self.plus > 0 else '-'} {abs(self.plus)}" if self.plus else "")

    @property
    def text(self) -> str:
        """What is known of it, e.g. ``kb = ceil(k / 128)`` or ``n <= 1024``."""
        known = "" if self.size is None and self.of is None else f" = {self.formula}"
        return self.name + known + ("" if self.at_most is None else f" <= {self.at_most}")

    def __repr__(self) -> str:
        return shown(self)
