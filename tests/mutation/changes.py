"""Small changes of Python code: another comparison, another operator, a number more by one, a statement left out."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from types import CodeType
from typing import Any, NamedTuple

__all__ = ["Change", "changed_code", "changes_of"]

_COMPARE: dict[type, type] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
_OPERATOR: dict[type, type] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv,
    ast.Div: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.LShift: ast.RShift, ast.RShift: ast.LShift,
}  # fmt: skip
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class Change(NamedTuple):
    """One change.

    Args:
        node: Which node of the module, in the order of `ast.walk`.
        line: In the file.
        what: In words.
        function: First line of the outermost function around it, decorators included.
    """

    node: int
    line: int
    what: str
    function: int


def changes_of(source: str) -> list[Change]:
    """All changes in the bodies of functions, other than in messages, annotations and defaults."""
    tree = ast.parse(source)
    number = {id(node): i for i, node in enumerate(ast.walk(tree))}
    return [
        Change(number[id(node)], node.lineno, what, function)
        for outer, function in _outermost(tree)
        for statement in outer.body
        for node in _code(statement)
        if (what := _what(node))
    ]


def changed_code(source: str, file: str, change: Change) -> CodeType:
    """The code of the function around *change*, with it."""
    tree = ast.parse(source)
    target = next(node for i, node in enumerate(ast.walk(tree)) if i == change.node)
    tree = ast.fix_missing_locations(_Replace(target).visit(tree))
    return code_at(compile(tree, file, "exec", dont_inherit=True), change.function)


def code_at(code: CodeType, line: int) -> CodeType:
    """The outermost function of *code*, a module's, that begins at *line*."""
    todo = [code]
    while todo:
        for each in todo.pop(0).co_consts:
            if isinstance(each, CodeType):
                if each.co_firstlineno == line and each.co_name != "<lambda>" and each.co_flags & 1:  # no class
                    return each
                todo.append(each)
    raise LookupError(f"no function at line {line}")


def _outermost(node: ast.AST) -> Iterator[tuple[Any, int]]:
    """Functions that are in no other, each with its first line."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, _FUNCTIONS):
            yield child, min([child.lineno, *(each.lineno for each in child.decorator_list)])
        else:
            yield from _outermost(child)


def _code(node: ast.AST) -> Iterator[Any]:
    """*node* and what is in it, without messages, annotations and defaults."""
    yield node
    for name, value in ast.iter_fields(node):
        if isinstance(node, (ast.Raise, ast.JoinedStr, ast.Assert)) or name in (
            "annotation",
            "returns",
            "decorator_list",
        ):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not isinstance(child, ast.arguments):
                yield from _code(child)


def _what(node: ast.AST) -> str:
    """What a change of *node* is, in words; "" if it has none."""
    if isinstance(node, ast.Compare):
        return f"{type(node.ops[0]).__name__} -> {_COMPARE[type(node.ops[0])].__name__}"
    if isinstance(node, (ast.BinOp, ast.AugAssign)) and type(node.op) in _OPERATOR:
        text = isinstance(node, ast.BinOp) and any(isinstance(each, ast.JoinedStr) for each in (node.left, node.right))
        return "" if text else f"{type(node.op).__name__} -> {_OPERATOR[type(node.op)].__name__}"
    if isinstance(node, ast.BoolOp):
        return "and -> or" if isinstance(node.op, ast.And) else "or -> and"
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return "no not"
    if isinstance(node, ast.Constant) and isinstance(node.value, (bool, int)):
        return f"{node.value} -> {_other(node.value)}"
    if isinstance(node, (ast.If, ast.IfExp)):
        return "condition negated"
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        return "call left out"
    if isinstance(node, ast.Raise):
        return "raise left out"
    if isinstance(node, ast.Return) and node.value is not None and not isinstance(node.value, ast.Constant):
        return "returns None"
    return ""


def _other(value: bool | int) -> bool | int:
    return not value if isinstance(value, bool) else value + 1


class _Replace(ast.NodeTransformer):
    """Replaces one node."""

    def __init__(self, target: ast.AST):
        self.target = target

    def visit(self, node: ast.AST) -> Any:
        return ast.copy_location(_changed(node), node) if node is self.target else self.generic_visit(node)


def _changed(node: Any) -> ast.AST:
    made = copy.copy(node)
    if isinstance(node, ast.Compare):
        made.ops = [_COMPARE[type(node.ops[0])](), *node.ops[1:]]
    elif isinstance(node, (ast.BinOp, ast.AugAssign)):
        made.op = _OPERATOR[type(node.op)]()
    elif isinstance(node, ast.BoolOp):
        made.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
    elif isinstance(node, ast.UnaryOp):
        return node.operand
    elif isinstance(node, ast.Constant):
        made.value = _other(node.value)
    elif isinstance(node, (ast.If, ast.IfExp)):
        made.test = ast.UnaryOp(ast.Not(), node.test)
    elif isinstance(node, ast.Return):
        made.value = None
    else:
        return ast.Pass()
    return made
