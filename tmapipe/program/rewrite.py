"""Rewriting: the syntax tree of a function becomes one whose control flow, calls and stores are those of the tracer."""

from __future__ import annotations
import __future__

import ast
import functools
import inspect
import threading
import types
from typing import Any, NoReturn

from tmapipe.errors import SYNTAX, ScopeError
from tmapipe.program.expressions import at_work
from tmapipe.program.names import Liveness, declared, is_users_file, nodes_in, own_nodes, reads, stored, syntax_of
from tmapipe.program.rewrite_expressions import (
    AFTER_RETURN,
    RETURNED,
    TP,
    VALUE,
    Exits,
    Expressions,
    call,
    load,
    located,
)

# ---- rewrite ---------------------------------------------------------------------------------------------------------
#
# Statements stay where they are, in their function and at their lines. A branch becomes a loop over the arms that are taken:
# one arm where Python knows the condition, else both. A loop becomes a loop over its iterations, or over one that stands for
# all::
#
# if test: A                          <if 1> = <tp>.if_(test, names, live, (a, b))
# else: B                     ->      for <arm 1> in <if 1>:
#                                         (a, b) = <if 1>.state
#                                         if <arm 1>: A
#                                         else: B
#                                         <if 1>.end((a, b))
#                                     (a, b) = <if 1>.state
#
# where a and b are the names that A or B assigns and that are read later. Operands that Python may skip are evaluated in
# place, too: ``x and y`` -> ``<tp>.joined(<tp>.second(y) if <tp>.first("and", x) else None)``.
#
# Functions and lambdas inside are rewritten when they are called; classes inside are Python's.


HOME = "<home>"  #: the block of code in which the function was made


def _of(name: str, attribute: str, *arguments: ast.expr) -> ast.expr:
    """``name.attribute``, or a call of it."""
    return ast.Attribute(load(name), attribute, ast.Load())


def _tuple(names: list[str], context: type[ast.Load] | type[ast.Store]) -> ast.Tuple:
    return ast.Tuple([ast.Name(name, context()) for name in names], context())


def _constants(values: Any) -> ast.Tuple:
    return ast.Tuple([ast.Constant(value) for value in values], ast.Load())


class Rewriter(Expressions):
    """Rewrites one function. top: whether it is the body of a role, in which a loop over a known range is a loop, too."""

    def __init__(self, function: ast.FunctionDef, top: bool, refuse: Any):
        self.top, self.refuse = top, refuse
        exits = Exits(refuse)
        parameters = function.args
        every = (*parameters.posonlyargs, *parameters.args, *parameters.kwonlyargs, parameters.vararg, parameters.kwarg)
        self.parameters = [a.arg for a in every if a is not None]
        self.globals, self.nonlocals = declared(function, ast.Global), declared(function, ast.Nonlocal)
        statements = exits.function(function.body)
        self.stops = exits.stops
        self.live = Liveness(function, statements)
        outside = self.globals | self.nonlocals
        #: by branch or loop: the names that it carries
        self.names: dict[ast.AST, list[str]] = {}
        for node in own_nodes(ast.Module(statements, [])):
            if isinstance(node, (ast.If, ast.For, ast.While)):
                live = self.live
                needed = live.after[node].union(live.other.get(node, ()), live.heads.get(node, ())) - outside
                first = [] if isinstance(node, ast.If) else [node.target if isinstance(node, ast.For) else node.test]
                self.names[node] = [n for n in stored([*first, *node.body, *node.orelse]) if n in needed]
        #: names that may have no value where a block begins
        self.carried = {n for names in self.names.values() for n in names}
        self.unset = [n for n in sorted(self.carried) if n not in self.parameters and n not in (RETURNED, VALUE)]
        self.count = 0
        self.finals: list[frozenset[str]] = []  # names that each `finally` around reads
        function.body = self.block(statements)
        unset = [ast.Assign([ast.Name(n, ast.Store())], call("unset", ast.Constant(n))) for n in self.unset]
        function.body[:0] = [located(each, function.body[0]) for each in unset]

    # ---- statements -----------------------------------------------------------------------------------------------

    def block(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        made: list[ast.stmt] = []
        for statement in statements:
            checks = self._of_outer_names(statement)
            visited = self.visit(statement)
            made += [*checks, *(visited if isinstance(visited, list) else [visited])]
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

    def _number(self, word: str) -> str:
        self.count += 1
        return f"<{word} {self.count}>"

    def _of_outer_names(self, s: ast.stmt) -> list[ast.stmt]:
        """Checks before a statement that assigns what its function declares global or nonlocal."""
        simple: list[ast.AST] = [s] if self.globals or self.nonlocals else []
        if isinstance(s, ast.For):
            simple = [s.target]
        elif isinstance(s, ast.With):
            simple = [i.optional_vars for i in s.items if i.optional_vars is not None]
        elif isinstance(s, (ast.If, ast.While, ast.Try, ast.FunctionDef)):
            simple = []
        made = []
        for name in stored(simple):
            if name in self.globals:
                made.append(ast.Expr(call("stores_global", ast.Constant(name))))
            elif name in self.nonlocals:
                made.append(ast.Expr(call("stores_nonlocal", ast.Constant(name), load(HOME))))
        return [located(each, s) for each in made]

    def _yields(self, node: ast.AST) -> bool:
        return any(isinstance(each, (ast.Yield, ast.YieldFrom, ast.Await)) for each in own_nodes(node))

    def visit_If(self, node: ast.If) -> Any:
        names = self.names[node]
        kept = self.live.always.union(*self.finals)  # read even if the function has been left
        live = [AFTER_RETURN if n in kept else n in self.live.after[node] for n in names]
        test = self.test(node.test)
        arms, arm = self._number("if"), self._number("arm")
        yields = ast.Constant(self._yields(node))
        begin = call("if_", test, _constants(names), _constants(live), _tuple(names, ast.Load), yields)
        inside = ast.If(load(arm), self.block(node.body), self.block(node.orelse))
        return self._loop_of(node, arms, arm, begin, names, [inside])

    def _loop_of(
        self, node: ast.stmt, blocks: str, item: str, begin: ast.expr, names: list[str], inside: list[ast.stmt]
    ) -> Any:
        before, after = ([ast.Assign([_tuple(names, ast.Store)], _of(blocks, "state"))] * bool(names) for _ in range(2))
        end = ast.Expr(ast.Call(_of(blocks, "end"), [_tuple(names, ast.Load)], []))
        loop = ast.For(ast.Name(item, ast.Store()), load(blocks), [*before, *inside, end], [])
        return [located(each, node) for each in (ast.Assign([ast.Name(blocks, ast.Store())], begin), loop, *after)]

    def _of_loop(self, node: ast.For | ast.While) -> tuple[list[str], list[ast.expr]]:
        names = self.names[node]
        heads = [n in self.live.heads[node] for n in names]
        live = [n in self.live.after[node] for n in names]
        stops = self.stops.get(node, ())
        constants = _constants(names), _constants(heads), _constants(live)
        return names, [*constants, _tuple(names, ast.Load), _constants(stops), ast.Constant(self._yields(node))]

    def visit_For(self, node: ast.For) -> Any:
        names, shown = self._of_loop(node)
        method = "for_" if self.top else "for_helper"
        around = self.visit(node.iter)
        loop, item = self._number("loop"), self._number("item")
        checks = self._of_outer_names(node)
        first = [*checks, located(ast.Assign([self.visit(node.target)], load(item)), node)]
        inside = [*first, *self.block(node.body)]
        return self._loop_of(node, loop, item, call(method, around, *shown), names, inside)

    def visit_While(self, node: ast.While) -> Any:
        names, shown = self._of_loop(node)
        loop, turn = self._number("loop"), self._number("turn")
        enters = ast.Call(_of(loop, "enters"), [self.test(node.test)], [])
        test = ast.IfExp(_of(loop, "tests"), enters, ast.Constant(True))
        inside: list[ast.stmt] = [ast.If(test, self.block(node.body), [])]
        return self._loop_of(node, loop, turn, call("while_", *shown), names, inside)

    def visit_With(self, node: ast.With) -> Any:
        level = self._number("level")
        for item in node.items:
            item.context_expr = located(call("entering", self.visit(item.context_expr)), item.context_expr)
            if item.optional_vars is not None:
                item.optional_vars = self.visit(item.optional_vars)
        node.body = self.block(node.body)
        before = ast.Assign([ast.Name(level, ast.Store())], call("level"))
        return [located(before, node), node, located(ast.Expr(call("left", load(level))), node)]

    def visit_Try(self, node: ast.Try) -> Any:
        level = self._number("level")
        risky = any(_may_catch_division(h) for h in node.handlers)
        self.risky += risky
        self.finals.append(frozenset().union(*map(reads, node.finalbody)))
        node.body = self.block(node.body)
        self.risky -= risky
        for handler in node.handlers:
            if handler.type is not None:
                handler.type = self.visit(handler.type)
            name, body = handler.name, self.block(handler.body)
            if name is not None and name in self.carried:
                handler.name = self._number("error")
                body = [ast.Assign([ast.Name(name, ast.Store())], load(handler.name)), *body,
                        ast.Assign([ast.Name(name, ast.Store())], call("unset", ast.Constant(name)))]  # fmt: skip
            handler.body = [located(s, handler) for s in (ast.Expr(call("caught", load(level))), *body)]
        node.orelse = self.block(node.orelse)
        self.finals.pop()
        node.finalbody = self.block(node.finalbody)
        return [located(ast.Assign([ast.Name(level, ast.Store())], call("level")), node), node]

    def visit_Match(self, node: ast.Match) -> Any:
        node.subject = located(call("subject", self.visit(node.subject)), node.subject)
        for case in node.cases:
            if case.guard is not None:
                guard = call("known", self.test(case.guard), ast.Constant("a guard of `match`"))
                case.guard = located(guard, case.guard)
            case.body = self.block(case.body)
        return node

    def visit_Raise(self, node: ast.Raise) -> Any:
        self.generic_visit(node)
        return [located(ast.Expr(call("raises")), node), node]

    def visit_Assert(self, node: ast.Assert) -> Any:
        node.test = located(call("known", self.test(node.test), ast.Constant("an assertion")), node.test)
        if node.msg is not None:
            node.msg = self.visit(node.msg)
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        if node.value is None:
            return []
        return self.visit_Assign(located(ast.Assign([node.target], node.value), node))

    def visit_Assign(self, node: ast.Assign) -> Any:
        node.value = self.visit(node.value)
        node.targets = [self.visit(each) for each in node.targets]
        return node

    def visit_AugAssign(self, node: ast.AugAssign) -> Any:
        if isinstance(node.target, ast.Name):
            before = self.visit(located(load(node.target.id), node.target))
            other = self._divisor(node.op, self.visit(node.value))
            value = call("inplace", ast.Constant(type(node.op).__name__), before, other)
            return located(ast.Assign([node.target], value), node)
        node.value, node.target = self._divisor(node.op, self.visit(node.value)), self.visit(node.target)
        return node

    def visit_Delete(self, node: ast.Delete) -> Any:
        made: list[ast.stmt] = []
        for target in node.targets:
            if isinstance(target, ast.Name) and target.id in self.carried:
                value = call("deleted", ast.Constant(target.id), load(target.id))
                made.append(ast.Assign([ast.Name(target.id, ast.Store())], value))
            else:
                made.append(ast.Delete([self.visit(target)]))
        return [located(each, node) for each in made]

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        decorators = [(self._number("decorator"), self.visit(each)) for each in node.decorator_list]
        node.decorator_list = []
        node.args.defaults = [self.visit(each) for each in node.args.defaults]
        node.args.kw_defaults = [each and self.visit(each) for each in node.args.kw_defaults]
        made = call("made", load(node.name))
        for name, _ in reversed(decorators):
            made = call("call", load(name), made)
        before = [ast.Assign([ast.Name(name, ast.Store())], each) for name, each in decorators]
        after = ast.Assign([ast.Name(node.name, ast.Store())], made)
        return [located(each, node) for each in (*before, node, after)]

    def visit_Lambda(self, node: ast.Lambda) -> Any:
        node.args.defaults = [self.visit(each) for each in node.args.defaults]
        node.args.kw_defaults = [each and self.visit(each) for each in node.args.kw_defaults]
        return located(call("made", node), node)

    def visit_AsyncFunctionDef(self, node: Any) -> Any:
        return node

    visit_ClassDef = visit_AsyncFunctionDef


def _may_catch_division(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    names = {n.id for n in ast.walk(handler.type) if isinstance(n, ast.Name)}
    return bool(names & {"ZeroDivisionError", "ArithmeticError", "Exception", "BaseException"})


# ---- convert ---------------------------------------------------------------------------------------------------------
#
# Which functions are rewritten, and how a function is made of the rewritten syntax tree.
#
# Rewritten are the user's functions, and those of `tmapipe.schedules`, when a body calls them: methods, closures, lambdas,
# functions of other modules, and functions of the installed package in which a schedule is written. Python's own functions,
# those of other packages and of this library, functions without source, and coroutines run as they are: once, while the body
# is traced. They get numbers that only the kernel knows as objects with arithmetic, and cannot decide by them.


_OUTER = "<outer>"
_FUTURE = __future__.annotations.compiler_flag
_COROUTINES = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


class _Current(threading.local):
    tracer: Any = None


_current = _Current()


def current() -> Any:
    """The tracer at work in this thread. Raises `ScopeError` if there is none."""
    if _current.tracer is None:
        raise ScopeError("a function that a body has made is called after the body was traced. Make it outside.")
    return _current.tracer


class tracing:
    """The scope in which a tracer is at work, in this thread."""

    def __init__(self, tracer: Any):
        self.tracer = tracer

    def __enter__(self) -> Any:
        self.before, _current.tracer = (_current.tracer, at_work.note), self.tracer
        at_work.note = self.tracer.computed
        return self.tracer

    def __exit__(self, *_: Any) -> None:
        _current.tracer, at_work.note = self.before


class _Helper:
    """What rewritten code calls `<tp>`: the tracer at work."""

    def __getattr__(self, name: str) -> Any:
        return getattr(current(), name)


_HELPER = types.CellType(_Helper())


def is_users(function: Any) -> bool:
    """Whether *function* is one that is rewritten, if it has source."""
    return isinstance(function, types.FunctionType) and is_users_file(function.__code__.co_filename)


def converted(function: types.FunctionType, top: bool = False, home: Any = None) -> types.FunctionType:
    """The function with traced control flow, or itself if it has no source.

    Args:
        function: The user's.
        top: Whether it is the body of a role, in which a loop over a known range is a loop of the program. Elsewhere it is
            Python's, and unrolled.
        home: The block of code in which the function was made, if a body has made it.

    Raises:
        ScopeError: It does what can't be traced, at the line that the error names.
    """
    with SYNTAX:
        code = _rewritten(function.__code__, function.__code__.co_filename, top, _Function(function))
    if code is None:
        return function
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    cells[TP], cells[HOME] = _HELPER, types.CellType(home)
    closure = tuple(cells[name] for name in code.co_freevars)
    made = types.FunctionType(code, function.__globals__, function.__name__, function.__defaults__, closure)
    made.__kwdefaults__, made.__dict__ = function.__kwdefaults__, function.__dict__
    made.__qualname__, made.__module__ = function.__qualname__, function.__module__
    return made


class _Function:
    """A function beside its code as an argument of a cache, whose key is the code alone."""

    def __init__(self, function: types.FunctionType):
        self.function = function

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Function)

    def __hash__(self) -> int:
        return 0


@functools.lru_cache(maxsize=4096)
def _rewritten(code: types.CodeType, file: str, top: bool, given: _Function) -> types.CodeType | None:
    """The code of *file* with traced control flow: equal code of two files is equal."""
    if code.co_flags & _COROUTINES:
        return None
    syntax = syntax_of(given.function)
    if syntax is None:
        return None
    node, around = syntax

    def refuse(at: ast.AST, what: str) -> NoReturn:
        raise ScopeError(f"{what} can't be traced, at {code.co_filename}:{getattr(at, 'lineno', code.co_firstlineno)}.")

    Rewriter(node, top, refuse)
    inner: ast.stmt = node
    if around is not None:  # names that begin with two underscores are those of the class
        inner = ast.ClassDef(around, [], [], [node], [])
    names = [TP, HOME, *(n for n in code.co_freevars if n != "__class__")]
    body: list[ast.stmt] = [inner]
    own = node.name if around is None else around
    if own not in names:  # a function or class of a module, which the function may name
        body.insert(0, ast.Global([own]))
    if "__class__" in code.co_freevars and around is None:
        names.append("__class__")
    arguments = ast.arguments([], [ast.arg(n) for n in names], None, [], [], None, [])
    module = ast.Module([ast.FunctionDef(_OUTER, arguments, body, [], None)], [])
    for each in nodes_in(module):
        if isinstance(each, (ast.FunctionDef, ast.ClassDef)) and not hasattr(each, "type_params"):
            setattr(each, "type_params", [])  # noqa: B010 - Python 3.12's
        if "lineno" in each._attributes and not hasattr(each, "lineno"):
            ast.copy_location(each, node)
    try:
        compiled = compile(module, code.co_filename, "exec", dont_inherit=True, flags=code.co_flags & _FUTURE)
    except SyntaxError as error:
        if "nested" not in str(error):
            raise
        refuse(node, f"{code.co_name}(), whose branches and loops are nested too deeply,")
    return _code_of(compiled, node.name)


def _code_of(code: types.CodeType, name: str) -> types.CodeType:
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            return each if each.co_name == name else _code_of(each, name)
    raise AssertionError(name)
