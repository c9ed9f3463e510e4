"""Accesses to slots, and the waits that end those which are asynchronous."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from operator import itemgetter

from tmapipe.check.log import Step

__all__ = [
    "ASYNC_READ", "ASYNC_WRITE", "COPY", "COUNTED", "DOES", "GENERIC", "LOAD", "MMA", "RAW", "READ", "REDUCE", "SEND", "STORE",
    "THREADS", "WHOLE", "WRITE", "WRITES", "Access", "Part", "Waits",
]  # fmt: skip

#: What an access does. ASYNC_*: raw code of threads, through the async proxy, which has waited for its end.
READ, WRITE, LOAD, STORE, MMA, ASYNC_READ, ASYNC_WRITE, COPY, SEND, REDUCE = range(10)
DOES = (
    "{who} reads",
    "{who} writes",
    "a TMA load issued by {who} writes",
    "a TMA store issued by {who} reads",
    "a wgmma issued by {who} reads",
    "raw code of {who} reads",
    "raw code of {who} writes",
    "a cp.async issued by {who} writes",
    "a copy to a peer issued by {who} reads",
    "a reduction issued by {who} changes",
)
WRITES = (WRITE, LOAD, ASYNC_WRITE, COPY, REDUCE)
THREADS, RAW = (READ, WRITE), (ASYNC_READ, ASYNC_WRITE)
GENERIC = (*THREADS, COPY)
COUNTED = (LOAD, COPY, SEND, REDUCE)  # their end, on an mbarrier
Part = tuple[str, int, int]  # how the slot is cut, which part, of how many
WHOLE: Part = ("whole", 0, 1)


class Access:
    """One access to a slot.

    kind: one of the above; agent, time: the warp that made or issued it, and when; part: of the slot; slot: its number in the
    CTA; number: what ends it, a load's phase, a store's bulk group or a wgmma's serial (None: not known yet); bar: of a load.
    """

    __slots__ = ("agent", "bar", "kind", "number", "part", "slot", "step", "time")

    def __init__(self, kind: int, part: Part, step: Step, slot: int):
        self.kind, self.agent, self.time, self.part, self.step, self.slot = (
            kind,
            step.agent,
            step.time,
            part,
            step,
            slot,
        )
        self.number: int | None = None
        self.bar = -1


class Waits:
    """The waits of one thread or warp that have covered more than those before them, each as (n, step): all with smaller
    numbers than n (groups, serials) are over."""

    __slots__ = ("found",)

    def __init__(self, found: Iterable[tuple[int, Step]] = ()):
        self.found = list(found)

    def add(self, upto: int, step: Step) -> None:
        if upto > self.upto:
            self.found.append((upto, step))

    def copy(self) -> Waits:
        return Waits(self.found)

    @property
    def upto(self) -> int:
        """How many are over."""
        return self.found[-1][0] if self.found else 0

    def first(self, number: int | None) -> Step | None:
        """The first wait that covers *number*."""
        i = len(self.found) if number is None else bisect_right(self.found, number, key=itemgetter(0))
        return self.found[i][1] if i < len(self.found) else None
