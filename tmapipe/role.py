"""Role: the warps that run one body, and the rules that a body obeys."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

from tmapipe.errors import InputError, ScopeError

__all__ = ["Role"]

_MARK = "__tmapipe_role__"


class Role:
    """A part that warps of the CTA play: producer, consumer, storer, ...

    warps or warpgroups: how many run it (a warpgroup is 4 warps, and what wgmma and setmaxnreg work on); registers: a
    thread, set by ``setmaxnreg`` at the role's start (24 to 256, a multiple of 8). Left out, the library splits the
    register file when some role uses wgmma, and leaves it alone otherwise; teams: equal parts of the warps that take
    output tiles in turn, each tile and its slots being one team's alone (a `Turnstile` orders them).

    The body is a method of the schedule, decorated ``@role.jit``: CuTe DSL's preprocessor looks for that word. It is
    called once an output tile, as ``body(self, k, tile)``.
    """

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
        if not isinstance(count, int) or count < 1:
            raise InputError("Role(warps or warpgroups)", count, "must be a positive integer", "use 1 or more")
        if registers is not None and not (24 <= registers <= 256 and registers % 8 == 0):
            raise InputError(
                "Role(registers)", registers, "setmaxnreg takes 24 to 256 in steps of 8", "round to a multiple of 8"
            )
        if not isinstance(teams, int) or teams < 1 or count % teams:
            raise InputError("Role(teams)", teams, f"must divide the {count} warps or warpgroups", "use 1 or 2")
        self.teams = teams
        self.warps = warps if warps is not None else 4 * count
        self.by_warpgroup = warpgroups is not None
        self.registers = registers
        self.name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = self.name or name

    def __repr__(self) -> str:
        size = f"warpgroups={self.warps // 4}" if self.by_warpgroup else f"warps={self.warps}"
        return f"Role({self.name or '?'}: {size})"

    def jit(self, body: Callable[..., None]) -> Callable[..., None]:
        """Registers *body* as what this role runs. Raises `ScopeError` for `break`, `continue`, `return` in it."""
        _refuse_early_exit(body)
        setattr(body, _MARK, self)
        return body


def body_of(schedule: Any, role: Role) -> Callable[..., None] | None:
    """The most derived method of *schedule* that is registered for *role*, or None. Unbound: call it with the schedule."""
    for cls in type(schedule).__mro__:
        for method in vars(cls).values():
            owner = getattr(method, _MARK, None)
            if owner is not None and owner.name == role.name:
                return method
    return None


def _refuse_early_exit(body: Callable[..., None]) -> None:
    """CuTe DSL cannot trace an early exit from run-time control flow, and a ring's events would not pair up."""
    try:
        source, first = inspect.getsourcelines(body)
    except (OSError, TypeError):
        return
    for node in _own_nodes(ast.parse(textwrap.dedent("".join(source))).body[0]):
        if isinstance(node, (ast.Break, ast.Continue, ast.Return)):
            word = type(node).__name__.lower()
            where = f"{inspect.getsourcefile(body)}:{first + node.lineno - 1}"
            raise ScopeError(
                f"{where}: `{word}` in the body of a role. Use `if`/`else` so that every scope ends normally."
            )


def _own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes inside *node*, without those of functions defined there: what these return is no exit of the body."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield child
            yield from _own_nodes(child)
