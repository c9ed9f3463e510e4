"""Role: the warps that run one body, and the rules that a body obeys."""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import attrs

from tmapipe.errors import InputError, ScopeError
from tmapipe.fields import is_count, must, optional

__all__ = ["Role", "mark_of"]

_MARK = "__tmapipe_role__"


@attrs.frozen(eq=False, init=False, repr=False)
class Role:
    """A part that warps of the CTA play: producer, consumer, storer, ...

    The body is a method of the schedule, decorated ``@role.jit``: CuTe DSL's preprocessor looks for that word. It is called
    once an output tile, as ``body(self, k, tile)``. A method decorated ``@role.before.jit`` is called once a CTA before
    its first tile, as ``method(self, k)``. A subclass that assigns another role to the same name keeps the body, and
    one that assigns None to it has neither.

    Args:
        warps: How many warps run the body.
        warpgroups: The same in warpgroups of 4 warps, which is what wgmma and setmaxnreg work on. Pass one of the two.
        registers: A thread, set by setmaxnreg where the body begins: 24 to 256, a multiple of 8. Left out, the library splits
            the register file if some role uses wgmma, and leaves it alone otherwise.
        teams: Equal parts of the warps that take output tiles in turn. A tile and its slots are one team's alone; a
            `Turnstile` orders the teams.

    Raises:
        InputError: For any other value.
    """

    warps: int  #: in any case, of all teams
    by_warpgroup: bool
    registers: int | None = attrs.field(
        validator=must(
            optional(lambda n: is_count(n) and 24 <= n <= 256 and n % 8 == 0),
            "setmaxnreg takes 24 to 256 in steps of 8",
            "round to a multiple of 8",
        )
    )
    teams: int = attrs.field()

    def __init__(
        self,
        *,
        warps: int | None = None,
        warpgroups: int | None = None,
        registers: int | None = None,
        teams: int = 1,
    ):
        if (warps is None) == (warpgroups is None):
            raise InputError("Role(warps, warpgroups)", (warps, warpgroups), "takes exactly one of the two", "pass one")
        count = warps if warps is not None else warpgroups
        if not is_count(count):
            raise InputError("Role(warps or warpgroups)", count, "must be a positive integer", "use 1 or more")
        assert count is not None
        self.__attrs_init__(count if warps is not None else 4 * count, warpgroups is not None, registers, teams)

    @teams.validator
    def _teams_divide(self, field: Any, teams: Any) -> None:
        count = self.warps // 4 if self.by_warpgroup else self.warps
        if not is_count(teams) or count % teams:
            raise InputError("Role(teams)", teams, f"must divide the {count} warps or warpgroups", "use 1 or 2")

    def __repr__(self) -> str:
        size = f"warpgroups={self.warps // 4}" if self.by_warpgroup else f"warps={self.warps}"
        registers = f", registers={self.registers}" if self.registers else ""
        return f"Role({size}{registers}{f', teams={self.teams}' if self.teams > 1 else ''})"

    def jit(self, body: Callable[..., None]) -> Callable[..., None]:
        """Registers *body*, a method of a schedule, as what this role runs.

        Raises:
            ScopeError: For `break`, `continue`, `return` or `yield` in it, or for an `async` one.
            InputError: For what is no function of ``(self, k, tile)``, is the body of another role, or if its class has
                another body of this name.
        """
        return _marked(self, False, body, sys._getframe(1).f_locals)

    @property
    def before(self) -> _Before:
        """``@role.before.jit`` registers a method that the role runs once a CTA, before its first tile."""
        return _Before(self)


@attrs.frozen
class _Before:
    role: Role

    def jit(self, body: Callable[..., None]) -> Callable[..., None]:
        """Registers *body*, a method ``(self, k)`` of a schedule. Raises what `Role.jit` does."""
        return _marked(self.role, True, body, sys._getframe(1).f_locals)


def mark_of(method: Any) -> tuple[Role, bool] | None:
    """(the role that runs *method*, whether before its first tile), or None."""
    return getattr(method, _MARK, None)


def _marked(role: Role, before: bool, body: Callable[..., None], namespace: Any) -> Callable[..., None]:
    """*body*, marked as the role's. namespace: where it is defined."""
    if not inspect.isfunction(body):
        raise InputError("Role.jit(body)", body, "is a method of a schedule", "decorate a function with it")
    _refuse_early_exit(body)
    earlier = namespace.get(body.__name__) if "__qualname__" in namespace else None  # of a class
    if mark_of(earlier) is not None or mark_of(body) not in (None, (role, before)):
        rule = "is the body of a role already, which would be lost"
        raise InputError(body.__qualname__, earlier or body, rule, "give each body a name of its own")
    takes = ("self", "k") if before else ("self", "k", "tile")
    try:
        inspect.signature(body).bind(*takes)
    except TypeError:
        rule = f"is called with {', '.join(takes)}" + " once a CTA" * before
        fix = f"def {body.__name__}({', '.join(takes)})"
        raise InputError(body.__qualname__, str(inspect.signature(body)), rule, fix) from None
    setattr(body, _MARK, (role, before))
    return body


def _refuse_early_exit(body: Callable[..., None]) -> None:
    """Refuses an early exit: CuTe DSL cannot trace it from run-time control flow, and the events of a ring would not pair up.

    A generator or a coroutine would not even begin when it is called.
    """
    code = body.__code__
    if code.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
        word = "yield" if code.co_flags & inspect.CO_GENERATOR else "async"
        where = f"{code.co_filename}:{code.co_firstlineno}"
        raise ScopeError(f"{where}: `{word}` in the body of a role, which runs from its beginning to its end.")
    try:
        source, first = inspect.getsourcelines(body)
        parsed = ast.parse(textwrap.dedent("".join(source))).body[0]
    except (OSError, TypeError, SyntaxError):  # no source, or a lambda's: the lines of what it stands in
        return
    for node in _own_nodes(parsed):
        if isinstance(node, (ast.Break, ast.Continue, ast.Return)):
            word = type(node).__name__.lower()
            where = f"{inspect.getsourcefile(body)}:{first + node.lineno - 1}"
            rule = "Use `if`/`else` so that every scope ends normally."
            raise ScopeError(f"{where}: `{word}` in the body of a role. {rule}")


def _own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes inside *node*, without those of functions defined there, whose `return` is no exit of the body."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield child
            yield from _own_nodes(child)
