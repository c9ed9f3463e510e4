"""Checking a schedule for every trip count: which problems to run, and when they stand for all others.

A body's loops run as often as a dimension has tiles: output tiles a CTA, and steps along dimensions that the output lacks
(k of a GEMM). The runs cover, for the longest ring's S slots, 1, S - 1, S, S + 1 and 2 S + 1 turns, with one and several
output tiles, and a cluster that gets no tile. (Tensors with an extent of 0 never reach a kernel: `Schedule` answers for
them. Loops that run one time less than a dimension has tiles run 0 times here.)

That these stand for all larger counts is shown, not assumed: each warp's list of operations for some laps more is the
shorter list with those laps put in, and the machine's abstract state before and after them is the same. Where that cannot
be shown, the report says "up to n".
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tmapipe.check.budgets import budget_findings
from tmapipe.check.findings import Finding, Kind, Report
from tmapipe.check.program import run_checked
from tmapipe.dtypes import DType
from tmapipe.errors import PipelineError
from tmapipe.kernel import kernel_main
from tmapipe.machine import Layout, State, record
from tmapipe.machine.scheduler import Scheduler
from tmapipe.plan import Plan

__all__ = ["check_schedule"]

LAPS = 2  # until indices and parities are back where they were
PERIODS = (1, 2, 3, 4)  # numbers of laps after which the state is looked for again

Shapes = dict[str, tuple[int, ...]]


def check_schedule(schedule: Any, dtypes: Mapping[str, DType | str] | None = None, arch: str | None = None) -> Report:
    """The verdict on *schedule* for every trip count, every interleaving and every CTA of a cluster."""
    started = time.perf_counter()
    plan = schedule.plan(dtypes, arch=arch)
    slots = max((ring.stages for ring in plan.rings), default=1)
    output, tile = schedule.tile_grid()
    dims = schedule.part(output).dims
    inner = tuple(dict.fromkeys(d for load in plan.loads for d in load.dims if d not in dims))
    found: dict[Finding, None] = dict.fromkeys(budget_findings(plan))
    runs, events = [], 0
    for tiles, steps, clusters in _problems(slots, bool(inner)):
        shapes = _shapes(plan, dims, tile, inner, tiles, steps)
        for cluster in dict.fromkeys((0, clusters - 1)):
            some, count = run_checked(plan, lambda isa: kernel_main(isa, schedule), shapes, cluster, clusters)
            found.update(dict.fromkeys(some))
            events += count
        runs.append(f"{tiles} output tiles, {steps} steps, {clusters} clusters")
        if any(not finding.kind.note for finding in found):
            break
    trips = "this problem only"
    if all(finding.kind.note for finding in found):
        longest = 2 * slots + 1
        every = _recurs(schedule, plan, dims, tile, inner, slots)
        trips = "every trip count" if every else f"up to {longest} turns"
    ordered = _distinct(found)
    return Report(plan.name, ordered, trips, events, time.perf_counter() - started, tuple(runs))


def _problems(slots: int, inner: bool) -> Iterator[tuple[int, int, int]]:
    """(output tiles, inner steps, clusters in the grid)."""
    counts = sorted({1, max(1, slots - 1), slots, slots + 1})
    yield 1, 1, 2  # the second cluster gets no tile
    if inner:
        for steps in counts:
            yield 2, steps, 1
        yield 3, 2 * slots + 1, 1
    else:
        for tiles in (*counts, 2 * slots + 1):
            yield tiles, 1, 1


def _shapes(
    plan: Plan, dims: tuple[str, ...], tile: tuple[int, ...], inner: tuple[str, ...], tiles: int, steps: int
) -> Shapes:
    """Shapes of all tensors for *tiles* output tiles a CTA of one cluster, and *steps* tiles along each inner dimension."""
    extents: dict[str, int] = {}
    for i, (dim, extent) in enumerate(zip(dims, tile, strict=True)):
        extents[dim] = extent * plan.cluster.get(dim, 1) * (tiles if i == len(dims) - 1 else 1)
    for part in plan.transfers:
        for dim, extent in zip(part.dims, part.tile, strict=True):
            if dim in inner:
                extents[dim] = extent * steps
    return {part.argument: tuple(extents.get(dim, 1) for dim in part.dims) for part in plan.transfers}


def _recurs(
    schedule: Any, plan: Plan, dims: tuple[str, ...], tile: tuple[int, ...], inner: tuple[str, ...], slots: int
) -> bool:
    """Whether two laps more come back to the same state, along the inner steps and along the output tiles."""
    lap = LAPS * slots

    def shapes(tiles: int, steps: int) -> Shapes:
        return _shapes(plan, dims, tile, inner, tiles, steps)

    def along(axis: Callable[[int], Shapes]) -> bool:
        # Turns may be shared (by teams, or by parts of k), so that several laps are needed for each sharer to make one.
        return any(
            _same_state(schedule, plan, axis((laps + 1) * lap + 1), axis((2 * laps + 1) * lap + 1)) for laps in PERIODS
        )

    over_steps = not inner or along(lambda steps: shapes(1, steps))
    return over_steps and along(lambda tiles: shapes(tiles, 1))


def _same_state(schedule: Any, plan: Plan, short: Shapes, long: Shapes) -> bool:
    layout = Layout(plan)
    lists = []
    for shapes in (short, long):
        programs = record(plan, lambda isa: kernel_main(isa, schedule), shapes, 0, 1, layout=layout)
        lists.append([[_without_place(op) for op in program] for program in programs])
    before, after = [], []
    for one, two in zip(*lists, strict=True):
        block = len(two) - len(one)
        common = next((i for i, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), len(one))
        if block < 0 or two[common + block :] != one[common:]:
            return False
        if common < block or two[common - block : common] != two[common : common + block]:
            return block == 0
        before.append(two[: common - block])
        after.append(two[:common])
    states = [_state_after(layout, programs) for programs in (before, after)]
    return None not in states and states[0] == states[1]


def _state_after(layout: Layout, programs: list[list[Any]]) -> Any:
    """The abstract state once every warp has executed its list; None if some warp cannot."""
    state = State(layout)
    try:
        Scheduler(state, [iter(program) for program in programs]).run()
    except (PipelineError, StopIteration, RuntimeError):
        return None
    return state.abstract()


def _without_place(op: Any) -> Any:
    """The operation without what grows with the tile: coordinates."""
    return op._replace(at=()) if getattr(op, "at", ()) else op


def _distinct(found: dict[Finding, None]) -> tuple[Finding, ...]:
    """Each kind once for each place, the first time that it was seen; errors first."""
    seen: dict[tuple[Kind, tuple[str, ...], str | None], Finding] = {}
    for finding in found:
        name = finding.barrier or finding.slot
        seen.setdefault((finding.kind, finding.where, name and name.split("[")[0]), finding)
    return tuple(sorted(seen.values(), key=lambda finding: finding.kind.note))
