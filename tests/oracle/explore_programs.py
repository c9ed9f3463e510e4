"""Warps' programs as the exhaustive oracle steps through them: operations that other agents can notice, and what each does.

Everything between two such operations is local: it is executed at once, in every interleaving that is looked at.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

from tests.oracle.explore_accesses import (
    COPIES,
    FENCES,
    LOADS,
    NEVER,
    SIGNALS,
    Accesses,
    Classes,
    is_release,
    lanes_join,
)
from tests.oracle.explore_copies import async_bits, told
from tmapipe.isa import ops
from tmapipe.model.layout import Layout

__all__ = [
    "ARRIVE",
    "CLUSTER",
    "EXIT",
    "FENCE",
    "FAR",
    "FREE",
    "INIT",
    "Init",
    "LOAD",
    "NAMED",
    "WAIT",
    "Visible",
    "WarpProgram",
    "inits",
]

WAIT, ARRIVE, NAMED, CLUSTER, LOAD, INIT, FENCE, EXIT, FREE, FAR = range(10)
#: FREE: depends on nothing but its own warp. FAR: on CTAs that must not have left.

_KINDS = {
    ops.MbarWait: WAIT,
    ops.MbarArrive: ARRIVE,
    ops.MbarArriveCluster: ARRIVE,
    ops.MbarArriveTx: ARRIVE,
    ops.MbarExpectTx: ARRIVE,
    ops.BarArrive: NAMED,
    ops.ClusterArrive: CLUSTER,
    **dict.fromkeys(LOADS, LOAD),
    ops.MbarInit: INIT,
    ops.FenceMbarInit: FENCE,
    ops.Exit: EXIT,
    ops.BarWait: FREE,
    ops.ClusterWait: FREE,
    ops.Wgmma: FREE,
    ops.WgmmaFromRegisters: FREE,
    ops.WgmmaWait: FREE,
    ops.PeerRead: FAR,
    ops.SetMaxNreg: FREE,
}


class Visible:
    """One operation that others can notice. index: in the program; bars: (mbarrier, arrivals, bytes armed) at each CTA that it
    reaches; lands: (mbarrier, arrivals, bytes) of a load; ctas: the other CTAs that it reaches; far: mbarriers that it uses
    from another CTA or through the async proxy; where: 16 * CTA + id of a named barrier; touch: classes of accesses that it
    lets begin or ends."""

    __slots__ = ("bars", "ctas", "far", "index", "kind", "lands", "op", "touch", "where")

    def __init__(self, layout: Layout, agent: int, index: int, op: Any):
        cta = agent // layout.warps
        own = cta * layout.nbars
        self.op, self.index, self.kind = op, index, _KINDS[type(op)]
        self.bars: tuple[tuple[int, int, int], ...] = ()
        self.lands: tuple[tuple[int, int, int], ...] = ()
        self.ctas: tuple[int, ...] = ()
        self.far: tuple[int, ...] = ()
        self.where = 16 * cta
        self.touch = 0
        if isinstance(op, ops.MbarArriveCluster):
            reached = [c for c in range(layout.ctas) if op.mask >> c & 1]
            self.bars = tuple((c * layout.nbars + op.bar, 1, 0) for c in reached)
            self.ctas = tuple(c for c in reached if c != cta)
            self.far = tuple(c * layout.nbars + op.bar for c in self.ctas)
        elif isinstance(op, (ops.MbarArriveTx, ops.MbarExpectTx)):
            self.bars = ((own + op.bar, int(isinstance(op, ops.MbarArriveTx)), op.nbytes),)
        elif isinstance(op, ops.MbarArrive):
            self.bars = ((own + op.bar, op.lanes.bit_count(), 0),)
        elif isinstance(op, (ops.MbarWait, ops.MbarInit)):
            self.bars = ((own + op.bar, 0, 0),)
        elif isinstance(op, ops.PeerRead):
            self.ctas = tuple(c for c in range(layout.ctas) if op.mask >> c & 1 and c != cta)
        elif isinstance(op, ops.BarArrive):
            self.where = 16 * cta + op.id
        elif isinstance(op, LOADS):
            mask = getattr(op, "mask", None) or 1 << cta
            reached = [c for c in range(layout.ctas) if mask >> c & 1]
            what = (op.lanes.bit_count(), 0) if isinstance(op, COPIES) else (0, op.nbytes)
            self.lands = tuple((c * layout.nbars + op.bar, *what) for c in reached)
            self.ctas = tuple(c for c in reached if c != cta)
            if isinstance(op, COPIES):  # its own threads arrive
                self.bars = ((own + op.bar, 0, 0),)
            else:
                self.far = tuple(bar for bar, _, _ in self.lands)


class WarpProgram:
    """One warp's program. visible: its operations that others can notice; local: those that follow each (local[0]: before
    the first), with their indices; and by position in `visible`, masks of classes of accesses that are under way: threads' as
    seen by threads, threads' as seen by the async proxy, TMA stores', and those of this warp that are still to come."""

    def __init__(self, layout: Layout, classes: Classes, agent: int, program: Sequence[Any]):
        self.accesses = accesses = Accesses(classes, agent, program)
        self.visible: list[Visible] = []
        self.local: list[list[tuple[int, Any]]] = [[]]
        for i, op in enumerate(program):
            if type(op) in _KINDS:
                self.visible.append(Visible(layout, agent, i, op))
                self.local.append([])
            else:
                self.local[-1].append((i, op))
        self.end = len(self.visible)
        own = agent // layout.warps
        self.loads = {v.index: accesses.loads(v.op, own) for v in self.visible if v.kind == LOAD}
        indices = [v.index for v in self.visible] + [len(program)]
        self.threads, self.for_async, self.stores, self.coming = ([0] * (self.end + 1) for _ in range(4))
        self.mma_begun, self.mma_over, self.mma_waited = ([0] * (self.end + 1) for _ in range(3))
        for position, index in enumerate(indices):
            for span in accesses.spans:
                if span.first <= index:
                    if span.at >= index:
                        self.coming[position] |= span.bit
                    if span.threads:
                        if index <= span.last:
                            self.threads[position] |= span.bit
                        if index <= span.last_async:
                            self.for_async[position] |= span.bit
                    elif index <= span.last:
                        self.stores[position] |= span.bit
            for serial, (at, first, bit) in enumerate(accesses.mma):
                if first <= index:
                    self.mma_begun[position] = serial + 1
                    if at >= index:
                        self.coming[position] |= bit
            for over, serial in accesses.mma_over:
                if over < index:
                    self.mma_over[position] = max(self.mma_over[position], serial)
            for wait, serial in accesses.mma_waits:
                if wait < index:
                    self.mma_waited[position] = max(self.mma_waited[position], serial)
        self._find_touches(indices)

    @functools.cached_property
    def past(self) -> list[tuple[int, int]]:
        """By position in `visible`: the position of the next operation that waits or is counted, and the classes that the
        free operations before that operation touch. Asked for when all touches are known."""
        found, after, touch = [(self.end, 0)] * self.end, self.end, 0
        for position, v in reversed(list(enumerate(self.visible))):
            if v.kind == FREE and not isinstance(v.op, (ops.BarWait, ops.ClusterWait)):
                touch |= v.touch
            else:
                after, touch = position, 0
            found[position] = after, touch
        return found

    def _find_touches(self, indices: list[int]) -> None:
        accesses = self.accesses
        ends: dict[int, int] = {}
        begins: dict[int, int] = {}
        for span in accesses.spans:
            begins[span.first] = begins.get(span.first, 0) | span.bit
            for last in {span.last, span.last_async} - {NEVER}:
                ends[last] = ends.get(last, 0) | span.bit
        for _, first, bit in accesses.mma:
            begins[first] = begins.get(first, 0) | bit
        done = 0
        for over, serial in accesses.mma_over:
            if over < NEVER:
                for _, _, bit in accesses.mma[done:serial]:
                    ends[over] = ends.get(over, 0) | bit
                done = max(done, serial)
        for visible in self.visible:
            visible.touch = ends.get(visible.index, 0) | begins.get(visible.index + 1, 0)
            for bit in self.loads.get(visible.index, {}).values():
                visible.touch |= bit
        if accesses.classes.copied:
            self._find_fences(accesses.classes, accesses.agent, accesses.program)

    def _find_fences(self, classes: Classes, agent: int, program: Sequence[Any]) -> None:
        """Marks the operations with which fences, and accesses through the async proxy, are executed."""
        for before, after in told(program, [visible.index for visible in self.visible]):
            for n, event in ((before, "fence"), (after, "told")):
                if 0 <= n < self.end:
                    self.visible[n].touch |= classes.mark(event)
        fenced = False  # by the warp itself since its last wait: then it needs no fence of others
        for n, visible in enumerate(self.visible):
            for op in (visible.op, *(op for _, op in self.local[n + 1])):
                fenced = isinstance(op, FENCES) or (fenced and not isinstance(op, ops.MbarWait))
                if not fenced and async_bits(classes, agent, op):
                    visible.touch |= classes.mark("access")


class Init(NamedTuple):
    """agent: who initializes an mbarrier; fence: index of its fence after that; told: whether the next operation that signals
    something tells of the initialization: since it is a release, or comes after the fence."""

    agent: int
    fence: int
    told: bool


def _first_release(program: Sequence[Any], index: int) -> int:
    """Index of the first operation that tells of an initialization: of the elected lane, which is the one that initializes, or
    of another one once they have met."""
    met = False
    for i in range(index, len(program)):
        met = met or lanes_join(program[i])
        if is_release(program[i]) and (met or isinstance(program[i], ops.MbarArriveTx)):
            return i
    return NEVER


def _signals(program: Sequence[Any], index: int) -> bool:
    """Whether somebody can learn of an operation: not by copies that count on an mbarrier whose initialization nobody has been
    told of yet."""
    op = program[index]
    if isinstance(op, COPIES):
        own = (i for i in range(index) if isinstance(program[i], ops.MbarInit) and program[i].bar == op.bar)
        return all(_first_release(program, i) < index for i in own)
    return isinstance(op, SIGNALS)


def inits(layout: Layout, programs: Sequence[Sequence[Any]]) -> dict[int, Init]:
    """By mbarrier."""
    found = {}
    for agent, program in enumerate(programs):
        base = agent // layout.warps * layout.nbars
        for index, op in enumerate(program):
            if isinstance(op, ops.MbarInit):
                after = range(index, len(program))
                fence = next((i for i in after if isinstance(program[i], ops.FenceMbarInit)), NEVER)
                release = _first_release(program, index)
                signal = next((i for i in after if _signals(program, i)), NEVER)
                found[base + op.bar] = Init(agent, fence, min(fence, release) <= signal)
    return found
