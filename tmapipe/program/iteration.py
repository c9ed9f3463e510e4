"""What rewritten branches and loops iterate over: once for each arm, item or iteration that is traced.

Each has `state`, the names before an arm or iteration and after all of them, and `end`, which takes them at the end of each.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from tmapipe.errors import PipelineError
from tmapipe.machine.locate import as_python, locate
from tmapipe.program.expressions import Var, resolve, symbolic
from tmapipe.program.loops import Loop
from tmapipe.program.nodes import Let
from tmapipe.program.python import SymbolicRange

if TYPE_CHECKING:
    from tmapipe.program.control import Tracing

__all__ = ["Decided", "ForRange", "Items", "WhileLoop", "iterations", "pure"]

MOST_TURNS = 5_000_000  #: of a `while` loop that Python decides


def pure(nodes: list[Any]) -> bool:
    return all(type(node) is Let for node in nodes)


class Decided:
    """A branch that Python decides."""

    def __init__(self, arm: bool, state: Any):
        self.taken, self.state = arm, state

    def __iter__(self) -> Iterator[bool]:
        return iter((self.taken,))

    def end(self, state: Any) -> None:
        self.state = state


class Items:
    """A loop over what Python has. It ends early where a name in *stops* is known to be true."""

    def __init__(self, around: Iterable[Any], names: Any, state: Any, stops: Any):
        self.around, self.state = around, state
        self.stops = [names.index(name) for name in stops if name in names]

    def __iter__(self) -> Iterator[Any]:
        for item in as_python(iter, self.around):
            yield item
            if any(self.state[at] is True for at in self.stops):
                return

    def end(self, state: Any) -> None:
        self.state = state


def iterations(tracer: Tracing, loop: Loop, count: Any) -> Iterator[Var]:
    """The index of a loop, as often as its body is traced."""
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


class WhileLoop:
    """A `while` loop: Python's as long as Python knows its condition and its exits, then one of the program.

    tests: whether the condition is evaluated in this turn; `enters` takes it, and says whether the body follows.
    """

    def __init__(self, tracer: Tracing, names: Any, heads: Any, live: Any, state: Any, stops: Any, known: bool = False):
        self.tracer, self.names, self.heads, self.live, self.state = tracer, names, heads, live, state
        self.stops, self.only_known = stops, known
        self.tests, self.enter, self.acts = True, True, False
        self.test: Any = None
        self.loop: Loop | None = None

    def _exits(self) -> list[Any]:
        return [resolve(self.state[self.names.index(name)]) for name in self.stops]

    def enters(self, test: Any) -> bool:
        test = resolve(test)
        if self.only_known:
            test = self.tracer.known(test, "a loop with `yield`")
        self.test = test
        if self.loop is None:
            return not symbolic(test) and bool(test)
        if not pure(self.tracer.nodes):
            self.acts = True
        return self.enter

    def end(self, state: Any) -> None:
        self.state = state

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
            if turn >= MOST_TURNS:
                error = PipelineError(
                    f"stopped after {MOST_TURNS} iterations of a loop, at {locate()}. Fix: let it end."
                )
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
                    self._throw_away(loop)
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

    def _throw_away(self, loop: Loop) -> None:
        self.tracer.close()
        loop.restore()
