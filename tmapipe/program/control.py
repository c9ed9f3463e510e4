"""Tracing: what rewritten code calls for its control flow, and where the nodes of a program go."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import Any

from tmapipe.errors import ScopeError
from tmapipe.program.blocks import Block, Branch
from tmapipe.program.carried import Undefined
from tmapipe.program.expressions import Var, resolve, symbolic
from tmapipe.program.iteration import Decided, ForRange, Items, WhileLoop, iterations
from tmapipe.program.loops import Loop
from tmapipe.program.nodes import Let
from tmapipe.program.operands import Operands
from tmapipe.program.python import SymbolicRange

__all__ = ["Cells", "Tracing"]


class Cells:
    """Mutable integers, whose values are expressions."""

    def __init__(self, tracer: Tracing, names: list[str], values: list[Any]):
        self.tracer, self.names, self.values = tracer, names, values

    def __getitem__(self, i: int) -> Any:
        return resolve(self.values[i])

    def __setitem__(self, i: int, value: Any) -> None:
        self.values[i] = resolve(value)


class Tracing(Operands):
    """The state of a trace, and what rewritten code calls.

    nodes: of the block that is being traced; path: numbers of the blocks around; opened: those blocks.
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
        found = [(ref, ref()) for ref in self.cells]
        self.cells = [ref for ref, each in found if each is not None]
        return [each for _, each in found if each is not None]

    def follow(self, part: Any) -> None:
        """As of `Isa.follow`."""
        self.parts.append(weakref.ref(part))

    def followed(self) -> list[Any]:
        """Objects of the protocol in use that have facts."""
        found = [(ref, ref()) for ref in self.parts]
        self.parts = [ref for ref, each in found if each is not None]
        return [each for _, each in found if each is not None]

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
        """A value has been computed here."""
        self.nodes.append(Let(value))

    def unset(self, name: str) -> Undefined:
        return Undefined(name)

    def read(self, value: Any) -> Any:
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
        last = error.__traceback__ if error is not None else None
        while last is not None and last.tb_next is not None:
            last = last.tb_next
        if (
            error is not None
            and last is not None
            and last.tb_frame.f_globals.get("__name__", "").startswith(__package__ or "")
        ):
            if isinstance(error, ScopeError):
                raise error
        if len(self.path) > level[0]:
            self.refuse("an error in a branch or loop that only the kernel decides, which an `except` catches")
        del self.pending[level[1] :]

    def raises(self) -> None:
        """Before a `raise`."""
        if any(block is not None and block.user for block in self.opened):
            self.refuse("`raise` in a branch or loop that only the kernel decides")

    # ---- statements -----------------------------------------------------------------------------------------------

    def if_(self, condition: Any, names: Any, live: Any, state: Any) -> Any:
        condition = resolve(condition)
        if symbolic(condition):
            return Branch(self, condition, names, live, state)
        return Decided(bool(condition), state)

    def if_known(self, condition: Any, names: Any, live: Any, state: Any) -> Any:
        return Decided(bool(self.known(condition, "a branch with `yield`")), state)

    def for_(self, around: Any, *state: Any) -> Any:
        if isinstance(around, range):
            around = SymbolicRange(around.start, around.stop, around.step)
        return self.for_in_helper(around, *state)

    def for_in_helper(self, around: Any, names: Any, heads: Any, live: Any, state: Any, stops: Any) -> Any:
        if isinstance(around, SymbolicRange):
            return ForRange(self, around, Loop(self, names, heads, live, state, stops))
        return Items(self.items(around), names, state, stops)

    def for_known(self, around: Any, names: Any, heads: Any, live: Any, state: Any, stops: Any) -> Any:
        return Items(self.items(around), names, state, stops)

    def while_(self, names: Any, heads: Any, live: Any, state: Any, stops: Any) -> Any:
        return WhileLoop(self, names, heads, live, state, stops)

    def while_known(self, names: Any, heads: Any, live: Any, state: Any, stops: Any) -> Any:
        return WhileLoop(self, names, heads, live, state, stops, known=True)

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
