"""Which accesses under way conflict, for the exhaustive oracle.

`WarpProgram` says by position what a warp may be doing; here it is put together for two agents, each as the other sees it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.oracle.explore_accesses import REDUCED, WHOLE, Classes, is_release
from tests.oracle.explore_programs import Visible, WarpProgram
from tmapipe.isa import ops
from tmapipe.isa.ops import Flight
from tmapipe.model.layout import Kind, Layout
from tmapipe.model.state import State

__all__ = ["Conflicts"]


class Conflicts:
    """Of all agents at their places."""

    def __init__(self, layout: Layout, classes: Classes, programs: list[WarpProgram]):
        self.layout, self.classes, self.programs = layout, classes, programs
        self.groups = _warpgroups(layout)
        self.relays = Relays(layout, classes, programs)

    def of(self, state: State, at: list[int], agent: int) -> Iterator[Kind]:
        """What is wrong with what *agent* may be doing now, beside what others, or loads, may be doing."""
        program, position, classes = self.programs[agent], at[agent], self.classes
        stores = program.stores[position] | self._mma(at, agent, agent)
        if not (
            program.threads[position]
            or program.for_async[position]
            or stores
            or program.coming[position]
            or self.relays.any_of(agent, position)
        ):
            return
        for other, theirs in enumerate(self.programs):
            if other == agent:
                continue
            place, to_reads = at[other], classes.against(stores)
            threads, for_async = self._threads(at, agent, other)
            their_threads, their_async = self._threads(at, other, agent)
            reads = theirs.stores[place] | self._mma(at, other, agent)
            by_threads = classes.against(threads)
            if by_threads & their_threads:
                yield Kind.RACE
            if classes.against(for_async) & reads:
                yield Kind.RACE if by_threads & reads else Kind.PROXY
            if self.groups[other] is self.groups[agent]:
                to_reads = classes.against(program.stores[position] | self._mma(at, agent, other))
            if to_reads & their_async:
                yield Kind.RACE if to_reads & their_threads else Kind.PROXY
        to_reads = classes.against(stores)
        for flight in state.loads:
            bit = self.flight_bit(state, flight)
            if flight.issuer == agent:
                if classes.against(bit) & program.coming[position]:
                    yield Kind.RACE
                continue
            threads, for_async = self._threads(at, agent, flight.issuer)
            if to_reads & bit or classes.against(threads) & bit:
                yield Kind.RACE
            elif classes.against(for_async) & bit and flight.kind != "cp.async":
                yield Kind.PROXY

    def own_mma(self, at: list[int], agent: int, index: int) -> bool:
        """Whether the warp's operation there comes too early for wgmmas that only others of its warpgroup have waited for."""
        others = [o for o in self.groups[agent] if o != agent]
        over = max((self.programs[o].mma_over[at[o]] for o in others), default=0)
        return any(serial >= over for serial in self.programs[agent].accesses.after_mma[index])

    def flight_bit(self, state: State, flight: Flight) -> int:
        """The class of a load in flight; of a copy to a peer, both classes."""
        place, share, shares, *_, source, _ = state.loads[flight]
        read = self.classes.bit(source, WHOLE, False) if source >= 0 else 0
        return (
            self.classes.bit(place, REDUCED if flight.kind == "peer reduction" else ("shares", share, shares), True)
            | read
            | self.classes.loaded(self.classes.starts[flight.issuer][flight.serial])
        )

    def _threads(self, at: list[int], agent: int, seen_by: int) -> tuple[int, int]:
        """Classes of the warp's own accesses that may be under way: as seen by the other's threads, and by its async proxy."""
        program, position = self.programs[agent], at[agent]
        threads, for_async = program.threads[position], program.for_async[position]
        if self.relays.any_of(agent, position):
            more, more_async = self.relays.under_way(at, agent, seen_by)
            return threads | more, for_async | more_async
        return threads, for_async

    def _mma(self, at: list[int], agent: int, seen_by: int) -> int:
        """Classes of the warp's wgmmas that may be reading. seen_by: a warp, whose own wait is enough for itself if it is one
        of the four."""
        program = self.programs[agent]
        begun = program.mma_begun[at[agent]]
        if not begun:
            return 0
        group = self.groups[agent]
        over = max(self.programs[other].mma_over[at[other]] for other in group)
        if seen_by != agent and seen_by in group:
            over = max(over, self.programs[seen_by].mma_waited[at[seen_by]])
        mask = 0
        for _, _, bit in program.accesses.mma[over:begun]:
            mask |= bit
        return mask


class _Relay(NamedTuple):
    """An access of a class, known to the participants of the named barrier *where*. after: by participant, the position in its
    program from which on it can tell others."""

    bit: int
    to_async: bool
    where: int
    after: dict[int, int]


class Relays:
    """Accesses that a named barrier has made known to its participants, and relaxed arrivals to nobody else.

    As others see it, such an access is over when its own warp, or a participant after the barrier, executes a release that
    reaches them: an arrival that is not relaxed, at an mbarrier or the cluster's barrier, a TMA load, the warp's return, or
    an arrival at a barrier in which they take part. Without relaxed arrivals in the program every order of execution is one
    of memory, and there is nothing to keep; nor is there for accesses that conflict with none of other warps.
    """

    def __init__(self, layout: Layout, classes: Classes, programs: list[WarpProgram]):
        self.layout, self.classes, self.programs = layout, classes, programs
        self.open: list[dict[int, list[_Relay]]] = [{} for _ in programs]
        visible = [v for program in programs for v in program.visible]
        if any(getattr(v.op, "scope", "") == "relaxed" for v in visible):
            self.near = [{v.where for v in p.visible if isinstance(v.op, ops.BarArrive)} for p in programs]
            self.all = [_all_classes(program) for program in programs]
            for agent, program in enumerate(programs):
                for span in program.accesses.spans:
                    if span.threads:
                        self._add(agent, span.last, span.bit, False)
                        self._add(agent, span.last_async, span.bit, True)

    def any_of(self, agent: int, position: int) -> bool:
        """Whether there are any now."""
        return position in self.open[agent]

    def under_way(self, at: list[int], agent: int, seen_by: int) -> tuple[int, int]:
        """Classes of those that may be under way as the other's threads, and as its async proxy, see it."""
        masks = [0, 0]
        for relay in self.open[agent][at[agent]]:
            if relay.where not in self.near[seen_by] and not any(
                at[warp] > self._told(warp, first, seen_by) for warp, first in relay.after.items()
            ):
                masks[relay.to_async] |= relay.bit
        return masks[0], masks[1]

    def _add(self, agent: int, last: int, bit: int, to_async: bool) -> None:
        program = self.programs[agent]
        here = next((p for p, v in enumerate(program.visible) if v.index == last), None)
        if here is None or not isinstance(program.visible[here].op, ops.BarArrive):
            return
        where = program.visible[here].where
        against = self.classes.against(bit)
        if not any(against & mine and where not in near for mine, near in zip(self.all, self.near, strict=True)):
            return
        times = sum(isinstance(v.op, ops.BarArrive) and v.where == where for v in program.visible[: here + 1])
        after = {agent: here + 1}
        first = agent // self.layout.warps * self.layout.warps
        for other in range(first, first + self.layout.warps):
            waits = [p for p, v in enumerate(self.programs[other].visible) if _waits_at(v, where, other, self.layout)]
            if other != agent and len(waits) >= times:
                after[other] = waits[times - 1] + 1
        relay = _Relay(bit, to_async, where, after)
        for position in range(here + 1, self._told(agent, here + 1, None) + 1):
            self.open[agent].setdefault(position, []).append(relay)
        for warp, start in after.items():
            for visible in self.programs[warp].visible[start : self._told(warp, start, None) + 1]:
                if is_release(visible.op) and not (isinstance(visible.op, ops.BarArrive) and visible.where == where):
                    visible.touch |= bit

    def _told(self, warp: int, position: int, whom: int | None) -> int:
        """Position of the warp's first release from there on that reaches *whom* (None: anyone)."""
        visible = self.programs[warp].visible
        for p in range(position, len(visible)):
            op = visible[p].op
            if isinstance(op, ops.BarArrive):
                if whom is not None and visible[p].where in self.near[whom]:
                    return p
            elif is_release(op):
                return p
        return len(visible)


def _all_classes(program: WarpProgram) -> int:
    """Of everything that the warp does, and starts."""
    mask = 0
    for span in program.accesses.spans:
        mask |= span.bit
    for _, _, bit in program.accesses.mma:
        mask |= bit
    for bits in program.loads.values():
        for bit in bits.values():
            mask |= bit
    return mask


def _waits_at(visible: Visible, where: int, agent: int, layout: Layout) -> bool:
    return isinstance(visible.op, ops.BarWait) and 16 * (agent // layout.warps) + visible.op.id == where


def _warpgroups(layout: Layout) -> list[list[int]]:
    """For each warp, those of its warpgroup (the same list for all of them)."""
    groups: list[list[int]] = []
    for agent in range(layout.agents):
        if agent % layout.warps % 4 == 0:
            group = [a for a in range(agent, agent + 4) if a // layout.warps == agent // layout.warps]
        groups.append(group)
    return groups
