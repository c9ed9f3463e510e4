"""``python -m tests.fuzz.deciding``: random bodies that branch and loop on where they are, checked beside single runs.

A body is a tree: slots, loops and branches on coordinates, extents (ragged), steps of two inner dimensions, cluster and CTA
ids, and entries of a table. The two roles of a ring have the same tree; in half of them one has a slip. The verdict is
compared with single runs on many problems, recorded with plain numbers:

    "every trip count"    no run may go wrong
    an error              the problem of the report, run by itself, must go wrong

    python -m tests.fuzz.deciding --count 5000                      # seeds 0 to 4999, some minutes
    python -m tests.fuzz.deciding --count 20000 --jobs 32 --minutes 8 --out FILE    # as many as come in this time

Results go to ``benchmarks/results/deciding.json``, or to FILE: counts by verdict, CPU seconds of checks, and the seeds of
disagreements.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs

import tmapipe as tp
from tests.oracle.plain import PlainIsa, record
from tmapipe.check.deadlocks import check_operations
from tmapipe.kernel import kernel_main
from tmapipe.model import Layout
from tmapipe.prove import EVERY
from tmapipe.prove.problem import Problem

__all__ = ["draw", "judge"]

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "deciding.json"
PROBLEMS = 14  # that each verdict is compared with
MOST_TILES = 12  # of a CTA, unless there are more along m

# ---- expressions: (text, what it is, whether it varies) ---------------------------------------------------------------

Number = Callable[[Any, Any, list[Any]], Any]  # (k, tile, indices of loops) -> number
COUNTS: dict[str, Number] = {
    "2": lambda k, tile, i: 2,
    "steps of k": lambda k, tile, i: k.steps("x", "k"),
    "steps of k - 1": lambda k, tile, i: k.steps("x", "k") - 1,
    "2 steps of k": lambda k, tile, i: 2 * k.steps("x", "k"),
    "half the steps of k": lambda k, tile, i: k.steps("x", "k") // 2,
    "a third of the steps of k": lambda k, tile, i: k.steps("x", "k") // 3,
    "steps less twice tile.m": lambda k, tile, i: k.steps("x", "k") - 2 * tile.m,
    "steps of j": lambda k, tile, i: k.steps("z", "j"),
    "k // 64": lambda k, tile, i: k.isa.extent("x", 2) // 64,
    "steps of k and j": lambda k, tile, i: k.steps("x", "k") + k.steps("z", "j"),
    "the lesser": lambda k, tile, i: min(k.steps("x", "k"), k.steps("z", "j")),
    "tile.m": lambda k, tile, i: tile.m,
    "tile.m + 1": lambda k, tile, i: tile.m + 1,
    "a window": lambda k, tile, i: min(tile.m + 1, 3),
    "tiles of m": lambda k, tile, i: k.steps("x", "m"),
    "tile.n % 3": lambda k, tile, i: tile.n % 3,
    "tile.l": lambda k, tile, i: tile.l,
    "the cluster": lambda k, tile, i: k.isa.cluster_id,
    "clusters": lambda k, tile, i: k.isa.clusters,
    "the rank": lambda k, tile, i: k.isa.cta_rank,
    "steps times the rank": lambda k, tile, i: k.steps("x", "k") * k.isa.cta_rank,
    "an entry": lambda k, tile, i: k.rows.entry(tile.l),
    "an entry by m": lambda k, tile, i: k.isa.load_entry("rows", tile.m, 1),
    "between entries": lambda k, tile, i: k.isa.load_entry("rows", tile.l + 1, 1) - k.isa.load_entry("rows", tile.l, 1),
}
CONDITIONS: dict[str, Number] = {
    "tile.m > 0": lambda k, tile, i: tile.m > 0,
    "tile.m == 0": lambda k, tile, i: tile.m == 0,
    "tile.m < 2": lambda k, tile, i: tile.m < 2,
    "tile.n even": lambda k, tile, i: tile.n % 2 == 0,
    "tile.l > 0": lambda k, tile, i: tile.l > 0,
    "k ragged": lambda k, tile, i: k.isa.extent("x", 2) % 64 != 0,
    "steps of k > 1": lambda k, tile, i: k.steps("x", "k") > 1,
    "steps of j == 1": lambda k, tile, i: k.steps("z", "j") == 1,
    "first cluster": lambda k, tile, i: k.isa.cluster_id == 0,
    "rank 0": lambda k, tile, i: k.isa.cta_rank == 0,
    "entry > 1": lambda k, tile, i: k.rows.entry(tile.l) > 1,
    "more steps than twice m": lambda k, tile, i: k.steps("x", "k") > 2 * tile.m,
    "tile.n % 3 == 1": lambda k, tile, i: tile.n % 3 == 1,
    "every third turn": lambda k, tile, i: i[-1] % 3 == 0 if i else tile.n > 0,
    "twice tile.l turns": lambda k, tile, i: i[-1] < 2 * tile.l if i else tile.l > 1,
    "the first turn": lambda k, tile, i: i[-1] == 0 if i else tile.m == 0,
    "the diagonal": lambda k, tile, i: i[-1] == tile.m if i else tile.m > 1,
    "not the last step": lambda k, tile, i: i[-1] < k.steps("x", "k") - 1 if i else k.steps("x", "k") > 2,
}


@attrs.frozen
class Slot:
    """Enters the next slot. keeps: the reader does not release it."""

    keeps: bool = False


@attrs.frozen
class Loop:
    """*inside* as often as *count* says, and *more* times."""

    count: str
    inside: tuple[Any, ...]
    more: int = 0


@attrs.frozen
class Branch:
    """then: if *condition*, or, negated, if it does not hold."""

    condition: str
    then: tuple[Any, ...]
    otherwise: tuple[Any, ...] = ()
    negated: bool = False


Tree = tuple[Any, ...]


def _tree(rng: random.Random, depth: int) -> Tree:
    found: list[Any] = []
    for _ in range(rng.choice((1, 1, 1, 2))):
        kind = rng.random()
        if depth == 0 or kind < 0.2:
            found.append(Slot())
        elif kind < 0.65:
            found.append(Loop(rng.choice(list(COUNTS)), _tree(rng, depth - 1)))
        else:
            otherwise = _tree(rng, depth - 1) if rng.random() < 0.5 else ()
            found.append(Branch(rng.choice(list(CONDITIONS)), _tree(rng, depth - 1), otherwise))
    return tuple(found)


def _nodes(tree: Tree, path: tuple[int, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    for at, node in enumerate(tree):
        here = (*path, at)
        yield here, node
        for name in ("inside", "then", "otherwise"):
            yield from _nodes(getattr(node, name, ()), (*here, name))


def _replaced(tree: Tree, path: tuple[Any, ...], node: Any) -> Tree:
    at, *rest = path
    new = node
    if rest:
        name, *deeper = rest
        new = attrs.evolve(tree[at], **{name: _replaced(getattr(tree[at], name), tuple(deeper), node)})
    return (*tree[:at], *((new,) if new is not None else ()), *tree[at + 1 :])


def _slip(rng: random.Random, tree: Tree) -> tuple[Tree, str]:
    """A tree with one slip, and what it is."""
    path, node = rng.choice(list(_nodes(tree)))
    if isinstance(node, Slot):
        if rng.random() < 0.5:
            return _replaced(tree, path, Slot(keeps=True)), "keeps a slot"
        return _replaced(tree, path, None), "leaves a slot out"
    if isinstance(node, Loop):
        if rng.random() < 0.5:
            return _replaced(tree, path, attrs.evolve(node, more=rng.choice((-1, 1)))), "one turn more or fewer"
        return _replaced(tree, path, attrs.evolve(node, count=rng.choice(list(COUNTS)))), "another count"
    if rng.random() < 0.5:
        return _replaced(tree, path, attrs.evolve(node, negated=True)), "the other branch"
    return _replaced(tree, path, attrs.evolve(node, condition=rng.choice(list(CONDITIONS)))), "another condition"


def _varies(tree: Tree) -> bool:
    return any(getattr(n, "count", "2") != "2" or isinstance(n, Branch) for _, n in _nodes(tree))


class Deciding(tp.Schedule):
    """A loader and a reader, each with its tree."""

    load, add = tp.Role(warps=1), tp.Role(warps=1)

    def __init__(self, given: Tree, taken: Tree, stages: int, ctas: int):
        self.given, self.taken = given, taken
        self.cluster = {"m": ctas}
        self.ring = tp.BarrierRing(stages=stages, producer=self.load, consumer=self.add)
        self.x = tp.TmaLoadStage("l m k", tile=(4, 64), ring=self.ring)
        self.z = tp.TmaLoadStage("h j", tile=(4, 64), ring=self.ring)
        self.rows = tp.Table("g")
        self.y = tp.TmaStoreStage("l m n", tile=(4, 64), role=self.add, stages=1)

    @load.jit
    def fill(self, k, tile):
        self._run(k, tile, (Slot(), *self.given), [], _produce)

    @add.jit
    def total(self, k, tile):
        with k.ring.consume() as slot:
            values = slot.x.read()
        self._run(k, tile, self.taken, [], _consume)
        k.y.store(tile, values)

    def _run(self, k: Any, tile: Any, tree: Tree, indices: list[Any], slot: Callable[[Any, Any, Slot], None]) -> None:
        for node in tree:
            if isinstance(node, Slot):
                slot(k, tile, node)
            elif isinstance(node, Loop):
                for i in range(COUNTS[node.count](k, tile, indices) + node.more):
                    self._run(k, tile, node.inside, [*indices, i], slot)
            elif CONDITIONS[node.condition](k, tile, indices):
                self._run(k, tile, node.otherwise if node.negated else node.then, indices, slot)
            else:
                self._run(k, tile, node.then if node.negated else node.otherwise, indices, slot)


def _produce(k: Any, tile: Any, node: Slot) -> None:
    with k.ring.produce() as slot:
        slot.x.load(tile, k=0)
        slot.z.load(h=0, j=0)


def _consume(k: Any, tile: Any, node: Slot) -> None:
    if node.keeps:
        k.ring.wait().x.read()
        return
    with k.ring.consume() as slot:
        slot.x.read()


@attrs.frozen
class Drawn:
    """schedule; slip: what is wrong in one role, or ""; deciding: whether both roles decide on something that varies."""

    schedule: Deciding
    slip: str
    deciding: bool


def draw(seed: int) -> Drawn:
    """The schedule with this number."""
    rng = random.Random(seed)
    tree = _tree(rng, 2)
    given = taken = tree
    slip = ""
    if rng.random() < 0.5:
        other, slip = _slip(rng, tree)
        given, taken = (tree, other) if rng.random() < 0.5 or slip == "keeps a slot" else (other, tree)
    stages, ctas = rng.randint(1, 3), rng.choice((1, 1, 1, 2))
    return Drawn(Deciding(given, taken, stages, ctas), slip, _varies(given) and _varies(taken))


def problems_of(seed: int, ctas: int) -> list[Problem]:
    """Small problems of many shapes."""
    rng = random.Random(f"problems {seed}")
    found = []
    for _ in range(PROBLEMS):
        of = rng.choice((1, 1, 2, 3))
        l, m, n = rng.randint(1, 3), rng.choice((1, 4, 5, 9, 13, 17, 37)) * rng.choice((1, ctas)), rng.randint(1, 4)
        while l * -(-m // (4 * ctas)) * n > MOST_TILES * of:
            l, m, n = max(1, l - 1), m, max(1, n - 1)
            if l == n == 1:
                break
        extents = {
            "l": l,
            "m": m,
            "n": 64 * n,
            "k": rng.choice((1, 63, 64, 65, 127, 128, 129, 192, 200, 320, 900)),
            "j": rng.choice((1, 64, 65, 128, 130, 256)),
            "h": 4,
            "g": 64,
        }
        shapes = {name: tuple(extents[d] for d in dims.split()) for name, dims in DIMS.items()}
        entries = [rng.randint(-1, 4) for _ in range(64)]
        found.append(Problem(shapes, rng.randrange(of), of, {"rows": entries}))
    return found


DIMS = {"x": "l m k", "z": "h j", "rows": "g", "y": "l m n"}


class WithRows(PlainIsa):
    """The table has entries."""

    rows: Any = ()

    def load_entry(self, table: str, i: Any, without_data: int) -> int:
        super().load_entry(table, i, without_data)
        return self.rows[i] if 0 <= i < len(self.rows) else 1


def goes_wrong(schedule: Deciding, problem: Problem) -> bool:
    """One run, by itself."""
    layout = Layout(schedule.plan())

    def make(*given: Any) -> WithRows:
        isa = WithRows(*given)
        isa.rows = problem.tables.get("rows", ())
        return isa

    programs = record(
        layout.plan,
        lambda isa: kernel_main(isa, schedule),
        problem.shapes,
        problem.cluster,
        problem.clusters,
        layout=layout,
        make=make,
    )
    found, _ = check_operations(layout, programs, problem.shapes)
    return any(not finding.kind.note for finding in found)


def judge(seed: int) -> dict[str, Any]:
    """The verdict on one schedule, and whether single runs agree."""
    drawn = draw(seed)
    started = time.process_time()
    report = drawn.schedule.check()
    seconds = time.process_time() - started
    verdict = "error" if not report.ok else "every" if report.trips == EVERY else "up to"
    if verdict == "error":
        agrees = report.problem is not None and goes_wrong(drawn.schedule, report.problem)
        wrong = int(agrees)
    else:
        wrong = sum(goes_wrong(drawn.schedule, problem) for problem in problems_of(seed, drawn.schedule.cluster["m"]))
        agrees = verdict != "every" or not wrong
    return {
        "seed": seed,
        "verdict": verdict,
        "agrees": agrees,
        "wrong runs": wrong,
        "slip": drawn.slip,
        "deciding": drawn.deciding,
        "seconds": round(seconds, 4),
        "why": report.runs[0][:160] if verdict == "up to" and report.runs else "",
    }


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Counts of all that was judged."""
    verdicts: Counter[str] = Counter()
    for row in rows:
        kind = "slip" if row["slip"] else "no slip"
        verdicts[f"{kind}: {row['verdict']}"] += 1
    seconds = sorted(row["seconds"] for row in rows) or [0.0]
    at = {
        name: seconds[int(share * (len(seconds) - 1))]
        for name, share in (("median", 0.5), ("p99", 0.99), ("longest", 1))
    }
    return {
        "schedules": len(rows),
        "seeds": [min((row["seed"] for row in rows), default=0), max((row["seed"] for row in rows), default=0)],
        "decide on something that varies in two roles": sum(row["deciding"] for row in rows),
        "verdicts": dict(sorted(verdicts.items())),
        "up to, and some run is wrong": sum(row["verdict"] == "up to" and row["wrong runs"] > 0 for row in rows),
        "CPU seconds of a check": {name: round(each, 3) for name, each in at.items()},
        "seeds of up to": [row["seed"] for row in rows if row["verdict"] == "up to"],
        "disagreements": [row["seed"] for row in rows if not row["agrees"]],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--first", type=lambda text: int(text, 0), default=0)
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--rows", type=Path, help="JSON lines of all that was judged; a later run goes on from there")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument(
        "--minutes", type=float, default=math.inf, help="how long to go on; what is judged by then counts"
    )
    given = parser.parse_args()
    rows: dict[int, dict[str, Any]] = {}
    if given.rows and given.rows.exists():
        rows = {row["seed"]: row for row in map(json.loads, given.rows.read_text().splitlines())}
    started = time.perf_counter()
    seeds = [seed for seed in range(given.first, given.first + given.count) if seed not in rows]
    for row in judged(seeds, given.jobs, started + 60 * given.minutes):
        rows[row["seed"]] = row
        if given.rows:
            with given.rows.open("a") as file:
                file.write(json.dumps(row) + "\n")
        if not row["agrees"]:
            print(f"seed {row['seed']}: {row}", flush=True)
    found = summary([rows[seed] for seed in sorted(rows)])
    given.out.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1), f"{time.perf_counter() - started:.0f} s")
    return bool(found["disagreements"])


def judged(seeds: list[int], jobs: int, end: float) -> Iterator[dict[str, Any]]:
    """What `judge` says of each, in any order, until `time.perf_counter` says *end*. jobs: processes."""
    if jobs == 1:
        for seed in seeds:
            if time.perf_counter() > end:
                return
            yield judge(seed)
        return
    with multiprocessing.get_context("spawn").Pool(jobs, maxtasksperchild=500) as pool:
        found = pool.imap_unordered(judge, seeds)
        for _ in seeds:
            try:
                yield found.next(min(max(0.0, end - time.perf_counter()), 1e6))
            except multiprocessing.TimeoutError:
                return


if __name__ == "__main__":
    sys.exit(main())
