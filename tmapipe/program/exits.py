"""Early exits: `return`, `break` and `continue` in blocks become names that say so, and what follows them is guarded by these.

    if n == 0:              if n == 0:
        return 1                <value> = 1; <returned> = True
    n = f(n)          ->    else:
    return n                    n = f(n)
                                <value> = n; <returned> = True
                            return <value>

What follows an `if` of which one branch always exits becomes the end of the other branch. Otherwise it is guarded:
``if exited(<returned>): ... else: what follows``. So each statement stays one statement, on whatever paths lead to it, and a
`with` is left by all of them as in Python: after the value to return has been computed.

A loop that may be left early has the names that say so in `STOPS`, by its node.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from tmapipe.program.names import own_nodes

__all__ = ["AFTER_RETURN", "RETURNED", "TP", "VALUE", "Exits", "call", "located"]

TP = "<tp>"  #: what rewritten code calls; no name of a user's
RETURNED, VALUE = "<returned>", "<value>"
AFTER_RETURN = "after a return"  #: of a name that is live: also on paths that have left the function
DEEPEST = 8  # branches that are put into each other: Python has room for 20 blocks
_EXITS = (ast.Return, ast.Break, ast.Continue)


def call(method: str, *arguments: ast.expr) -> ast.Call:
    """A call of a function of the tracer."""
    return ast.Call(ast.Attribute(ast.Name(TP, ast.Load()), method, ast.Load()), list(arguments), [])


class Exits:
    """Lowers the exits of one function. `stops`: by loop, the names that end it where they are true.

    refuse: called with a node and a sentence, for what cannot be lowered.
    """

    def __init__(self, refuse: Callable[[ast.AST, str], None]):
        self.refuse = refuse
        self.stops: dict[ast.AST, tuple[str, ...]] = {}
        self.loops: list[tuple[str, str]] = []  # (broken, continued) of the loops around
        self.count = self.depth = 0

    def function(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        """The statements of a function with one exit: its end."""
        *before, last = statements
        returns = [n for s in (before if isinstance(last, ast.Return) else statements) for n in _with_own(s)]
        early = any(isinstance(node, ast.Return) for node in returns)
        if not early:
            return [*self.block(before), last] if isinstance(last, ast.Return) else self.block(statements)
        begin = [_set(RETURNED, False, statements[0]), _set(VALUE, None, statements[0])]
        made = self.block(statements)
        return [*begin, *made, located(ast.Return(ast.Name(VALUE, ast.Load())), last)]

    def block(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        """The statements, without exits in them."""
        made: list[ast.stmt] = []
        for i, s in enumerate(statements):
            rest = statements[i + 1 :]
            if isinstance(s, ast.Return):
                value = s.value or located(ast.Constant(None), s)
                return [*made, located(ast.Assign([ast.Name(VALUE, ast.Store())], value), s), _set(RETURNED, True, s)]
            if isinstance(s, (ast.Break, ast.Continue)):
                return [*made, _set(self.loops[-1][isinstance(s, ast.Continue)], True, s)]
            if isinstance(s, ast.If) and self._found(s) and rest:
                if always_exits(s.body) and always_exits(s.orelse):
                    rest = []
                elif always_exits(s.body) and self.depth < DEEPEST:
                    s.orelse, rest = [*s.orelse, *rest], []
                elif always_exits(s.orelse) and self.depth < DEEPEST:
                    s.body, rest = [*s.body, *rest], []
                found = self._found(s)
                self.depth += 1
                self._inside(s)
                self.depth -= 1
                return [*made, s, *self._guarded(found, rest)]
            found = self._found(s)
            made += self._inside(s)
            if found and rest:
                return [*made, *self._guarded(found, rest)]
        return made

    def _inside(self, s: ast.stmt) -> list[ast.stmt]:
        """The statement, whose blocks have no exits left."""
        if isinstance(s, (ast.For, ast.AsyncFor, ast.While)):
            return self._loop(s)
        if isinstance(s, ast.Try) and any(isinstance(n, _EXITS) for each in s.finalbody for n in _with_own(each)):
            self.refuse(s.finalbody[0], "`return`, `break` or `continue` in `finally`")
        if isinstance(s, ast.Try) and s.orelse:
            found = set().union(*(self._found(each) for each in s.body))
            s.body = self.block(s.body)
            s.orelse = self._guarded(found, s.orelse) if found else self.block(s.orelse)
        elif hasattr(s, "body") and not isinstance(s, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            s.body = self.block(s.body)
            if isinstance(s, ast.If):
                s.orelse = self.block(s.orelse)
        if isinstance(s, ast.Try):
            s.finalbody = self.block(s.finalbody)
            for handler in s.handlers:
                handler.body = self.block(handler.body)
        if isinstance(s, ast.Match):
            for case in s.cases:
                case.body = self.block(case.body)
        return [s]

    def _loop(self, s: ast.For | ast.AsyncFor | ast.While) -> list[ast.stmt]:
        self.count += 1
        count = self.count
        broken, continued = f"<broken {self.count}>", f"<continued {self.count}>"
        own = list(_of_loop(s.body))
        breaks = any(isinstance(n, ast.Break) for n in own)
        returns = any(isinstance(n, ast.Return) for each in s.body for n in _with_own(each))
        self.loops.append((broken, continued))
        s.body = self.block(s.body)
        self.loops.pop()
        if any(isinstance(n, ast.Continue) for n in own):
            s.body = [_set(continued, False, s), *s.body]
        stops = (*([broken] if breaks else []), *([RETURNED] if returns else []))
        if stops:
            self.stops[s] = stops
            if not isinstance(
                s, ast.While
            ):  # what is iterated over is given to its names in iterations alone that are done
                item = f"<next {count}>"
                s.body = [located(ast.Assign([s.target], ast.Name(item, ast.Load())), s), *s.body]
                s.target = located(ast.Name(item, ast.Store()), s.target)
            s.body = [self._guard(stops, s.body, s)]
        after, s.orelse = s.orelse, []
        ends = self._guarded(set(stops), after) if stops else self.block(after)
        return [*([_set(broken, False, s)] if breaks else []), s, *ends]

    def _found(self, s: ast.stmt) -> set[str]:
        """The names that say by which exits *s* may be left for what is around it, or for the end of the function."""
        found: set[str] = set()
        for node in _with_own(s):
            if isinstance(node, ast.Return):
                found.add(RETURNED)
        for node in _of_loop([s]):
            if isinstance(node, (ast.Break, ast.Continue)):
                found.add(self.loops[-1][isinstance(node, ast.Continue)])
        return found

    def _guarded(self, names: set[str], rest: list[ast.stmt]) -> list[ast.stmt]:
        """What is done unless one of the exits was taken."""
        return [self._guard(tuple(sorted(names)), self.block(rest), rest[0])] if rest else []

    def _guard(self, names: tuple[str, ...], rest: list[ast.stmt], at: ast.stmt) -> ast.stmt:
        test = call("exited", *(ast.Name(name, ast.Load()) for name in names))
        gone = [_set(names[0], True, at)] if len(names) == 1 else [located(ast.Pass(), at)]
        return located(ast.If(test, gone, [*(_set(name, False, at) for name in names), *rest]), at)


def always_exits(statements: list[ast.stmt]) -> bool:
    """Whether no path comes to the end of these statements."""
    if not statements:
        return False
    last = statements[-1]
    if isinstance(last, ast.If):
        return always_exits(last.body) and always_exits(last.orelse)
    return isinstance(last, (*_EXITS, ast.Raise))


def _with_own(node: ast.AST) -> list[ast.AST]:
    return [node, *own_nodes(node)] if not isinstance(node, (ast.FunctionDef, ast.ClassDef)) else []


def _of_loop(statements: list[ast.stmt]) -> list[ast.AST]:
    """The nodes in the body of a loop whose `break` and `continue` are its own."""
    found: list[ast.AST] = []
    for s in statements:
        if isinstance(s, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            continue
        found.append(s)
        if isinstance(s, (ast.For, ast.AsyncFor, ast.While)):
            found += _of_loop(s.orelse)
            continue
        for field in ("body", "orelse", "finalbody"):
            found += _of_loop([each for each in getattr(s, field, ()) or () if isinstance(each, ast.stmt)])
        for each in (*getattr(s, "handlers", ()), *getattr(s, "cases", ())):
            found += _of_loop(each.body)
    return found


def _set(name: str, value: bool | None, at: ast.AST) -> ast.stmt:
    return located(ast.Assign([ast.Name(name, ast.Store())], ast.Constant(value)), at)


def located(node: Any, at: ast.AST) -> Any:
    """*node*, which is new, at the line where *at* begins; what it contains of the user's stays."""
    line, column = getattr(at, "lineno", 1), getattr(at, "col_offset", 0)
    pending: list[ast.AST] = [node]
    while pending:
        each = pending.pop()
        if "lineno" in each._attributes:
            if hasattr(each, "lineno"):
                continue
            # all of it in one line: Python names the last one of a call of an attribute
            each.lineno, each.end_lineno, each.col_offset, each.end_col_offset = line, line, column, column  # type: ignore[attr-defined]
        pending += ast.iter_child_nodes(each)
    return node
