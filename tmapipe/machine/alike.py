"""One warp is recorded for all that do the same.

The number of a warp, and that of its CTA, have a value for each warp of the cluster, and so has what is computed of them.
Where the value decides what a program does (a branch, a count, an index, a key), warps with another one are no longer
*alike*. Those that are left in the end execute the same operations, with their own values as operands.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from tmapipe.machine.number import RecordedNumber

__all__ = ["Alike", "Own"]


class Alike:
    """The warps that have done so far what the recorded one does. agent: that one; agents: all of them."""

    def __init__(self, agent: int, agents: Iterable[int]):
        self.agent, self.agents = agent, list(agents)

    def alone(self) -> None:
        """From now on nobody is like the recorded warp."""
        self.agents = [self.agent]

    def number(self, value: Callable[[int], Any]) -> Any:
        """The number that each warp has by itself; a plain one if it is the same in all of them."""
        return self.found({agent: value(agent) for agent in self.agents})

    def found(self, values: dict[int, Any]) -> Any:
        """The same, from the values by warp."""
        own = values[self.agent]
        for each in values.values():
            if each != own:
                return Own(self, values)
        return own

    def programs(self, ops: list[Any]) -> dict[int, list[Any]]:
        """The operations of each warp that is alike, from those recorded. Warps may share one list."""
        differ = [i for i, op in enumerate(ops) if not _MAY_DIFFER.isdisjoint(map(type, op)) and _differs(op)]
        found = {}
        for agent in self.agents:
            found[agent] = each = list(ops) if differ else ops
            for i in differ:
                each[i] = type(ops[i])(*(self._of(operand, agent) for operand in ops[i]))
        return found

    def _of(self, operand: Any, agent: int) -> Any:
        """What an operand is in a warp."""
        if type(operand) is Own:
            return operand.values[agent] if operand.alike is self else operand.here
        return tuple([self._of(each, agent) for each in operand]) if type(operand) is tuple else operand


class Own(RecordedNumber):
    """A whole number, or a truth value, with another value in each warp that is alike. values: by warp."""

    __slots__ = ("alike", "values")

    def __init__(self, alike: Alike, values: dict[int, Any]):
        self.alike, self.values = alike, values

    @property
    def here(self) -> Any:
        """The value in the recorded warp."""
        return self.values[self.alike.agent]

    def settle(self) -> Any:
        """The same. Warps with another one are no longer alike."""
        alike, value = self.alike, self.here
        alike.agents = [agent for agent in alike.agents if self.values[agent] == value]
        return value

    def with_other(self, function: Callable[..., Any], other: Any) -> Any:
        """``function(self, other)``, warp by warp."""
        if type(other) is Own:
            if other.alike is not self.alike:  # it was kept from another recording
                return self.with_other(function, other.settle())
            pairs = ((agent, self.values[agent], other.values[agent]) for agent in self.alike.agents)
            return self.alike.found({agent: function(one, two) for agent, one, two in pairs})
        if isinstance(other, (int, np.integer)):
            values = self.values
            return self.alike.found({agent: function(values[agent], other) for agent in self.alike.agents})
        return function(self.settle(), other)

    def __neg__(self) -> Any:
        return self.with_other(operator.mul, -1)

    __repr__ = RecordedNumber.__str__


_MAY_DIFFER = frozenset({Own, tuple})


def _differs(op: Any) -> bool:
    return any(type(x) is Own or (type(x) is tuple and any(type(each) is Own for each in x)) for x in op)
