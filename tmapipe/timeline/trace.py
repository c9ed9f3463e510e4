"""Trace: a timed run of a call of a schedule on the model, as Chrome trace events and as a page, with how full rings
are."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

import attrs

from tmapipe.bind import Bound
from tmapipe.calling import on_model
from tmapipe.errors import DeadlockError, HazardError, require
from tmapipe.isa import declared, ops
from tmapipe.isa.ops import Agent, Counted, Flight
from tmapipe.model.layout import Layout
from tmapipe.model.run import Drawn, Event, Timeline, event_of, phase_of, under_way
from tmapipe.plan.model import Plan
from tmapipe.plan.rings import Barrier, Ring
from tmapipe.timeline import H200, Costs, clock_of
from tmapipe.timeline.timed import Share, Step, TimedMachine, pace_of

if TYPE_CHECKING:
    from tmapipe.check import Report
    from tmapipe.schedule import Schedule


# ---- occupancy -------------------------------------------------------------------------------------------------------
#
# How full rings are: what each slot is at any time, and how many slots are being filled and in use.


FREE, FILLING, FULL = "free", "filling", "in use"
Slot = tuple[int, int, str, int]  # cluster, CTA, ring, number


class Occupancy:
    """What each slot of each ring was, from the steps of a run.

    A slot is being filled from the time when the ring's first role has found it free, if it then fills it; in use from the
    phase in which the first barrier completes, and free again when the last one does. changes: (time, what it is then,
    iteration) of each slot, by (cluster, CTA, ring, slot).
    """

    def __init__(self, layout: Layout, steps: Iterable[Step], end: float):
        self.layout, self.end = layout, end
        self.changes: dict[Slot, list[tuple[float, str, int]]] = {}
        self.found_free: dict[tuple[Slot, int], float] = {}
        rings = {barrier: ring for ring in layout.plan.rings for barrier in ring.barriers}
        for step in steps:
            if isinstance(step.op, ops.MbarWait) and isinstance(step.agent, int):
                cta, bar = step.agent // layout.warps, step.op.bar
                barrier, stage = layout.bars[bar]
                ring = rings.get(barrier)
                if ring is not None and barrier == ring.barriers[-1] and not ring.held:
                    slot = step.cluster, cta, ring.name, stage % ring.stages
                    self.found_free.setdefault((slot, int(step.facts) + 1), step.began)
            for fact in step.facts if isinstance(step.facts, tuple) else ():
                if isinstance(fact, Counted):
                    barrier, stage = layout.bars[fact.bar % layout.nbars]
                    if barrier in rings:
                        self._count(rings[barrier], barrier, stage, fact, step)

    def _count(self, ring: Ring, barrier: Barrier, stage: int, fact: Counted, step: Step) -> None:
        """Something counts in a phase of a ring's barrier."""
        slot: Slot = step.cluster, fact.cta, ring.name, stage % ring.stages
        iteration, known = fact.phase * ring.stages + slot[-1], self.changes.setdefault(slot, [])
        if barrier == ring.barriers[0] and (not known or known[-1][1] == FREE):
            known.append((self.found_free.get((slot, fact.phase), step.began), FILLING, iteration))
        if fact.completed and barrier == ring.barriers[0]:
            known.append((step.end, FULL, iteration))
        elif fact.completed and barrier == ring.barriers[-1]:
            known.append((step.end, FREE, iteration))

    def slots(self) -> Iterator[tuple[Slot, float, float, str, int]]:
        """(slot, from, to, what it is, iteration), of slots that are not free."""
        for key, changes in self.changes.items():
            ends = [time for time, _, _ in changes[1:]] + [self.end]
            for (began, what, iteration), end in zip(changes, ends, strict=True):
                if what != FREE and end > began:
                    yield key, began, end, what, iteration

    def counts(self) -> Iterator[tuple[tuple[int, int, str], float, dict[str, int]]]:
        """(ring, time, how many slots are what), at each change."""
        rings: dict[tuple[int, int, str], list[tuple[float, int, str]]] = {}
        for key, changes in self.changes.items():
            rings.setdefault(key[:3], []).extend((time, key[3], what) for time, what, _ in changes)
        for ring, of_ring in rings.items():
            now: dict[int, str] = {}
            for time, slot, what in sorted(of_ring, key=lambda each: each[0]):
                now[slot] = what
                yield ring, time, {name: list(now.values()).count(name) for name in (FULL, FILLING)}

    def draw(self, made: Timeline, ns: Callable[[float], int], title: Callable[[int], str]) -> None:
        """Adds both to *made*. ns: a time in its unit; title: what stands before a CTA of a cluster."""
        ctas, order = self.layout.ctas, [ring.name for ring in self.layout.plan.rings]
        for (cluster, cta, ring, slot), began, end, what, iteration in self.slots():
            more = {"ring": ring, "slot": f"{ring}[{slot}]", "iteration": iteration}
            place = cluster * ctas + cta, title(cluster) + f"CTA {cta}"
            made.slot(place, (order.index(ring), ring, slot), what, ns(began), ns(end), more)
        for (cluster, cta, ring), time, numbers in self.counts():
            made.count(cluster * ctas + cta, f"{ring}: slots", ns(time), numbers)


# ---- trace -----------------------------------------------------------------------------------------------------------
#
# Trace: a timed run of a schedule on the CPU model, as Chrome trace events and as a page (see
# `tmapipe.model.run`).
#
# To the events of every timeline it adds: a slice for each output tile of a warp, which encloses what the warp does
# for it; of a wait, what it waits for; an arrow (``s`` and ``f``) from what ended a wait to its end; for each slot of
# a ring, how long it is being filled and in use, and as counters how many slots of a ring are.


#: What a warp may wait for, in the order of the page's legend.
REASONS = ("data", "a free slot", "a turn", "the tensor core", "stores", "warps", "the cluster", "registers")


STUCK = 1.25  #: for how long, of what went before, warps that cannot go on are drawn


@attrs.frozen
class Mark:
    """A finding, and where it is drawn.

    Args:
        title: In a few words.
        args: kind, message, fix and source.
        cta, warp, what: The step that shows it, in words as `describe` says it; "": none does.
        note: Whether it is no error.
    """

    title: str
    args: dict[str, str]
    cta: int = 0
    warp: int = 0
    what: str = ""
    note: bool = False


class Recorded(Protocol):
    """What a run leaves: the model's with times, or one on the GPU."""

    @property
    def layout(self) -> Layout: ...
    @property
    def gigahertz(self) -> float: ...
    @property
    def steps(self) -> list[Step]: ...
    @property
    def blocked(self) -> list[tuple[int, int, Any, float, str]]: ...


class Trace(Drawn):
    """What one `Schedule.trace` has recorded.

    cycles: until the last warp has returned; nanoseconds: the same, at the clock of the cost model; findings: what the check
    says that can go wrong, and if the run could not go on, where it stood.
    """

    def __init__(self, plan: Plan, machine: Recorded, findings: list[Mark]):
        self.plan, self.findings, self._machine = plan, findings, machine
        self._layout, self.gigahertz, self.steps = machine.layout, machine.gigahertz, machine.steps
        ends = [step.end for step in self.steps]
        self.cycles = round(max(ends, default=0.0))

    @property
    def nanoseconds(self) -> float:
        return self.cycles / self.gigahertz

    def roles(self) -> dict[str, dict[str, float]]:
        """By role, what parts of its warps' time it spends on what: "arithmetic", "operations", and of waits, what for."""
        layout, shares = self._layout, {}  # type: tuple[Layout, dict[str, dict[str, float]]]
        warps: dict[str, set[tuple[int, Agent]]] = {role.name: set() for role in self.plan.roles}
        for step in self.steps:
            if isinstance(step.agent, int) and layout.role(step.agent) in warps:
                warps[layout.role(step.agent)].add((step.cluster, step.agent))
        for step in self.steps:
            role = "" if isinstance(step.agent, Flight) else layout.role(step.agent)
            if role not in warps:
                continue
            parts, every = shares.setdefault(role, {}), max(1, self.cycles) * len(warps[role])
            waited, kind = step.began - step.came, "arithmetic" if step.op is None else "operations"
            parts[kind] = parts.get(kind, 0.0) + (step.end - step.began) / every
            if step.op is None or waited:
                kind = "arithmetic" if step.op is None else reason(layout, step.op)
                parts[kind] = parts.get(kind, 0.0) + waited / every
        return shares

    def pace(self, ring: str | None = None) -> float:
        """Cycles from one slot of a ring to the next in the steady state, as its consumers see them: between the ends of their
        waits for a filled slot, in the middle half of each tile's waits; of all, where tiles have fewer than 8.

        Args:
            ring: Its name; None: the one that is waited for most.

        Raises:
            InputError: No warp has waited for four slots of it.
        """
        return pace_of(self._layout, self.steps, ring)

    def __repr__(self) -> str:
        return f"Trace({self.plan.name}: {self.cycles} cycles, {len(self.findings)} findings)"

    def timeline(self) -> dict[str, Any]:
        """The Chrome trace events. Times are nanoseconds of the model's clock, over 1000 (the format's unit is 1 us)."""
        return _Drawing(self._machine, self.findings).document()


class _Drawing:
    """Makes the document of one trace."""

    def __init__(self, machine: Recorded, findings: list[Mark]):
        self.layout, self.gigahertz, self.machine, self.findings = machine.layout, machine.gigahertz, machine, findings
        self.made = Timeline(self.layout.plan.name)
        self.slices: dict[int, dict[str, Any]] = {}  # by number of the step
        self.several = any(step.cluster for step in machine.steps)
        self.arrows = 0
        self.end = max((step.end for step in machine.steps), default=0.0)
        if machine.blocked:
            self.end *= STUCK

    def document(self) -> dict[str, Any]:
        steps = self.machine.steps
        for span in self._tiles():
            self._slice(*span)
        for number, step in enumerate(steps):
            self._step(number, step)
        for cluster, agent, op, since, tile in self.machine.blocked:
            self._stuck(cluster, agent, op, since, tile)
        for number, step in enumerate(steps):
            self._arrow(number, step)
        Occupancy(self.layout, steps, self.end).draw(self.made, self._ns, self._title)
        for mark in self.findings:
            self._mark(mark)
        document = self.made.document()
        document["otherData"] |= {
            "time": "nanoseconds",
            "clock": f"{self.gigahertz} GHz",
            "cycles": round(self.end),
            "reasons": list(REASONS),
            "on": getattr(self.machine, "on", "model"),
            "left out": getattr(self.machine, "left_out", ""),
        }
        return document

    def _ns(self, cycles: float) -> int:
        return round(cycles / self.gigahertz)

    def _title(self, cluster: int) -> str:
        return f"cluster {cluster}, " if self.several else ""

    # ---- slices ---------------------------------------------------------------------------------------------------

    def _tiles(self) -> Iterator[tuple[int, int, str, float, float]]:
        """Each output tile of each warp: (cluster, agent, name, from, to)."""
        spans: dict[tuple[int, int], tuple[str, float, float]] = {}
        for step in self.machine.steps:
            if isinstance(step.agent, Flight):
                continue
            key = step.cluster, step.agent
            known = spans.get(key)
            if known is not None and known[0] == step.tile:
                spans[key] = known[0], known[1], step.end
                continue
            if known is not None and known[0]:
                yield (*key, *known)
            spans[key] = step.tile, step.came, step.end
        for key, known in spans.items():
            stuck = any((cluster, agent) == key for cluster, agent, *_ in self.machine.blocked)
            if known[0]:
                yield (*key, known[0], known[1], self.end if stuck else known[2])

    def _slice(self, cluster: int, agent: int, name: str, began: float, end: float) -> None:
        cta, warp = divmod(agent, self.layout.warps)
        made = Event(0, cta, "", name, role=self.layout.role(agent), warp=warp)
        self.made.span(
            made, "tile", self._ns(began), self._ns(end), cluster * self.layout.ctas, self._title(cluster), {}
        )

    def _step(self, number: int, step: Step) -> None:
        layout, process, title = self.layout, step.cluster * self.layout.ctas, self._title(step.cluster)
        more: dict[str, Any]
        if step.op is None:
            assert isinstance(step.agent, int)
            cta, warp = divmod(step.agent, layout.warps)
            made = Event(number, cta, "", "computes", role=layout.role(step.agent), warp=warp)
            began, end, more = self._ns(step.began), self._ns(step.end), {"cycles": round(step.end - step.began)}
            self.slices[number] = self.made.span(made, "compute", began, end, process, title, more)
            return
        what = under_way(layout, step.op) if isinstance(step.agent, Flight) else ""
        if step.last is ops.StoreRead:
            return  # the slice of a store is its way to memory
        phase = phase_of(step.op, step.facts)
        made = event_of(layout, number, step.agent, step.op, what, phase)
        more = {"cycles": round(step.end - step.came)}
        category, came = "engine" if isinstance(step.agent, Flight) else "op", step.came
        if isinstance(step.agent, Flight):
            more["queued"] = round(step.began - step.came)
            came = step.began
        elif declared(type(step.op)).blocks:
            more["waits for"] = reason(layout, step.op)
            if step.began > step.came:
                category = "wait"
                more["waited"] = round(step.began - step.came)
        if phase is not None and made.ring:
            more["iteration"] = iteration(layout, step.op, phase)
        self.slices[number] = self.made.span(made, category, self._ns(came), self._ns(step.end), process, title, more)

    def _stuck(self, cluster: int, agent: int, op: Any, since: float, tile: str) -> None:
        made = event_of(self.layout, len(self.machine.steps), agent, op)
        made = attrs.evolve(made, what=f"{made.what} in vain")
        more = {"waits for": reason(self.layout, op), "cycles": round(self.end - since)}
        process = cluster * self.layout.ctas
        self.made.span(made, "stuck", self._ns(since), self._ns(self.end), process, self._title(cluster), more)

    # ---- arrows and marks -----------------------------------------------------------------------------------------

    def _arrow(self, number: int, step: Step) -> None:
        cause, here = self.slices.get(step.ended_by), self.slices.get(number)
        if cause is None or here is None:
            return
        self.arrows += 1
        self.made.arrow(self.arrows, cause, here, reason(self.layout, step.op))

    def _mark(self, mark: Mark) -> None:
        """At the step that the finding names, or where its warp could not go on, or at the last one."""
        warp = mark.cta, mark.warp
        drawn = [each for each in self.made.events if each["ph"] == "X" and each["cat"] != "tile"]
        own = [each for each in drawn if (each["pid"], each["tid"]) == warp]
        named = [each for each in own if each["name"] == mark.what]
        stuck = [each for each in (*own, *drawn) if each["cat"] == "stuck"]
        for place in (*named[:1], *stuck[:1], *(own or drawn)[-1:]):
            return self.made.flag(place, mark.title, mark.args | ({"level": "note"} if mark.note else {}))


# ---- what a step is about -------------------------------------------------------------------------------------------------


def iteration(layout: Layout, op: Any, phase: int) -> int:
    """How many slots of the ring came before the one that an operation on its barrier is about."""
    barrier, stage = layout.bars[op.bar % layout.nbars]
    ring = next(r for r in layout.plan.rings if barrier in r.barriers)
    later = isinstance(op, ops.MbarWait) and barrier == ring.barriers[-1] and not ring.held
    return (phase + later) * ring.stages + stage % ring.stages


def reason(layout: Layout, op: Any) -> str:
    """What a wait is for: one of `REASONS`."""
    kind = type(op)
    if kind is ops.MbarWait:
        barrier = layout.barrier(op.bar)
        ring = next((r for r in layout.plan.rings if barrier in r.barriers), None)
        if ring is not None:
            return "a free slot" if barrier == ring.barriers[-1] and not ring.held else "data"
        queue = layout.plan.queue
        if queue is not None and barrier in (queue.full, queue.free):
            return "data" if barrier == queue.full else "a free slot"
        return "a turn" if barrier.name.endswith(".turn") else "the cluster"
    if kind is ops.BarWait and ".turn" in layout.named_barrier_name(op.id):
        return "a turn"
    return _REASONS[kind]


_REASONS = {
    ops.WgmmaWait: "the tensor core", ops.BulkWait: "stores", ops.BarWait: "warps", ops.ClusterWait: "the cluster",
    ops.SetMaxNreg: "registers", ops.Wgmma: "the tensor core", ops.WgmmaFromRegisters: "the tensor core",
}  # fmt: skip


# ---- run -------------------------------------------------------------------------------------------------------------
#
# Traces a call of a schedule on the timed model.


CLUSTERS = 2  #: of a grid, that are drawn


def trace(schedule: Schedule, bound: Bound, clusters: int | None) -> Trace:
    """A timed run of a call with these tensors. Arguments as of `Schedule.trace`."""
    require(not bound.empty, "tensors", bound.shapes, "have elements to compute from", "pass some that are not empty")
    if bound.on_gpu:
        from tmapipe.timeline.stamped import record

        return Trace(schedule.plan(bound.dtypes), record(schedule, bound, clusters or CLUSTERS), [])
    machine, failure = timed(schedule, bound, clusters, share_of(schedule, bound))
    return Trace(machine.plan, machine, findings(machine, schedule.check(bound.dtypes), failure))


def timed(
    schedule: Schedule, bound: Bound, clusters: int | None, share: Share, costs: Costs = H200
) -> tuple[TimedMachine, Exception | None]:
    """Runs a call with these tensors on the model with times. Returns the machine, and the error that stopped it, if any.

    Args:
        schedule, bound, clusters: As of `trace`.
        share: What each CTA has of the GPU, perhaps one that works on a larger problem.
        costs: What operations take.
    """
    made = []

    def machine(plan: Any, **options: Any) -> TimedMachine:
        made.append(TimedMachine(plan, share, clusters or CLUSTERS, costs=costs, **options))
        return made[-1]

    try:
        on_model(schedule, bound, clusters, machine)
    except (DeadlockError, HazardError) as error:
        return made[-1], error
    return made[-1], None


def share_of(schedule: Schedule, bound: Bound, costs: Costs = H200) -> Share:
    """What a CTA has of an H200, if all CTAs that the problem keeps at work do what it does."""
    plan, grid = schedule.plan(bound.dtypes), schedule.grid(lambda name, i: bound.shapes[name][i])

    def nbytes(part: Any) -> float:
        return math.prod(bound.shapes[part.argument]) * part.buffer.dtype.bytes

    loaded, stored = (sum(map(nbytes, parts)) for parts in (plan.loads, plan.stores))
    room = int(getattr(schedule.tiles, "ctas", 1))  # CTAs of a multiprocessor
    ctas = min(schedule.cluster_count(bound.shapes) * plan.cluster_size, costs.multiprocessors * room)
    total = costs.memory / clock_of(plan, costs) / max(1, ctas)
    reuse = {p.name: math.prod(n for dim, n in grid.items() if dim not in p.dims) for p in plan.loads}
    large = [dim for dim, n in grid.items() if n > 1]
    along = (large[-2:] or [""])[0]  # tiles next to each other differ along it
    served = {p.name: 1 + (plan.cluster_size == 1 and along not in p.dims) for p in plan.loads}
    return Share(
        reuse=reuse,
        l2={name: costs.l2 / clock_of(plan, costs) / max(1, ctas) * n for name, n in served.items()},
        read=total * loaded / max(1, loaded + stored),
        write=total * stored / max(1, loaded + stored) or total,
        resident=max(1, -(-ctas // costs.multiprocessors)),
    )


def findings(machine: TimedMachine, report: Report, failure: Exception | None) -> list[Mark]:
    """What the check says, each at its last step, or else what stopped the run."""
    marks = []
    for each in report.findings:
        step = each.steps[-1] if each.steps else None
        source = next(iter(each.where), "")
        said = {"kind": each.kind.name, "message": each.message, "fix": each.fix, "source": source}
        place = (0, 0, "") if step is None else (step.cta, step.warp, step.what)
        marks.append(Mark(each.kind.value, said, *place, each.kind.note))
    if failure is not None and report.ok:
        agent, op = getattr(failure, "agent", None), getattr(failure, "op", None)
        at = event_of(machine.layout, 0, agent, op) if isinstance(agent, int) and op is not None else None
        place = (0, 0, "") if at is None else (at.cta, at.warp, at.what)
        kind = type(failure).__name__
        marks.append(Mark(kind, {"kind": kind, "message": str(failure), "fix": "", "source": ""}, *place))
    return marks
