"""The barriers of a plan."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from tmapipe.errors import InputError

__all__ = ["Barrier", "NamedBarrier", "next_id"]

MAX_NAMED_BARRIERS = 16  # a CTA; id 0 is bar.sync 0 (PTX ISA)


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


def next_id(taken: Sequence[NamedBarrier], instances: int, argument: str, value: str) -> int:
    """The first id after those *taken*. Raises `InputError`, of *argument* and *value*, if a CTA has too few."""
    first = 1 + sum(barrier.instances for barrier in taken)
    if first + instances > MAX_NAMED_BARRIERS:
        others = ", ".join(barrier.name for barrier in taken)
        rule = f"a CTA has {MAX_NAMED_BARRIERS}, id 0 its own, and the others are those of {others}"
        raise InputError(argument, value, rule, "use fewer stores, or sync the same roles again")
    return first
