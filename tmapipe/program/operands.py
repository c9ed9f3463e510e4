"""Operands that Python may skip: the second ones of `and`, `or` and chains of comparisons, and those of ``x if c else y``.

They are evaluated in place. If Python knows what decides, as it does; else each in a block of its own. If nothing happens in
that, the value is an expression, of which readers compute only the part that counts.
"""

from __future__ import annotations

from typing import Any

from tmapipe.program.blocks import Branch
from tmapipe.program.calls import Calls
from tmapipe.program.carried import is_boolean, is_number
from tmapipe.program.conditions import both, either
from tmapipe.program.expressions import Expr, resolve, select, symbolic
from tmapipe.program.iteration import pure

__all__ = ["Operands"]


class Operands(Calls):
    """A part of `Tracing`. pending: operands that were begun (`first`, `takes`) and are not complete."""

    def __init__(self) -> None:
        super().__init__()
        self.pending: list[Any] = []

    @property
    def _tracing(self) -> Any:
        return self

    def flag(self, value: Any) -> Any:
        """The truth of a value."""
        value = resolve(value)
        if symbolic(value):
            return value if value.boolean else value != 0
        return bool(value)

    def not_(self, value: Any) -> Any:
        value = resolve(value)
        if symbolic(value):
            return Expr.of("not", value) if value.boolean else value == 0
        return not value

    def exited(self, *flags: Any) -> Any:
        """Whether one of the exits was taken."""
        found: Any = False
        for flag in map(resolve, flags):
            if flag is True:
                return True
            if symbolic(flag):
                found = flag if found is False else Expr.of("or", found, flag)
        return found

    def first(self, word: str, value: Any, test: bool) -> bool:
        """The first operand of `and` or `or` is *value*: whether the second is evaluated. test: only the truth counts."""
        value = resolve(value)
        middle = self.pending.pop() if word == "chain" else None
        if not symbolic(value):
            more = not value if word == "or" else bool(value)
            self.pending.append([word, value, None, test, value, middle])
            return more
        condition = self.not_(value) if word == "or" else self.flag(value)
        branch = Branch(self._tracing, condition, (), (), ())
        branch.open()
        self.pending.append([word, value, branch, test, None, middle])
        return True

    def second(self, value: Any) -> Any:
        """The second operand."""
        self.pending[-1][4] = resolve(value)
        return value

    def joined(self, _: Any) -> Any:
        """The value of `and` or `or`."""
        word, first, branch, test, second, _ = self.pending.pop()
        if branch is None:
            return second
        branch.turn()
        if test and not symbolic(second):
            second = bool(second)
        if test:
            first = self.flag(first)
        if pure(branch.nodes[0]) and is_number(second):
            branch.finish()
            if is_boolean(first) and is_boolean(second):
                return either(first, second) if word == "or" else both(first, second)
            return select(self.flag(first), *((first, second) if word == "or" else (second, 0)))
        if word == "or":
            return branch.finish_with(second, True if is_boolean(first) else first)
        return branch.finish_with(second, False if is_boolean(first) else 0)

    def keep_middle(self, value: Any) -> Any:
        """An operand of a chain of comparisons, which two of them have."""
        self.pending.append(value)
        return value

    def middle(self) -> Any:
        return self.pending[-1][5]

    def takes(self, condition: Any) -> bool:
        """The condition of ``x if condition else y``: whether x is evaluated."""
        condition = resolve(condition)
        if not symbolic(condition):
            self.pending.append([bool(condition), None, None])
            return bool(condition)
        branch = Branch(self._tracing, condition, (), (), ())
        branch.open()
        self.pending.append([None, branch, None])
        return True

    def arm(self, value: Any) -> Any:
        return resolve(value)

    def takes_other(self) -> bool:
        known, branch, _ = self.pending[-1]
        if branch is None:
            return not known
        branch.turn()
        return True

    def chosen(self, then: Any, other: Any) -> Any:
        known, branch, _ = self.pending.pop()
        if branch is None:
            return then if known else other
        if pure(branch.nodes[0]) and pure(self.nodes) and is_number(then) and is_number(other):
            branch.finish()
            return select(branch.condition, then, other)
        return branch.finish_with(then, other)

    def unguarded(self, name: str, value: Any, depth: int) -> Any:
        """A value that is given a name in an operand which may be skipped."""
        for each in self.pending[-depth:]:
            if type(each) is list and any(isinstance(part, Branch) for part in each):
                self.refuse(f"`{name} :=` in an operand that only the kernel decides on")
        return value
