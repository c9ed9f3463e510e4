"""Blocks of a trace: branches that are traced both, and loops that are traced once, with what they carry.

State of a trace is what later code depends on: names, which rewritten code hands over and takes back; `Cells`; the facts that objects
of the protocol keep (`Carried._facts`); lists and deques that a block changes. Before each arm of a branch it is as before the
branch, and after the branch it is joined. A loop begins with a variable in the place of each number; what its body leaves
is the next value. If the body has shown that a fact, or the kind of a number, is another one from the second iteration on,
its trace is thrown away and made again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tmapipe.errors import ScopeError
from tmapipe.machine.locate import locate
from tmapipe.program.carried import Differs, Undefined, is_boolean, is_number, joined, kind_of, same
from tmapipe.program.exits import RETURNED, VALUE
from tmapipe.program.expressions import Expr, Var, resolve, symbolic
from tmapipe.program.nodes import For, If, Let, While

if TYPE_CHECKING:
    from tmapipe.program.control import Tracing

__all__ = ["Block", "Branch", "Loop"]

NOT_READ = "is not carried: nothing was seen to read it"
TOUCHED = ".touched_by_threads."  # of slots, in the names of what is taken to be the same in all iterations, until it isn't
MOST = 16  # times that a loop is traced, until its facts hold in every iteration


class Block:
    """A branch or loop that is being traced. user: of rewritten code, and not of the library.

    depth: of blocks around it; changed: lists and deques that the code inside changes, with their contents before.
    """

    def __init__(self, tracer: Tracing, user: bool):
        self.tracer, self.user, self.where = tracer, user, locate()
        self.depth = len(tracer.path)
        self.changed: dict[int, tuple[Any, list[Any], str]] = {}
        self.cells = tracer.live()
        self.parts = tracer.followed()
        self.cells_before = [list(c.values) for c in self.cells]
        self.facts_before = self.facts()

    def facts(self) -> list[dict[str, Any]]:
        """The facts of the objects of the protocol."""
        return [{n: _copied(vars(part)[n]) for n in part._facts if n in vars(part)} for part in self.parts]

    def conditions(self, facts: dict[str, Any], part: Any) -> dict[tuple[str, str], Any]:
        """Those facts that are conditions."""
        found = {(n, ""): v for n, v in facts.items() if part._facts[n] == "flag"}
        return found | {(n, e): c for n, v in facts.items() if part._facts[n] == "flags" for e, c in v.items()}

    def restore(self) -> None:
        """State as it was before."""
        for c, values in zip(self.cells, self.cells_before, strict=True):
            c.values = list(values)
        for part, facts in zip(self.parts, self.facts_before, strict=True):
            for name, value in facts.items():
                vars(part)[name] = _copied(value)
        for each, contents, _ in self.changed.values():
            _fill(each, contents)

    def touch(self, each: Any, name: str) -> None:
        """A list or deque is about to be changed."""
        if id(each) not in self.changed:
            self.changed[id(each)] = each, list(each), f"`{name}`, changed at {locate()},"

    def open(self) -> None:
        self.tracer.open(self)

    def close(self) -> list[Any]:
        return self.tracer.close()


def _copied(value: Any) -> Any:
    return type(value)(value) if type(value) in (set, dict) else value


def _fill(each: Any, contents: list[Any]) -> None:
    each.clear()
    each.extend(contents)


def _set_flag(part: Any, name: str, each: str, value: Any) -> None:
    if each:
        vars(part)[name][each] = value
    else:
        vars(part)[name] = value


class Branch(Block):
    """Both arms of a branch on a condition that only the kernel knows: iterating over it gives True, then False.

    names, live, state: names that the arms assign, which of them are read later, and what they are. phis: what was joined.
    """

    def __init__(
        self, tracer: Tracing, condition: Any, names: Any, live: Any, state: Any, lane_0: bool = False, user: bool = True
    ):
        super().__init__(tracer, user)
        self.condition = tracer.flag(condition)
        self.names, self.live, self.before, self.state, self.lane_0 = names, live, state, state, lane_0
        self.phis: list[Any] = []
        self.nodes: list[list[Any]] = []
        self.arms: list[Any] = []

    def __iter__(self) -> Iterator[bool]:
        self.open()
        yield True
        self.turn()
        yield False
        self.finish()

    def end(self, state: Any) -> None:
        """The names at the end of an arm."""
        self.state = state

    def turn(self) -> None:
        """From the first arm to the second."""
        self._arm()
        self.restore()
        self.state = self.before
        self.open()

    def _arm(self) -> None:
        self.nodes.append(self.close())
        contents = {key: list(each) for key, (each, _, _) in self.changed.items()}
        self.arms.append((self.state, [list(c.values) for c in self.cells], self.facts(), contents))

    def finish(self) -> None:
        """Joins the arms."""
        self._arm()
        (then, cells_then, facts_then, lists_then), (other, cells_other, facts_other, lists_other) = self.arms
        memo: dict[Any, Any] = {}
        self.state = self._names(then, other, memo)
        for c, a, b in zip(self.cells, cells_then, cells_other, strict=True):
            c.values = [self.merged(n, x, y, memo) for n, x, y in zip(c.names, a, b, strict=True)]
        for part, a, b in zip(self.parts, facts_then, facts_other, strict=True):
            for name in a:
                vars(part)[name] = self._fact(part, name, a[name], b[name])
        for key, (each, contents, name) in self.changed.items():
            a, b = lists_then.get(key, contents), lists_other.get(key, contents)
            if len(a) != len(b):
                rule = f"has {len(a)} elements after one branch at {self.where}, and {len(b)} after the other"
                raise ScopeError(f"{name} {rule}. It is made outside, and a trace has one list.")
            _fill(each, [self.merged(f"{name}.{i}", x, y, memo) for i, (x, y) in enumerate(zip(a, b, strict=True))])
        made, made_other = self.nodes
        if self.phis or self.lane_0 or not all(type(n) is Let for n in (*made, *made_other)):
            self.tracer.nodes.append(If(self.condition, made, made_other, self.phis, self.lane_0, self.where))

    def finish_with(self, then: Any, other: Any) -> Any:
        """Joins the arms of an expression, which have these values. Returns its value."""
        self.names, self.live = ("value",), (True,)
        self.arms[0] = ((then,), *self.arms[0][1:])
        self.state = (other,)
        self.finish()
        return self.state[0]

    def _names(self, then: Any, other: Any, memo: dict[Any, Any]) -> tuple[Any, ...]:
        left: list[Any] = [False, False]  # whether the arms have left the function: what they return is read, and nothing else
        if RETURNED in self.names:
            left = [resolve(arm[self.names.index(RETURNED)]) for arm in (then, other)]
        goes_on = [arm for arm in (0, 1) if left[arm] is not True]
        returns = [arm for arm in (0, 1) if left[arm] is not False]
        found = []
        for name, live, *both in zip(self.names, self.live, then, other, strict=True):
            read_of = returns if name == VALUE else goes_on
            if not live:
                found.append(Undefined(name, NOT_READ))
            elif name != RETURNED and len(read_of) == 1:
                found.append(self.alone(name, both[read_of[0]], read_of[0], memo))
            else:
                found.append(self.merged(name, *both, memo))
        return tuple(found)

    def merged(self, name: str, then: Any, other: Any, memo: dict[Any, Any]) -> Any:
        """One value for those of the two arms."""
        then, other = resolve(then), resolve(other)
        if same(then, other):
            return then
        return joined(name, (then, other), self._number, self._phi, self._unknown, memo)

    def _number(self, name: str, then: Any, other: Any) -> Any:
        if same(then, other):
            return then
        if then is True and other is False:
            return self.condition
        if then is False and other is True:
            return Expr.of("not", self.condition) if symbolic(self.condition) else not self.condition
        return self._phi(name, then, other, is_boolean(then) and is_boolean(other))

    def _phi(self, name: str, then: Any, other: Any, boolean: bool = False) -> Any:
        for found, a, b in self.phis:
            if same(a, then) and same(b, other):
                return found
        found = self.tracer.var(name, boolean)
        self.phis.append((found, then, other))
        return found

    def alone(self, name: str, value: Any, arm: int, memo: dict[Any, Any]) -> Any:
        """A value of one arm, where the other has none that is read."""

        def number(name: str, value: Any) -> Any:
            if not symbolic(value):
                return value
            nothing = False if is_boolean(value) else 0
            return self._phi(name, *((value, nothing) if arm == 0 else (nothing, value)), is_boolean(value))

        def fragment(name: str, data: Any) -> Any:
            return self._phi(name, *((data, None) if arm == 0 else (None, data)))

        return joined(name, (value,), number, fragment, lambda _, value: value, memo)

    def _unknown(self, name: str, then: Any, other: Any) -> Undefined:
        for value in (then, other):
            if isinstance(value, Undefined) and value._why is not None:
                return value
        forms = " in one branch and ".join("nothing" if isinstance(v, Undefined) else kind_of(v) for v in (then, other))
        rule = "numbers, fragments of one form, and what is made of them go on after a branch"
        return Undefined(name, f"is {forms} in the other at {self.where}: {rule}")

    def _fact(self, part: Any, name: str, a: Any, b: Any) -> Any:
        kind = part._facts[name]
        if kind == "union":
            return a | b
        if kind == "flag":
            return self.merged(name, a, b, {})
        if kind == "flags":
            return {n: self.merged(n, a.get(n, False), b.get(n, False), {}) for n in {**a, **b}}
        if same(a, b) or (isinstance(a, Differs) and a is b):
            return a
        if kind == "noted":
            return bool(a) or bool(b)
        if kind == "both":
            return False
        return _differing(part, name, kind, self.where)


def _differing(part: Any, name: str, kind: str, where: str | None) -> Any:
    what = f"{type(part).__name__}.{name}"
    if kind == "none":
        return None
    if kind == "always":
        raise ScopeError(f"{what} depends on the path that was taken to {where}. Do the same on all of them.")
    words = {"open": "whether a slot or an accumulator is open", "inside": "whether a turn is taken", "started": "whether a sum was started"}
    return Differs(words.get(name, what), where)


class Loop(Block):
    """A loop whose body is traced once. Call `enter`, then the body, then `leave`, as long as that says so.

    names, state: names that the body assigns. heads: which of them an iteration may read before it assigns them; live: which are
    read after the loop. stops: those that end it where they are true.
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
        self.varying: dict[tuple[int, str, str], Any] = {}  # flags that the body changes: their variables
        self.taken = dict(tracer.taken)
        self.times = 0
        self.carried: list[Any] = []
        self.flags: list[Any] = []
        self.apart = False  # whether one object that has two names before the loop is two in it
        self.parted = False  # whether that was just found

    # ---- at the beginning of an iteration -------------------------------------------------------------------------

    def enter(self) -> None:
        """State as it is in any iteration; the block is open."""
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
            _set_flag(self.parts[i], name, each, phi)
        self.lists_inside = {}
        for key, (each, contents, name) in self.lists.items():
            self.lists_inside[key] = [self._phi(f"{name.split('`')[1]}.{i}", v) for i, v in enumerate(contents)]
            _fill(each, self.lists_inside[key])
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
        return joined(name, (value,), self._variable, lambda name, _: self.tracer.var(name), lambda _, value: value, memo)

    def _variable(self, name: str, value: Any) -> Any:
        if TOUCHED in name and type(value) is bool and name not in self.loose:
            return value
        found = self.tracer.var(name, is_boolean(value) and name not in self.integers)
        if name in self.loose:
            self.loose[name] = found
        return found

    # ---- at its end -----------------------------------------------------------------------------------------------

    def end(self, state: Any) -> None:
        """The names at the end of the body."""
        self.state = state

    def leave(self, sure: bool = False) -> bool:
        """Closes the block. Returns whether the body has to be traced again.

        sure: whether it is known that the loop runs at all.
        """
        self.nodes = self.close()
        self.times += 1
        if self._lists_differ() or self._kinds_differ() or self._facts_differ():  # facts of objects that are carried do not count
            return self._again()
        self.parted = False
        for c, initial, phis in zip(self.cells, self.cells_before, self.cells_inside, strict=True):
            c.values = [self._carry(n, *each) for n, *each in zip(c.names, initial, phis, c.values, strict=True)]
        memo: dict[Any, Any] = {}
        after = []
        for name, head, live, first, phi, last in zip(self.names, self.heads, self.live, self.before, self.inside, self.state, strict=True):
            after.append(self._after(name, head, live, first, phi, last, sure, memo))
        self.state = tuple(after)
        for key, (each, contents, name) in self.lists.items():
            both = zip(contents, self.lists_inside[key], list(each), strict=True)
            label = name.split("`")[1]
            _fill(each, [self._going_on(f"{label}.{i}", *three, memo) for i, three in enumerate(both)])
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

    def _after(
        self, name: str, head: bool, live: bool, first: Any, phi: Any, last: Any, sure: bool, memo: dict[Any, Any]
    ) -> Any:
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
        """A value that the last iteration gives, or that was there before if there is none."""
        if same(first, last):
            return last
        if isinstance(first, Undefined):
            why = f"is set in the loop at {self.where}, which may not run at all: set it before"
            return Undefined(name, why)

        def number(name: str, first: Any, last: Any) -> Any:
            return self._carry(name, first, self._variable(name, last if is_boolean(first) else first), last)

        def fragment(name: str, first: Any, last: Any) -> Any:
            return self._carry(name, first, self.tracer.var(name), last)

        return joined(name, (first, last), number, fragment, lambda name, *both: Undefined(name, self._why(*both)), memo)

    def _going_on(self, name: str, first: Any, phi: Any, last: Any, memo: dict[Any, Any]) -> Any:
        """A value that iterations hand on."""
        if same(phi, last) and not is_number(phi):  # also an object that has no number to carry
            if phi is first:
                return first
        return joined(name, (first, phi, last), self._carry, self._carry, lambda _, a, p, b: self._other(name, a, p, b), memo)

    def _other(self, name: str, first: Any, phi: Any, last: Any) -> Any:
        if same(first, last) or same(phi, last):
            return last
        if isinstance(first, Undefined) or isinstance(last, Undefined):
            if isinstance(last, Undefined) and last._why is not None:
                return last
            return Undefined(name, f"is set in the loop at {self.where}, which may not run at all: set it before")
        raise ScopeError(f"`{name}` {self._why(first, last)}.")

    def _why(self, first: Any, last: Any) -> str:
        forms = f"{kind_of(first)} before the loop at {self.where} and {kind_of(last)} after an iteration"
        return f"is {forms}: a loop carries numbers, fragments of one form, and what is made of them"

    def _last_alone(self, name: str, last: Any, memo: dict[Any, Any]) -> Any:
        """A value that only the last iteration gives, where nothing reads what was before."""

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
                    found: Any = value | end
                elif kind in ("both", "noted", "flag", "flags") or same(value, end) or isinstance(value, Differs):
                    continue
                elif kind == "none" and value is None:
                    continue
                else:
                    found = _differing(part, name, kind, self.where)
                again = again or not (found is value or (kind == "union" and found == value))
                before[name] = found
        return again

    def _facts_after(self) -> None:
        for (i, name, each), phi in self.varying.items():
            initial = self.conditions(self.facts_before[i], self.parts[i]).get((name, each), False)
            last = self.conditions(self.facts()[i], self.parts[i])[name, each]
            _set_flag(self.parts[i], name, each, self._carry(each or name, initial, phi, last))
        for part, before, last in zip(self.parts, self.facts_before, self.facts(), strict=True):
            for name, value in before.items():
                kind, end = part._facts[name], last[name]
                if kind == "union":
                    vars(part)[name] = value | end
                elif kind == "both":
                    vars(part)[name] = bool(value) and bool(end)
                elif kind == "noted":
                    vars(part)[name] = bool(value) or bool(end)
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
                raise ScopeError(f"{name} {rule}, in the loop at {self.where}. It is made outside of it, and a trace has one list.")
        return again

    def _kinds_differ(self) -> bool:
        """Whether a value that is a bool before the loop is another number later."""
        found: set[str] = set()

        def number(name: str, phi: Any, last: Any) -> Any:
            if isinstance(phi, Var) and phi.is_bool and not is_boolean(last):
                found.add(name)
            return phi

        for c, phis in zip(self.cells, self.cells_inside, strict=True):
            for name, phi, last in zip(c.names, phis, c.values, strict=True):
                number(name, phi, resolve(last))
        for name, head, phi, last in zip(self.names, self.heads, self.inside, self.state, strict=True):
            if head and name not in self.stops and not isinstance(phi, Undefined):
                joined(name, (phi, last), number, lambda _, phi, __: phi, lambda _, phi, __: phi, {})
        again = not found <= self.integers
        self.integers |= found
        return again

    # ---- the node -------------------------------------------------------------------------------------------------

    def made_for(self, index: Var, count: Any) -> None:
        """Ends a loop of *count* iterations."""
        if not self.flags:
            self.tracer.nodes.append(For(index, count, self.carried, self.nodes, self.where))
            return
        self.carried.insert(0, (index, 0, index + 1, Var(index.name)))
        self.made_while(index < count)

    def made_while(self, condition: Any, iterations: Any = None) -> None:
        """Ends a loop that goes on while *condition* is true, and nothing has ended it."""
        for flag in reversed(self.flags):
            condition = both(Expr.of("not", flag), condition)
        self.tracer.nodes.append(While(condition, self.carried, self.nodes, iterations, self.where))


def both(first: Any, second: Any) -> Any:
    """*first* and *second*, of which the second is not computed where the first is false, if that could be an error."""
    if second is True:
        return first
    if total(second):
        return Expr.of("and", first, second)
    return Expr.of("select", first, second, False)


def either(first: Any, second: Any) -> Any:
    """*first* or *second*, likewise."""
    if second is False:
        return first
    if total(second):
        return Expr.of("or", first, second)
    return Expr.of("select", first, True, second)


def total(value: Any) -> bool:
    """Whether an expression has a value whatever its variables are: nothing is divided by what may be 0, or shifted."""
    pending, seen = [resolve(value)], set()
    while pending:
        each = pending.pop()
        if not isinstance(each, Expr) or id(each) in seen or isinstance(each, Var):
            continue
        seen.add(id(each))
        by = resolve(each.args[-1]) if each.args else None
        if each.op in ("floordiv", "mod") and (symbolic(by) and by.op != "divisor" or by == 0):
            return False
        if each.op in ("lshift", "rshift") and symbolic(by):
            return False
        pending += map(resolve, each.args)
    return True
