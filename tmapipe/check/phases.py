"""Rules of the mbarriers: everything counts in the phase that it is meant for, in every interleaving.

- A wait that sees phase n complete knows that phase n - 1 is complete, or it could have returned two phases early.
- That wait happens before the completion of phase n + 1, or it could be overtaken.
- Whatever counts in phase n + 1 (arrival, expect-tx, bytes) knows that phase n is complete, or it could count there.
- Bytes armed without an arrival are armed before some arrival of their phase, or the phase could complete without them.

A warp knows that a phase is complete if it has waited for it, through whatever chain, or if everything that counted in it
happened before. The second is possible for arrivals but not for bytes, since only the wait shows that they have landed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tmapipe.check.clocks import Clock, Clocks, Known
from tmapipe.check.findings import Kind
from tmapipe.check.log import FindingLog, Step
from tmapipe.check.rules import Key, Rules
from tmapipe.isa.effects import Arm, Start, declared
from tmapipe.isa.ops import Counted
from tmapipe.machine.describe import bar_name, who
from tmapipe.machine.state import State

__all__ = ["Phase", "Phases"]


class Phase:
    """What has counted in one phase of an mbarrier, or in one use of a barrier of warps.

    clock: all of it joined; by: warp -> time of its last contribution; landed: whether bytes have landed; armed: each
    expect-tx; loose: those without an arrival, until one follows; steps: for the report; complete: so nothing changes.
    """

    __slots__ = ("armed", "by", "clock", "complete", "landed", "loose", "steps")

    def __init__(self, clock: Clock):
        self.clock = clock
        self.by: dict[int, int] = {}
        self.landed = self.complete = False
        self.armed: list[Step] = []
        self.loose: list[Step] = []
        self.steps: list[Step] = []

    def copy(self) -> Phase:
        return self if self.complete else self.apart()

    def apart(self) -> Phase:
        """A copy, also of a complete phase."""
        other = Phase(self.clock.copy())
        other.complete = self.complete
        other.by, other.landed = dict(self.by), self.landed
        other.armed, other.loose, other.steps = list(self.armed), list(self.loose), list(self.steps)
        return other

    def known_to(self, clock: Clock) -> bool:
        """Whether everything that counted is in the past of *clock*."""
        return not self.landed and all(clock[agent] >= time for agent, time in self.by.items())


class Phases(Rules):
    """All mbarriers of a cluster, by flat index.

    now: the present phase; done: the last one that completed; before: the one before that; waits: by warp, that which saw
    `done`.
    """

    kept = ("now", "done", "before", "waits")

    def __init__(self, clocks: Clocks, log: FindingLog):
        super().__init__(clocks, log)
        bars, nothing = range(clocks.handed_on - clocks.phases), Phase(clocks.zero())
        nothing.complete = True
        self.now = [Phase(clocks.zero()) for _ in bars]
        self.done, self.before = ([nothing for _ in bars] for _ in range(2))
        self.waits: list[dict[int, Step]] = [{} for _ in bars]

    def facts(self, state: State) -> Iterator[tuple[Key, Known]]:
        for bar, number in enumerate(state.phase):
            last, last_but_one = (((self.clocks.phases + bar, number - i),) for i in range(2))
            yield ("bar", bar, "last"), last
            yield ("bar", bar, "last but one"), last_but_one
            three = (("now", self.now, ()), ("done", self.done, last), ("before", self.before, last_but_one))
            for name, phases, over in three:
                for agent, time in phases[bar].by.items():
                    yield ("bar", bar, name, agent), ((agent, time),)
                if phases[bar].landed:
                    yield ("bar", bar, name, "landed"), over
            for agent, step in self.waits[bar].items():
                yield ("bar", bar, "wait", agent), ((agent, step.time),)

    def wait(self, step: Step, bar: int, phase: int) -> None:
        """The warp saw *phase* complete (-1: the one before the first)."""
        clocks, agent = self.clocks, step.agent
        clock, waited = clocks.of[agent], clocks.phases + bar
        step = step._replace(phase=phase)
        if clock[waited] < phase and not self.before[bar].known_to(clock):
            self._two_phases_early(step, bar, phase)
        clocks.acquire(agent, self.done[bar].clock)
        clock[waited] = max(clock[waited], phase + 1)
        self.waits[bar][agent] = step

    def arrive(self, step: Step, bar: int, counted: Counted, all_lanes: bool, order_only: bool) -> None:
        """One warp's arrivals or expect-tx (by its elected lane). order_only: it releases nothing to those who wait."""
        clocks, agent = self.clocks, step.agent
        clock, step = clocks.of[agent], step._replace(phase=counted.phase)
        self._check_not_early(clock, step, bar, counted.phase)
        phase = self.now[bar]
        phase.by[agent] = step.time
        phase.steps.append(step)
        if counted.nbytes:
            phase.armed.append(step)
            if not counted.arrivals:
                phase.loose.append(step)
        if order_only:
            clocks.execute(agent, phase.clock)
        else:
            clocks.release(agent, phase.clock, all_lanes, elected=counted.nbytes > 0)
        if counted.arrivals and phase.loose:
            phase.loose = [arming for arming in phase.loose if clock[arming.agent] < arming.time]
        if counted.completed:
            self._complete(bar, counted.phase)

    def land(self, clock: Clock, step: Step, bar: int, counted: Counted) -> None:
        """Bytes of a load that was issued with *clock* have landed, or the arrivals of copies by threads, which release
        nothing else."""
        self._check_not_early(clock, step, bar, counted.phase)
        phase = self.now[bar]
        phase.landed = True
        phase.steps.append(step)
        if counted.arrivals:
            self.clocks.join_executed(clock, phase.clock)
        else:
            armed = any(clock[arming.agent] >= arming.time for arming in phase.armed)
            if not armed and self.layout.cta_of(step.agent) == counted.cta:
                self._before_armed(step, bar, counted.phase)
            np.maximum(phase.clock, clock, out=phase.clock)
        if counted.completed:
            self._complete(bar, counted.phase)

    def _complete(self, bar: int, number: int) -> None:
        phase = self.now[bar]
        for agent, seen in self.waits[bar].items():
            if phase.clock[agent] < seen.time:
                self._overtaken(bar, number, seen)
        for arming in phase.loose:
            self._armed_late(arming, bar, number)
        phase.complete, self.waits[bar] = True, {}
        self.before[bar], self.done[bar] = self.done[bar], phase
        self.now[bar] = Phase(self.clocks.zero())

    def _check_not_early(self, clock: Clock, step: Step, bar: int, phase: int) -> None:
        if clock[self.clocks.phases + bar] < phase and not self.done[bar].known_to(clock):
            self._early(step, bar, phase)

    # ---- findings -------------------------------------------------------------------------------------------------

    def _two_phases_early(self, step: Step, bar: int, phase: int) -> None:
        barrier, name = self.layout.barrier(bar).name, bar_name(self.layout, bar)
        text = (
            f"{who(self.layout, step.agent)} waits for phase {phase} of {name} (parity {step.op.parity}) and does not know "
            f"that phase {phase - 1} is complete, so it can take phase {phase - 2}, of the same parity, for it"
        )
        role = self.layout.role(step.agent)
        turns = self._turnstiles() if self.layout.plan.role(role).teams > 1 else []
        if turns:
            fix = (
                f"let each team of {role} take its turn before it waits, as `with k.{turns[0]}.turn():` around the loop that "
                f"takes slots: so it knows what the other team has waited for"
            )
        else:
            fix = f"let {role} wait for every phase of {barrier} in turn, and check its first parity"
        self.log.add(Kind.LAPPED_WAIT, text, fix, step, *self.before[bar].steps, bar=bar, phase=phase)

    def _turnstiles(self) -> list[str]:
        """Names of turnstiles."""
        plan = self.layout.plan
        names = [*(each.name for each in plan.barriers), *(each.name for each in plan.named_barriers)]
        return [name.removesuffix(".turn") for name in names if name.endswith(".turn")]

    def _overtaken(self, bar: int, phase: int, seen: Step) -> None:
        barrier = self.layout.barrier(bar)
        missed = f"phase {phase - 1}" if phase else "the state before the first phase"
        text = (
            f"phase {phase} of {bar_name(self.layout, bar)} can complete before {who(self.layout, seen.agent)} has looked for "
            f"{missed} (parity {seen.op.parity}), which it then misses"
        )
        fix = (
            f"let {self.layout.role(seen.agent)} take part (directly, or by signalling those who do) in every phase of "
            f"{barrier.name}, after its wait; the count is {barrier.count}"
        )
        self.log.add(Kind.LAPPED_WAIT, text, fix, seen, *self.now[bar].steps, bar=bar, phase=phase)

    def _early(self, step: Step, bar: int, phase: int) -> None:
        barrier, name, of = self.layout.barrier(bar), bar_name(self.layout, bar), declared(type(step.op))
        arm, starts = of.effect(Arm), of.effect(Start) is not None
        verb = f"arrives at {name}" if arm is None else f"arms {getattr(step.op, arm.nbytes)} bytes on {name}"
        verb = f"starts a load that counts on {name}" if starts else verb
        text = (
            f"{who(self.layout, step.agent)} {verb} in phase {phase} without knowing that phase {phase - 1} is complete, so "
            f"it can count for phase {phase - 1}"
        )
        fix = (
            f"let {self.layout.role(step.agent)} wait for what phase {phase - 1} of {barrier.name} stands for before it does "
            f"this, or make the count ({barrier.count}) and the bytes match what one phase gets"
        )
        self.log.add(Kind.EARLY_ARRIVAL, text, fix, step, *self.done[bar].steps, bar=bar, phase=phase)

    def _armed_late(self, arming: Step, bar: int, phase: int) -> None:
        arm: Any = declared(type(arming.op)).effect(Arm)
        text = (
            f"phase {phase} of {bar_name(self.layout, bar)} can complete before {who(self.layout, arming.agent)} arms "
            f"{getattr(arming.op, arm.nbytes)} bytes for it: no arrival of the phase follows the arming"
        )
        fix = "arm the bytes before the arrival of the same phase (mbarrier.arrive.expect_tx does both)"
        self.log.add(Kind.TX_MISMATCH, text, fix, arming, *self.now[bar].steps, bar=bar, phase=phase)

    def _before_armed(self, step: Step, bar: int, phase: int) -> None:
        text = (
            f"{who(self.layout, step.agent)} starts a load on {bar_name(self.layout, bar)} before the arming of its bytes, or "
            "unordered with it; the bytes cancel out in the end"
        )
        self.log.add(Kind.COPY_BEFORE_ARM, text, "arm the barrier, then start the load", step, bar=bar, phase=phase)
