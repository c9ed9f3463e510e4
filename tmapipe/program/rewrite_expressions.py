"""Rewriting of expressions: the half of `rewrite` that has no statements."""

from __future__ import annotations

import ast
from typing import Any

from tmapipe.program.exits import TP, call, located

__all__ = ["Expressions", "load"]


def load(name: str) -> ast.Name:
    return ast.Name(name, ast.Load())


class Expressions(ast.NodeTransformer):
    """Rewrites the expressions of a function.

    parameters: its own; carried: names that may have no value where they are read; lazy: how many operands that Python may
    skip are around; risky: how many `try` that may catch a division by zero.
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
        return self.generic_visit(node)

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
        if isinstance(op, (ast.Is, ast.IsNot)) and not any(
            isinstance(each, ast.Constant) and each.value is None for each in (a, b)
        ):
            return call("is_", a, b, ast.Constant(isinstance(op, ast.IsNot)))
        return ast.Compare(a, [op], [b])

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
        if isinstance(node.op, ast.Add) and not any(isinstance(each, ast.Constant) for each in (node.left, node.right)):
            return located(call("fresh", node), node)
        return node

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
            each.ifs = [
                located(call("known", self.test(i), ast.Constant("a filter of a comprehension")), i) for i in each.ifs
            ]
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
