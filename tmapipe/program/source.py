"""The syntax tree of a function, found by its code in the source file, once for each file.

Files are those that `linecache` knows: also what was executed from text, if its lines were given to it.
"""

from __future__ import annotations

import ast
import copy
import functools
import linecache
import types
from typing import Any

__all__ = ["syntax_of"]


def syntax_of(function: types.FunctionType) -> tuple[ast.FunctionDef, str | None] | None:
    """A copy of the function's syntax tree, without decorators and annotations, and the name of the class around it; None if
    there is no source, or if it is not known which function of its line it is. A lambda is as a function that returns."""
    code = function.__code__
    lines = linecache.getlines(code.co_filename, function.__globals__)
    found = _functions("".join(lines)).get((code.co_firstlineno, code.co_name), ())
    alike = [each for each in found if len(found) == 1 or _is_code_of(each[0], code)]
    if not alike:
        return None
    node, around = alike[0]
    if isinstance(node, ast.Lambda):
        if not _is_code_of(node, code):
            return None
        returned = ast.copy_location(ast.Return(copy.deepcopy(node.body)), node.body)
        made = _definition("<lambda>", copy.deepcopy(node.args), [returned])
        ast.copy_location(made, node)
    else:
        made = copy.deepcopy(node)
    made.decorator_list, made.returns = [], None
    arguments = made.args
    arguments.defaults = [ast.Constant(None) for _ in arguments.defaults]  # those of the function stay
    arguments.kw_defaults = [each and ast.Constant(None) for each in arguments.kw_defaults]
    every = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg)
    for each in every:
        if each is not None:
            each.annotation = None
    return made, around


def _definition(name: str, arguments: ast.arguments, body: list[Any]) -> ast.FunctionDef:
    made = ast.FunctionDef(name, arguments, body, [], None)
    made.type_params = []  # type: ignore[attr-defined]
    return made


@functools.lru_cache(maxsize=64)
def _functions(text: str) -> dict[tuple[int, str], list[tuple[Any, str | None]]]:
    """The functions of a file and the classes around them, by first line and name."""
    found: dict[tuple[int, str], list[tuple[Any, str | None]]] = {}

    def visit(node: ast.AST, around: str | None) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.FunctionDef, ast.Lambda)):
                name = child.name if isinstance(child, ast.FunctionDef) else "<lambda>"
                lines = {child.lineno, *(each.lineno for each in getattr(child, "decorator_list", ()))}
                for line in lines:
                    found.setdefault((line, name), []).append((child, around))
            visit(child, child.name if isinstance(child, ast.ClassDef) else around)

    try:
        visit(ast.parse(text), None)
    except (SyntaxError, ValueError):
        return {}
    return found


def _is_code_of(node: Any, code: types.CodeType) -> bool:
    """Whether *code* is that of a function with this syntax tree: compiled again, with the same names around it."""
    inner: Any = copy.deepcopy(node)
    if isinstance(inner, ast.FunctionDef):
        inner.decorator_list = []
    else:
        inner = ast.Return(inner)
    assigned = [ast.Assign([ast.Name(name, ast.Store())], ast.Constant(None)) for name in code.co_freevars]
    outer = _definition("<outer>", ast.arguments([], [], None, [], [], None, []), [*assigned, inner])
    module = ast.fix_missing_locations(ast.Module([ast.copy_location(outer, node)], []))
    for each in ast.walk(module):
        if isinstance(each, (ast.stmt, ast.expr)) and not hasattr(each, "lineno"):
            ast.copy_location(each, node)
    compiled = compile(module, code.co_filename, "exec")
    first = next(each for each in compiled.co_consts if isinstance(each, types.CodeType))
    again = next(each for each in first.co_consts if isinstance(each, types.CodeType) and each.co_name == code.co_name)
    return _key(again) == _key(code)


def _key(code: types.CodeType) -> Any:
    names = code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars
    return code.co_code, _constant(code.co_consts), names, code.co_argcount, code.co_kwonlyargcount, code.co_flags & 0xF


def _constant(value: Any) -> Any:
    """Equal for constants that are the same: -0.0 is another one than 0.0, and True than 1."""
    if isinstance(value, types.CodeType):
        return _key(value)
    if isinstance(value, tuple):
        return tuple(map(_constant, value))
    return type(value), repr(value) if isinstance(value, (float, complex)) else value
