"""Tile: the coordinates of an output tile, and where a transfer's tile starts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tmapipe.errors import InputError, MissingPartError, ScopeError
from tmapipe.isa.interface import Isa
from tmapipe.isa.values import Carried, is_index
from tmapipe.plan.model import Load, Plan, Store

__all__ = ["Tile", "aligned_start", "check_own", "check_start", "start_of", "tile_at", "within"]


def within(isa: Isa, value: Any, most: Any) -> Any:
    """*value*, but at least 0 and at most *most*, which is not negative. Run-time values too."""
    positive = isa.select(value > 0, value, 0)
    return isa.select(positive < most, positive, most)


class Tile(Carried):
    """Coordinates of an output tile, in tiles along each dimension: ``tile.m``, ``tile["m"]``.

    `bounds` has (first element, how many) by dimension, for a tile that does not begin at a multiple of its extent. Stores
    write no more than that number, which may be 0 or less, or more than the tile has; None: all.
    """

    _carries = ("_coordinates", "_bounds")

    def __init__(
        self, coordinates: dict[str, Any], bounds: dict[str, tuple[Any, Any]] | None = None, moved: bool = False
    ):
        self._coordinates = coordinates
        self._bounds = bounds or {}
        self._moved = moved  # whether it is another one than the scheduler gave

    def __getitem__(self, dim: str) -> Any:
        if dim not in self._coordinates:
            raise MissingPartError(f"tile.{dim}: the tile has no such dimension, only {', '.join(self._coordinates)}.")
        return self._coordinates[dim]

    def __str__(self) -> str:
        """Where it is, e.g. ``m = 0, n = 2``."""
        return ", ".join(f"{name} = {value}" for name, value in self._coordinates.items())

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("_"):
            fix = "Pass other coordinates to load() or store_from()."
            raise ScopeError(f"tile.{name} is set: a tile is where it is. {fix}")
        super().__setattr__(name, value)

    def __getattr__(self, dim: str) -> Any:
        if dim.startswith("_"):
            raise AttributeError(dim)
        return self[dim]

    def get(self, dim: str) -> Any:
        """The coordinate along *dim*, or None."""
        return self._coordinates.get(dim)

    def also(self, **coordinates: Any) -> Tile:
        """The tile with further coordinates."""
        for name, place in coordinates.items():
            if not is_index(place):
                rule = "is a whole number of tiles"
                raise InputError(f"tile.also({name})", place, rule, "use integers, and // instead of /")
        moved = self._moved or not self._coordinates.keys().isdisjoint(coordinates)
        return Tile({**self._coordinates, **coordinates}, self._bounds, moved)

    def changed(self, number: Callable[[str, Any], Any]) -> Tile:
        """The tile with ``number(name, value)`` in the place of each number, which may be a bound."""
        coordinates = {name: number(name, value) for name, value in self._coordinates.items()}
        names = ("its first element along {}", "its bound along {}")
        bounds = {
            dim: (number(names[0].format(dim), both[0]), number(names[1].format(dim), both[1]))
            for dim, both in self._bounds.items()
        }
        return Tile(coordinates, bounds, self._moved)

    def start(self, dim: str, extent: int) -> Any:
        """The element at which it begins along *dim*, for tiles of *extent* elements; None if it has no such dimension."""
        if dim in self._bounds:
            return self._bounds[dim][0]
        place = self._coordinates.get(dim)
        return None if place is None else place * extent

    def anywhere(self, dim: str) -> bool:
        """Whether it may begin at any element along *dim*."""
        return dim in self._bounds

    def size(self, dim: str) -> Any:
        """How many elements of it count along *dim*, by its own bounds; None: all."""
        return self._bounds[dim][1] if dim in self._bounds else None


def start_of(
    where: str, dims: Sequence[str], extents: Sequence[int], tile: Tile | None, coordinates: dict[str, Any]
) -> tuple[Any, ...]:
    """The element at which a tile of *extents* starts, along each of *dims*.

    Each coordinate, in tiles, is taken from *coordinates* by name, else from *tile*.

    Raises:
        InputError: A coordinate is missing, unknown or no number.
    """
    if tile is not None and not isinstance(tile, Tile):
        raise InputError(where, tile, "takes the tile that the body was called with", "pass coordinates by name")
    unknown = [name for name in coordinates if name not in dims]
    if unknown:
        raise InputError(where, unknown, f"has dimensions {', '.join(dims)}", "name one of those")
    found: list[Any] = []
    for dim, extent in zip(dims, extents, strict=True):
        place = coordinates.get(dim)
        if place is not None and not is_index(place):
            rule = "is a whole number of tiles"
            raise InputError(f"{where}({dim})", place, rule, "use integers, and // instead of /")
        if place is not None:
            found.append(place * extent)
        else:
            found.append(None if tile is None else tile.start(dim, extent))
    missing = [d for d, value in zip(dims, found, strict=True) if value is None]
    if missing:
        example = ", ".join(f"{d}=..." for d in missing)
        raise InputError(where, missing, "needs a coordinate (in tiles) along every dimension", f"pass {example}")
    return tuple(found)


def aligned_start(
    where: str, dims: Sequence[str], extents: Sequence[int], tile: Tile | None, coordinates: dict[str, Any]
) -> tuple[Any, ...]:
    """As `start_of`, of what starts at a multiple of its extent along the contiguous dimension."""
    start = start_of(where, dims, extents, tile, coordinates)
    if tile is not None and dims[-1] not in coordinates and tile.anywhere(dims[-1]):
        rule = (
            f"has tiles that begin at any element along {dims[-1]}; TMA starts at multiples of 16 bytes along the last"
        )
        fix = "let another dimension be the contiguous one, or load from a multiple before it with load_from()"
        raise InputError(where, dims, rule, fix)
    return start


def check_own(where: str, plan: Plan, part: Load | Store, tile: Tile | None, coordinates: Iterable[str]) -> None:
    """Raises `InputError` unless a tile that this CTA both stores and loads is at the coordinates of its output tile."""
    if tile is not None and not isinstance(tile, Tile):
        raise InputError(where, tile, "takes the tile that the body was called with", "pass it, or use store_from()")
    both = {load.argument for load in plan.loads} & {store.argument for store in plan.stores}
    if part.argument in both and (
        tile is None or tile._moved or not tile._coordinates or any(tile.get(dim) is not None for dim in coordinates)
    ):
        rule = "is stored, and loaded again, by one CTA: at the coordinates of its output tile"
        fix = "pass the tile, and coordinates along other dimensions alone"
        raise InputError(where, ", ".join(coordinates) or None, rule, fix)


def check_start(where: str, dims: Sequence[str], start: tuple[Any, ...]) -> tuple[Any, ...]:
    """*start*. Raises `InputError` unless it is one index along each of *dims*."""
    if len(start) != len(dims) or not all(map(is_index, start)):
        rule = f"is one index along each of {', '.join(dims)}, in elements"
        raise InputError(where, start, rule, f"pass {len(dims)} whole numbers of 32 bits")
    return start


def tile_at(where: str, dims: Sequence[str], start: tuple[Any, ...]) -> Tile:
    """The tile that starts at these elements along *dims*. Raises `InputError` unless they are indices."""
    return Tile({}, {dim: (index, None) for dim, index in zip(dims, check_start(where, dims, start), strict=True)})
