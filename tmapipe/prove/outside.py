"""Whether loads start inside of their tensors, stores by engines at 0 or later, and reads stay inside of their slots, for
every shape: shown by the solver, from how many tiles and turns there are.

What the order of tiles says of coordinates that are not those of its grid, such as parts of k, is taken for granted.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from tmapipe.isa.fragment import Fragment
from tmapipe.plan.model import Load, Store
from tmapipe.program.expressions import Call
from tmapipe.prove.problem import DATA, is_coordinate
from tmapipe.prove.symbols import Sym, at_least_0, leaves, named, parts

#: Loads that start inside of their tensor, if nothing says otherwise, and stores that start at 0 or later.
BY_ENGINES = ("tma_load", "bulk_load", "cp_async", "tma_store", "bulk_store")
#: Reads of a part of a slot, at a place that may be known to a launch alone.
READS = frozenset(f"fragments.read_{name}" for name in ("part", "peer", "joined", "line", "number"))


class Part(NamedTuple):
    """What a read takes of a slot, and at which line. dims: what each of its places counts; limits: by place, the first number
    that is too large."""

    name: str
    dims: tuple[str, ...]
    limits: tuple[int, ...]

    @property
    def span(self) -> tuple[int, ...]:
        return (1,) * len(self.dims)


def part_read(node: Call, number: Callable[[Any], Any]) -> tuple[Part, tuple[Any, ...]] | None:
    """(the part, its places) of an instruction that reads at places which only a launch knows. number: the value of an
    argument."""
    of = dict(named(node)) if node.method in READS else {}
    at = of.get("at", of.get("index"))
    if at is None or isinstance(at, Fragment):
        return None
    open_ = [each for each in _places(node.method, of, at, number) if isinstance(each[1], Sym)]
    if not open_ or any(x.args[0] in DATA for _, place, _ in open_ for x in leaves(place)):
        return None
    dims, starts, limits = zip(*open_, strict=True)
    return Part(f"slot.{of['slot'].buffer.name}.read at {node.where}", dims, limits), starts


def _places(method: str, of: dict[str, Any], at: Any, number: Callable[[Any], Any]) -> list[tuple[str, Any, int]]:
    """(what is counted, place, first number that is too large) of a read, by its method and arguments."""
    layout: Any = of.get("layout")
    tile, each = of["slot"].buffer.tile, of.get("each", 1)
    width, size = tile[-1], math.prod(tile)
    first, *rest = [number(x) for x in (at if isinstance(at, tuple) else (at,))]
    if method == "fragments.read_number":
        return [("an element", first, size)]
    rows, columns = layout.rows, layout.columns
    if method == "fragments.read_line":
        count = -(-(rows if of["along"] == "rows" else columns) // each)
        whole = count // width if rest == [0] and count % width == 0 else 1  # rows, one after another
        return [("a row", first, size // width - whole + 1), ("a column", rest[0], width - count // whole + 1)]
    if method == "fragments.read_joined":
        gaps = [tuple(map(number, pair)) for pair in of["gaps"]]
        ks = (rest[0], rest[0] + columns - 1)
        both = [first + k + sum(k // length * further for length, further in gaps) for k in ks]
    elif of.get("pitch") is not None:
        both = [rest[0], rest[0] + (rows - 1) // each * number(of["pitch"]) + columns - 1]
    else:
        return [("a row", first, size // width - rows + 1), ("a column", rest[0], width - columns + 1)]
    return [("its first element", both[0], size), ("its last element", both[1], size)]


# ---- what may lie outside ---------------------------------------------------------------------------------------------


def outside(bodies: Any) -> Iterator[tuple[str, list[Any]]]:
    """Loads and stores that may start outside along a dimension, and reads that may leave their slot: in words, and conditions
    under which they do. bodies: as of `Bodies`."""
    cluster, extent = bodies.layout.plan.cluster, bodies.shared.extent
    counts: dict[Sym, Any] = bodies.counts
    *_, m, n = (0, 0, *counts)
    below = at_least_0(m - n if bodies.program.schedule.tiles.lower else 0)
    seen = set[Any]()
    for visit in bodies.visits:
        for move in (move for own in visit.moves.values() for move in own if move.inside):
            part: Any = move.part
            limits = map(extent, part.dims) if isinstance(part, (Load, Store)) else part.limits
            for dim, start, span, limit in zip(
                part.dims, move.at, getattr(part, "span", part.dims), limits, strict=True
            ):
                key, loops = (part.name, dim, start, move.loops, visit.facts), dict(move.loops)
                found = {x for each in (start, *loops.values()) for x in leaves(each) if is_coordinate(x)}
                if key in seen or key[:2] in seen or not found <= counts.keys():
                    continue
                seen.add(key)
                known = [*visit.facts, below, *_scaled(start, counts)]
                for x, count in (loops | {x: counts[x] for x in counts if x in found}).items():
                    known += [at_least_0(x), count is None or at_least_0(count - 1 - x)]
                    if isinstance(count, Sym) and count.op == "div" and count.args[1] in counts.values():
                        # turns that go on by as many tiles
                        known.append(at_least_0(count.args[0] - count.args[1] * (x + 1)))
                cases = [[-1 - start]]
                if not isinstance(part, Store):  # which writes nothing beyond the end
                    beyond = start - span * (cluster.get(dim, 1) - 1)
                    cases.append([beyond - 1, beyond - limit])
                for case in cases:
                    facts = [*map(at_least_0, case), *known]
                    if bodies.solver.possible(facts):
                        seen.add(key[:2])
                        said = f"{part.name} is not shown to start inside of its tensor along {dim}"
                        if not isinstance(part, (Load, Store)):
                            said = f"{part.name} is not shown to stay inside of its tile"
                        yield said, [fact for fact in facts if isinstance(fact, Sym)]


def _scaled(start: Any, counts: Mapping[Sym, Any]) -> Iterator[Any]:
    """What holds of quotients p * g // C of a coordinate p of C: they are at least 0, and less than g."""
    quotients = [term for term in parts(start)[1] if term.op == "div"]
    for term, (p, count) in itertools.product(quotients, counts.items()):
        for g in leaves(term.args[0]):
            if g.args[0] == "extent" and term.args == (p * g, count):
                yield from (at_least_0(term), at_least_0(g - 1 - term))
