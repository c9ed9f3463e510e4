"""The result of a run of the model: counts; where asked for, a trace with the user's names of operations, and a
timeline."""

from __future__ import annotations

import html
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import attrs

from tmapipe.errors import DeadlockError, InputError
from tmapipe.isa import Group, Kind, Start, Wait, declared
from tmapipe.isa.ops import Agent, Counted, Flight, LoadComplete, StoreWrite, WgmmaDone
from tmapipe.model.layout import Layout, Where

if TYPE_CHECKING:
    from tmapipe.model.state import State
    from tmapipe.plan.model import Plan

# ---- limits ----------------------------------------------------------------------------------------------------------

#: Transitions for each output tile, and for each warp that works on it, after which a loop seems to be endless.
STEPS_OF_TILE, STEPS_OF_WARP = 500_000, 50_000


def steps_for(plan: Plan, tiles: int) -> int:
    """How many transitions a cluster that computes *tiles* output tiles may take. Then the run stops."""
    return max(1, tiles) * (STEPS_OF_TILE + STEPS_OF_WARP * plan.cluster_size * plan.threads // 32)


# ---- page ------------------------------------------------------------------------------------------------------------
#
# One HTML page that draws Chrome trace events. It needs nothing but itself: no network, no other file.


_TEMPLATE = Path(__file__).with_name("page.html")


def page(document: dict[str, Any]) -> str:
    """The page that draws a timeline's *document*."""
    title = html.escape(str(document["otherData"]["title"]))
    data = json.dumps(document, separators=(",", ":")).replace("<", "\\u003c")  # no tag ends inside it
    template = _TEMPLATE.read_text(encoding="utf-8")
    head, _, tail = template.replace("@TITLE@", title).partition("@DATA@")
    return f"{head}{data}{tail}"


# ---- timeline --------------------------------------------------------------------------------------------------------
#
# Timelines: what happened, step by step, as Chrome trace events (JSON), which Perfetto and chrome://tracing read.
#
# A process is a CTA. A thread is one of its warps, or a lane of one of its engines (TMA loads, TMA stores, wgmma).
# Time is the order of steps: step n is at ts = n. It lasts 1 (the viewers call it a microsecond), or as long as a
# warp is blocked or a copy is in flight. `docs/timeline.md` has the format.


ENGINES = 1000  # thread ids from here on are lanes of engines
SLOTS = 10**9  # and from here on slots of rings
LANES = 100_000  # ids an engine: far more than copies fit in flight, of which each slot of 128 bytes can have several
NAMED = ("role", "ring", "barrier", "slot", "phase", "parity")


@attrs.frozen
class Event:
    """One step, in the user's names.

    Args:
        order: The step's number, from 0.
        cta: The CTA, by its rank in the cluster.
        agent: Who takes the step, in words.
        what: What happens, in words.
        where: The source line, "file:line", or None.
        barrier, slot: The names of the mbarrier and the slot, if the step concerns one.
        phase, parity, nbytes: Of the mbarrier or the copy.
        role: The warp's role.
        warp: The warp's index in the CTA.
        ring: The ring that has the barrier or the slot.
        engine: "TMA loads", "TMA stores" or "wgmma", if an engine takes the step for the warp.
        began: When the warp came to the step, or the copy was issued, if that was earlier.
    """

    order: int
    cta: int
    agent: str
    what: str
    where: str | None = None
    barrier: str | None = None
    slot: str | None = None
    phase: int | None = None
    parity: int | None = None
    nbytes: int | None = None
    role: str = ""
    warp: int = 0
    ring: str | None = None
    engine: str | None = None
    began: int | None = None


class Timeline:
    """Collects events; `document` is the JSON object."""

    def __init__(self, title: str):
        self.title = title
        self.events: list[dict[str, Any]] = []
        self._names: dict[tuple[int, int], dict[str, Any]] = {}  # of processes (thread -1) and threads
        self._lanes: dict[tuple[int, str], list[int]] = {}  # by process and engine: when each lane is free again

    def add(self, event: Event, process: int = 0, title: str = "") -> None:
        """One step. process: number of the first CTA's; title: what stands before the CTA in its name."""
        began = event.order if event.began is None else event.began
        args = {"bytes": event.nbytes, "source": event.where, "step": event.order}
        category = "warp" if event.engine is None else "engine"
        place = self._placed(event, process, title, began, event.order + 1)
        self._slice(event.what, category, began, event.order + 1 - began, *place, self._named(event) | args)

    def span(
        self, event: Event, category: str, began: int, end: int, process: int, title: str, more: dict[str, Any]
    ) -> dict[str, Any]:
        """Adds a slice from *began* to *end*, in nanoseconds, and returns it. category: "op", "wait", "stuck", "compute",
        "tile" or "engine". more: further arguments of the slice. The other arguments are those of `add`."""
        end = max(end, began + 1)
        args = self._named(event) | {"bytes": event.nbytes, "source": event.where, **more}
        place = self._placed(event, process, title, began, end)
        return self._slice(event.what, category, began / 1000, (end - began) / 1000, *place, args)

    def slot(
        self, place: tuple[int, str], slot: tuple[int, str, int], what: str, began: int, end: int, more: dict[str, Any]
    ) -> None:
        """A slot of a ring is something for some time. place: process and its name; slot: the ring's number and name, and the
        slot's number in it."""
        (pid, title), (number, ring, index) = place, slot
        self._name(pid, -1, title)
        self._name(pid, tid := SLOTS + LANES * number + index, f"{ring}[{index}]")
        self._slice(what, "slot", began / 1000, (max(end, began + 1) - began) / 1000, pid, tid, more)

    def _named(self, event: Event) -> dict[str, Any]:
        return {name: getattr(event, name) for name in NAMED}

    def _placed(self, event: Event, process: int, title: str, began: int, end: int) -> tuple[int, int]:
        """The process and the thread that an event from *began* to *end* is drawn in, which get their names."""
        pid, tid, name = process + event.cta, event.warp, f"{event.role} (warp {event.warp})"
        if event.engine is not None:
            tid = self._lane(pid, event.engine, began, end)
            name = f"{event.engine} {(tid - ENGINES) % LANES}"
        self._name(pid, -1, f"{title}CTA {event.cta}")
        self._name(pid, tid, name)
        return pid, tid

    def _slice(
        self, name: str, category: str, ts: float, lasts: float, pid: int, tid: int, args: dict[str, Any]
    ) -> dict[str, Any]:
        known = {name: value for name, value in args.items() if value not in (None, "")}
        place = {"ts": ts, "dur": lasts, "pid": pid, "tid": tid}
        made = {"name": name, "cat": category, "ph": "X", **place, "args": known}
        self.events.append(made)
        return made

    def count(self, pid: int, name: str, time: int, numbers: dict[str, int]) -> None:
        """Counters from *time* on, in nanoseconds."""
        self.events.append({"name": name, "cat": "ring", "ph": "C", "ts": time / 1000, "pid": pid, "args": numbers})

    def arrow(self, number: int, tail: dict[str, Any], head: dict[str, Any], name: str) -> None:
        """An arrow from the end of the slice *tail* to the end of the slice *head*, which *tail* has ended. On a GPU, a warp
        reads the clock some cycles after it arrives: then an arrow begins inside *tail*. There is none if *tail* begins after
        the end of *head*. number: the arrow's."""
        ends = [max(round(x["ts"] * 1000), round((x["ts"] + x["dur"]) * 1000) - 1) / 1000 for x in (tail, head)]
        begin = max(tail["ts"], min(ends))
        if begin > ends[1]:
            return
        both: dict[str, Any] = {"name": name, "cat": "ends", "id": number}
        for slice_, ph, at in ((tail, {"ph": "s"}, begin), (head, {"ph": "f", "bp": "e"}, ends[1])):
            self.events.append({**both, **ph, "ts": at, "pid": slice_["pid"], "tid": slice_["tid"]})

    def flag(self, place: dict[str, Any], name: str, args: dict[str, Any]) -> None:
        """A finding, at the beginning of a slice."""
        at = {"ts": place["ts"], "pid": place["pid"], "tid": place["tid"]}
        self.events.append({"name": name, "cat": "finding", "ph": "i", "s": "p", **at, "args": args})

    def mark(self, event: Event, name: str, args: dict[str, Any], process: int = 0) -> None:
        """A mark at the step *event*, which has been added."""
        last = self.events[-1]
        place = {"pid": process + event.cta, "tid": last["tid"]}
        self.events.append(
            {"name": name, "cat": "finding", "ph": "i", "s": "p", "ts": event.order, **place, "args": args}
        )

    def document(self) -> dict[str, Any]:
        """The JSON object. Events are in order of their steps, after the names of processes and threads."""
        return {
            "traceEvents": [*self._names.values(), *self.events],
            "displayTimeUnit": "ns",
            "otherData": {"title": self.title, "time": "steps", "made by": "tmapipe"},
        }

    def _name(self, pid: int, tid: int, name: str) -> None:
        kind, args = "process_name" if tid < 0 else "thread_name", {"name": name}
        named = {"name": kind, "ph": "M", "ts": 0, "pid": pid, "tid": max(tid, 0), "args": args}
        self._names.setdefault((pid, tid), named)

    def _lane(self, pid: int, engine: str, began: int, end: int) -> int:
        """The thread of the first lane of *engine* that is free, since a viewer cannot draw two at once in one thread."""
        known = [name for process, name in self._lanes if process == pid]
        lanes = self._lanes.setdefault((pid, engine), [])
        number = known.index(engine) if engine in known else len(known)
        lane = next((i for i, free in enumerate(lanes) if free <= began), len(lanes))
        lanes[lane : lane + 1] = [end]
        return ENGINES + LANES * number + lane


class Drawn:
    """Base of results that can be drawn as a timeline."""

    def timeline(self) -> dict[str, Any]:
        """The JSON object."""
        raise NotImplementedError

    def write_timeline(self, path: str | os.PathLike[str]) -> None:
        """Writes `timeline`: as a page for any browser if the file's name ends with ".html", else as JSON for
        https://ui.perfetto.dev or chrome://tracing."""
        text = self.drawn(path)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)

    def drawn(self, path: str | os.PathLike[str]) -> str:
        """The text that `write_timeline` writes to a file of this name."""
        document = self.timeline()
        as_page = os.fspath(path).endswith((".html", ".htm"))
        return page(document) if as_page else json.dumps(document, indent=1) + "\n"


# ---- describe --------------------------------------------------------------------------------------------------------
#
# Operations and agents in the user's names: roles, rings' barriers, slots, bytes.


def who(layout: Layout, agent: Agent) -> str:
    """An agent's name, e.g. ``math (warp 5) of CTA 1``; without the CTA where there is but one."""
    name = layout.agent_name(agent)
    return name.replace(" of CTA 0", "") if layout.ctas == 1 else name


def bar_name(layout: Layout, bar: int) -> str:
    """The mbarrier at flat index *bar* of the cluster, e.g. ``ring.full[2] of CTA 1``."""
    name = layout.bar_name(bar)
    return f"{name} of CTA {bar // layout.nbars}" if layout.ctas > 1 else name


def slot_name(layout: Layout, place: int) -> str:
    """The slot at flat index *place* of the cluster, e.g. ``x[2] of CTA 1``."""
    name = layout.slot_name(place)
    return f"{name} of CTA {place // layout.nslots}" if layout.ctas > 1 else name


def describe(layout: Layout, op: Any) -> str:
    """What an operation does, as a verb in the third person: ``waits for ring.full[0] (parity 1)``."""
    return declared(type(op)).sentence(layout, op)


def lines(places: Iterable[str | None]) -> tuple[str, ...]:
    """Each source line once."""
    return tuple(dict.fromkeys(place for place in places if place))


def deadlock(state: State, blocked: dict[int, tuple[Any, str]], where: Where | None) -> DeadlockError:
    """The error for a state in which nothing can move: one line for each group of warps that wait for the same thing.

    blocked: agent -> (the operation that it cannot execute, what it waits for in words). where: agent -> its source line. The
    error has the operations as attribute `blocked`, and the attribute `state`.
    """
    layout = state.layout
    waits: dict[tuple, list[int]] = {}  # (CTA, role, what for, where) -> warps
    for agent, (op, text) in sorted(blocked.items()):
        cta, warp = divmod(agent, layout.warps)
        line = getattr(op, "where", None) or (where(agent) if where else None)
        waits.setdefault((cta, layout.role(agent), text, line), []).append(warp)
    alike: dict[tuple, list[int]] = {}  # (warps, role, what for, where) -> CTAs
    for (cta, *rest), warps in waits.items():
        alike.setdefault((tuple(warps), *rest), []).append(cta)
    lines = [
        f"  {role} ({_numbers('warp', warps)}) of {_numbers('CTA', ctas)} waits for {text}"
        + (f", at {line}" if line else "")
        for (warps, role, text, line), ctas in alike.items()
    ]
    error: Any = DeadlockError("deadlock: nothing can move.\n" + "\n".join(lines))
    error.blocked, error.state = {agent: op for agent, (op, _) in blocked.items()}, state
    return error


def _numbers(word: str, numbers: Sequence[int]) -> str:
    """E.g. ``warp 3``, ``warps 4-11`` or ``CTAs 0, 2``."""
    if len(numbers) == 1:
        return f"{word} {numbers[0]}"
    if list(numbers) == list(range(numbers[0], numbers[-1] + 1)):
        return f"{word}s {numbers[0]}-{numbers[-1]}"
    return f"{word}s {', '.join(map(str, numbers))}"


def event_of(
    layout: Layout, order: int, agent: Agent, op: Any, what: str = "", phase: Any = None, began: int | None = None
) -> Event:
    """One step of a timeline. what: words in place of the operation's own description. For a flight, *op* is the operation
    that issued it."""
    bar, slot = _operand(op, Kind.BAR), _operand(op, Kind.SLOT)
    cta, issuer = (agent.cta, agent.issuer) if isinstance(agent, Flight) else (agent // layout.warps, agent)
    if isinstance(agent, Flight) and agent.kind == "wgmma":
        issuer = 4 * (agent.issuer % layout.warpgroups)
    return Event(
        order=order,
        cta=cta,
        agent=who(layout, agent),
        what=what or describe(layout, op),
        where=getattr(op, "where", None),
        barrier=None if bar is None else layout.bar_name(bar),
        slot=None if slot is None else layout.slot_name(slot),
        phase=phase,
        parity=_operand(op, Kind.PARITY),
        nbytes=_nbytes(layout, op),
        role=layout.role(issuer),
        warp=issuer % layout.warps,
        ring=layout.ring_of(bar, slot),
        engine=_ENGINES[agent.kind] if isinstance(agent, Flight) else None,
        began=began,
    )


_ENGINES = {
    "load": "TMA loads",
    "st.async": "st.async",
    "cp.async": "cp.async",
    "peer copy": "copies to peers",
    "peer reduction": "copies to peers",
    "store": "TMA stores",
    "wgmma": "wgmma",
}


def _operand(op: Any, kind: Kind) -> Any:
    """The operation's first operand of this kind, or None."""
    names = declared(type(op)).named(kind)
    return getattr(op, names[0]) if names else None


def _nbytes(layout: Layout, op: Any) -> int | None:
    """Bytes that it arms or moves. A store moves its whole slot."""
    nbytes = _operand(op, Kind.BYTES)
    stores = any(start.until.group is Group.BULK for start in declared(type(op)).all(Start))
    return layout.slots[_operand(op, Kind.SLOT)][0].slot_bytes if nbytes is None and stores else nbytes


# ---- run -------------------------------------------------------------------------------------------------------------
#
# What a run leaves: counts, and if asked for the trace of all transitions, from which a timeline can be drawn.


_ENDS = (LoadComplete, StoreWrite, WgmmaDone)


def _started(op: Any, facts: Any) -> tuple[Flight, ...]:
    """The flights that an operation sets off: of a wgmma, each of the four warps that issue it has the same one."""
    return facts if declared(type(op)).effect(Start) is not None else ()


class TraceEntry(NamedTuple):
    """One transition.

    Args:
        cluster: The cluster's number in the grid.
        number: The transition's number.
        agent: The warp or the flight that makes the transition.
        op: The operation.
        facts: The machine's answer.
        reached: How many transitions of the cluster had happened when the warp came to the operation: fewer than *number* if
            the warp was then blocked.
    """

    cluster: int
    number: int
    agent: Agent
    op: Any
    facts: Any
    reached: int


def tracer(trace: list[TraceEntry], cluster: int, reached: list[int]) -> Callable[[Agent, Any, Any], None]:
    """A function that is called with each transition of a cluster, and adds the transition to *trace*. reached: as in
    `Scheduler`."""
    number = 0

    def watch(agent: Agent, op: Any, facts: Any) -> None:
        nonlocal number
        began = number
        if type(agent) is int and reached[agent] >= 0:
            began, reached[agent] = reached[agent], -1
        trace.append(TraceEntry(cluster, number, agent, op, facts, began))
        number += 1

    return watch


class Run(Drawn):
    """The results of one `Machine.run`, of all clusters together.

    counts: how often each operation was executed, by its name ("MbarWait" ...), with the steps of engines. loaded_bytes: bytes
    that landed in shared memory; a multicast counts once for each destination. stored_tiles: how many tiles were stored.
    steps: how many transitions were made. trace: a `TraceEntry` for each transition in the order of execution, if asked for.
    layout: the names of agents.
    """

    def __init__(self, layout: Layout, trace: bool = False):
        self.layout = layout
        self.counts: Counter[str] = Counter()
        self.steps = self.loaded_bytes = self.stored_tiles = 0
        self.trace: list[TraceEntry] | None = [] if trace else None

    def watch(self, agent: Agent, op: Any, facts: Any) -> None:
        """Counts one transition."""
        self.counts[type(op).__name__] += 1
        self.steps += 1
        flights = () if type(agent) is Flight else _started(op, facts)
        if flights and flights[0].kind == "store":
            self.stored_tiles += 1
        elif flights and flights[0].kind != "wgmma":
            self.loaded_bytes += op.nbytes * len(flights)

    def timeline(self) -> dict[str, Any]:
        """The trace as Chrome trace events (see `tmapipe.model.run`): every operation of every warp, and each load,
        store and wgmma from its issue to its end. A cluster's CTAs are processes of their own. Raises `InputError` if the run
        kept no trace."""
        if self.trace is None:
            raise InputError("Run.trace", None, "is kept only if the run was asked to", "simulate(..., trace=True)")
        layout, made = self.layout, Timeline(self.layout.plan.name)
        issued: dict[tuple[int, Flight], tuple[int, Any]] = {}
        several = any(entry.cluster for entry in self.trace)
        for cluster, number, agent, op, facts, reached in self.trace:
            what = ""
            if isinstance(agent, int):
                for flight in _started(op, facts):
                    issued.setdefault((cluster, flight), (number, op))
            elif isinstance(op, _ENDS):
                reached, op = issued.pop((cluster, agent))
                what = under_way(layout, op)
            else:
                continue
            step = event_of(layout, number, agent, op, what, phase_of(op, facts), reached)
            made.add(step, cluster * layout.ctas, f"cluster {cluster}, " if several else "")
        return made.document()

    def __repr__(self) -> str:
        return f"Run({self.steps} steps, {self.loaded_bytes} bytes loaded, {self.stored_tiles} tiles stored)"


def phase_of(op: Any, facts: Any) -> int | None:
    """The phase of an mbarrier that an operation, or the work that it started, counted in, or saw complete."""
    if declared(type(op)).effect(Wait) is not None:
        return int(facts)
    counted = isinstance(facts, tuple) and facts and isinstance(facts[0], Counted)
    return facts[0].phase if counted else None


def under_way(layout: Layout, op: Any) -> str:
    """The work under way, in the words of its operation's sentence."""
    text = describe(layout, op)
    return text.removeprefix("starts ").removeprefix("the TMA load of ").removeprefix("the TMA store ")
