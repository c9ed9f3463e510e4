"""Rules of the mbarriers: everything counts in the phase that it is meant for, in every interleaving.

- A wait that sees phase n complete knows that phase n - 1 is complete, or it could have returned two phases early.
- That wait happens before the completion of phase n + 1, or it could be overtaken.
- Whatever counts in phase n + 1 (arrival, expect-tx, bytes) knows that phase n is complete, or it could count there.
- Bytes armed without an arrival are armed before some arrival of their phase, or the phase could complete without them.

A warp knows that a phase is complete if it has waited for it, through whatever chain, or if everything that counted in it
happened before. The second is possible for arrivals but not for bytes, since only the wait shows that they have landed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tmapipe.check.clocks import Clock, Clocks
from tmapipe.check.findings import Kind
from tmapipe.check.log import FindingLog, Step
from tmapipe.isa.effects import Arm, Start, declared
from tmapipe.isa.ops import Counted
from tmapipe.machine.describe import bar_name, who

__all__ = ["Phase", "Phases"]


class Phase:
    """What has counted in one phase of one mbarrier.

    clock: all of it joined; by: warp -> time of its last contribution; landed: whether bytes have landed; armed: (warp, time)
    of each expect-tx; loose: those without an arrival, until one follows; steps: for the report.
    """

    __slots__ = ("armed", "by", "clock", "landed", "loose", "steps")

    def __init__(self, clock: Clock):
        self.clock = clock
        self.by: dict[int, int] = {}
        self.landed = False
        self.armed: list[tuple[int, int]] = []
        self.loose: list[tuple[int, int, Step]] = []
        self.steps: list[Step] = []

    def copy(self) -> Phase:
        other = Phase(self.clock.copy())
        other.by, other.landed, other.armed = dict(self.by), self.landed, list(self.armed)
        other.loose, other.steps = list(self.loose), list(self.steps)
        return other

    def known_to(self, clock: Clock) -> bool:
        """Whether everything that counted is in the past of *clock*."""
        return not self.landed and all(clock[agent] >= time for agent, time in self.by.items())


class Phases:
    """All mbarriers of a cluster, by flat index.

    now: the present phase; done: the last one that completed; before: the one before that; waits: warp -> (time, step) of
    waits that saw `done`.
    """

    def __init__(self, clocks: Clocks, log: FindingLog):
        bars = clocks.handed_on - clocks.phases
        self.clocks, self.log, self.layout = clocks, log, log.layout
        self.now = [Phase(clocks.zero()) for _ in range(bars)]
        self.done: list[Phase | None] = [None] * bars
        self.before: list[Phase | None] = [None] * bars
        self.waits: list[dict[int, tuple[int, Step]]] = [{} for _ in range(bars)]

    def take(self, other: Phases) -> None:
        """Copies *other*, to go on independently."""
        self.now = [phase.copy() for phase in other.now]
        self.done, self.before = list(other.done), list(other.before)
        self.waits = [dict(waits) for waits in other.waits]

    def wait(self, agent: int, op: Any, bar: int, phase: int) -> None:
        """The warp saw *phase* complete (-1: the one before the first)."""
        clocks = self.clocks
        clock = clocks.of[agent]
        step = Step(self.log.order, agent, op, phase)
        if phase >= 0:
            done = self.done[bar]
            assert done is not None
            if phase > 0 and clock[clocks.phases + bar] < phase:
                before = self.before[bar]
                if before is not None and not before.known_to(clock):
                    self._two_phases_early(step, bar, phase)
            clocks.acquire(agent, done.clock)
            if clock[clocks.phases + bar] <= phase:
                clock[clocks.phases + bar] = phase + 1
        self.waits[bar][agent] = clocks.time[agent], step

    def arrive(self, agent: int, op: Any, bar: int, counted: Counted, all_lanes: bool, order_only: bool) -> None:
        """One warp's arrivals or expect-tx (by its elected lane). order_only: it releases nothing to those who wait."""
        clocks = self.clocks
        clock, time = clocks.of[agent], clocks.time[agent]
        step = Step(self.log.order, agent, op, counted.phase)
        self._check_not_early(clock, step, bar, counted.phase)
        phase = self.now[bar]
        phase.by[agent] = time
        phase.steps.append(step)
        if counted.nbytes:
            phase.armed.append((agent, time))
            if not counted.arrivals:
                phase.loose.append((agent, time, step))
        if order_only:
            clocks.execute(agent, phase.clock)
        else:
            clocks.release(agent, phase.clock, all_lanes, elected=counted.nbytes > 0)
        if counted.arrivals and phase.loose:
            phase.loose = [arming for arming in phase.loose if clock[arming[0]] < arming[1]]
        if counted.completed:
            self._complete(step, bar, counted.phase)

    def land(self, clock: Clock, step: Step, bar: int, counted: Counted) -> None:
        """Bytes of a load that was issued with *clock* have landed, or the arrivals of copies by threads, which release
        nothing else."""
        self._check_not_early(clock, step, bar, counted.phase)
        phase = self.now[bar]
        phase.landed = True
        phase.steps.append(step)
        own = step.agent // self.layout.warps == counted.cta  # type: ignore[operator]
        if counted.arrivals:
            self.clocks.join_executed(clock, phase.clock)
        else:
            if own and not any(clock[agent] >= time for agent, time in phase.armed):
                self._before_armed(step, bar, counted.phase)
            np.maximum(phase.clock, clock, out=phase.clock)
        if counted.completed:
            self._complete(step, bar, counted.phase)

    def _complete(self, step: Step, bar: int, number: int) -> None:
        phase = self.now[bar]
        for agent, (time, seen) in self.waits[bar].items():
            if phase.clock[agent] < time:
                self._overtaken(step, bar, number, seen)
        for _, _, arming in phase.loose:
            self._armed_late(arming, step, bar, number)
        self.waits[bar] = {}
        self.before[bar], self.done[bar] = self.done[bar], phase
        self.now[bar] = Phase(self.clocks.zero())

    def _check_not_early(self, clock: Clock, step: Step, bar: int, phase: int) -> None:
        if phase and clock[self.clocks.phases + bar] < phase:
            done = self.done[bar]
            if done is not None and not done.known_to(clock):
                self._early(step, bar, phase, done)

    # ---- findings -------------------------------------------------------------------------------------------------

    def _two_phases_early(self, step: Step, bar: int, phase: int) -> None:
        name, agent = bar_name(self.layout, bar), who(self.layout, step.agent)
        text = (
            f"{agent} waits for phase {phase} of {name} (parity {step.op.parity}) and does not know that phase {phase - 1} "
            f"is complete, so it can take phase {phase - 2}, of the same parity, for it",
            f"let {self._role(step)} wait for every phase of {name.split('[')[0]} in turn, and check its first parity",
        )
        self.log.add(Kind.LAPPED_WAIT, text, step, *self._steps(self.before[bar]), bar=bar, phase=phase)

    def _overtaken(self, step: Step, bar: int, phase: int, seen: Step) -> None:
        name, missed = bar_name(self.layout, bar), f"phase {phase - 1}" if phase else "the state before the first phase"
        text = (
            f"phase {phase} of {name} can complete before {who(self.layout, seen.agent)} has looked for {missed} (parity "
            f"{seen.op.parity}), which it then misses",
            f"let {self._role(seen)} take part (directly, or by signalling those who do) in every phase of "
            f"{name.split('[')[0]}, after its wait; the count is {self._count(bar)}",
        )
        self.log.add(Kind.LAPPED_WAIT, text, seen, *self.now[bar].steps, bar=bar, phase=phase)

    def _early(self, step: Step, bar: int, phase: int, done: Phase) -> None:
        name, of = bar_name(self.layout, bar), declared(type(step.op))
        arm, starts = of.effect(Arm), of.effect(Start) is not None
        verb = f"arrives at {name}" if arm is None else f"arms {getattr(step.op, arm.nbytes)} bytes on {name}"
        verb = f"starts a load that counts on {name}" if starts else verb
        text = (
            f"{who(self.layout, step.agent)} {verb} in phase {phase} without knowing that phase {phase - 1} is complete, so "
            f"it can count for phase {phase - 1}",
            f"let {self._role(step)} wait for what phase {phase - 1} of {name.split('[')[0]} stands for before it does this, "
            f"or make the count ({self._count(bar)}) and the bytes match what one phase gets",
        )
        self.log.add(Kind.EARLY_ARRIVAL, text, step, *done.steps, bar=bar, phase=phase)

    def _armed_late(self, arming: Step, step: Step, bar: int, phase: int) -> None:
        arm: Any = declared(type(arming.op)).effect(Arm)
        text = (
            f"phase {phase} of {bar_name(self.layout, bar)} can complete before {who(self.layout, arming.agent)} arms "
            f"{getattr(arming.op, arm.nbytes)} bytes for it: no arrival of the phase follows the arming",
            "arm the bytes before the arrival of the same phase (mbarrier.arrive.expect_tx does both)",
        )
        self.log.add(Kind.TX_MISMATCH, text, arming, *self.now[bar].steps, bar=bar, phase=phase)

    def _before_armed(self, step: Step, bar: int, phase: int) -> None:
        text = (
            f"{who(self.layout, step.agent)} starts a load on {bar_name(self.layout, bar)} before the arming of its bytes, or "
            "unordered with it; the bytes cancel out in the end",
            "arm the barrier, then start the load",
        )
        self.log.add(Kind.COPY_BEFORE_ARM, text, step, bar=bar, phase=phase)

    def _count(self, bar: int) -> int:
        return self.layout.bars[bar % self.layout.nbars][0].count

    def _role(self, step: Step) -> str:
        return self.layout.role(step.agent)  # type: ignore[arg-type]

    def _steps(self, phase: Phase | None) -> list[Step]:
        return [] if phase is None else phase.steps
