"""Vector clocks, and the rules of barriers: each wait and each arrival is of the phase that it is meant for."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np

from tmapipe.check import FindingLog, Step
from tmapipe.isa import Arm, ArriveAt, Start, declared
from tmapipe.isa.ops import Counted
from tmapipe.model.layout import Kind, Layout
from tmapipe.model.run import bar_name, who
from tmapipe.model.state import State

# ---- clocks ----------------------------------------------------------------------------------------------------------
#
# What each warp, and each phase of a barrier, has in its past. A clock is one array of integers with six parts. The time of a
# warp is the number of its operations so far.
#
# executed   by warp: its operations up to this time have been executed
# published  by warp: what all of its lanes accessed up to this time is visible here
# fenced     by warp: what it accessed up to this time was followed by its own proxy fence, which is visible here
# told       by warp: the mbarriers that its elected lane initialized up to this time are initialized here
# phases     by mbarrier: this many of its phases have been waited for
# handed_on  by mbarrier: this many of its phases have been waited for, and then a proxy fence was executed
#
# The lanes of a warp are converged, so an operation of one lane is *executed* for all. Memory is different: an arrival by one
# lane publishes what the other lanes accessed and fenced only up to their last common synchronization. The elected lane tells
# of the mbarriers that it initialized itself.


Clock = np.ndarray
Known = tuple[tuple[int, int], ...]  # (entry of a clock, least value): a fact is known to clocks that have one of them


def knows(clock: Clock | list[int], known: Known) -> bool:
    """Whether a fact is in the past of a clock."""
    for entry, least in known:  # noqa: SIM110 - any() takes twice as long, and most of a check asks this
        if clock[entry] >= least:
            return True
    return False


class Clocks:
    """The warps' clocks.

    of: by warp, its clock (its own entries: executed now; published and fenced at its lanes' last common synchronization);
    time: by warp; fence: by warp, the time of its last proxy fence; published, fenced, told, phases, handed_on: where these
    parts of a clock begin.
    """

    def __init__(self, layout: Layout):
        self.agents = layout.agents
        self.published, self.fenced, self.told, self.phases = (i * layout.agents for i in range(1, 5))
        self.handed_on = self.phases + layout.ctas * layout.nbars
        self.size = self.handed_on + layout.ctas * layout.nbars
        self.of = [self.zero() for _ in range(layout.agents)]
        self.time = [0] * layout.agents
        self.fence = [0] * layout.agents

    def copy(self) -> Clocks:
        """The same clocks, to go on independently."""
        other = copy.copy(self)
        other.of = [clock.copy() for clock in self.of]
        other.time, other.fence = list(self.time), list(self.fence)
        return other

    def zero(self) -> Clock:
        return np.zeros(self.size, np.int32)

    def tick(self, agent: int) -> int:
        """The warp executes its next operation, at the time returned."""
        time = self.time[agent] + 1
        self.time[agent] = time
        self.of[agent][agent] = time
        return time

    def release(self, agent: int, into: Clock, all_lanes: bool, elected: bool = False) -> None:
        """Joins into a barrier's clock what all lanes of the warp release, or one lane, which may be the elected one."""
        clock = self.of[agent]
        np.maximum(into, clock, out=into)
        if all_lanes or elected:
            into[self.told + agent] = self.time[agent]
        if all_lanes:
            into[self.published + agent] = self.time[agent]
            into[self.fenced + agent] = self.fence[agent]

    def join_executed(self, clock: Clock, into: Clock) -> None:
        """Joins only what has been executed and waited for: for an operation that counts, but releases no accesses."""
        np.maximum(into[: self.agents], clock[: self.agents], out=into[: self.agents])
        np.maximum(into[self.phases :], clock[self.phases :], out=into[self.phases :])

    def fence_proxy(self, agent: int) -> None:
        """The warp executes a proxy fence, after its own accesses, and after the copies by threads that it has waited for."""
        self.fence[agent] = self.time[agent]
        own = self.of[agent]
        waited = own[self.phases : self.handed_on]
        np.maximum(own[self.handed_on :], waited, out=own[self.handed_on :])

    def acquire(self, agent: int, clock: Clock) -> None:
        """All lanes of the warp come to know *clock*."""
        own = self.of[agent]
        np.maximum(own, clock, out=own)

    def of_all_lanes(self) -> Clock:
        """By warp, what an arrival by all of its lanes releases."""
        found, agents = np.array(self.of), np.arange(self.agents)
        found[agents, self.told + agents] = found[agents, self.published + agents] = self.time
        found[agents, self.fenced + agents] = self.fence
        return found

    def synchronize_lanes(self, agent: int) -> None:
        """``bar.warp.sync``: each lane knows what the other lanes did."""
        clock = self.of[agent]
        clock[self.told + agent] = clock[self.published + agent] = self.time[agent]
        clock[self.fenced + agent] = self.fence[agent]


# ---- rules -----------------------------------------------------------------------------------------------------------
#
# What the rules of the linear check have in common: clocks, a log, and state that can be copied.


FactName = tuple[Any, ...]  # the name of a fact


class Rules:
    """Rules of one kind, with their state along a run. kept: the names of attributes that change along a run; in_flight: the
    names of dictionaries that are empty where nothing is in flight, or matter to reports alone."""

    kept: ClassVar[tuple[str, ...]]
    in_flight: ClassVar[tuple[str, ...]] = ()

    def __init__(self, clocks: Clocks, log: FindingLog):
        self.clocks, self.log, self.layout = clocks, log, log.layout

    def copy(self, clocks: Clocks) -> Any:
        """The same rules, to go on independently with *clocks*. Nothing is in flight."""
        other = copy.copy(self)
        other.clocks = clocks
        for name in self.kept:
            setattr(other, name, copied(getattr(self, name)))
        for name in self.in_flight:
            setattr(other, name, {})
        return other

    def _who(self, step: Step) -> str:
        return who(self.layout, step.agent)

    def _bar(self, bar: int) -> str:
        return bar_name(self.layout, bar)

    def facts(self, state: State, by_all: list[int]) -> Iterator[tuple[FactName, Known]]:
        """The facts that later operations are checked against, each with how it is known. Nothing is in flight. Facts that the
        clock *by_all* knows may be left out."""
        return iter(())


def copied(value: Any) -> Any:
    """A copy of a container or a clock, and of the containers and clocks in it."""
    if isinstance(value, dict):
        return {key: each if isinstance(each, (int, tuple)) else copied(each) for key, each in value.items()}
    if isinstance(value, list):
        return [each if isinstance(each, (int, tuple)) else copied(each) for each in value]
    return value.copy() if hasattr(value, "copy") else value


# ---- phases ----------------------------------------------------------------------------------------------------------
#
# Rules of the mbarriers: everything counts in the phase that it is meant for, in every interleaving.
#
# - A wait that sees phase n complete knows that phase n - 1 is complete, or it could have returned two phases early.
# - A wait that sees phase n happens before the completion of phase n + 1, or it could be overtaken.
# - Whatever counts in phase n + 1 (arrival, expect-tx, bytes) knows that phase n is complete, or it could count there.
# - Bytes armed without an arrival are armed before some arrival of their phase, or the phase could complete without them.
#
# A warp knows that a phase is complete if it has waited for the phase, or learned that another warp has; or if all arrivals
# in the phase happened before. Only a wait shows that bytes have landed.


class Phase:
    """One phase of an mbarrier, or one use of a barrier of warps.

    clock: of all contributions, joined; by: warp -> time of its last contribution; landed: whether bytes have landed; armed:
    each expect-tx; loose: each expect-tx without an arrival, until an arrival follows; steps: the contributions, for reports;
    relaxed: whether one of them released nothing; complete: whether the phase can no longer change; of: the `Phases` that may
    change it, where several share it.
    """

    __slots__ = ("armed", "by", "clock", "complete", "landed", "loose", "of", "relaxed", "steps")

    def __init__(self, clock: Clock, of: object = None):
        self.clock, self.of = clock, of
        self.by: dict[int, int] = {}
        self.landed = self.complete = self.relaxed = False
        self.armed: list[Step] = []
        self.loose: list[Step] = []
        self.steps: list[Step] = []

    def copy(self) -> Phase:
        return self if self.complete else self.apart()

    def apart(self) -> Phase:
        """A copy, also of a complete phase."""
        other = Phase(self.clock.copy())
        other.complete, other.relaxed = self.complete, self.relaxed
        other.by, other.landed = dict(self.by), self.landed
        other.armed, other.loose, other.steps = list(self.armed), list(self.loose), list(self.steps)
        return other

    def known_to(self, clock: Clock) -> bool:
        """Whether all contributions are in the past of *clock*."""
        if not self.landed:
            for agent, time in self.by.items():  # `all` takes twice as long
                if clock[agent] < time:
                    return False
        return not self.landed


class Phases(Rules):
    """All mbarriers of a cluster, by flat index.

    now: the present phase; done: the last phase that completed; before: the phase before that; waits: by warp, its wait that
    saw `done`; watch: told of each phase that completes.
    """

    kept = ("now", "done", "before", "waits")

    def __init__(self, clocks: Clocks, log: FindingLog):
        super().__init__(clocks, log)
        bars, nothing = range(clocks.handed_on - clocks.phases), Phase(clocks.zero())
        nothing.complete, self.own = True, object()
        self.now = [Phase(clocks.zero(), self.own) for _ in bars]
        self.done, self.before = ([nothing for _ in bars] for _ in range(2))
        self.waits: list[dict[int, Step]] = [{} for _ in bars]
        self.watch: Callable[[int, int, Phase, dict[int, Step]], None] | None = None

    def copy(self, clocks: Clocks) -> Phases:
        """As in `Rules`: phases are shared until one of the two changes them."""
        other = copy.copy(self)
        other.clocks, other.own, self.own = clocks, object(), object()
        other.now, other.done, other.before = list(self.now), list(self.done), list(self.before)
        other.waits = [dict(seen) for seen in self.waits]
        return other

    def _present(self, bar: int) -> Phase:
        """The present phase of an mbarrier, which is about to change."""
        phase = self.now[bar]
        if phase.of is not self.own:
            phase = self.now[bar] = phase.apart()
            phase.of = self.own
        return phase

    def facts(self, state: State, by_all: list[int]) -> Iterator[tuple[FactName, Known]]:
        for bar, (number, waits) in enumerate(zip(state.phase, self.waits, strict=True)):
            entry = self.clocks.phases + bar
            last, last_but_one = ((entry, number),), ((entry, number - 1),)
            if by_all[entry] < number:
                yield ("bar", bar, "last"), last
                yield ("bar", bar, "last but one"), last_but_one
            three = (("now", self.now, ()), ("done", self.done, last), ("before", self.before, last_but_one))
            for name, phases, over in three:
                phase = phases[bar]
                for agent, time in phase.by.items():
                    if by_all[agent] < time:
                        yield ("bar", bar, name, agent), ((agent, time),)
                if phase.landed:
                    yield ("bar", bar, name, "landed"), over
            for agent, step in waits.items():
                if by_all[agent] < step.time:
                    yield ("bar", bar, "wait", agent), ((agent, step.time),)

    def wait(self, step: Step, bar: int, phase: int) -> None:
        """The warp saw *phase* complete; -1 is the phase before the first."""
        clocks, agent = self.clocks, step.agent
        clock, waited = clocks.of[agent], clocks.phases + bar
        step = step.in_phase(phase)
        if clock[waited] < phase and not self.before[bar].known_to(clock):
            self._two_phases_early(step, bar, phase)
        clocks.acquire(agent, self.done[bar].clock)
        clock[waited] = max(clock[waited], phase + 1)
        self.waits[bar][agent] = step

    def arrive(self, step: Step, bar: int, counted: Counted, all_lanes: bool, order_only: bool) -> None:
        """One warp's arrivals or expect-tx (by its elected lane). order_only: it releases nothing to the warps that wait."""
        clocks, agent = self.clocks, step.agent
        clock, step = clocks.of[agent], step.in_phase(counted.phase)
        self._check_not_early(clock, step, bar, counted.phase)
        phase = self._present(bar)
        phase.by[agent] = step.time
        phase.steps.append(step)
        if counted.nbytes:
            phase.armed.append(step)
            if not counted.arrivals:
                phase.loose.append(step)
        if order_only:
            clocks.join_executed(clock, phase.clock)
            phase.relaxed = True
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
        phase = self._present(bar)
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
        phase = self._present(bar)
        for agent, seen in self.waits[bar].items():
            if phase.clock[agent] < seen.time:
                self._overtaken(bar, number, seen)
        for arming in phase.loose:
            self._armed_late(arming, bar, number)
        if self.watch is not None:
            self.watch(bar, number, phase, self.waits[bar])
        phase.complete, self.waits[bar] = True, {}
        self.before[bar], self.done[bar] = self.done[bar], phase
        self.now[bar] = Phase(self.clocks.zero(), self.own)

    def _check_not_early(self, clock: Clock, step: Step, bar: int, phase: int) -> None:
        if clock[self.clocks.phases + bar] < phase and not self.done[bar].known_to(clock):
            self._early(step, bar, phase)

    # ---- findings -------------------------------------------------------------------------------------------------

    def _two_phases_early(self, step: Step, bar: int, phase: int) -> None:
        agent, role, last = self._who(step), self.layout.role(step.agent), f"phase {phase - 1}"
        text = f"{agent} waits for phase {phase} of {self._bar(bar)} (parity {step.op.parity}) and does not know that {last}"
        text += f" is complete, so it can take phase {phase - 2}, of the same parity, for it"
        turns = self._turnstiles() if self.layout.plan.role(role).teams > 1 else []
        fix = f"let {role} wait for every phase of {self.layout.barrier(bar).name} in turn, and check its first parity"
        if turns:
            turn = f"as `with k.{turns[0]}.turn():` around the loop that takes slots"
            fix = f"let each team of {role} take its turn before it waits, {turn}: so it knows the other team's waits"
        self.log.add(Kind.LAPPED_WAIT, text, fix, step, *self.before[bar].steps, bar=bar, phase=phase)

    def _turnstiles(self) -> list[str]:
        """Names of turnstiles."""
        plan = self.layout.plan
        names = [*(each.name for each in plan.barriers), *(each.name for each in plan.named_barriers)]
        return [name.removesuffix(".turn") for name in names if name.endswith(".turn")]

    def _overtaken(self, bar: int, phase: int, seen: Step) -> None:
        barrier, role = self.layout.barrier(bar), self.layout.role(seen.agent)
        missed = f"phase {phase - 1}" if phase else "the state before the first phase"
        text = f"phase {phase} of {self._bar(bar)} can complete before {self._who(seen)} has looked for {missed}"
        text += f" (parity {seen.op.parity}), which it then misses"
        fix = f"let {role} take part (directly, or by signalling those who do) in every phase of {barrier.name}, after its"
        fix += f" wait; the count is {barrier.count}"
        self.log.add(Kind.LAPPED_WAIT, text, fix, seen, *self.now[bar].steps, bar=bar, phase=phase)

    def _early(self, step: Step, bar: int, phase: int) -> None:
        barrier, name, of = self.layout.barrier(bar), self._bar(bar), declared(type(step.op))
        arm, last = of.effect(Arm), f"phase {phase - 1}"
        verb = f"arrives at {name}" if arm is None else f"arms {getattr(step.op, arm.nbytes)} bytes on {name}"
        verb = f"starts a load that counts on {name}" if of.effect(Start) is not None else verb
        text = f"{self._who(step)} {verb} in phase {phase} without knowing that {last} is complete, so it can count for {last}"
        fix = (
            f"let {self.layout.role(step.agent)} wait for what {last} of {barrier.name} stands for before it does this"
        )
        fix += f", or make the count ({barrier.count}) and the bytes match what one phase gets"
        self.log.add(Kind.EARLY_ARRIVAL, text, fix, step, *self.done[bar].steps, bar=bar, phase=phase)

    def _armed_late(self, arming: Step, bar: int, phase: int) -> None:
        arm: Any = declared(type(arming.op)).effect(Arm)
        arms = f"{self._who(arming)} arms {getattr(arming.op, arm.nbytes)} bytes for it"
        text = (
            f"phase {phase} of {self._bar(bar)} can complete before {arms}: no arrival of the phase follows the arming"
        )
        fix = "arm the bytes before the arrival of the same phase (mbarrier.arrive.expect_tx does both)"
        self.log.add(Kind.TX_MISMATCH, text, fix, arming, *self.now[bar].steps, bar=bar, phase=phase)

    def _before_armed(self, step: Step, bar: int, phase: int) -> None:
        load = f"{self._who(step)} starts a load on {self._bar(bar)}"
        text = f"{load} before the arming of its bytes, or unordered with it; the bytes cancel out in the end"
        self.log.add(Kind.COPY_BEFORE_ARM, text, "arm the barrier, then start the load", step, bar=bar, phase=phase)


# ---- barriers --------------------------------------------------------------------------------------------------------
#
# Rules of the barriers of warps: the CTA's, the named ones and the cluster's. A *generation* is one use of a barrier.
#
# A warp that arrives in generation n + 1 must know that generation n is complete, or it could count there. Warps that have
# returned count as arrived at the barriers of the CTA and of the cluster, so their last clock joins what these release.


CLUSTER = -1


class Barriers(Rules):
    """Barriers of warps, by number: ``16 * cta + id``, or `CLUSTER`. generations: by barrier and number; latest: by barrier,
    the number of its last generation; returned: the warps that have."""

    kept = ("generations", "latest", "returned")

    def __init__(self, clocks: Clocks, log: FindingLog):
        super().__init__(clocks, log)
        self.generations: dict[tuple[int, int], Phase] = {}
        self.latest: dict[int, int] = {}
        self.returned: set[int] = set()

    def recent(self) -> Iterator[tuple[tuple[int, Any], Phase]]:
        """The generations that later steps may still look at: the latest of each barrier, and the one before if the latest is
        not complete. Each with the barrier's number, and whether it is complete, or "before"."""
        for which, number in self.latest.items():
            latest, before = self.generations[which, number], self.generations.get((which, number - 1))
            yield (which, latest.complete), latest
            if before is not None and not latest.complete:
                yield (which, "before"), before

    def facts(self, state: State, by_all: list[int]) -> Iterator[tuple[FactName, Known]]:
        for key, generation in self.recent():
            for agent, time in generation.by.items():
                yield ("barrier", *key, agent), ((agent, time),)

    def arrive(self, step: Step, id: int | None, facts: tuple[int, bool], order_only: bool) -> None:
        """The warp arrives at a barrier.

        Args:
            id: A hardware barrier of its CTA; None: the cluster's.
            facts: The generation that it counts in, and whether that is then complete.
            order_only: Whether it releases nothing.
        """
        (number, complete), clocks, agent = facts, self.clocks, step.agent
        which, warps = self._barrier(agent, id)
        step = step.in_phase(number)
        before = self.generations.get((which, number - 1))
        if before is not None and not before.known_to(clocks.of[agent]):
            self._early(step, number, before)
        now = self.generations.get((which, number))
        if now is None:
            now = self.generations[which, number] = Phase(clocks.zero())
            self.latest[which] = number
            self.generations.pop((which, number - 3), None)
        now.by[agent] = step.time
        now.steps.append(step)
        now.complete = complete
        if order_only:
            clocks.join_executed(clocks.of[agent], now.clock)
        else:
            clocks.release(agent, now.clock, all_lanes=True)
        if complete and not id:
            self._join_returned(now, warps)

    def wait(self, agent: int, id: int | None, generation: int) -> None:
        """The warp saw the generation complete."""
        found = self.generations.get((self._barrier(agent, id)[0], generation))
        if found is not None:
            self.clocks.acquire(agent, found.clock)

    def exit(self, agent: int) -> None:
        """The warp returns, which may complete what all others have arrived at."""
        self.returned.add(agent)
        for which, warps in (self._barrier(agent, 0), self._barrier(agent, None)):
            latest = self.generations.get((which, self.latest.get(which, -1)))
            if latest is not None and not latest.complete and all(w in latest.by or w in self.returned for w in warps):
                latest.complete = True
                self._join_returned(latest, warps)

    def _barrier(self, agent: int, id: int | None) -> tuple[int, range]:
        """The number of a barrier of the warp, and the warps that may take part in it."""
        cta = self.layout.cta_of(agent)
        return (CLUSTER, range(self.layout.agents)) if id is None else (16 * cta + id, self.layout.cta_warps(cta))

    def _join_returned(self, latest: Phase, warps: range) -> None:
        """Joins the clocks of the warps that have returned without arriving: before they had, the barrier could not
        complete."""
        for agent in self.returned:
            if agent in warps and agent not in latest.by:
                self.clocks.release(agent, latest.clock, all_lanes=True)

    def _early(self, step: Step, number: int, before: Phase) -> None:
        at = declared(type(step.op)).effect(ArriveAt)
        name = self.layout.named_barrier_name(getattr(step.op, at.barrier) if at is not None and at.barrier else 0)
        others = ", ".join(dict.fromkeys(self.layout.role(s.agent) for s in before.steps))
        text = f"{self._who(step)} arrives at {name} for its use number {number} and does not know that use number"
        text += f" {number - 1} (by {others}) is over, so it can count there"
        fix = (
            "give each group of warps an id of its own; a warp that only arrives has to know that the last use is over"
        )
        self.log.add(Kind.NAMED_BARRIER, text, fix, step, *before.steps)
