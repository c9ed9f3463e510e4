"""How the machine reports what the hardware would not order: one function that makes the error in the user's names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tmapipe.errors import HazardError
from tmapipe.isa.ops import Agent
from tmapipe.machine.layout import Layout
from tmapipe.machine.rules import RULES, Kind
from tmapipe.plan.model import Buffer
from tmapipe.tma_rules import ALIGNMENT

if TYPE_CHECKING:
    from tmapipe.machine.state import State

__all__ = ["check_aligned", "check_live", "hazard", "set_location"]


def hazard(layout: Layout, rule: str, agent: Agent | None, op: Any, text: str) -> HazardError:
    """A `HazardError` that says who broke which rule, where, and what to change. It has the attributes rule, kind, agent,
    op, where, text and fix.

    rule: a short fixed name ("surplus-arrival"), for tests and reports; text: what happened, after the agent's name.
    """
    error: Any = HazardError()
    error.text = text if agent is None else f"{layout.agent_name(agent)} {text}"
    error.rule, error.agent, error.op = rule, agent, op
    error.kind, error.fix = RULES.get(rule, (Kind.RACE, "let the second access wait for the first"))
    error.where = None
    error.args = (f"{error.text} [{rule}]",)
    return set_location(error, getattr(op, "where", None))


def check_live(state: State, agent: Agent, op: Any, cta: int, does: str) -> None:
    """Raises an error if a CTA has no warp left. does: what the operation does to it, before its name."""
    if not state.live[cta]:
        raise hazard(state.layout, "peer-exited", agent, op, f"{does} CTA {cta}, whose warps have all returned")


def check_aligned(layout: Layout, agent: Agent, op: Any, does: str, of: Buffer, unit: int = 0) -> None:
    """Raises an error if a tile begins off so many bytes along the contiguous dimension: an illegal instruction.

    does: with what, in words; of: has the type of the elements; unit: bytes of a thread's copies; 0: those of TMA.
    """
    if op.at and op.at[-1] * of.dtype.bytes % (unit or ALIGNMENT):
        text = f"{does} at {op.at}, whose last index is not a multiple of {unit or ALIGNMENT} bytes"
        raise hazard(layout, "copy-alignment" if unit else "tma-alignment", agent, op, text)


def set_location(error: Any, where: str | None) -> HazardError:
    """Adds the source line of the operation to the message, unless it is there already: of a subclass of a shipped schedule,
    the subclass's (`machine.locate.Place`)."""
    if where is not None and error.where is None:
        error.where = where
        where = getattr(where, "user", "") or where
        error.args = (f"{error.text} [{error.rule}] at {where}. Fix: {error.fix}.",)
    return error
