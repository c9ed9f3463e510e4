"""``python -m tmapipe.check.mutants``: does the checker catch what can go wrong in the shipped schedules?

Every call of the instruction set in every registered schedule, in its small form, is dropped, doubled, moved past the next
one, or given a shifted number: at all of its executions, the first, the last, or in one warp. The exhaustive oracle decides
whether some interleaving of a small problem can break; such a mutant must be caught by the linear check, and no other may be.
Prints kill rates by rule and schedule and writes ``benchmarks/results/mutants.json``.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import importlib.metadata
import json
import platform
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs

from tmapipe.check.explore import explore_program
from tmapipe.check.findings import Kind
from tmapipe.check.mutant_changes import CHANGES, changes_at, rule_of
from tmapipe.check.mutant_sites import Change, ChangedIsa, Site, SiteIsa, play
from tmapipe.check.program import check_program
from tmapipe.errors import HazardError
from tmapipe.kernel import kernel_main
from tmapipe.machine import Layout, record
from tmapipe.schedules import REGISTRY

__all__ = ["PROBLEMS", "Mutant", "Outcome", "Target", "judge", "mutants_of"]

LIMIT = 200_000
#: By schedule: (output tiles a CTA, steps along each inner dimension, extents by name) of the problems that it runs on.
PROBLEMS: dict[str, tuple[tuple[int, int, dict[str, int]], ...]] = {
    "Copy": ((1, 1, {}), (5, 1, {})),
    "AddParts": ((1, 1, {}), (4, 2, {})),
    "Gemm": ((1, 1, {}), (2, 3, {})),
    "PingPong": ((1, 1, {}), (3, 2, {})),
    "Copy, dynamic": ((1, 1, {}), (3, 1, {})),
    "StreamK": ((2, 3, {"s": 4}),),
    "SplitK": ((1, 3, {"s": 2}),),
}
_DEFAULT: tuple[tuple[int, int, dict[str, int]], ...] = ((1, 1, {}), (3, 3, {}))

Shapes = dict[str, tuple[int, ...]]


class Target:
    """A schedule, its plan and the problems that it is run on."""

    def __init__(self, name: str, schedule: Any):
        self.name, self.schedule = name, schedule
        self.plan = schedule.plan()
        self.layout = Layout(self.plan)
        self.problems = [self._shapes(*problem) for problem in PROBLEMS.get(name, _DEFAULT)]

    def _shapes(self, tiles: int, steps: int, extents: dict[str, int]) -> Shapes:
        output, tile = self.schedule.tile_grid()
        dims = self.schedule.part(output).dims
        plan = self.plan
        sizes = {d: e * plan.cluster.get(d, 1) for d, e in zip(dims, tile, strict=True)}
        sizes[dims[-1]] *= tiles
        for part in plan.transfers:
            for dim, extent in zip(part.dims, part.tile, strict=True):
                if dim not in dims:
                    sizes[dim] = extent * steps
        sizes.update(extents)
        return {part.argument: tuple(sizes[d] for d in part.dims) for part in plan.transfers}

    def recorded(self, entry: Callable[[Any], None]) -> Any:
        """The operations of every warp in every problem, hashable; None if the program cannot be recorded."""
        try:
            programs = [record(self.plan, entry, shapes, layout=self.layout) for shapes in self.problems]
        except HazardError as error:
            return str(error)
        return tuple(tuple(map(tuple, warps)) for warps in programs)


@attrs.frozen
class Mutant:
    """A target with one change. executions: (CTA, warp) -> how often the site is reached, by problem."""

    target: Target = attrs.field(eq=False, repr=False)
    change: Change
    executions: tuple[dict[tuple[int, int], int], ...] = attrs.field(eq=False, repr=False)

    @property
    def rule(self) -> str:
        return rule_of(self.change)

    def entry(self, problem: int) -> Callable[[Any], None]:
        """The kernel with the change."""

        def run(isa: Any) -> None:
            changed = ChangedIsa(isa, self.change, CHANGES[self.change.how], self.executions[problem])
            play(changed, self.target.schedule)
            changed.finish()

        return run


@attrs.frozen
class Outcome:
    """What was found of one mutant. breakable: whether some interleaving breaks (None: the oracle gave up); killed: whether
    the linear check rejects it; false_alarm: whether it does so on a problem on which no interleaving breaks."""

    mutant: Mutant
    breakable: bool | None
    killed: bool
    false_alarm: bool
    steps: int
    exhaustive: frozenset[Kind] = frozenset()
    linear: frozenset[Kind] = frozenset()


def mutants_of(target: Target) -> Iterator[Mutant]:
    """Every mutant whose operations differ from the schedule's and from those of the mutants before it."""
    sites: dict[Site, list[dict[tuple[int, int], int]]] = {}
    arguments: dict[Site, set[Any]] = {}

    class Recorder(SiteIsa):
        problem = 0

        def reached(self, site: Site, method: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
            counts = sites.setdefault(site, [{} for _ in target.problems])[self.problem]
            key = self.isa.cta_rank, self.isa.warp
            counts[key] = counts.get(key, 0) + 1
            arguments.setdefault(site, set()).add(_numbers(args))
            return method(*args, **options)

    def entry(isa: Any) -> None:
        play(Recorder(isa), target.schedule)

    for problem, shapes in enumerate(target.problems):
        Recorder.problem = problem
        record(target.plan, entry, shapes, layout=target.layout)
    seen = {target.recorded(lambda isa: kernel_main(isa, target.schedule))}
    for site, counts in sites.items():
        often = max(max(count.values(), default=0) for count in counts)
        several = len({warp for count in counts for _, warp in count}) > 1
        for how, by in changes_at(site, target.plan, arguments[site]):
            for when in ("all", "first", "last") if often > 1 else ("all",):
                for warps in ("all", "one") if several and when == "all" else ("all",):
                    mutant = Mutant(target, Change(site, how, by, when, warps), tuple(counts))
                    programs = _recorded(mutant)
                    if programs not in seen:
                        seen.add(programs)
                        yield mutant


def _recorded(mutant: Mutant) -> Any:
    target = mutant.target
    found = []
    for problem, shapes in enumerate(target.problems):
        try:
            found.append(record(target.plan, mutant.entry(problem), shapes, layout=target.layout))
        except HazardError as error:
            return str(mutant.change), str(error)
    return tuple(tuple(map(tuple, warps)) for warps in found)


def _numbers(args: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(a if isinstance(a, int) else None for a in args)


def judge(mutant: Mutant, limit: int = LIMIT) -> Outcome:
    """Both verdicts on all problems."""
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
    return Outcome(mutant, breakable, killed, false_alarm, steps, exhaustive, linear)


# ---- the table --------------------------------------------------------------------------------------------------------


@attrs.define
class Row:
    """One rule in one schedule."""

    schedule: str
    rule: str
    total: int = 0
    breakable: int = 0
    killed: int = 0
    false_alarms: int = 0
    undecided: int = 0

    def add(self, outcome: Outcome) -> None:
        self.total += 1
        self.breakable += outcome.breakable is True
        self.killed += outcome.breakable is True and outcome.killed
        self.false_alarms += outcome.false_alarm
        self.undecided += outcome.breakable is None


def why_equivalent(outcome: Outcome) -> str:
    """Why a mutant that the oracle calls right is right."""
    site, how = outcome.mutant.change.site, outcome.mutant.change.how
    for test, reason in _REASONS:
        if test(site, how):
            return reason
    return f"no interleaving of the small problems breaks ({outcome.steps} steps looked at)"


_REASONS: tuple[tuple[Callable[[Site, str], bool], str], ...] = (
    (lambda s, h: h == "double" and "fence" in s.method, "a second fence orders nothing more"),
    (lambda s, h: h == "double" and s.method.endswith(("wait_group", "wgmma_wait")), "the groups have ended already"),
    (lambda s, h: h == "double" and s.method == "mbarrier_wait", "the same phase is seen complete again"),
    (lambda s, h: h == "double" and s.method.endswith("sync"), "all participants synchronize twice"),
    (lambda s, h: h == "double" and "commit" in s.method, "an empty group, which no wait depends on"),
    (lambda s, h: h == "swap read", "to wait for a group to complete includes its reads"),
    (lambda s, h: h == "move", "the two operations do not depend on each other's order"),
)


def table(outcomes: list[Outcome]) -> list[Row]:
    rows: dict[tuple[str, str], Row] = {}
    for outcome in outcomes:
        key = outcome.mutant.target.name, outcome.mutant.rule
        rows.setdefault(key, Row(*key)).add(outcome)
    return list(rows.values())


def show(rows: list[Row]) -> str:
    """The rows as text, with totals."""
    lines = [
        f"{'schedule':<13} {'rule':<18} {'total':>6} {'breakable':>10} {'killed':>7} {'rate':>7} {'false alarms':>13}"
    ]
    total = Row("all", "")
    for row in [*rows, total]:
        rate = f"{100 * row.killed / row.breakable:.1f}%" if row.breakable else "-"
        lines.append(
            f"{row.schedule:<13} {row.rule:<18} {row.total:>6} {row.breakable:>10} {row.killed:>7} {rate:>7} "
            f"{row.false_alarms:>13}" + (f"  ({row.undecided} undecided)" if row.undecided else "")
        )
        if row is not total:
            for name in ("total", "breakable", "killed", "false_alarms", "undecided"):
                setattr(total, name, getattr(total, name) + getattr(row, name))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schedule", action="append", help="only this one (may be given several times)")
    parser.add_argument("--limit", type=int, default=LIMIT, help="steps after which the oracle gives up")
    parser.add_argument("--write", default="benchmarks/results/mutants.json", help="file to write ('' for none)")
    options = parser.parse_args()
    started = time.perf_counter()
    outcomes: list[Outcome] = []
    for registered in REGISTRY:
        if options.schedule and registered.name not in options.schedule:
            continue
        before, at = len(outcomes), time.perf_counter()
        for mutant in mutants_of(Target(registered.name, registered.make_small())):
            outcome = judge(mutant, options.limit)
            outcomes.append(outcome)
            if outcome.false_alarm or outcome.breakable is None or (outcome.breakable and not outcome.killed):
                what = "false alarm" if outcome.false_alarm else "undecided" if outcome.breakable is None else "missed"
                kinds = sorted(k.name for k in outcome.exhaustive | outcome.linear)
                print(f"{what}: {registered.name}: {mutant.change} {kinds}", flush=True)
        print(f"{registered.name}: {len(outcomes) - before} mutants, {time.perf_counter() - at:.0f} s", flush=True)
    rows = table(outcomes)
    print(show(rows))
    print(f"{time.perf_counter() - started:.0f} s")
    if options.write:
        _write(Path(options.write), rows, outcomes, time.perf_counter() - started)


def _write(path: Path, rows: list[Row], outcomes: list[Outcome], seconds: float) -> None:
    equivalent = [
        {"schedule": o.mutant.target.name, "mutant": str(o.mutant.change), "reason": why_equivalent(o)}
        for o in outcomes
        if o.breakable is False
    ]
    data = {
        "suite": "mutants",
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "versions": {"python": platform.python_version(), "tmapipe": importlib.metadata.version("tmapipe")},
        "commit": _commit(),
        "seconds": round(seconds, 1),
        "rows": [attrs.asdict(row) for row in rows],
        "equivalent": equivalent,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data, indent=1) + "\n")


@functools.cache
def _commit() -> str:
    found = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return found.stdout.strip()


if __name__ == "__main__":
    main()
