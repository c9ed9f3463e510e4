"""Positions of teams behind slots that other teams take: a slot, and how many slots later.

That count is a formula. What it says does not change when a slot is taken from it and the position is one slot later. So a
loop in which the other team takes these slots brings the position to where its own are, iteration by iteration.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tmapipe.prove.operations import after
from tmapipe.prove.symbols import Sym, add, parts
from tmapipe.prove.walker import Walker

__all__ = ["arrays_of", "is_behind_skips", "restate", "without"]


def arrays_of(plan: Any, ring: Any) -> list[str]:
    """The arrays of a ring: its barriers, then the slots of what is loaded into it."""
    loads = {name for names in ring.loads.values() for name in names}
    slots = [f"slots of {load.buffer.name}" for load in plan.loads if load.name in loads]
    return [*(barrier.name for barrier in ring.barriers), *slots]


def is_behind_skips(value: Any) -> bool:
    """Whether this is a slot or parity behind skipped slots whose number is open."""
    return isinstance(value, Sym) and value.op in ("slot after", "parity after")


def restate(walker: Walker, say: Callable[[Any, str], Any]) -> None:
    """Says how many slots a warp's positions are behind by what `say(count, ring)` gives, which is the same number."""
    if not walker.behind:
        return
    moved: dict[str, int] = {}
    said: dict[Any, Any] = {}
    for var, value in walker.env.items():
        if is_behind_skips(value):
            base, slots, stages, ring = value.args
            if (slots, ring) not in said:
                said[slots, ring] = say(slots, ring)
            slots = said[slots, ring]
            walker.env[var] = after(value.op, base, slots, stages, ring)
            moved[ring] = parts(slots)[0]
    walker.behind = any(map(is_behind_skips, walker.env.values()))
    walker.skips += [(ring, slots) for ring, slots in moved.items() if slots]


def without(number: Any, other: Any) -> Any:
    """The number less as many times another one as one of its terms has."""
    terms, others = parts(number)[1], parts(other)[1]
    times = next((n // others[term] for term, n in terms.items() if term in others), 1)
    return add(number, other, -times)
