"""Operands of operations: of which kind each one is, as annotations."""

from __future__ import annotations

import enum
from typing import Annotated

__all__ = [
    "ALL_LANES", "At", "Bar", "BarrierId", "Bytes", "Count", "Data", "ELECTED", "Flag", "Kind", "Lanes",
    "Mask", "Name", "Number", "Parity", "Pending", "ProxyName", "ScopeName", "Slot", "Threads", "Where",
]  # fmt: skip

ALL_LANES = 0xFFFFFFFF
ELECTED = 1  # lane 0: the same lane each time


class Kind(enum.Enum):
    """What an operand is."""

    BAR = "an mbarrier of the CTA, by its flat number; the same one `stages` slots later in its ring"
    SLOT = "a slot of shared memory, by its flat number; the same one `stages` slots later in its ring"
    PARITY = "the parity of a phase, 0 or 1"
    LANES = "lanes of the warp, one bit each"
    MASK = "CTAs of the cluster, one bit each; None: the own CTA"
    BYTES = "bytes"
    COUNT = "arrivals that complete a phase"
    PENDING = "groups that may be incomplete"
    NAME = "a part of the plan, by its name"
    BARRIER_ID = "a hardware barrier of the CTA; 0 is the CTA's own"
    THREADS = "threads that take part"
    SCOPE = 'how far earlier accesses are released: "cta", "cluster", or "relaxed" for not at all'
    PROXY = '"generic" or "async"'
    AT = "what only data depends on, such as coordinates: not compared between programs"
    NUMBER = "a number"
    FLAG = "yes or no"
    WHERE = 'the source line, "file:line", if it was asked for: not compared between programs'


Bar = Annotated[int, Kind.BAR]
Slot = Annotated[int, Kind.SLOT]
Parity = Annotated[int, Kind.PARITY]
Lanes = Annotated[int, Kind.LANES]
Mask = Annotated[int, Kind.MASK]
Bytes = Annotated[int, Kind.BYTES]
Count = Annotated[int, Kind.COUNT]
Pending = Annotated[int, Kind.PENDING]
Name = Annotated[str, Kind.NAME]
BarrierId = Annotated[int, Kind.BARRIER_ID]
Threads = Annotated[int, Kind.THREADS]
ScopeName = Annotated[str, Kind.SCOPE]
ProxyName = Annotated[str, Kind.PROXY]
At = Annotated[tuple[int, ...], Kind.AT]
Data = Annotated[int, Kind.AT]
Number = Annotated[int, Kind.NUMBER]
Flag = Annotated[bool, Kind.FLAG]
Where = Annotated["str | None", Kind.WHERE]
