"""The barriers of a plan."""

from __future__ import annotations

import attrs

__all__ = ["Barrier", "NamedBarrier"]


@attrs.frozen
class Barrier:
    """An array of mbarriers, 8 bytes each.

    Args:
        name: Of the array, such as "ring.full".
        offset: Where it begins (bytes).
        stages: How many mbarriers it has: one a slot, say.
        count: Arrivals that complete a phase, besides the bytes armed by expect-tx.
        formula: How `count` came about, for `explain`.
    """

    name: str
    offset: int
    stages: int
    count: int
    formula: str = ""


@attrs.frozen
class NamedBarrier:
    """Hardware barriers side by side: ``bar.sync id + instance, threads``.

    Args:
        name: Of all instances.
        id: Of the first instance, 1 to 15; id 0 is the CTA's own.
        threads: That one instance waits for.
        instances: How many there are: one a warpgroup, say.
    """

    name: str
    id: int
    threads: int
    instances: int = 1
