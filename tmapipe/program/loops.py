"""Loops of a trace: a body is traced once for all iterations, with variables in the place of what iterations hand on."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from tmapipe.errors import ScopeError
from tmapipe.program.blocks import (
    JOINS,
    KEPT,
    NOT_READ,
    Block,
    Differs,
    Undefined,
    differing,
    fill,
    is_boolean,
    is_number,
    joined,
    kind_of,
    same,
    set_flag,
)
from tmapipe.program.expressions import Expr, For, Var, While, resolve, symbolic
from tmapipe.program.rewrite_expressions import RETURNED, VALUE

if TYPE_CHECKING:
    from tmapipe.program.control import Tracing


# ---- conditions ------------------------------------------------------------------------------------------------------
#
# Conditions of two parts, of which the second may have no value where the first decides: `n > 0 and m // n == 2`.


def joined_by(word: str, first: Any, second: Any) -> Any:
    """*first* "and" or "or" *second*. If the second may have no value, it is not computed where the first decides."""
    if second is (word == "and"):
        return first
    if total(second):
        return Expr.of(word, first, second)
    return Expr.of("select", first, *((second, False) if word == "and" else (True, second)))


def total(value: Any) -> bool:
    """Whether an expression has a value, whatever its variables are."""
    pending, seen = [resolve(value)], set()
    while pending:
        each = pending.pop()
        if not isinstance(each, Expr) or id(each) in seen or isinstance(each, Var):
            continue
        seen.add(id(each))
        if may_fail(each):
            return False
        pending += map(resolve, each.args)
    return True


def may_fail(value: Expr) -> bool:
    """Whether the operation itself may have no value: it divides by what may be 0, or shifts by a number."""
    by = resolve(value.args[-1]) if value.args else None
    if value.op in ("floordiv", "mod"):
        return bool(by.op != "divisor" if isinstance(by, Expr) else by == 0)
    return value.op in ("lshift", "rshift") and symbolic(by)


# ---- loops -----------------------------------------------------------------------------------------------------------
#
# A body begins with a variable in the place of each number that the loop carries; the number at its end is the next value. If
# a fact, or the kind of a number, at the end is another one than at the beginning, the trace of the body is thrown away and
# made again.


MOST = 16  # how often a body is traced, until its facts hold in every iteration
TOUCHED = (
    ".touched_by_threads."  # in names of values that are taken to be the same in all iterations, until they are not
)


class Loop(Block):
    """A loop that is being traced. Call `enter`, then the body, then `leave`, again as long as `leave` says so.

    names, state: the names that the body assigns, and their values. heads: by name, whether an iteration may read it before it
    assigns it. live: by name, whether it is read after the loop. stops: the names that end the loop where they are true.
    """

    def __init__(
        self,
        tracer: Tracing,
        names: Any = (),
        heads: Any = (),
        live: Any = (),
        state: Any = (),
        stops: Any = (),
        user: bool = True,
    ):
        super().__init__(tracer, user)
        self.names, self.heads, self.live, self.before, self.stops = names, heads, live, state, stops
        self.first = {name: resolve(value) for name, value in zip(names, state, strict=True)}
        self.state = state
        self.lists: dict[int, tuple[Any, list[Any], str]] = {}
        self.integers: set[str] = set()
        self.loose: dict[str, Any] = {}
        self.varying: dict[tuple[int, str, str], Any] = {}  # the variables of flags that the body changes
        self.taken = dict(tracer.taken)
        self.times = 0
        self.carried: list[Any] = []
        self.flags: list[Any] = []
        self.apart = False  # whether an object with two names before the loop is two objects in it
        self.parted = False  # whether the last trace has shown that

    # ---- at the beginning of an iteration -------------------------------------------------------------------------

    def enter(self) -> None:
        """Opens the block, with the state of any iteration."""
        self.tracer.taken = dict(self.taken)
        self.cells_inside = []
        for c, values in zip(self.cells, self.cells_before, strict=True):
            c.values = [self._variable(n, v) for n, v in zip(c.names, values, strict=True)]
            self.cells_inside.append(list(c.values))
        self.memo: dict[Any, Any] = {}
        self.carried, self.flags = [], []
        self.state = tuple(map(self._inside, self.names, self.heads, self.before))
        self.inside = self.state
        for i, name, each in self.varying:
            phi = self.varying[i, name, each] = self.tracer.var(each or name, True)
            set_flag(self.parts[i], name, each, phi)
        self.lists_inside = {}
        for key, (each, contents, name) in self.lists.items():
            self.lists_inside[key] = [self._phi(f"{name.split('`')[1]}.{i}", v) for i, v in enumerate(contents)]
            fill(each, self.lists_inside[key])
        self.changed = dict(self.lists)
        self.open()

    def _inside(self, name: str, head: bool, value: Any) -> Any:
        if name in self.stops:
            return False
        if name == VALUE and RETURNED in self.stops:
            return None
        if not head:
            return Undefined(name, NOT_READ)
        return self._phi(name, value)

    def _phi(self, name: str, value: Any) -> Any:
        memo: dict[Any, Any] = {} if self.apart else self.memo
        return joined(name, (value,), self._variable, self._fresh, lambda _, value: value, memo)

    def _fresh(self, name: str, _: Any) -> Var:
        return self.tracer.var(name)

    def _variable(self, name: str, value: Any) -> Any:
        if TOUCHED in name and type(value) is bool and name not in self.loose:
            return value
        variable = self.tracer.var(name, is_boolean(value) and name not in self.integers)
        if name in self.loose:
            self.loose[name] = variable
        return variable

    # ---- at its end -----------------------------------------------------------------------------------------------

    def leave(self, sure: bool = False) -> bool:
        """Closes the block. Returns whether the body has to be traced again. sure: whether the loop is known to run at all."""
        self.nodes = self.close()
        self.times += 1
        if self._lists_differ() or self._kinds_differ() or self._facts_differ():  # other than facts of carried objects
            return self._again()
        self.parted = False
        for c, initial, phis in zip(self.cells, self.cells_before, self.cells_inside, strict=True):
            c.values = [self._carry(n, *each) for n, *each in zip(c.names, initial, phis, c.values, strict=True)]
        memo: dict[Any, Any] = {}
        names = zip(self.names, self.heads, self.live, self.before, self.inside, self.state, strict=True)
        self.state = tuple([self._after(sure, memo, *each) for each in names])
        for key, (each, contents, name) in self.lists.items():
            both = zip(contents, self.lists_inside[key], list(each), strict=True)
            label = name.split("`")[1]
            fill(each, [self._going_on(f"{label}.{i}", *three, memo) for i, three in enumerate(both)])
        if self.parted:
            return self._again()
        self._facts_after()
        return False

    def _again(self) -> bool:
        if self.times > MOST:
            raise ScopeError(f"what the loop at {self.where} does differs from iteration to iteration.")
        self.restore()
        return True

    def _carry(self, name: str, initial: Any, phi: Any, last: Any) -> Any:
        last = resolve(last)
        if TOUCHED in name:  # the slot of an iteration has been touched since it began
            if name not in self.loose:
                if not same(initial, last):
                    self.loose[name] = None
                    self.parted = True
                return last
            phi = self.loose[name]
        if last is phi or (not symbolic(last) and type(last) is type(initial) and last == initial):
            phi.alias = (initial,)
            return resolve(initial)
        for each, _, other, after in self.carried:
            if each is phi:  # of an object that has two names
                self.parted = self.apart = self.apart or not same(other, last)
                return after
        after = Var(phi.name, phi.is_bool)
        self.carried.append((phi, initial, last, after))
        return after

    def _after(self, sure: bool, memo: Any, name: str, head: bool, live: bool, first: Any, phi: Any, last: Any) -> Any:
        last = resolve(last)
        if name in self.stops:
            return self._stop(name, first, last)
        if name == VALUE and RETURNED in self.stops:
            if resolve(self.before[self.names.index(RETURNED)]) is False:
                return self._last_alone(name, last, memo)
            return self._last(name, first, last, memo)
        if sure and isinstance(first, Undefined) and live:
            return self._last_alone(name, last, memo)
        if head:
            return self._going_on(name, first, phi, last, memo)
        if not live:
            return Undefined(name, NOT_READ)
        if same(first, last):
            return last
        if sure:
            return self._last_alone(name, last, memo)
        return self._last(name, first, last, memo)

    def _last(self, name: str, first: Any, last: Any, memo: dict[Any, Any]) -> Any:
        """A value of the last iteration, or of before the loop if there is no iteration."""
        if same(first, last):
            return last
        if isinstance(first, Undefined):
            return self._maybe(name)

        def number(name: str, first: Any, last: Any) -> Any:
            return self._carry(name, first, self._variable(name, last if is_boolean(first) else first), last)

        def fragment(name: str, first: Any, last: Any) -> Any:
            return self._carry(name, first, self.tracer.var(name), last)

        return joined(name, (first, last), number, fragment, self._unlike, memo)

    def _unlike(self, name: str, first: Any, last: Any) -> Undefined:
        return Undefined(name, self._why(first, last))

    def _going_on(self, name: str, first: Any, phi: Any, last: Any, memo: dict[Any, Any]) -> Any:
        """A value that each iteration hands on to the next."""
        if same(phi, last) and not is_number(phi):  # also an object that has no number to carry
            if phi is first:
                return first
        other = functools.partial(self._other, name)
        return joined(name, (first, phi, last), self._carry, self._carry, other, memo)

    def _other(self, name: str, _: str, first: Any, phi: Any, last: Any) -> Any:
        if same(first, last) or same(phi, last):
            return last
        if isinstance(first, Undefined) or isinstance(last, Undefined):
            if isinstance(last, Undefined) and last._why is not None:
                return last
            return self._maybe(name)
        raise ScopeError(f"`{name}` {self._why(first, last)}.")

    def _maybe(self, name: str) -> Undefined:
        return Undefined(name, f"is set in the loop at {self.where}, which may not run at all. {KEPT}")

    def _why(self, first: Any, last: Any) -> str:
        forms = f"{kind_of(first)} before the loop at {self.where} and {kind_of(last)} after an iteration"
        return f"is {forms}: a loop carries numbers, fragments of one form, and what is made of them. {KEPT}"

    def _last_alone(self, name: str, last: Any, memo: dict[Any, Any]) -> Any:
        """A value of the last iteration, where nothing reads the value before the loop."""

        def number(name: str, last: Any) -> Any:
            if not symbolic(last):
                return last
            boolean = is_boolean(last)
            return self._carry(name, False if boolean else 0, self.tracer.var(name, boolean), last)

        def fragment(name: str, data: Any) -> Any:
            return self._carry(name, None, self.tracer.var(name), data)

        return joined(name, (last,), number, fragment, lambda _, value: value, memo)

    def _stop(self, name: str, first: Any, last: Any) -> Any:
        first = resolve(first)
        if last is False:
            return first
        phi, after = self.tracer.var(name, True), self.tracer.var(name, True)
        self.carried.append((phi, False if isinstance(first, Undefined) else first, last, after))
        self.flags.append(phi)
        return after

    # ---- what differs from the first iteration on -----------------------------------------------------------------

    def _facts_differ(self) -> bool:
        again = False
        for i, (part, before, last) in enumerate(zip(self.parts, self.facts_before, self.facts(), strict=True)):
            first = self.conditions(before, part)
            for (name, each), end in self.conditions(last, part).items():
                if (i, name, each) not in self.varying and not same(first.get((name, each), False), end):
                    self.varying[i, name, each] = None
                    again = True
            for name, value in before.items():
                kind, end = part._facts[name], last[name]
                if kind == "union":
                    joined: Any = value | end
                elif (
                    kind in ("both", "noted", "flag", "flags")
                    or same(value, end)
                    or isinstance(value, Differs)
                    or (kind == "none" and value is None)
                ):
                    continue
                else:
                    joined = differing(part, name, kind, self.where)
                again = again or not (joined is value or (kind == "union" and joined == value))
                before[name] = joined
        return again

    def _facts_after(self) -> None:
        for (i, name, each), phi in self.varying.items():
            initial = self.conditions(self.facts_before[i], self.parts[i]).get((name, each), False)
            last = self.conditions(self.facts()[i], self.parts[i])[name, each]
            set_flag(self.parts[i], name, each, self._carry(each or name, initial, phi, last))
        for part, before, last in zip(self.parts, self.facts_before, self.facts(), strict=True):
            for name, value in before.items():
                kind, end = part._facts[name], last[name]
                if kind in JOINS:
                    vars(part)[name] = JOINS[kind](value, end)
                elif kind not in ("none", "flag", "flags"):
                    vars(part)[name] = value

    def _lists_differ(self) -> bool:
        again = False
        for key, (each, contents, name) in self.changed.items():
            if key not in self.lists:
                self.lists[key] = each, contents, name
                again = True
            elif len(each) != len(contents):
                rule = f"has {len(contents)} elements where an iteration begins, and {len(each)} where it ends"
                rule = f"{rule}, in the loop at {self.where}. It is made outside of it, and a trace has one list."
                raise ScopeError(f"{name} {rule}")
        return again

    def _kinds_differ(self) -> bool:
        """Whether a number that is a bool before the loop is another number after an iteration."""
        differ: set[str] = set()

        def number(name: str, phi: Any, last: Any) -> Any:
            if isinstance(phi, Var) and phi.is_bool and not is_boolean(last):
                differ.add(name)
            return phi

        for c, phis in zip(self.cells, self.cells_inside, strict=True):
            for name, phi, last in zip(c.names, phis, c.values, strict=True):
                number(name, phi, resolve(last))
        for name, head, phi, last in zip(self.names, self.heads, self.inside, self.state, strict=True):
            if head and name not in self.stops and not isinstance(phi, Undefined):
                joined(name, (phi, last), number, lambda _, phi, __: phi, lambda _, phi, __: phi, {})
        again = not differ <= self.integers
        self.integers |= differ
        return again

    # ---- the node -------------------------------------------------------------------------------------------------

    def made_for(self, index: Var, count: Any) -> None:
        """Ends a loop of *count* iterations."""
        if not self.flags:
            self.tracer.nodes.append(For(index, count, self.carried, self.nodes, self.where))
            return
        self.carried.insert(0, (index, 0, Expr.of("add", index, 1), Var(index.name)))
        self.made_while(index < count)

    def made_while(self, condition: Any, iterations: Any = None) -> None:
        """Ends a loop that goes on while *condition* is true, and nothing has ended it."""
        for flag in reversed(self.flags):
            condition = joined_by("and", Expr.of("not", flag), condition)
        self.tracer.nodes.append(While(condition, self.carried, self.nodes, iterations, self.where))
