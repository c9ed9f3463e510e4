"""Rewriting of early exits into names, and of expressions into calls of the tracer."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from tmapipe.program.names import children, own_nodes

# ---- exits -----------------------------------------------------------------------------------------------------------
#
# Early exits: `return`, `break` and `continue` in blocks become names that are set to True, and what follows them is guarded
# by these names::
#
# if n == 0:              if n == 0:
#     return 1                <value> = 1; <returned> = True
# n = f(n)          ->    else:
# return n                    n = f(n)
#                             <value> = n; <returned> = True
#                         return <value>
#
# What follows an `if` of which one branch always exits becomes the end of the other branch. Otherwise it is guarded:
# ``if exited(<returned>): ... else: what follows``. So each statement stays one statement, whatever paths lead to it, and all
# paths leave a `with` as in Python: after the value to return has been computed.


TP = "<tp>"  #: what rewritten code calls; no name of a user's
RETURNED, VALUE = "<returned>", "<value>"
AFTER_RETURN = "after a return"  #: says of a live name that it is live also on paths that have left the function
DEEPEST = 8  # branches that are put into each other: Python has room for 20 blocks
_EXITS = (ast.Return, ast.Break, ast.Continue)


def call(method: str, *arguments: ast.expr) -> ast.Call:
    """A call of a function of the tracer."""
    return ast.Call(ast.Attribute(ast.Name(TP, ast.Load()), method, ast.Load()), list(arguments), [])


class Exits:
    """Replaces the exits of one function. stops: by loop, the names that end it where they are true; refuse: called with a
    node and a sentence, for an exit that cannot be replaced; loops: the names (broken, continued) of the loops around."""

    def __init__(self, refuse: Callable[[ast.AST, str], None]):
        self.refuse = refuse
        self.stops: dict[ast.AST, tuple[str, ...]] = {}
        self.loops: list[tuple[str, str]] = []
        self.count = self.depth = 0

    def function(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        """The statements of a function, with one exit at its end."""
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
                exits = self._found(s)
                self.depth += 1
                self._inside(s)
                self.depth -= 1
                return [*made, s, *self._guarded(exits, rest)]
            exits = self._found(s)
            made += self._inside(s)
            if exits and rest:
                return [*made, *self._guarded(exits, rest)]
        return made

    def _inside(self, s: ast.stmt) -> list[ast.stmt]:
        """The statement, whose blocks have no exits left."""
        if isinstance(s, (ast.For, ast.AsyncFor, ast.While)):
            return self._loop(s)
        if isinstance(s, ast.Try) and any(isinstance(n, _EXITS) for each in s.finalbody for n in _with_own(each)):
            self.refuse(s.finalbody[0], "`return`, `break` or `continue` in `finally`")
        if isinstance(s, ast.Try) and s.orelse:
            exits = set().union(*(self._found(each) for each in s.body))
            s.body = self.block(s.body)
            s.orelse = self._guarded(exits, s.orelse) if exits else self.block(s.orelse)
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
            if not isinstance(s, ast.While):  # only iterations that are done give the names what is iterated over
                item = f"<next {count}>"
                s.body = [located(ast.Assign([s.target], ast.Name(item, ast.Load())), s), *s.body]
                s.target = located(ast.Name(item, ast.Store()), s.target)
            s.body = [self._guard(stops, s.body, s)]
        after, s.orelse = s.orelse, []
        ends = self._guarded(set(stops), after) if stops else self.block(after)
        return [*([_set(broken, False, s)] if breaks else []), s, *ends]

    def _found(self, s: ast.stmt) -> set[str]:
        """The names of the exits by which *s* may be left for a loop around it, or for the end of the function."""
        exits: set[str] = set()
        for node in _with_own(s):
            if isinstance(node, ast.Return):
                exits.add(RETURNED)
        for node in _of_loop([s]):
            if isinstance(node, (ast.Break, ast.Continue)):
                exits.add(self.loops[-1][isinstance(node, ast.Continue)])
        return exits

    def _guarded(self, names: set[str], rest: list[ast.stmt]) -> list[ast.stmt]:
        """*rest*, executed unless one of these exits was taken."""
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
    exits: list[ast.AST] = []
    for s in statements:
        if isinstance(s, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            continue
        exits.append(s)
        if isinstance(s, (ast.For, ast.AsyncFor, ast.While)):
            exits += _of_loop(s.orelse)
            continue
        for field in ("body", "orelse", "finalbody"):
            exits += _of_loop([each for each in getattr(s, field, ()) or () if isinstance(each, ast.stmt)])
        for each in (*getattr(s, "handlers", ()), *getattr(s, "cases", ())):
            exits += _of_loop(each.body)
    return exits


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
        pending += children(each)
    return node


# ---- rewrite expressions ---------------------------------------------------------------------------------------------
#
def load(name: str) -> ast.Name:
    return ast.Name(name, ast.Load())


class Expressions(ast.NodeTransformer):
    """Rewrites the expressions of a function.

    parameters: of the function; carried: names that may have no value where they are read; lazy: how many operands that Python
    may skip are around; risky: how many `try` are around that may catch a division by zero.
    """

    parameters: list[str]
    carried: set[str]
    lazy = risky = 0

    def test(self, node: ast.expr) -> Any:
        """An expression of which only the truth counts."""
        if isinstance(node, ast.BoolOp):
            return self._bool(node, True)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return located(call("not_", self.test(node.operand)), node)
        return self.visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> Any:
        return self._bool(node, False)

    def _bool(self, node: ast.BoolOp, test: bool) -> Any:
        word = ast.Constant("and" if isinstance(node.op, ast.And) else "or")
        visit = self.test if test else self.visit
        first = visit(node.values[0])
        self.lazy += len(node.values) - 1
        others = [visit(each) for each in node.values[1:]]
        self.lazy -= len(node.values) - 1
        made = others[-1]
        for value in reversed([first, *others[:-1]]):
            made = self._joined(word, value, made, test)
        return located(made, node)

    def _joined(self, word: ast.Constant, first: ast.expr, second: ast.expr, test: bool) -> ast.Call:
        lazily = ast.IfExp(call("first", word, first, ast.Constant(test)), call("second", second), ast.Constant(None))
        return call("joined", lazily)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> Any:
        if isinstance(node.op, ast.Not):
            return self.test(node)
        self.generic_visit(node)
        if isinstance(node.operand, ast.Constant):
            return node
        return located(call("unary", ast.Constant(type(node.op).__name__), node.operand), node)

    def visit_IfExp(self, node: ast.IfExp) -> Any:
        test = self.test(node.test)
        self.lazy += 1
        then, other = self.visit(node.body), self.visit(node.orelse)
        self.lazy -= 1
        one = ast.IfExp(call("takes", test), call("arm", then), ast.Constant(None))
        two = ast.IfExp(call("takes_other"), call("arm", other), ast.Constant(None))
        return located(call("chosen", one, two), node)

    def visit_Compare(self, node: ast.Compare) -> Any:
        left = self.visit(node.left)
        self.lazy += len(node.ops) - 1
        rights = [self.visit(each) for each in node.comparators]
        self.lazy -= len(node.ops) - 1
        made = None
        for i in reversed(range(len(node.ops))):
            a = left if i == 0 else call("middle")
            b = rights[i] if i == len(node.ops) - 1 else call("keep_middle", rights[i])
            pair = self._compare(node.ops[i], a, b)
            made = pair if made is None else self._joined(ast.Constant("chain"), pair, made, False)
        return located(made, node)

    def _compare(self, op: ast.cmpop, a: ast.expr, b: ast.expr) -> ast.expr:
        if isinstance(op, (ast.In, ast.NotIn)):
            return call("contains", a, b, ast.Constant(isinstance(op, ast.NotIn)))
        if isinstance(op, (ast.Is, ast.IsNot)):
            if any(isinstance(each, ast.Constant) and each.value is None for each in (a, b)):
                return ast.Compare(a, [op], [b])
            return call("is_", a, b, ast.Constant(isinstance(op, ast.IsNot)))
        return call("operate", ast.Constant(type(op).__name__), a, b)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> Any:
        node.value = self.visit(node.value)
        if self.lazy:
            name = ast.Constant(node.target.id)
            node.value = located(call("unguarded", name, node.value, ast.Constant(self.lazy)), node)
        return node

    def visit_Call(self, node: ast.Call) -> Any:
        if isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name) and node.func.value.id == TP:
            node.args = [each if isinstance(each, ast.Name) else self.visit(each) for each in node.args]
            return node
        if isinstance(node.func, ast.Name) and node.func.id == "super" and not node.args and not node.keywords:
            node.args = [load("__class__"), load(self.parameters[0])]
            return located(node, node)
        self.generic_visit(node)
        made = ast.Call(ast.Attribute(load(TP), "call", ast.Load()), [node.func, *node.args], node.keywords)
        return located(made, node)

    def visit_Name(self, node: ast.Name) -> Any:
        if isinstance(node.ctx, ast.Load) and node.id in self.carried:
            return located(call("read", node), node)
        return node

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        value = self.visit(node.value)
        if isinstance(node.ctx, ast.Load):
            if node.attr.startswith("__"):
                node.value = value
                return node
            return located(call("attribute", value, ast.Constant(node.attr)), node)
        node.value = located(call("stores_attribute", value, ast.Constant(node.attr)), node)
        return node

    def visit_Subscript(self, node: ast.Subscript) -> Any:
        value, key = self.visit(node.value), self.visit(node.slice)
        if isinstance(node.ctx, ast.Load):
            return located(call("item", value, key), node)
        return located(ast.Attribute(call("place", value, key), "item", node.ctx), node)

    def visit_Slice(self, node: ast.Slice) -> Any:
        bounds = [self.visit(each) if each else ast.Constant(None) for each in (node.lower, node.upper, node.step)]
        return located(call("slice", *bounds), node)

    def visit_BinOp(self, node: ast.BinOp) -> Any:
        text = (
            isinstance(node.op, ast.Mod)
            and isinstance(node.left, (ast.Constant, ast.JoinedStr))
            and not isinstance(getattr(node.left, "value", ""), (int, float))
        )
        self.generic_visit(node)
        if text:
            node.right = located(call("text", node.right), node)
        node.right = self._divisor(node.op, node.right)
        if text or (isinstance(node.left, ast.Constant) and isinstance(node.right, ast.Constant)):
            return node
        return located(call("operate", ast.Constant(type(node.op).__name__), node.left, node.right), node)

    def _divisor(self, op: ast.operator, value: Any) -> Any:
        if self.risky and isinstance(op, (ast.FloorDiv, ast.Mod, ast.Div)) and not isinstance(value, ast.Constant):
            return located(call("divisor", value), value)
        return value

    def visit_List(self, node: Any) -> Any:
        self.generic_visit(node)
        return located(call("made", node), node) if not isinstance(getattr(node, "ctx", None), ast.Store) else node

    def visit_Set(self, node: ast.Set) -> Any:
        self.generic_visit(node)
        node.elts = [each if isinstance(each, ast.Starred) else located(call("key", each), each) for each in node.elts]
        return located(call("made", node), node)

    def visit_Dict(self, node: ast.Dict) -> Any:
        self.generic_visit(node)
        node.keys = [each and located(call("key", each), each) for each in node.keys]
        return located(call("made", node), node)

    def visit_ListComp(self, node: Any) -> Any:
        for each in node.generators:
            each.iter = located(call("items", self.visit(each.iter)), each.iter)
            what = ast.Constant("a filter of a comprehension")
            each.ifs = [located(call("known", self.test(i), what), i) for i in each.ifs]
        for field in ("elt", "key", "value"):
            if hasattr(node, field):
                setattr(node, field, self.visit(getattr(node, field)))
        if isinstance(node, ast.SetComp):
            node.elt = located(call("key", node.elt), node.elt)
        if isinstance(node, ast.DictComp):
            node.key = located(call("key", node.key), node.key)
        return located(call("made", node), node)

    visit_SetComp = visit_DictComp = visit_GeneratorExp = visit_ListComp

    def visit_FormattedValue(self, node: ast.FormattedValue) -> Any:
        self.generic_visit(node)
        node.value = located(call("text", node.value), node.value)
        return node
