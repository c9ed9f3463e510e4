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

__all__ = ["Drawn", "Event", "Timeline"]

ENGINES = 1000  # thread ids from here on are lanes of engines
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
        """Writes `timeline` as JSON, to be opened in https://ui.perfetto.dev or chrome://tracing."""
        with open(path, "w", encoding="utf-8") as file:
            json.dump(self.timeline(), file, indent=1)
            file.write("\n")
