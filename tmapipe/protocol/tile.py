"""Tile: the coordinates of an output tile, and where a transfer's tile starts."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Number
from typing import Any

from tmapipe.errors import InputError
from tmapipe.isa.interface import Isa
from tmapipe.isa.values import Carried

__all__ = ["Tile", "check_fragment", "start_of", "within"]


def within(isa: Isa, value: Any, most: Any) -> Any:
    """*value*, but at least 0 and at most *most*, which is not negative; at run time too."""
    positive = isa.select(value > 0, value, 0)
    return isa.select(positive < most, positive, most)


class Tile(Carried):
    """Coordinates of an output tile, in tiles along each dimension: ``tile.m``, ``tile["m"]``."""

    def __init__(self, coordinates: dict[str, Any]):
        self._coordinates = coordinates

    def __getitem__(self, dim: str) -> Any:
        return self._coordinates[dim]

    def __getattr__(self, dim: str) -> Any:
        if dim.startswith("_"):
            raise AttributeError(dim)
        try:
            return self._coordinates[dim]
        except KeyError:
            raise AttributeError(f"tile has no dimension {dim!r}, only {', '.join(self._coordinates)}") from None

    def get(self, dim: str) -> Any:
        """The coordinate along *dim*, or None."""
        return self._coordinates.get(dim)


def start_of(
    where: str, dims: Sequence[str], extents: Sequence[int], tile: Tile | None, coordinates: dict[str, Any]
) -> tuple[Any, ...]:
    """The element at which a tile of *extents* starts, along each of *dims*: its coordinate (in tiles) from *coordinates* by
    name, else from *tile*, times its extent. Raises `InputError` if a coordinate is missing, unknown or no number."""
    if tile is not None and not isinstance(tile, Tile):
        raise InputError(where, tile, "takes the tile that the body was called with", "pass coordinates by name")
    unknown = [name for name in coordinates if name not in dims]
    if unknown:
        raise InputError(where, unknown, f"has dimensions {', '.join(dims)}", "name one of those")
    found: list[Any] = [coordinates.get(d, tile.get(d) if tile is not None else None) for d in dims]
    missing = [d for d, value in zip(dims, found, strict=True) if value is None]
    if missing:
        example = ", ".join(f"{d}=..." for d in missing)
        raise InputError(where, missing, "needs a coordinate (in tiles) along every dimension", f"pass {example}")
    for d, value in zip(dims, found, strict=True):
        if isinstance(value, (float, complex, str)) or not hasattr(value, "__mul__"):
            raise InputError(f"{where}({d})", value, "is a whole number of tiles", "use integers, and // instead of /")
    return tuple(value * extent for value, extent in zip(found, extents, strict=True))


def check_fragment(where: str, values: Any) -> None:
    """Raises `InputError` for what is no fragment, as a number is none."""
    if values is None or isinstance(values, Number):
        fix = "compute them from a slot that is read, e.g. slot.x.read() * 0 + 1"
        raise InputError(where, values, "takes a fragment, distributed over the role's threads", fix)
