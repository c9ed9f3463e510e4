"""``python -m tests.oracle.mutants``: does the checker catch what can go wrong in the shipped schedules?

Every operation in every registered schedule, in its small form, is dropped, doubled, moved past the next one, or given another
operand, as its declaration in the table of operations allows: at all of its executions, at the first or last of each warp, or
in one warp alone. The exhaustive oracle decides whether some interleaving of a small problem can break; such a mutant must be
caught by the linear check, and no other may be. Prints kill rates by rule and schedule and writes
``benchmarks/results/mutants.json``.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs

from tests.oracle.copy_forms import Added, BulkFromSlots, CopiedGemm, Far, FarPieces, Mapped, MappedBefore
from tests.oracle.descriptor_forms import ScaledRows
from tests.oracle.explore import explore_program
from tests.oracle.held_forms import Held, Narrowed, Parts, Synced
from tests.oracle.matmul_forms import InFlight, InTurn, Relu, Widened
from tests.oracle.mutant_changes import changed, changes_at, rule_of
from tests.oracle.mutant_sites import Change, Program, program_of
from tests.oracle.mutant_table import Outcome, show, write
from tests.oracle.one_run import check_program
from tests.oracle.peer_forms import (
    Counted,
    LongRows,
    Looked,
    Paired,
    PairsOfRows,
    Reduced,
    Rotated,
    Scattered,
    Swapped,
    WholeBoxes,
)
from tests.oracle.plain import record
from tests.oracle.program_forms import FORMS
from tests.oracle.registry import REGISTRY, Registered
from tests.oracle.result_forms import Chained, InPlace, Overlapped, TwoStages
from tests.oracle.row_forms import GatherFour, GatherRows, ScatterFour, ScatterRows
from tests.oracle.value_forms import Normalized
from tmapipe.epilogue import Epilogue
from tmapipe.model import Layout
from tmapipe.model.layout import Kind
from tmapipe.prove.problem import Sizes
from tmapipe.schedules import Copy, Gemm, PingPong

__all__ = ["VARIANTS", "Mutant", "Target", "judge", "mutants_of"]

LIMIT = 200_000

#: Further small forms: what no small form of the registry has.
VARIANTS: tuple[Registered, ...] = (
    Registered("Copy 3 stages", Copy, lambda: Copy((4, 64), stages=3, pending=0), ((7, 1, {}),)),
    Registered(
        "Gemm 1x2 2 groups",
        Gemm,
        lambda: Gemm((128, 64, 16), (1, 2), 2, epilogue=Epilogue()),
        ((3, 2, {}),),
    ),
    Registered("Gemm 2x2", Gemm, lambda: Gemm((64, 64, 16), (2, 2), 2, epilogue=Epilogue(stages=1)), ((2, 3, {}),)),
    Registered(
        "PingPong 2x1",
        PingPong,
        lambda: PingPong((64, 64, 16), (2, 1), 2, in_turn=False, epilogue=Epilogue(stages=1)),
        ((2, 3, {}), (4, 1, {})),
    ),
    Registered("held slot", Held, Held, ((1, 1, {}), (3, 1, {}))),
    Registered("scratch", Synced, Synced, ((1, 1, {}), (3, 1, {}))),
    Registered("tile over another", Narrowed, Narrowed, ((1, 1, {}), (3, 1, {}))),
    Registered("tile in parts", Parts, Parts, ((1, 1, {}), (5, 1, {}))),
    Registered("matmuls in flight", InFlight, InFlight, ((2, 3, {}),)),
    Registered("warpgroups in turn", InTurn, InTurn, ((1, 3, {}),)),
    Registered("operand from registers", Relu, Relu, ((1, 3, {"m": 128}),)),
    Registered("operand written by threads", Widened, Widened, ((2, 3, {}),)),
    Registered("copies beside loads", Added, Added, ((1, 1, {}), (5, 1, {}))),
    Registered("stores by threads", Mapped, Mapped, ((1, 1, {}), (5, 1, {}))),
    Registered("the same on sm_80", MappedBefore, MappedBefore, ((1, 1, {}), (5, 1, {}))),
    Registered("rows by number", GatherRows, GatherRows, ((1, 1, {}), (3, 1, {}))),
    Registered("rows by number, by gather4", GatherFour, GatherFour, ((1, 1, {}), (5, 1, {}))),
    Registered(
        "rows added by number", lambda: ScatterRows("add"), lambda: ScatterRows("add"), ((1, 1, {}), (3, 1, {}))
    ),
    Registered("rows to numbers, by scatter4", ScatterFour, ScatterFour, ((1, 1, {}), (5, 1, {}))),
    Registered("tiles asked into L2", Far, Far, ((1, 1, {}), (5, 1, {}))),
    Registered("pieces asked into L2", FarPieces, FarPieces, ((1, 1, {}), (5, 1, {}))),
    Registered("bulk stores", BulkFromSlots, BulkFromSlots, ((1, 1, {}), (3, 1, {}))),
    Registered("operand copied by threads", CopiedGemm, CopiedGemm, ((2, 3, {}),)),
    Registered("rows over warps", Normalized, Normalized, ((1, 1, {}), (2, 1, {}))),
    Registered("rows of b anywhere", ScaledRows, ScaledRows, ((2, 1, {}),)),
    Registered("rotated among peers", Rotated, Rotated, ((1, 1, {}), (3, 1, {}))),
    Registered("scattered to peers", Scattered, Scattered, ((1, 1, {}), (2, 1, {}))),
    Registered("shared by pairs of four CTAs", Paired, Paired, ((1, 1, {}),)),
    Registered("results loaded again", Chained, Chained, ((1, 1, {}), (3, 1, {}))),
    Registered("results loaded while others are stored", Overlapped, Overlapped, ((1, 1, {}), (3, 1, {}))),
    Registered("one tensor for two stages", TwoStages, TwoStages, ((1, 1, {}), (3, 1, {}))),
    Registered("output over its input", InPlace, InPlace, ((1, 1, {}), (3, 1, {}))),
    Registered("whole boxes multicast", WholeBoxes, WholeBoxes, ((1, 1, {}), (2, 1, {}))),
    Registered("reduced into peers", Reduced, Reduced, ((1, 1, {}), (2, 1, {}))),
    Registered("reduced by threads", Counted, Counted, ((1, 1, {}), (2, 1, {}))),
    Registered("read from peers", Looked, Looked, ((1, 1, {}), (2, 1, {}))),
    Registered("sent by threads", Swapped, Swapped, ((1, 1, {}),)),
    Registered("rows over CTAs", LongRows, LongRows, ((1, 1, {"n": 1024}),)),
    Registered("rows over pairs of four CTAs", PairsOfRows, PairsOfRows, ((1, 1, {"n": 2048}),)),
    *FORMS,
)

Shapes = dict[str, tuple[int, ...]]


class Target:
    """A registered schedule's small form, its plan and the problems that it is run on. programs: by problem and warp of the
    cluster."""

    def __init__(self, registered: Registered):
        self.name, self.schedule = registered.name, registered.make_small()
        self.plan = self.schedule.plan()
        self.layout = Layout(self.plan)
        self.problems = [self._shapes(*problem) for problem in registered.problems]
        self.programs = [self._programs(shapes) for shapes in self.problems]

    def _shapes(self, tiles: int, steps: int, extents: dict[str, int]) -> Shapes:
        axes, plan = self.schedule.axes, self.plan
        dims = tuple(axes)
        sizes = {d: axis.elements * plan.cluster.get(d, 1) for d, axis in axes.items()}
        sizes[Sizes(self.schedule, plan).along] *= tiles
        for part in plan.transfers:
            for dim, extent in zip(part.dims, part.tile, strict=True):
                if dim not in dims:
                    sizes[dim] = extent * steps
        sizes.update(extents)
        sizes = plan.related(sizes)
        return {name: tuple(sizes[d] for d in dims) for name, dims in plan.dims.items()}

    def _programs(self, shapes: Shapes) -> list[Program]:
        programs: list[Program] = []
        record(self.plan, lambda isa: programs.append(program_of(isa, self.schedule)), shapes, layout=self.layout)
        return programs


@attrs.frozen
class Mutant:
    """A target with one change."""

    target: Target = attrs.field(eq=False, repr=False)
    change: Change

    def operations(self) -> tuple[tuple[tuple[Any, ...], ...], ...]:
        """Those of each warp in each problem."""
        return tuple(
            tuple(self._operations(program, agent) for agent, program in enumerate(programs))
            for programs in self.target.programs
        )

    def entry(self, problem: int) -> Callable[[Any], None]:
        """The kernel with the change."""

        def run(isa: Any) -> None:
            for op in self._operations(self.target.programs[problem][isa.agent], isa.agent):
                isa.emit(op)

        return run

    def _operations(self, program: Program, agent: int) -> tuple[Any, ...]:
        executions = program.sites.get(self.change.site, []) if self._concerns(agent) else []
        now = {"all": executions, "first": executions[:1], "last": executions[-1:]}[self.change.when]
        return changed(program, self.change, now, self.target.layout)

    def _concerns(self, agent: int) -> bool:
        """Whether the change is to be made in this warp."""
        layout, role = self.target.layout, self.change.site.role
        warps = [warp for warp, name in enumerate(layout.roles) if role in ("set-up", name)]
        if self.change.warps == "last":
            return agent == max(warps)
        return self.change.warps == "all" or agent == (layout.ctas - 1) * layout.warps + min(warps)


def mutants_of(target: Target, every: int = 1) -> Iterator[Mutant]:
    """Every mutant whose operations differ from the schedule's and from those of the mutants before it; or one in *every*."""
    unchanged = tuple(tuple(tuple(itertools.chain(*p.instructions)) for p in programs) for programs in target.programs)
    seen = {unchanged}
    for number, change in enumerate(_changes(target)):
        if number % every:
            continue
        mutant = Mutant(target, change)
        operations = mutant.operations()
        if operations not in seen:
            seen.add(operations)
            yield mutant


def _changes(target: Target) -> Iterator[Change]:
    everywhere = [(agent, program) for programs in target.programs for agent, program in enumerate(programs)]
    for site in dict.fromkeys(site for _, program in everywhere for site in program.sites):
        found = [(agent, program.operations(site)) for agent, program in everywhere]
        often = max(len(ops) for _, ops in found) > 1
        several = len({agent for agent, ops in found if ops}) > 1
        for how, operand, by in changes_at(site, [op for _, ops in found for op in ops], target.layout):
            for when in ("all", "first", "last") if often else ("all",):
                for warps in ("all", "first", "last") if several and when == "all" else ("all",):
                    yield Change(site, how, operand, by, when, warps)


def judge(mutant: Mutant, limit: int = LIMIT) -> Outcome:
    """Both verdicts on all problems. limit: steps on each after which the oracle gives up."""
    target = mutant.target
    breakable: bool | None = False
    killed = false_alarm = False
    steps = 0
    exhaustive: frozenset[Kind] = frozenset()
    linear: frozenset[Kind] = frozenset()
    for problem, shapes in enumerate(target.problems):
        entry = mutant.entry(problem)
        found = explore_program(target.plan, entry, shapes, limit=limit, first_only=True)
        report = check_program(target.plan, entry, shapes)
        steps += found.steps
        exhaustive |= found.kinds
        linear |= report.kinds()
        killed |= not report.ok
        false_alarm |= not report.ok and found.ok is True
        breakable = True if found.ok is False else None if found.ok is None and breakable is False else breakable
    return Outcome(target.name, mutant.change, breakable, killed, false_alarm, steps, exhaustive, linear)


# ---- all of them ------------------------------------------------------------------------------------------------------

_mutants: list[Mutant] = []
_limit = LIMIT


def _judge_one(index: int) -> Outcome:
    return judge(_mutants[index], _limit)


def judged(mutants: list[Mutant], limit: int = LIMIT, jobs: int = 1) -> Iterator[Outcome]:
    """The outcomes in order. jobs: processes, forked, since mutants cannot be sent to others."""
    global _limit
    if jobs == 1:
        yield from (judge(mutant, limit) for mutant in mutants)
        return
    _mutants[:], _limit = mutants, limit
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        yield from pool.imap(_judge_one, range(len(mutants)), chunksize=4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schedule", action="append", help="only this one (may be given several times)")
    parser.add_argument(
        "--rule", default="", metavar="TEXT", help="only mutants of rules that end so, such as 'grid wait'"
    )
    parser.add_argument("--limit", type=int, default=LIMIT, help="steps after which the oracle gives up")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--append", action="store_true", help="keep what the file has of other schedules")
    parser.add_argument("--write", default="benchmarks/results/mutants.json", help="file to write ('' for none)")
    options = parser.parse_args()
    targets = [r for r in REGISTRY + VARIANTS if not options.schedule or r.name in options.schedule]
    if not targets:
        parser.error(f"--schedule: one of {', '.join(r.name for r in REGISTRY + VARIANTS)}")
    started = time.perf_counter()
    outcomes: list[Outcome] = []
    for registered in targets:
        at = time.perf_counter()
        mutants = [one for one in mutants_of(Target(registered)) if rule_of(one.change).endswith(options.rule)]
        for done, outcome in enumerate(judged(mutants, options.limit, options.jobs), 1):
            outcomes.append(outcome)
            if outcome.wrong:
                kinds = sorted(k.name for k in outcome.exhaustive | outcome.linear)
                print(f"{outcome.wrong}: {registered.name}: {outcome.change} {kinds}", flush=True)
            if sys.stderr.isatty():
                print(f"\r{registered.name}: {done} of {len(mutants)}", end="\r", file=sys.stderr, flush=True)
        print(f"{registered.name}: {len(mutants)} mutants, {time.perf_counter() - at:.0f} s", flush=True)
    print(show(outcomes))
    seconds = time.perf_counter() - started
    print(f"{seconds:.0f} s")
    if options.write:
        write(Path(options.write), outcomes, seconds, append=options.append, rule=options.rule)


if __name__ == "__main__":
    main()
