"""Tracing: what rewritten code calls for its control flow, what its branches and loops iterate over, and where nodes go."""

from __future__ import annotations

import itertools
import sys
import traceback
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from tmapipe.errors import PipelineError, ScopeError
from tmapipe.model.layout import as_python, locate
from tmapipe.program.blocks import Block, Branch, Undefined, is_boolean, is_number
from tmapipe.program.calls import Calls
from tmapipe.program.expressions import Expr, Let, Var, resolve, select, symbolic
from tmapipe.program.loops import Loop, joined_by
from tmapipe.program.refuse import SymbolicRange

# ---- iteration -------------------------------------------------------------------------------------------------------
#
# Rewritten branches and loops iterate over these objects, once for each arm, item or iteration that is traced. Each object has
# `state`, the values of names before an arm or iteration and after the last one, and `end`, which takes the values at the end
# of an arm or iteration.


MOST_TURNS = 5_000_000  #: of a `while` loop that Python decides
MOST_ACTING = 500  #: of such a loop in which each iteration does something, since all are traced


def pure(nodes: list[Any]) -> bool:
    return all(type(node) is Let for node in nodes)


class Known:
    """A branch or loop that Python decides."""

    state: Any

    def end(self, state: Any) -> None:
        """The names at the end of an arm or iteration."""
        self.state = state


class Decided(Known):
    """A branch: the arm that is taken."""

    def __init__(self, arm: bool, state: Any):
        self.taken, self.state = arm, state

    def __iter__(self) -> Iterator[bool]:
        return iter((self.taken,))


class Items(Known):
    """A loop over an iterable of Python's. It ends early where a name in *stops* is known to be true."""

    def __init__(self, around: Iterable[Any], names: Any, state: Any, stops: Any):
        self.around, self.state = around, state
        self.stops = [names.index(name) for name in stops if name in names]

    def __iter__(self) -> Iterator[Any]:
        for item in as_python(iter, self.around):
            yield item
            if any(self.state[at] is True for at in self.stops):
                return


def iterations(tracer: Tracing, loop: Loop, count: Any) -> Iterator[Var]:
    """The index of a loop, as often as its body has to be traced."""
    index = Var("ijlpqr"[min(5, sum(isinstance(block, Loop) for block in tracer.opened))])
    while True:
        loop.enter()
        yield index
        if not loop.leave(sure=not symbolic(count) and count > 0):
            break
    loop.made_for(index, count)


class ForRange:
    """A loop over a range that is a loop of the program."""

    def __init__(self, tracer: Tracing, around: SymbolicRange, loop: Loop):
        self.tracer, self.around, self.loop = tracer, around, loop
        self.end = loop.end

    @property
    def state(self) -> Any:
        return self.loop.state

    def __iter__(self) -> Iterator[Any]:
        for index in iterations(self.tracer, self.loop, self.around.count):
            yield self.around.start + index * self.around.step


class WhileLoop(Known):
    """A `while` loop: Python's as long as Python knows its condition and its exits, then a loop of the program.

    tests: whether rewritten code evaluates the condition in this turn, and hands it to `enters`, which says whether the body
    follows; acts: whether evaluating the condition does something.
    """

    def __init__(self, tracer: Tracing, names: Any, heads: Any, live: Any, state: Any, stops: Any, yields: bool):
        self.tracer, self.names, self.heads, self.live, self.state = tracer, names, heads, live, state
        self.stops, self.yields = stops, yields
        self.tests, self.enter, self.acts = True, True, False
        self.test: Any = None
        self.loop: Loop | None = None

    def _exits(self) -> list[Any]:
        return [resolve(self.state[self.names.index(name)]) for name in self.stops]

    def enters(self, test: Any) -> bool:
        test = resolve(test)
        if self.yields:
            test = self.tracer.known(test, "a loop with `yield`")
        self.test = test
        if self.loop is None:
            return not symbolic(test) and bool(test)
        if not pure(self.tracer.nodes):
            self.acts = True
        return self.enter

    def __iter__(self) -> Iterator[None]:
        tracer, exits = self.tracer, []
        nodes = tracer.nodes
        for turn in itertools.count():  # as Python does
            begun = len(nodes)
            yield
            acts = not pure(nodes[begun:])
            exits = self._exits()
            if symbolic(self.test) or any(map(symbolic, exits)):
                break
            if not self.test or any(each is True for each in exits):
                return
            most = MOST_ACTING if acts else MOST_TURNS
            if turn >= most:
                error = PipelineError(f"stopped after {most} iterations of a loop, at {locate()}. Fix: let it end.")
                error.where = locate()
                raise error
        known = not symbolic(self.test)  # then an exit is not
        self.acts = acts and not known
        loop = self.loop = Loop(tracer, self.names, self.heads, self.live, self.state, self.stops)
        first = tracer.flag(self.test)
        while True:
            loop.enter()
            self.state = loop.state
            if not self.acts:
                self.tests, self.enter = True, True
                yield
                if self.acts:  # its condition does something when it is evaluated again
                    tracer.close()
                    loop.restore()
                    continue
                condition: Any = tracer.flag(self.test)
            else:
                self.tests = False
                yield
                if any(each is not False for each in self._exits()):
                    tracer.refuse("a `while` whose condition does something, and that is left early")
                self.tests, self.enter = True, False
                yield
                last = tracer.flag(self.test)
                condition = tracer.var("goes_on", True)
            loop.end(self.state)
            if not loop.leave():
                break
        if self.acts:
            loop.carried.append((condition, first, last, Var(condition.name, True)))
        loop.made_while(condition)
        self.state = loop.state


# ---- operands --------------------------------------------------------------------------------------------------------
#
# Operands that Python may skip: the second operands of `and`, `or` and chains of comparisons; x and y in ``x if c else y``.
#
# Where Python knows the condition, operands are evaluated as Python does. Else each is traced in a block of its own. If the
# block does nothing, the value is an expression, of which readers compute only the operand that counts.


class Operands(Calls):
    """The part of `Tracing` for such operands. pending: what `first` and `takes` have begun, and `joined` and `chosen` end."""

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
        exited: Any = False
        for flag in map(resolve, flags):
            if flag is True:
                return True
            if symbolic(flag):
                exited = flag if exited is False else Expr.of("or", exited, flag)
        return exited

    def first(self, word: str, value: Any, test: bool) -> bool:
        """The first operand of `and` or `or` is *value*. Returns whether the second is evaluated. test: only truth counts."""
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
                return joined_by("or" if word == "or" else "and", first, second)
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
        """The condition of ``x if condition else y``. Returns whether x is evaluated."""
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


# ---- control ---------------------------------------------------------------------------------------------------------
#
# The state of a trace, and where nodes go.


class Cells:
    """Mutable integers, whose values are expressions."""

    def __init__(self, tracer: Tracing, names: list[str], values: list[Any]):
        self.tracer, self.names, self.values = tracer, names, values

    def __getitem__(self, i: int) -> Any:
        return resolve(self.values[i])

    def __setitem__(self, i: int, value: Any) -> None:
        self.values[i] = resolve(value)


def _in_use(refs: list[weakref.ref[Any]]) -> list[Any]:
    """The objects of *refs* that are in use. The list keeps the references to these."""
    refs[:] = [ref for ref in refs if ref() is not None]
    return [each for each in (ref() for ref in refs) if each is not None]


class Tracing(Operands):
    """The state of a trace, and what rewritten code calls.

    nodes: of the open block; path: the numbers of the blocks around; opened: these blocks; cells, parts: `Cells` and objects
    of the protocol in use; taken: how often each name has been given to a variable.
    """

    def __init__(self) -> None:
        super().__init__()
        self.nodes: list[Any] = []
        self.path: list[Any] = []
        self.opened: list[Block | None] = []
        self.outer: list[list[Any]] = []
        self.cells: list[weakref.ref[Cells]] = []
        self.parts: list[weakref.ref[Any]] = []
        self.taken: dict[str, int] = {}
        self.blocks = 0

    # ---- names and state ------------------------------------------------------------------------------------------

    def name(self, wanted: str) -> str:
        n = self.taken[wanted] = self.taken.get(wanted, 0) + 1
        return wanted if n == 1 else f"{wanted}'{n}"

    def var(self, wanted: str, boolean: bool = False) -> Var:
        return Var(self.name(wanted), boolean)

    def live(self) -> list[Cells]:
        """All cells in use."""
        return _in_use(self.cells)

    def follow(self, part: Any) -> None:
        """As of `Isa.follow`."""
        self.parts.append(weakref.ref(part))

    def followed(self) -> list[Any]:
        """Objects of the protocol in use that have facts."""
        return _in_use(self.parts)

    def open(self, block: Block | None) -> None:
        """Nodes go to a new block of code from now on."""
        self.outer.append(self.nodes)
        self.nodes = []
        if not self.path:  # names begin anew in each role
            self.taken = {}
        self.blocks += 1
        self.path.append(self.blocks)
        self.opened.append(block)

    def close(self) -> list[Any]:
        """The nodes of the block that was opened last, which ends."""
        made, self.nodes = self.nodes, self.outer.pop()
        self.path.pop()
        self.opened.pop()
        return made

    def block(self, body: Callable[..., Any], *arguments: Any) -> list[Any]:
        """The nodes of what *body* does."""
        self.open(None)
        body(*arguments)
        return self.close()

    def computed(self, value: Any) -> None:
        """Notes that a value has been computed here."""
        self.nodes.append(Let(value))

    def unset(self, name: str) -> Undefined:
        return Undefined(name)

    def read(self, value: Any) -> Any:
        """A name is read."""
        return value._refuse() if type(value) is Undefined else resolve(value)

    def deleted(self, name: str, value: Any) -> Undefined:
        self.read(value)
        return Undefined(name)

    # ---- errors ---------------------------------------------------------------------------------------------------

    def level(self) -> tuple[int, int]:
        """Where a `try` or `with` begins."""
        return len(self.path), len(self.pending)

    def left(self, level: tuple[int, int]) -> None:
        """After a `with`: raises `ScopeError` if an error has left a branch or loop that is traced, and was suppressed."""
        if len(self.path) > level[0]:
            self.refuse("an error in a branch or loop that only the kernel decides, which a `with` suppresses")
        del self.pending[level[1] :]

    def caught(self, level: tuple[int, int]) -> None:
        """At the beginning of an `except`. What the front end refuses is not caught."""
        error = sys.exc_info()[1]
        if isinstance(error, ScopeError):
            *_, (last, _) = traceback.walk_tb(error.__traceback__)
            if last.f_globals.get("__name__", "").startswith(__package__ or ""):
                raise error
        if len(self.path) > level[0]:
            self.refuse("an error in a branch or loop that only the kernel decides, which an `except` catches")
        del self.pending[level[1] :]

    def raises(self) -> None:
        """Before a `raise`."""
        if any(block is not None and block.user for block in self.opened):
            self.refuse("`raise` in a branch or loop that only the kernel decides")

    # ---- statements -----------------------------------------------------------------------------------------------

    def if_(self, condition: Any, names: Any, live: Any, state: Any, yields: bool) -> Any:
        condition = self.known(condition, "a branch with `yield`") if yields else resolve(condition)
        if symbolic(condition):
            return Branch(self, condition, names, live, state)
        return Decided(bool(condition), state)

    def for_(self, around: Any, *state: Any) -> Any:
        """A loop in the body of a role, where a range of Python's is a loop of the program, too."""
        if isinstance(around, range) and not state[-1]:
            around = SymbolicRange(around.start, around.stop, around.step)
        return self.for_helper(around, *state)

    def for_helper(self, around: Any, names: Any, heads: Any, live: Any, state: Any, stops: Any, yields: bool) -> Any:
        if isinstance(around, SymbolicRange) and not yields:
            return ForRange(self, around, Loop(self, names, heads, live, state, stops))
        return Items(self.items(around), names, state, stops)

    def while_(self, names: Any, heads: Any, live: Any, state: Any, stops: Any, yields: bool) -> Any:
        return WhileLoop(self, names, heads, live, state, stops, yields)

    # ---- what the library calls -----------------------------------------------------------------------------------

    def when(self, condition: Any, body: Callable[[], None], lane_0: bool = False) -> None:
        """Traces *body* under a condition."""
        branch = Branch(self, condition, (), (), (), lane_0, user=False)
        for arm in branch:
            if arm:
                body()
            branch.end(())

    def loop(self, count: Any, body: Callable[[Any], None]) -> None:
        """Traces ``body(index)`` in a loop of *count* iterations."""
        loop = Loop(self, user=False)
        for index in iterations(self, loop, count):
            body(index)
            loop.end(())

    def loop_while(self, state: Cells, body: Callable[[], None], iterations: Any) -> None:
        """Traces *body* in a loop as long as ``state[0]`` is not 0."""
        loop = Loop(self, user=False)
        while True:
            loop.enter()
            condition = self.flag(state[0])
            body()
            if not loop.leave():
                break
        loop.made_while(condition, iterations)
