"""How the machine reports what the hardware would not order: one function that makes the error in the user's names."""

from __future__ import annotations

from typing import Any

from tmapipe.errors import HazardError
from tmapipe.isa.ops import Agent
from tmapipe.machine.layout import Layout

__all__ = ["hazard", "set_location"]


def hazard(layout: Layout, rule: str, agent: Agent | None, op: Any, text: str) -> HazardError:
    """A `HazardError` that says who broke which rule and where. It has the attributes rule, agent, op
    and where.

    rule: a short fixed name ("surplus-arrival"), for tests and reports; text: what happened, after the agent's name.
    """
    who = "" if agent is None else f"{layout.agent_name(agent)} "
    error: Any = HazardError(f"{who}{text} [{rule}]")
    error.rule, error.agent, error.op, error.where = rule, agent, op, None
    return set_location(error, getattr(op, "where", None))


def set_location(error: Any, where: str | None) -> HazardError:
    """Adds the source line of the operation to the message, unless it is there already."""
    if where is not None and error.where is None:
        error.where = where
        error.args = (f"{error.args[0]} at {where}",)
    return error
