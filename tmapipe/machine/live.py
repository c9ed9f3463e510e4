"""How many registers fragments take: what a warp's fragments are while its program is recorded, from first to last use."""

from __future__ import annotations

from typing import NamedTuple

from tmapipe.isa.fragment import Fragment
from tmapipe.machine.locate import locate

__all__ = ["Live", "Most"]


class Most(NamedTuple):
    """Registers a thread that fragments need at most at one time, and the line at which they do."""

    registers: int
    line: str


class Live:
    """The fragments of one warp. Those that are a matmul's accumulators (`of_matmul`) and comparisons count nothing."""

    def __init__(self) -> None:
        self.lines: list[str] = []  # at which each use was
        self.spans: dict[int, tuple[Fragment, int, int]] = {}  # by id: and its first and last use
        self.of_matmul: set[int] = set()

    def use(self, values: Fragment) -> None:
        """*values* are made or used."""
        now = len(self.lines)
        self.lines.append(locate() or "")
        _, first, _ = self.spans.get(id(values), (values, now, now))
        self.spans[id(values)] = values, first, now

    def most(self) -> Most:
        """Where most are live. What an operation used last makes room for its result."""
        ends: dict[int, int] = {}
        begins: dict[int, int] = {}
        for key, (values, first, last) in self.spans.items():
            if key not in self.of_matmul:
                begins[first] = _registers(values)
                ends[last] = ends.get(last, 0) + _registers(values)
        found, live = Most(0, ""), 0
        for now, line in enumerate(self.lines):
            live += begins.get(now, 0)
            found = max(found, Most(live, line), key=lambda most: most.registers)
            live -= ends.get(now, 0)
        return found


def _registers(values: Fragment) -> int:
    layout = values.layout
    if layout is None or values.kind == "bool":
        return 0
    return layout.values if values.along == "tile" else 1 if values.along == "one" else layout.slots(values.along)
