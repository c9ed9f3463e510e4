"""Which store reaches which element of an output, and which elements of inputs are loaded, in one concrete problem.

All output tiles of the problem are gone through, as one cluster takes them one after the other; no data is moved. Two tiles
that reach the same element are two CTAs of another grid.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import numpy as np

from tmapipe.prove.moves import Move, Visit
from tmapipe.prove.stores import Output, same_pieces, stored_at

__all__ = ["MOST", "Clash", "left_out", "painted"]

MOST = 20_000_000  # elements of an output that is painted


@attrs.frozen
class Clash:
    """An element that two stores reach, or a store of one tile and a load of another. one, other: the two, in this order;
    at: the element."""

    one: Move
    other: Move
    visits: tuple[Visit, Visit]
    at: tuple[int, ...]


def painted(output: Output, visits: list[Visit], shape: tuple[int, ...]) -> Clash | None:
    """The first clash at an output of this shape."""
    return next(_clashes(output, visits, shape), None)


def left_out(output: Output, visits: list[Visit], shape: tuple[int, ...]) -> tuple[int, tuple[int, ...]] | None:
    """How many elements of an output of this shape are stored by nobody, and the first one; None if there are none."""
    reached = np.zeros(shape, bool)
    for visit in visits:
        for own in stored_at(output, visit):
            for move in own:
                reached[_box(move, shape)] = True
    left = np.argwhere(~reached)
    return (len(left), tuple(int(i) for i in left[0])) if len(left) else None


def _clashes(output: Output, visits: list[Visit], shape: tuple[int, ...]) -> Iterator[Clash]:
    owners = np.zeros(shape, np.int32)
    known: list[tuple[Visit, Move]] = []
    for visit in visits:
        stored = stored_at(output, visit)
        first = len(known)
        for i, move in enumerate(move for own in stored for move in own):
            box = _box(move, shape)
            for number in np.unique(owners[box]):
                if number == 0:
                    continue
                whose, other = known[number - 1]
                if number - 1 < first or not same_pieces(output, stored, number - 1 - first, i):
                    (at, *_) = np.argwhere(owners[box] == number)
                    yield Clash(other, move, (whose, visit), _element(move, shape, at))
            known.append((visit, move))
            owners[box] = len(known)
    names = {load.name for load in output.loads}
    for visit in visits:
        for move in (move for moves in visit.moves.values() for move in moves if move.part.name in names):
            box = _box(move, shape)
            for number in np.unique(owners[box]):
                whose, other = known[number - 1] if number else (visit, move)
                if whose.place != visit.place:
                    (at, *_) = np.argwhere(owners[box] == number)
                    yield Clash(other, move, (whose, visit), _element(move, shape, at))


def _box(move: Move, shape: tuple[int, ...]) -> tuple[slice, ...]:
    """The elements of a tensor that are moved."""
    return tuple(
        slice(max(start, 0), max(start + extent, 0)) for start, extent in zip(move.at, move.part.part, strict=True)
    )


def _element(move: Move, shape: tuple[int, ...], at: np.ndarray) -> tuple[int, ...]:
    return tuple(max(start, 0) + int(i) for start, i in zip(move.at, at, strict=True))
