"""Timelines: what happened, step by step, as Chrome trace events (JSON), which Perfetto and chrome://tracing read.

A process is a CTA. A thread is one of its warps, or a lane of one of its engines (TMA loads, TMA stores, wgmma). Time is the
order of steps: step n is at ts = n. It lasts 1 (the viewers call it a microsecond), or as long as a warp is blocked or a copy
is in flight. `docs/internals/checker.md` has the format.
"""

from __future__ import annotations

import json
import os
from typing import Any

import attrs

from tmapipe.machine.page import page

__all__ = ["Drawn", "Event", "Timeline"]

ENGINES = 1000  # thread ids from here on are lanes of engines
SLOTS = 10**9  # and from here on slots of rings
LANES = 100_000  # ids an engine: far more than copies fit in flight, of which each slot of 128 bytes can have several
NAMED = ("role", "ring", "barrier", "slot", "phase", "parity")


@attrs.frozen
class Event:
    """One step, in the user's names.

    Args:
        order: Its number, from 0.
        cta: Of the cluster.
        agent: Who, in words.
        what: What happens, in words.
        where: The source line, "file:line", or None.
        barrier, slot: Their names, if it is about one.
        phase, parity, nbytes: Of the mbarrier or the copy.
        role: Of the warp.
        warp: Its index in the CTA.
        ring: Of the barrier or slot.
        engine: "TMA loads", "TMA stores" or "wgmma", if an engine acts for that warp.
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
        pid = process + event.cta
        tid, name = event.warp, f"{event.role} (warp {event.warp})"
        if event.engine is not None:
            tid = self._lane(pid, event.engine, began, event.order + 1)
            name = f"{event.engine} {(tid - ENGINES) % LANES}"
        self._name(pid, -1, f"{title}CTA {event.cta}")
        self._name(pid, tid, name)
        args = {name: getattr(event, name) for name in NAMED}
        args |= {"bytes": event.nbytes, "source": event.where, "step": event.order}
        self.events.append(
            {
                "name": event.what,
                "cat": "warp" if event.engine is None else "engine",
                "ph": "X",
                "ts": began,
                "dur": event.order + 1 - began,
                "pid": pid,
                "tid": tid,
                "args": {name: value for name, value in args.items() if value not in (None, "")},
            }
        )

    def span(
        self, event: Event, category: str, began: int, end: int, process: int, title: str, more: dict[str, Any]
    ) -> dict[str, Any]:
        """A slice from *began* to *end*, in nanoseconds. category: "op", "wait", "stuck", "compute", "tile" or "engine"; more:
        further arguments; the others as of `add`. Returns it."""
        pid, tid = process + event.cta, event.warp
        name = f"{event.role} (warp {event.warp})"
        end = max(end, began + 1)
        if event.engine is not None:
            tid = self._lane(pid, event.engine, began, end)
            name = f"{event.engine} {(tid - ENGINES) % LANES}"
        self._name(pid, -1, f"{title}CTA {event.cta}")
        self._name(pid, tid, name)
        args = {name: getattr(event, name) for name in NAMED} | {"bytes": event.nbytes, "source": event.where, **more}
        return self._slice(event.what, category, began, end, pid, tid, args)

    def slot(
        self, place: tuple[int, str], slot: tuple[int, str, int], what: str, began: int, end: int, more: dict[str, Any]
    ) -> None:
        """A slot of a ring is something for some time. place: process and its name; slot: the ring's number and name, and the
        slot's number in it."""
        (pid, title), (number, ring, index) = place, slot
        self._name(pid, -1, title)
        self._name(pid, tid := SLOTS + LANES * number + index, f"{ring}[{index}]")
        self._slice(what, "slot", began, max(end, began + 1), pid, tid, more)

    def _slice(
        self, name: str, category: str, began: int, end: int, pid: int, tid: int, args: dict[str, Any]
    ) -> dict[str, Any]:
        made = {
            "name": name,
            "cat": category,
            "ph": "X",
            "ts": began / 1000,
            "dur": (end - began) / 1000,
            "pid": pid,
            "tid": tid,
            "args": {name: value for name, value in args.items() if value not in (None, "")},
        }
        self.events.append(made)
        return made

    def count(self, pid: int, name: str, time: int, numbers: dict[str, int]) -> None:
        """Counters from *time* on, in nanoseconds."""
        self.events.append({"name": name, "cat": "ring", "ph": "C", "ts": time / 1000, "pid": pid, "args": numbers})

    def arrow(self, number: int, tail: dict[str, Any], head: dict[str, Any], name: str) -> None:
        """From the end of one slice to that of another, which it ended. number: its own."""
        both: dict[str, Any] = {"name": name, "cat": "ends", "id": number}
        for slice_, ph in ((tail, {"ph": "s"}), (head, {"ph": "f", "bp": "e"})):
            last = max(round(slice_["ts"] * 1000), round((slice_["ts"] + slice_["dur"]) * 1000) - 1) / 1000
            self.events.append({**both, **ph, "ts": last, "pid": slice_["pid"], "tid": slice_["tid"]})

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
    """What can be drawn as a timeline."""

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
        """What `write_timeline` writes to a file of this name."""
        document = self.timeline()
        as_page = os.fspath(path).endswith((".html", ".htm"))
        return page(document) if as_page else json.dumps(document, indent=1) + "\n"
