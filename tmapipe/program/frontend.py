"""The front end: Python functions whose `if`, `for`, `while`, conditional expressions, `and`, `or`, `not`, chains of comparisons
and calls are those of a tracer, which decides what Python knows and records the rest.

`converted(function)` rewrites its syntax tree; the functions that it calls are converted when they are called. Lines and files
stay, so tracebacks and `locate()` name the user's. Closures are shared with the original.

What is not rewritten, and therefore works only on what Python knows: loops with `break`, `continue`, `return` or `else` of their
own; comprehensions; generators; functions without source, of other packages, and of the library (but its schedules).
"""

from __future__ import annotations

import ast
import builtins
import functools
import inspect
import os
import sys
import textwrap
import types
from typing import Any

import tmapipe
from tmapipe.errors import ScopeError

HELPER = "__tp"
_LIBRARY = os.path.dirname(os.path.abspath(tmapipe.__file__)) + os.sep
_SCHEDULES = os.path.join(_LIBRARY, "schedules") + os.sep
_FOREIGN = (os.path.dirname(os.__file__) + os.sep,)

current: list[Any] = []  #: the tracer at work: `if_`, `for_`, `while_`, `ifexp`, `and_`, `or_`, `not_`, `call`


class Undefined:
    """In the place of a name that has no value, or none that could be told."""

    def __init__(self, name: str, why: str = "has no value yet"):
        self.__dict__.update(_name=name, _why=why)

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise ScopeError(f"`{self._name}` {self._why}")

    __getattr__ = __call__ = __bool__ = __iter__ = __add__ = __radd__ = __sub__ = __mul__ = __lt__ = __gt__ = _refuse
    __enter__ = __index__ = __getitem__ = __rmul__ = __rsub__ = _refuse


# ---- names ------------------------------------------------------------------------------------------------------------


def _own(node: ast.AST) -> Any:
    """The nodes in *node* of the same function."""
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda, ast.ListComp,
                                  ast.SetComp, ast.DictComp, ast.GeneratorExp)):  # fmt: skip
            yield from _own(child)


def _stored(statements: list[ast.stmt]) -> list[str]:
    """Names that the statements assign, in order."""
    found: dict[str, None] = {}
    for node in _own(ast.Module(statements, [])):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found[node.id] = None
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found[node.name] = None
        elif isinstance(node, ast.ExceptHandler) and node.name:
            found[node.name] = None
    return list(found)


def _exits(statements: list[ast.stmt], *kinds: type) -> bool:
    return any(isinstance(node, kinds) for node in _own(ast.Module(statements, [])))


# ---- rewriting --------------------------------------------------------------------------------------------------------


def _call(method: str, *arguments: ast.expr) -> ast.Call:
    return ast.Call(ast.Attribute(ast.Name(HELPER, ast.Load()), method, ast.Load()), list(arguments), [])


def _lambda(body: ast.expr, *names: str) -> ast.Lambda:
    return ast.Lambda(_arguments(*names), body)


def _arguments(*names: str) -> ast.arguments:
    return ast.arguments([], [ast.arg(n) for n in names], None, [], [], None, [])


class _Rewriter(ast.NodeTransformer):
    def __init__(self, function: ast.FunctionDef, outside: set[str], top: bool):
        self.function, self.outside, self.count, self.top = function, outside, 0, top
        self.carried: dict[str, None] = {}
        parameters = function.args
        every = (*parameters.posonlyargs, *parameters.args, *parameters.kwonlyargs, parameters.vararg, parameters.kwarg)
        self.parameters = [a.arg for a in every if a is not None]

    # expressions ----------------------------------------------------------------------------------------------------

    def visit_IfExp(self, node: ast.IfExp) -> Any:
        self.generic_visit(node)
        return ast.copy_location(_call("ifexp", node.test, _lambda(node.body), _lambda(node.orelse)), node)

    def visit_BoolOp(self, node: ast.BoolOp) -> Any:
        self.generic_visit(node)
        method = "and_" if isinstance(node.op, ast.And) else "or_"
        *before, made = node.values
        for value in reversed(before):
            made = _call(method, value, _lambda(made))
        return ast.copy_location(made, node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> Any:
        self.generic_visit(node)
        return ast.copy_location(_call("not_", node.operand), node) if isinstance(node.op, ast.Not) else node

    def visit_Compare(self, node: ast.Compare) -> Any:
        self.generic_visit(node)
        if len(node.ops) == 1:
            return node
        # a < b < c: each middle operand is taken to be free of effects, as it is evaluated twice
        sides = [node.left, *node.comparators]
        pairs: list[ast.expr] = [ast.Compare(sides[i], [op], [sides[i + 1]]) for i, op in enumerate(node.ops)]
        made = pairs[-1]
        for pair in reversed(pairs[:-1]):
            made = _call("and_", pair, _lambda(made))
        return ast.copy_location(made, node)

    def visit_Call(self, node: ast.Call) -> Any:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id == "super" and not node.args:
            node.args = [ast.Name("__class__", ast.Load()), ast.Name(self.parameters[0], ast.Load())]
            return ast.fix_missing_locations(node)
        made = ast.Call(ast.Attribute(ast.Name(HELPER, ast.Load()), "call", ast.Load()), [node.func, *node.args], node.keywords)
        return ast.copy_location(made, node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        return node  # converted when it is called

    visit_AsyncFunctionDef = visit_ClassDef = visit_Lambda = visit_FunctionDef  # type: ignore[assignment]
    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = visit_FunctionDef  # type: ignore[assignment]

    # statements -----------------------------------------------------------------------------------------------------

    def block(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        made: list[ast.stmt] = []
        for i, statement in enumerate(statements):
            if isinstance(statement, ast.If) and _exits([statement], ast.Return):
                rest = statements[i + 1 :]
                return [*made, *self.returning_if(statement, rest)]
            found = self.visit(statement)
            made += found if isinstance(found, list) else [found]
        return made

    def generic_visit(self, node: ast.AST) -> ast.AST:
        for field, value in ast.iter_fields(node):
            if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                setattr(node, field, self.block(value))
            elif isinstance(value, list):
                setattr(node, field, [self.visit(v) if isinstance(v, ast.AST) else v for v in value])
            elif isinstance(value, ast.AST):
                setattr(node, field, self.visit(value))
        return node

    def _function(self, name: str, arguments: ast.arguments, names: list[str], body: list[ast.stmt]) -> ast.FunctionDef:
        own = [ast.Nonlocal(list(names))] if names else []
        return ast.FunctionDef(name, arguments, [*own, *(body or [ast.Pass()])], [], None, type_params=[])

    def _state(self, names: list[str]) -> tuple[str, list[ast.stmt], list[ast.expr]]:
        """Functions that get and set these names."""
        self.count += 1
        self.carried.update(dict.fromkeys(names))
        n = str(self.count)
        get = _lambda(ast.Tuple([ast.Name(name, ast.Load()) for name in names], ast.Load()))
        target = ast.Tuple([ast.Name(name, ast.Store()) for name in names], ast.Store())
        put = self._function(f"__set{n}", _arguments("__values"), names, [ast.Assign([target], ast.Name("__values", ast.Load()))] if names else [])
        shown = ast.Tuple([ast.Constant(name) for name in names], ast.Load())
        return n, [put], [get, ast.Name(f"__set{n}", ast.Load()), shown]

    def _names(self, statements: list[ast.stmt]) -> list[str]:
        found = _stored(statements)
        for name in found:
            if name in self.outside:
                line = next((s.lineno for s in statements), 0)
                raise ScopeError(f"line {line}: `{name}`, which is assigned in a loop or branch of a body, belongs to what is around "
                                 "the body. It is traced once: use a local name.")
        return found

    def _located(self, made: list[ast.stmt], node: ast.AST) -> list[ast.stmt]:
        for each in made:
            ast.copy_location(each, node)
            ast.fix_missing_locations(each)
        return made

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        if node.value is None or not isinstance(node.target, ast.Name):
            return []
        return ast.copy_location(ast.Assign([node.target], self.visit(node.value)), node)

    def visit_If(self, node: ast.If) -> Any:
        if _exits([node], ast.Break, ast.Continue, ast.Return) and not self._whole_loops(node):
            return self.generic_visit(node)
        names = self._names([*node.body, *node.orelse])
        test, then, other = self.visit(node.test), self.block(node.body), self.block(node.orelse)
        n, state, shown = self._state(names)
        functions = [self._function(f"__then{n}", _arguments(), names, then), self._function(f"__else{n}", _arguments(), names, other)]
        use = _call("if_", test, ast.Name(f"__then{n}", ast.Load()), ast.Name(f"__else{n}", ast.Load()), *shown)
        return self._located([*state, *functions, ast.Expr(use)], node)

    def _whole_loops(self, node: ast.If) -> bool:
        """Whether each break, continue and return in it belongs to a loop or function in it."""
        def free(statements: list[ast.stmt]) -> bool:
            for s in statements:
                if isinstance(s, (ast.Break, ast.Continue, ast.Return)):
                    return True
                if isinstance(s, (ast.For, ast.While)):
                    if _exits([s], ast.Return):
                        return True
                    continue
                for field in ("body", "orelse", "finalbody"):
                    if free(getattr(s, field, []) if not isinstance(s, (ast.FunctionDef, ast.ClassDef)) else []):
                        return True
            return False
        return not free([*node.body, *node.orelse])

    def returning_if(self, node: ast.If, rest: list[ast.stmt]) -> list[ast.stmt]:
        """`if t: return x` and what follows, which becomes the end of both branches."""
        if _exits([node], ast.Break, ast.Continue):
            return [self.generic_visit(node), *self.block(rest)]  # type: ignore[list-item]
        import copy

        names = self._names([*node.body, *node.orelse, *rest])
        test = self.visit(node.test)
        then, other = self.block([*node.body, *copy.deepcopy(rest)]), self.block([*node.orelse, *rest])
        n, state, shown = self._state(names)
        functions = [self._function(f"__then{n}", _arguments(), names, then), self._function(f"__else{n}", _arguments(), names, other)]
        use = _call("if_return", test, ast.Name(f"__then{n}", ast.Load()), ast.Name(f"__else{n}", ast.Load()), *shown)
        return self._located([*state, *functions, ast.Return(use)], node)

    def visit_For(self, node: ast.For) -> Any:
        if node.orelse or _exits(node.body, ast.Break, ast.Continue, ast.Return):
            return self.generic_visit(node)
        names = self._names([ast.Assign([node.target], ast.Constant(0)), *node.body])
        around, body = self.visit(node.iter), self.block(node.body)
        n, state, shown = self._state(names)
        first = ast.copy_location(ast.Assign([node.target], ast.Name("__item", ast.Load())), node)
        function = self._function(f"__body{n}", _arguments("__item"), names, [first, *body])
        exposed = ast.Tuple([ast.Constant(x) for x in _exposed([ast.Assign([node.target], ast.Constant(0)), *node.body], names)], ast.Load())
        use = _call("for_" if self.top else "for_in_helper", around, ast.Name(f"__body{n}", ast.Load()), *shown, exposed)
        return self._located([*state, function, ast.Expr(use)], node)

    def visit_While(self, node: ast.While) -> Any:
        if node.orelse or _exits(node.body, ast.Break, ast.Continue, ast.Return):
            return self.generic_visit(node)
        names = self._names([ast.Expr(node.test), *node.body])
        test, body = self.visit(node.test), self.block(node.body)
        n, state, shown = self._state(names)
        function = self._function(f"__body{n}", _arguments(), names, body)
        use = _call("while_", _lambda(test), ast.Name(f"__body{n}", ast.Load()), *shown)
        return self._located([*state, function, ast.Expr(use)], node)


def _exposed(statements: list[ast.stmt], names: list[str]) -> list[str]:
    """Those of *names* that the statements may read before they have assigned them."""
    assigned: set[str] = set()
    found: dict[str, None] = {}

    def reads(node: ast.AST) -> None:
        for each in (node, *ast.walk(node)):
            if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load) and each.id in names and each.id not in assigned:
                found[each.id] = None

    def visit(statement: ast.stmt) -> None:
        if isinstance(statement, (ast.If, ast.For, ast.While)):  # nothing is sure to be assigned inside
            reads(statement)
        elif isinstance(statement, ast.With):
            for item in statement.items:
                reads(item.context_expr)
                if item.optional_vars is not None:
                    assigned.update(n.id for n in ast.walk(item.optional_vars) if isinstance(n, ast.Name))
            for each in statement.body:
                visit(each)
        elif isinstance(statement, ast.Assign):
            reads(statement.value)
            assigned.update(n.id for t in statement.targets for n in ast.walk(t) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
        elif isinstance(statement, ast.AugAssign):
            if isinstance(statement.target, ast.Name) and statement.target.id not in assigned:
                found[statement.target.id] = None
            reads(statement)
        else:
            reads(statement)

    for each in statements:
        visit(each)
    return [name for name in found if name in names]


# ---- functions --------------------------------------------------------------------------------------------------------


class _Helper:
    """What rewritten code calls: the tracer at work."""

    def __getattr__(self, name: str) -> Any:
        return getattr(current[-1], name)


_HELPER = _Helper()
_made: dict[Any, Any] = {}
stats = {"functions": 0, "seconds": 0.0}


def is_users(function: types.FunctionType) -> bool:
    """Whether a function is converted: not the library's, but of its schedules, and of no package."""
    file = os.path.abspath(function.__code__.co_filename)
    if file.startswith(_LIBRARY):
        return file.startswith(_SCHEDULES)
    return not file.startswith(_FOREIGN) and "site-packages" not in file and os.path.exists(file)


def converted(function: Any, top: bool = False) -> Any:
    """The function with traced control flow, or itself if it has no source. top: whether it is the body of a role, in which a
    loop over a known range is a loop of the kernel, as CuTe DSL has it; elsewhere it is Python's."""
    if isinstance(function, types.MethodType):
        return types.MethodType(converted(function.__func__, top), function.__self__)
    function = inspect.unwrap(function)
    code = function.__code__
    if code.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE) or code.co_name == "<lambda>" and False:
        return function
    made = _made.get((code, top))
    if made is None:
        import time

        began = time.perf_counter()
        made = _made[code, top] = _rewritten(function, top)
        stats["functions"] += 1
        stats["seconds"] += time.perf_counter() - began
    if made is False:
        return function
    cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
    cells[HELPER] = types.CellType(_HELPER)
    new = types.FunctionType(made, function.__globals__, function.__name__, function.__defaults__, tuple(cells[name] for name in made.co_freevars))
    new.__kwdefaults__ = function.__kwdefaults__
    return new


def _rewritten(function: Any, top: bool) -> Any:
    code = function.__code__
    try:
        lines, first = inspect.getsourcelines(function)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError):
        return False
    ast.increment_lineno(tree, first - 1)
    node = tree.body[0]
    if code.co_name == "<lambda>" or not isinstance(node, ast.FunctionDef):
        lambdas = [n for n in ast.walk(tree) if isinstance(n, ast.Lambda)]
        if len(lambdas) != 1:
            return False
        node = ast.copy_location(ast.FunctionDef("lambda_", lambdas[0].args, [ast.copy_location(ast.Return(lambdas[0].body), lambdas[0])], [], None, type_params=[]), lambdas[0])
    node.decorator_list, node.returns = [], None
    for each in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs, node.args.vararg, node.args.kwarg):
        if each is not None:
            each.annotation = None
    outside: set[str] = set()
    for each in _own(node):
        if isinstance(each, (ast.Nonlocal, ast.Global)):
            where = f"{code.co_filename}:{each.lineno}"
            text = f"{where}: `{', '.join(each.names)}` of a body is set outside of it. A body is traced once and keeps no state. Use local names."
            raise ScopeError(text)
    rewriter = _Rewriter(node, outside, top)
    node.body = rewriter.block(node.body)
    undefined = [
        ast.Assign([ast.Name(name, ast.Store())], _call("undefined", ast.Constant(name)))
        for name in rewriter.carried if name not in rewriter.parameters
    ]
    for each in undefined:
        ast.copy_location(each, node)
    node.body[:0] = undefined
    node.args.defaults = [ast.Constant(None) for _ in node.args.defaults]
    node.args.kw_defaults = [None if d is None else ast.Constant(None) for d in node.args.kw_defaults]
    outer = ast.FunctionDef("__outer", _arguments(HELPER, *code.co_freevars), [node], [], None, type_params=[])
    module = ast.Module([outer], [])
    for each in ast.walk(module):
        if isinstance(each, (ast.stmt, ast.expr)) and not hasattr(each, "lineno"):
            ast.copy_location(each, node)
    ast.fix_missing_locations(module)
    compiled = compile(module, code.co_filename, "exec")
    return _inner(compiled, node.name)


def _inner(code: types.CodeType, name: str) -> types.CodeType:
    outer = next(each for each in code.co_consts if isinstance(each, types.CodeType))
    return next(each for each in outer.co_consts if isinstance(each, types.CodeType) and each.co_name == name)
