"""`trace`: a kernel's program, of one trace for all warps of all CTAs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from tmapipe.errors import ScopeError
from tmapipe.kernel import kernel_main
from tmapipe.program.control import Tracing
from tmapipe.program.convert import tracing
from tmapipe.program.isa import TracingIsa

__all__ = ["ONE_AT_A_TIME", "Traced", "trace"]

#: Held by what traces or proves: expressions are shared, and two traces at once in threads break CuTe DSL.
ONE_AT_A_TIME = threading.RLock()


class Traced:
    """The program of a kernel: one for all warps of all CTAs.

    calls: of bodies, by the id of the first node: (first node, last one, tile, or None before the first tile).
    """

    def __init__(self, schedule: Any, plan: Any, nodes: list[Any], isa: TracingIsa):
        self.schedule, self.plan, self.nodes, self.isa = schedule, plan, nodes, isa
        self.code: Callable[[Any], None] | None = None  # as of `code_of`, once it has been asked for
        self.calls = isa.calls


def trace(schedule: Any, plan: Any = None) -> Traced:
    """plan: of the schedule, by default as its dtypes are declared."""
    plan = plan or schedule.plan()
    tracer = Tracing()
    isa = TracingIsa(plan, tracer)
    before = dict(vars(schedule))
    with tracing(tracer):
        kernel_main(isa, schedule)
    changed = [
        n for n, v in vars(schedule).items() if not n.startswith("_") and (n not in before or before[n] is not v)
    ]
    if changed:
        raise ScopeError(f"self.{changed[0]} is set by a body, which is traced once and keeps no state")
    return Traced(schedule, plan, tracer.nodes, isa)
