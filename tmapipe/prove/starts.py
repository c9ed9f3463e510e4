"""Whether copies start at multiples of 16 bytes along the last dimension, wherever their tile lies: TMA traps at others."""

from __future__ import annotations

import math
from typing import Any

from tmapipe.prove.bodies import Bodies
from tmapipe.prove.symbols import Sym, text
from tmapipe.tma_rules import ALIGNMENT

__all__ = ["uneven_starts"]


def uneven_starts(bodies: Bodies) -> dict[Any, str]:
    """Starts that are not seen to be multiples of what they have to be, each with that in words."""
    found: dict[Any, str] = {}
    for move in bodies.moves():
        start, part = move.at[-1], move.part
        unit = max(1, (part.vector or ALIGNMENT) // part.buffer.dtype.bytes)
        if _divisor(start) % unit:
            found[start] = f"{part.name} starts at {text(start)}, which is not seen to be a multiple of {unit} elements"
    return found


def _divisor(x: Any) -> int:
    """A number of which *x* is a multiple, whatever its symbols are; 0 if it is 0."""
    if not isinstance(x, Sym):
        return abs(int(x))
    if x.op == "sum":
        return math.gcd(x.args[0], *(factor * _divisor(term) for term, factor in x.args[1]))
    if x.op == "prod":
        return math.prod(map(_divisor, x.args))
    if x.op in ("min", "max"):
        return math.gcd(*map(_divisor, x.args))
    if x.op == "select":
        return math.gcd(*map(_divisor, x.args[1:]))
    return 1
