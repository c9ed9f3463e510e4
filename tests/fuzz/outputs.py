"""``python -m tests.fuzz.outputs``: random stores, and what the check says of them for every shape.

A body is a tree: stores at places that coordinates, indices of loops and numbers of tiles say, loops, and branches on these.
What the report claims is compared with small problems, whose stores are painted:

    no UNWRITTEN, and the output is not among what is not shown     no problem leaves an element out
    no OUTPUT_RACE and no SAME_OUTPUT, and likewise                 no problem stores an element twice

    python -m tests.fuzz.outputs --count 500                        # seeds 0 to 499, some minutes
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import attrs

import tmapipe as tp
from tmapipe.check import Kind
from tmapipe.program import trace
from tmapipe.prove.bodies import Bodies
from tmapipe.prove.outputs import left_out, painted
from tmapipe.prove.problem import Problem
from tmapipe.prove.stores import Output

__all__ = ["draw", "judge"]

TILE = {"l": 1, "m": 4, "n": 16}
GRIDS = ("l m n", "m n", "l m", "m", "n", "l", "c m", "c", "m c", "l c n", "c n m", "l n", "m l")
RELATIONS = {
    "none": (),
    "as many columns as rows": (tp.Dim("n", of="m"),),
    "one tile of columns": (tp.Dim("n", at_most=16),),
    "three matrices": (tp.Dim("l", size=3),),
}
PROBLEMS = 12  # that a report is compared with

# ---- numbers: x, the coordinate or index; n, how many tiles there are; c, of how many tiles; own, the tile's first coordinate

Number = Callable[..., Any]
PLACES: dict[str, Number] = {
    "itself": lambda x, n: x,
    "one more": lambda x, n: x + 1,
    "one less": lambda x, n: x - 1,
    "half": lambda x, n: x // 2,
    "twice": lambda x, n: 2 * x,
    "from the end": lambda x, n: n - 1 - x,
    "at most the last": lambda x, n: min(x, n - 1),
    "the next around": lambda x, n: (x + 1) % n,
    "one of two": lambda x, n: x % 2,
}
STARTS: dict[str, Number] = {  # of loops, where c tiles side by side may share the turns
    "the turn": lambda i, c, own: i,
    "strided": lambda i, c, own: own + i * c,
    "side by side": lambda i, c, own: own + i,
    "of all tiles": lambda i, c, own: i * c,
}
COUNTS: dict[str, Number] = {
    "all": lambda n, c, own: n,
    "in turn": lambda n, c, own: (n - own + c - 1) // c,
    "one more": lambda n, c, own: n + 1,
    "one less": lambda n, c, own: n - 1,
    "half": lambda n, c, own: (n + 1) // 2,
    "two": lambda n, c, own: 2,
    "three at most": lambda n, c, own: min(n, 3),
    "as its coordinate": lambda n, c, own: own + 1,
}
CONDITIONS: dict[str, Number] = {
    "first tile": lambda i, n, c, own: own == 0,
    "not the first tile": lambda i, n, c, own: own >= 1,
    "even tiles": lambda i, n, c, own: own % 2 == 0,
    "several": lambda i, n, c, own: n > 1,
    "first turn": lambda i, n, c, own: i == 0,
    "later turns": lambda i, n, c, own: i > 0,
    "not the last turn": lambda i, n, c, own: i < n - 1,
    "turns from its own on": lambda i, n, c, own: i >= own,
    "even turns": lambda i, n, c, own: i % 2 == 0,
    "its own turns": lambda i, n, c, own: i % c == own,
    "turns of the next": lambda i, n, c, own: i % c == own + 1,
}


@attrs.frozen
class Store:
    """By dimension, the form of its place."""

    places: dict[str, str]


@attrs.frozen
class Loop:
    """Along a dimension: the number of turns, the start of each turn, and its action."""

    dim: str
    count: str
    start: str
    inside: tuple[Any, ...]


@attrs.frozen
class Branch:
    """then, if *condition* holds, which looks at tiles along *dim*."""

    condition: str
    dim: str
    then: tuple[Any, ...]
    otherwise: tuple[Any, ...]


def _tree(rng: random.Random, grid: list[str], left: list[str]) -> tuple[Any, ...]:
    if rng.random() < 0.25:
        otherwise = _tree(rng, grid, left) if rng.random() < 0.6 else ()
        return (Branch(rng.choice(list(CONDITIONS)), rng.choice("lmn"), _tree(rng, grid, left), otherwise),)
    if left and rng.random() < 0.95:
        dim, *rest = left
        simple = rng.random() < 0.5
        count, start = ("all", "the turn") if simple else (rng.choice(list(COUNTS)), rng.choice(list(STARTS)))
        return (Loop(dim, count, start, _tree(rng, grid, rest)),)
    stores = rng.choice((1, 1, 1, 2))
    return tuple(
        Store({dim: "itself" if rng.random() < 0.85 else rng.choice(list(PLACES)) for dim in "lmn"})
        for _ in range(stores)
    )


class Stores(tp.Schedule):
    """Loads one tile for each output tile, and stores it as a tree says."""

    load, work = tp.Role(warps=1), tp.Role(warps=1)
    ring = tp.BarrierRing(2, producer=load, consumer=work)
    x = tp.TmaLoadStage("l m n", tile=(TILE["m"], TILE["n"]), ring=ring, dtype="fp32")
    y = tp.ThreadStoreStage("l m n", tile=(TILE["m"], TILE["n"]), role=work, vector=4, dtype="fp32")

    def __init__(self, over: str, relations: str, ctas: int, tree: tuple[Any, ...]):
        self.over, self.relations, self.tree = over, RELATIONS[relations], tree
        self.first = over.split()[0]
        if ctas > 1:
            self.cluster = {self.first: ctas}
        if "c" in over.split():
            self.z = tp.ThreadStoreStage("c p", tile=(TILE["n"],), role=self.work, vector=4, dtype="fp32")

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load_from(0, 0, 0)

    @work.jit
    def drain(self, k, tile):
        with k.ring.consume() as slot:
            values = slot.x.read()
        self.run(k, tile, values, self.tree, {})
        if "c" in self.over.split():
            k.z.store_from(tile.c, 0, values=tp.math.column_sum(values))

    def coordinate(self, tile, dim):
        return tile.get(dim) if dim in self.over.split() else 0

    def run(self, k, tile, values, tree, turns):
        own = tile.get(self.first)
        tiles = k.steps("z", "c") if self.first == "c" else k.steps("x", self.first)
        for node in tree:
            if isinstance(node, Store):
                at = {dim: turns[dim] if dim in turns else self.coordinate(tile, dim) for dim in "lmn"}
                places = {dim: PLACES[form](at[dim], k.steps("x", dim)) for dim, form in node.places.items()}
                k.y.store(tile.also(**places), values)
            elif isinstance(node, Loop):
                for i in range(COUNTS[node.count](k.steps("x", node.dim), tiles, own)):
                    place = STARTS[node.start](i, tiles, own)
                    self.run(k, tile, values, node.inside, {**turns, node.dim: place, "": i})
            elif CONDITIONS[node.condition](turns.get("", 0), k.steps("x", node.dim), tiles, own):
                self.run(k, tile, values, node.then, turns)
            else:
                self.run(k, tile, values, node.otherwise, turns)


def draw(seed: int) -> Stores:
    """The schedule with this number."""
    rng = random.Random(seed)
    over = rng.choice(GRIDS)
    left = [dim for dim in "lmn" if dim not in over.split()]
    rng.shuffle(left)
    relations, ctas = rng.choice(list(RELATIONS)), rng.choice((1, 1, 1, 2))
    return Stores(over, relations, ctas, _tree(rng, over.split(), left))


def problems_of(seed: int, schedule: Stores) -> list[Problem]:
    """Small problems of many shapes."""
    rng, found = random.Random(f"problems {seed}"), []
    for _ in range(PROBLEMS):
        extents = {
            "l": rng.randint(1, 4),
            "m": 4 * rng.randint(1, 6),
            "n": 4 * rng.randint(1, 25),
            "c": rng.randint(1, 5),
        }
        extents["m"] -= rng.choice((0, 0, 3))
        bound = {
            RELATIONS["as many columns as rows"]: {"n": extents["m"]},
            RELATIONS["one tile of columns"]: {"n": min(extents["n"], 16)},
            RELATIONS["three matrices"]: {"l": 3},
        }
        extents |= {"p": 16, **bound.get(schedule.relations, {})}
        found.append(Problem({name: tuple(map(extents.get, dims)) for name, dims in schedule.plan().dims.items()}))
    return found


def judge(seed: int) -> tuple[str, str]:
    """(the claim of the report, the error in that claim)."""
    schedule = draw(seed)
    try:
        report = schedule.check()
    except tp.InputError:  # no body stores it
        return "refused", ""
    kinds, said = {finding.kind for finding in report.findings}, " ".join(report.outputs)
    if not report.ok:
        return "error", ""
    whole = Kind.UNWRITTEN not in kinds and "y is not shown to be stored" not in said
    apart = Kind.SAME_OUTPUT not in kinds and "y is not shown to be stored once" not in said
    bodies = Bodies(trace(schedule))
    output = Output(schedule.plan().store("y"), (), False)
    for problem in problems_of(seed, schedule):
        try:
            visits, shape = bodies.of_problem(problem), problem.shapes["y"]
        except tp.PipelineError:  # such as a store that begins before the tensor
            continue
        if whole and left_out(output, visits, shape) is not None:
            return "whole", f"an element is left out, with {problem.text}"
        if apart and painted(output, visits, shape) is not None:
            return "apart", f"an element is stored twice, with {problem.text}"
    return "whole, apart" if whole and apart else "whole" if whole else "apart" if apart else "neither", ""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=500)
    given = parser.parse_args()
    counts: Counter[str] = Counter()
    for seed in range(given.first, given.first + given.count):
        claim, wrong = judge(seed)
        counts[f"{claim}, which is wrong" if wrong else claim] += 1
        if wrong:
            print(f"seed {seed}: {wrong}", flush=True)
    print(dict(counts))
    return any("wrong" in claim for claim in counts)


if __name__ == "__main__":
    sys.exit(main())
