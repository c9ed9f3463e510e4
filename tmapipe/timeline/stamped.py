"""A run on the GPU as a trace: the stamps that a kernel has written, as the steps that the model's trace has too.

One thread of each role stamps, so what its other warps do is not seen, nor when copies land: a load is drawn until the first
wait for it ends, which is the latest that it can have landed. Times are cycles of the clock since the first CTA began. CTAs of
a cluster agree on them where they pass its barrier, others by their nanoseconds.
"""

from __future__ import annotations

import bisect
import statistics
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

from tmapipe.isa import ops
from tmapipe.isa.ops import ARRIVALS, COMMITS, Counted, Flight
from tmapipe.model.layout import Layout
from tmapipe.plan.model import Plan
from tmapipe.program import LEFT, ONE_AT_A_TIME, Place, Traced, method_of, places, stamping, trace
from tmapipe.program.expressions import Call
from tmapipe.timeline.timed import Step, Waits, pace_among

if TYPE_CHECKING:
    from tmapipe.bind import Bound
    from tmapipe.gpu import Record
    from tmapipe.schedule import Schedule

PASSED = 64  #: cycles: a wait that took no longer has found what it waits for
ISSUED = 20  #: cycles of an arrival or a commit, at most
made_of: Any = ops  #: what makes operations, which all take `where`, the source line


@attrs.frozen
class Row:
    """A warp's stamps.

    Args:
        cta, warp: Who, in the grid.
        began, ended: (nanoseconds, clock) at the start and the end.
        numbers, slots, clocks: Of each stamp its place, its slot and the clock, as arrays.
        full: Whether the row was too short for all.
        left: Whether the warp had more tiles than it has stamped. Nothing after them is here.
    """

    cta: int
    warp: int
    began: tuple[int, int]
    ended: tuple[int, int]
    numbers: Any = attrs.field(repr=False)
    slots: Any = attrs.field(repr=False)
    clocks: Any = attrs.field(repr=False)
    full: bool
    left: bool = False


class Stamps:
    """Memory of the GPU for the rows of the first CTAs.

    Args:
        plan: Of the kernel.
        ctas: How many have rows.
        device: As torch names it.
    """

    def __init__(self, plan: Plan, ctas: int, device: Any = "cuda"):
        import torch

        from tmapipe.gpu.watchdog import ROW

        self.warps, self.ctas = stamping(plan), ctas
        given = torch.zeros((ctas * len(self.warps) + 1) * ROW // 4, dtype=torch.int32, device=device)
        first = -given.data_ptr() % ROW // 4
        self.memory = given[first : first + ctas * len(self.warps) * ROW // 4].view(-1, ROW // 4)
        self.numbers = [self.memory.data_ptr(), ctas]

    def rows(self, places: list[Place]) -> list[Row]:
        """What the last launch has written, of the CTAs that there were. Waits for it. places: of the kernel's program."""
        from tmapipe.gpu import records
        from tmapipe.gpu.watchdog import HEAD

        made, memory, each = records(places), self.memory.cpu().numpy(), len(self.warps)
        return [
            row_of(i // each, self.warps[i % each], words[: self._end(i, words)], made)
            for i, words in enumerate(memory)
            if words[: HEAD // 4].any()
        ]

    def _end(self, row: int, words: Any) -> int:
        return (int(words[7].view(np.uint32)) - self.memory[row].data_ptr()) % (1 << 32) // 4


def row_of(cta: int, warp: int, words: Any, records: list[Record]) -> Row:
    """A row from its words of 32 bits, up to the end of the last record. records: of the kernel's places."""
    from tmapipe.gpu import stamps_of
    from tmapipe.gpu.watchdog import HEAD, ROOM, ROW

    head = words[: HEAD // 4].view(np.uint32)
    began, ended = (int(head[i]) + (int(head[i + 1]) << 32) for i in (0, 4))
    first, last = int(head[2]), int(head[6])
    numbers, slots, clocks = stamps_of(warp, words[HEAD // 4 :], records, last)
    ends = [record.first for record in records if any(slot is LEFT for slot in record.slots)]
    full = len(words) * 4 >= ROW - ROOM
    left = np.flatnonzero(np.isin(numbers, ends) & (slots > 0))
    kept = slice(left[0] if len(left) else None)
    clocks = (clocks - first) % (1 << 32)
    end = (ended, (last - first) % (1 << 32))
    return Row(cta, warp, (began, 0), end, numbers[kept], slots[kept], clocks[kept], full, len(left) > 0)


@attrs.define
class Recording:
    """A run's steps, as `Trace` draws them.

    Args:
        layout: Of the cluster.
        steps: In the order of their ends.
        gigahertz: Of the clock.
        left_out: What is not in them, in words.
        on: Where it ran.
        blocked: Nobody: who hangs on the GPU leaves no stamps.
    """

    layout: Layout
    steps: list[Step]
    gigahertz: float
    left_out: str = ""
    on: str = "GPU"
    blocked: list[Any] = attrs.Factory(list)


def launcher_of(schedule: Schedule, bound: Bound, clusters: int, *tiles: int) -> tuple[Any, Stamps]:
    """What launches the stamped kernel with tensors like these, and where its stamps are. clusters: that have rows. tiles: of
    how many tiles of a CTA there are stamps; by default as `tmapipe.gpu.watchdog.launched` says."""
    from tmapipe.calling import launcher_for

    plan = schedule.plan(bound.dtypes)
    stamps = Stamps(plan, clusters * plan.cluster_size, next(iter(bound.tensors.values())).device)
    return launcher_for(schedule, bound, [*stamps.numbers, *tiles]), stamps


def record(schedule: Schedule, bound: Bound, clusters: int) -> Recording:
    """Runs a call with these tensors on the GPU, and returns what its stamps say. clusters: that are recorded."""

    launcher, stamps = launcher_of(schedule, bound, clusters)
    launcher.launch(list(bound.tensors.values()))
    plan = schedule.plan(bound.dtypes)
    with ONE_AT_A_TIME:
        program = trace(schedule, plan)
    stamped = places(program)
    return recorded(plan, program, stamped, stamps.rows(stamped), launcher.tiles)


def recorded(plan: Plan, program: Traced, places: list[Place], rows: list[Row], tiles: int) -> Recording:
    """The steps of these rows, of which there is one at least.

    Args:
        plan: Of the kernel.
        program: That it runs.
        places: Of the program.
        rows: What the first CTAs have written.
        tiles: Of a CTA, at most.
    """
    layout = Layout(plan)
    began, rates = min(row.began[0] for row in rows), []
    for row in rows:
        if row.ended[0] > row.began[0]:
            rates.append(row.ended[1] / (row.ended[0] - row.began[0]))
    gigahertz = statistics.median(rates) if rates else 1.0
    steps: list[Step] = []
    by_cluster: dict[int, list[Row]] = {}
    for row in rows:
        by_cluster.setdefault(row.cta // layout.ctas, []).append(row)
    for number, own in by_cluster.items():
        offsets = _offsets(layout, places, own, began, gigahertz)
        made = _Cluster(layout, program, places, number)
        for row in own:
            made.read(row, offsets[row.cta])
        steps += made.finished(len(steps))
    cut = [row for row in rows if row.left]
    left_out = f"{max(_tiles(places, row).sum() for row in cut)} of {tiles} tiles of a CTA are recorded" if cut else ""
    return Recording(layout, steps, round(gigahertz, 3), left_out)


def pace_of_rows(plan: Plan, places: list[Place], rows: list[Row]) -> float:
    """As `Trace.pace`, over all warps of these rows, without their steps. places: of the kernel's program."""
    fulls = {ring.barriers[0]: ring.name for ring in plan.rings}
    waits: Waits = {}
    for number, place in enumerate(places):
        node = place.node
        if not (isinstance(node, Call) and place.after and node.method == "mbarrier_wait" and node.args[0] in fulls):
            continue
        for row in rows:
            found = np.flatnonzero(row.numbers == number)
            if len(found):
                turns = np.cumsum(_tiles(places, row))[found].tolist()
                by_tile = waits.setdefault(fulls[node.args[0]], {}).setdefault((row.cta, row.warp), {})
                for turn, clock in zip(turns, row.clocks[found].tolist(), strict=True):
                    by_tile.setdefault(turn, []).append(clock)
    for of_ring in waits.values():
        for by_tile in of_ring.values():
            for clocks in by_tile.values():
                clocks.sort()  # of several places
    return pace_among(waits)


def _offsets(layout: Layout, places: list[Place], rows: list[Row], began: int, gigahertz: float) -> dict[int, float]:
    """By CTA, the time at which the clocks of its rows were 0."""
    earliest: dict[int, float] = {}
    passed: dict[int, float] = {}
    barrier = {i for i, place in enumerate(places) if place.after and method_of(place.node) == "cluster_wait"}
    for row in rows:
        nanoseconds = (row.began[0] - began) * gigahertz
        earliest[row.cta] = min(earliest.get(row.cta, nanoseconds), nanoseconds)
        at = [int(clock) for number, clock in zip(row.numbers[:64], row.clocks[:64], strict=True) if number in barrier]
        passed[row.cta] = max(passed.get(row.cta, 0.0), at[0] if at else 0.0)
    if layout.ctas > 1 and all(passed.values()):
        together = statistics.median(earliest[cta] + passed[cta] for cta in earliest)
        earliest = {cta: together - passed[cta] for cta in earliest}
    least = min(0.0, *earliest.values())
    return {cta: offset - least for cta, offset in earliest.items()}


def _tiles(places: list[Place], row: Row) -> Any:
    """Of each stamp of a warp whether a tile begins with it."""
    return np.isin(row.numbers, [i for i, place in enumerate(places) if not method_of(place.node) and not place.after])


class _Cluster:
    """The steps of one cluster, from its rows."""

    def __init__(self, layout: Layout, program: Traced, places: list[Place], number: int):
        self.layout, self.places, self.number = layout, places, number
        self.steps: list[Step] = []
        self.rings = {barrier.name: ring for ring in layout.plan.rings for barrier in ring.barriers}
        self.waits: dict[tuple[int, int], list[tuple[float, float, int]]] = {}  # (CTA, mbarrier) -> (came, went, step)
        self.arrivals: dict[tuple[int, int], list[tuple[float, int]]] = {}  # -> (time, step)
        self.fills: dict[tuple[int, int], list[float]] = {}
        self.loads: list[tuple[int, int, str, int, float, Any]] = []  # CTA, issuer, load, mbarrier, time, where
        self.waited: dict[tuple[Any, int], tuple[list[float], list[int]]] = {}  # (agent, mbarrier) -> ends and phases
        self.turns: dict[tuple[int, int], int] = {}  # (agent, mbarrier) -> waits or arrivals so far

    # ---- a row ----------------------------------------------------------------------------------------------------

    def read(self, row: Row, offset: float) -> None:
        """The steps of a warp."""
        layout, cta = self.layout, row.cta % self.layout.ctas
        agent, tile, turn = cta * layout.warps + row.warp, "", -1
        before = offset
        groups: dict[str, list[tuple[float, Any]]] = {"wgmma": [], "bulk": []}
        slot_read = 0
        for number, slot, clock in zip(row.numbers.tolist(), row.slots.tolist(), row.clocks.tolist(), strict=True):
            place, now = self.places[number], offset + clock
            if place.computes and now - before > ISSUED:
                self._add(Step(self.number, agent, None, None, before, before, now, -1, tile))
                before = now
            method = method_of(place.node)
            if not method:
                turn += not place.after
                tile = "" if place.after else f"tile {turn} of the CTA"
            for node in (*place.passed, *([place.node] if place.after and method else [])):
                if node.method in COMMITS:
                    committed = now if node is place.node else before
                    groups[COMMITS[node.method]].append((committed, (place.issues, slot_read)))
                elif node.method in ARRIVALS:
                    if slot >= 0:
                        self._arrive(agent, node, slot, max(before, now - ISSUED), now, tile)
                else:
                    ended = now if node is place.node else max(before, now - ISSUED)
                    op = self._wait(agent, node, slot, before, ended, tile)
                    if isinstance(op, ops.MbarWait):
                        slot_read = slot
                    if isinstance(op, (ops.WgmmaWait, ops.BulkWait)):
                        kind = "wgmma" if isinstance(op, ops.WgmmaWait) else "bulk"
                        while len(groups[kind]) > op.pending:
                            self._retired(agent, kind, *groups[kind].pop(0), ended)
                    before = ended
            before = now

    def _add(self, step: Step) -> int:
        self.steps.append(step)
        return len(self.steps) - 1

    def _wait(self, agent: int, node: Any, slot: int, came: float, now: float, tile: str) -> Any:
        """The end of a wait."""
        layout, method, facts = self.layout, node.method, None
        op: Any
        if method == "mbarrier_wait":
            barrier = node.args[0]
            bar = layout.bar_base[barrier.name] + slot
            facts, parity = self._phase(agent, barrier, bar, now)
            op = made_of.MbarWait(bar, parity, where=node.where)
        elif method == "wgmma_wait":
            op = made_of.WgmmaWait(node.args[0], where=node.where)
        elif method == "bulk_wait_group":
            op = made_of.BulkWait(*node.args[:1], node.args[1] if len(node.args) > 1 else True, where=node.where)
        elif method == "cluster_wait":
            op = made_of.ClusterWait(where=node.where)
        else:
            op = made_of.BarWait(node.args[0].id + slot if node.args else 0, where=node.where)
        if now - came <= PASSED:
            came = now  # it has found what it waits for, perhaps just now
        number = self._add(Step(self.number, agent, op, facts, came, now, now, -1, tile))
        if isinstance(op, ops.MbarWait):
            self.waits.setdefault((agent // layout.warps, op.bar), []).append((came, now, number))
        return op

    def _phase(self, agent: int, barrier: Any, bar: int, now: float) -> tuple[int, int]:
        """Of a wait that has ended: the phase that was complete, and its parity."""
        ring = self.rings.get(barrier.name)
        turn = self.turns[agent, bar] = self.turns.get((agent, bar), -1) + 1
        if ring is not None and barrier == ring.barriers[-1] and not ring.held and len(ring.barriers) > 1:
            return turn - 1, (turn - 1) & 1
        return turn, turn & 1  # of a team, which passes over others' slots: set right in `finished`

    def _arrive(self, agent: int, node: Any, slot: int, began: float, now: float, tile: str) -> None:
        """An arrival, perhaps at other CTAs."""
        layout, barrier, cta = self.layout, node.args[0], agent // self.layout.warps
        bar = layout.bar_base[barrier.name] + slot
        ctas, op = [cta], made_of.MbarArrive(bar, where=node.where)
        if node.method == "mbarrier_arrive_cluster":
            ctas = list(range(layout.ctas))
            op = made_of.MbarArriveCluster(bar, (1 << layout.ctas) - 1, where=node.where)
        elif node.method == "mbarrier_arrive_expect_tx":
            op = made_of.MbarArriveTx(bar, node.args[2], where=node.where)
            ring, role = self.rings.get(barrier.name), layout.role(agent)
            for load in ring.loads.get(role, ()) if ring is not None else ():
                if load in layout.loads:
                    self.loads.append((cta, agent, load, bar, now, node.where))
        number = self._add(Step(self.number, agent, op, (), began, began, now, -1, tile))
        for each in ctas:
            self.arrivals.setdefault((each, bar), []).append((now, number))

    def _retired(self, agent: int, kind: str, began: float, issued: tuple[Any, int], now: float) -> None:
        """The end of a group of wgmmas, or of stores: when the warp that waited for it knew."""
        layout, (node, slot), op = self.layout, issued, None
        if node is None:
            return
        part = node.args[0]
        if kind == "wgmma" and part.name in layout.matmuls:
            b = layout.slot_base[part.b.name] + slot % part.b.stages
            op = made_of.WgmmaFromRegisters(part.name, b, where=node.where)
            if part.a is not None:
                op = made_of.Wgmma(part.name, layout.slot_base[part.a.name] + slot % part.a.stages, b, where=node.where)
        elif kind == "bulk" and part.name in layout.stores:
            loaded = any(load.buffer.name == part.buffer.name for load in layout.plan.loads)
            op = made_of.TmaStore(part.name, layout.slot_base[part.buffer.name] + slot * loaded, where=node.where)
        if op is not None:
            cta, warp = divmod(agent, layout.warps)
            issuer = cta * layout.warpgroups + warp // 4 if kind == "wgmma" else agent
            flight = Flight("wgmma" if kind == "wgmma" else "store", issuer, len(self.steps), cta)
            self._add(Step(self.number, flight, op, None, began, began, now, last=ops.WgmmaDone))

    # ---- all rows -------------------------------------------------------------------------------------------------

    def finished(self, first: int) -> Iterator[Step]:
        """The steps, with phases, loads, and what ended each wait. first: the number of the first one."""
        for arrived in self.arrivals.values():
            arrived.sort()
        for waited in self.waits.values():
            waited.sort()
        self._number_phases()
        landed = self._land()
        self._order()
        for (cta, bar), waits in self.waits.items():
            arrivals = self.arrivals.get((cta, bar), [])
            for came, now, number in waits:
                step = self.steps[number]
                if step.began == came:
                    continue
                ended = landed.get((cta, bar, step.facts), -1)
                if ended < 0 and (at := bisect.bisect(arrivals, (now + ISSUED, 0)) - 1) >= 0:
                    ended = arrivals[at][1]
                self.steps[number] = step._replace(ended_by=ended)
        order = sorted(range(len(self.steps)), key=lambda i: self.steps[i].end)
        places = {i: first + place for place, i in enumerate(order)}
        for i in order:
            step = self.steps[i]
            yield step._replace(ended_by=places.get(step.ended_by, -1))

    def _number_phases(self) -> None:
        """Counts the fills of each slot, by which waits for it and releases know their phases."""
        slots = [
            (cta, *(self.layout.bar_base[barrier.name] + slot for barrier in ring.barriers))
            for ring in self.layout.plan.rings
            for cta in range(self.layout.ctas)
            for slot in range(ring.stages)
        ]
        filled = {(cta, full): self._fill(cta, full) for cta, full, *_ in slots}
        for cta, full, *others in slots:
            for bar in others:
                phases = {
                    number: self._released(full, filled[cta, full], now, number)
                    for now, number in self.arrivals.get((cta, bar), [])
                }
                last = {phase: number for number, phase in phases.items()}
                for number, phase in phases.items():
                    self._count(number, cta, bar, phase, last[phase] == number)

    def _fill(self, cta: int, full: int) -> list[float]:
        """When a slot has been filled, of which its waits get their phases."""
        fills: list[float] = []
        by_agent: dict[Any, int] = {}
        for now, number in self.arrivals.get((cta, full), []):
            agent = self.steps[number].agent
            phase = by_agent[agent] = by_agent.get(agent, -1) + 1
            if phase == len(fills):
                fills.append(now)
            self._count(number, cta, full, phase, False)
        for _, now, number in self.waits.get((cta, full), []):
            phase = bisect.bisect(fills, now + ISSUED) - 1
            step = self.steps[number]
            self.steps[number] = step._replace(facts=phase, op=step.op._replace(parity=phase & 1))
            ends, of = self.waited.setdefault((step.agent, full), ([], []))
            ends.append(now)
            of.append(phase)
        return fills

    def _released(self, full: int, fills: list[float], now: float, number: int) -> int:
        """The phase of a slot's arrival: that of its warp's last wait for it, as the stamp may come after the next fill."""
        ends, phases = self.waited.get((self.steps[number].agent, full), ([], []))
        before = bisect.bisect(ends, now)
        return phases[before - 1] if before else bisect.bisect(fills, now) - 1

    def _order(self) -> None:
        """A stamp comes some cycles after its arrival, which is over when a wait for its phase is."""
        for (cta, bar), waits in self.waits.items():
            ends: dict[int, float] = {}
            for _, now, number in waits:
                phase = self.steps[number].facts
                ends[phase] = min(now, ends.get(phase, now))
            for _, number in self.arrivals.get((cta, bar), []):
                step = self.steps[number]
                phase = next((each.phase for each in step.facts if (each.cta, each.bar) == (cta, bar)), -1)
                if step.end > ends.get(phase, step.end):
                    end = ends[phase]
                    self.steps[number] = step._replace(came=min(step.came, end), began=min(step.began, end), end=end)

    def _count(self, number: int, cta: int, bar: int, phase: int, completed: bool) -> None:
        step = self.steps[number]
        counted = Counted(cta, bar, phase, 1, 0, completed)
        self.steps[number] = step._replace(facts=(*step.facts, counted))

    def _land(self) -> dict[tuple[int, int, int], int]:
        """Draws the loads until the first wait for them has ended: the last step that fills a slot in each phase."""
        layout, landed, phases = self.layout, {}, dict[tuple[int, int, str], int]()
        for cta, agent, load, bar, now, where in self.loads:
            phase = phases[cta, bar, load] = phases.get((cta, bar, load), -1) + 1
            ends = (each for each in self.waits.get((cta, bar), []) if self.steps[each[2]].facts == phase)
            came, went, _ = min(ends, key=lambda each: each[1], default=(now + PASSED, now + PASSED, -1))
            part, end = layout.loads[load], went if went - came > PASSED else max(now + PASSED, came)
            slot = (
                layout.slot_base[part.buffer.name]
                + (bar - layout.bar_base[layout.bars[bar][0].name]) % part.buffer.stages
            )
            op = made_of.TmaLoad(load, slot, bar, part.buffer.slot_bytes, where=where)
            facts = (Counted(cta, bar, phase, 0, -part.buffer.slot_bytes, True),)
            flight = Flight("load", agent, len(self.steps), cta)
            landed[cta, bar, phase] = self._add(
                Step(self.number, flight, op, facts, now, now, end, last=ops.LoadComplete)
            )
        return landed
