"""The source of a function: its syntax tree, the names that it assigns and reads, and whether its file is the user's."""

from __future__ import annotations

import ast
import dis
import functools
import linecache
import os
import sys
import sysconfig
import types
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from typing import Any

import tmapipe
from tmapipe.model.layout import LIBRARY, SCHEDULES

# ---- names -----------------------------------------------------------------------------------------------------------
#
# Names that statements assign and read, and names that are live: a block carries these alone.


SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_NAMED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.ExceptHandler, ast.MatchAs, ast.MatchStar)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)

Names = frozenset[str]


def children(node: ast.AST) -> list[ast.AST]:
    """The nodes directly inside *node*, in order, but for those that say whether a name is read or assigned."""
    nodes: list[ast.AST] = []
    kind: Any = type(node)
    inside = vars(node)
    for field in _fields(kind):
        value = inside.get(field)
        if isinstance(value, ast.AST):
            nodes.append(value)
        elif type(value) is list:
            nodes += [each for each in value if isinstance(each, ast.AST)]
    return nodes


@functools.cache
def _fields(kind: Any) -> list[str]:
    return [field for field in kind._fields if field != "ctx"]


def nodes_in(node: ast.AST) -> list[ast.AST]:
    """*node* and all nodes inside, as of `children`, outer ones first."""
    found = [node]
    for each in found:  # which grows
        found += children(each)
    return found


def copied(node: Any) -> Any:
    """A copy of a syntax tree, a third of what `copy.deepcopy` takes. What says whether a name is read is shared."""
    if type(node) is list:
        return [copied(each) for each in node]
    if not isinstance(node, ast.AST) or isinstance(node, ast.expr_context):
        return node
    made = type(node).__new__(type(node))
    inside = vars(node).items()
    vars(made).update([(k, copied(x) if isinstance(x, (list, ast.AST)) else x) for k, x in inside])
    return made


def own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes inside *node* that its function executes itself. Of functions and classes that it defines, these are the
    decorators, defaults and bases."""
    pending = children(node)[::-1]
    while pending:
        each = pending.pop()
        yield each
        pending += (_executed(each) if isinstance(each, SCOPES) else children(each))[::-1]


def _executed(node: Any) -> list[ast.AST]:
    """The decorators, defaults and bases of a function or class."""
    if isinstance(node, ast.ClassDef):
        return [*node.decorator_list, *node.bases, *(k.value for k in node.keywords)]
    decorators = [] if isinstance(node, ast.Lambda) else node.decorator_list
    return [*decorators, *node.args.defaults, *filter(None, node.args.kw_defaults)]


def stored(statements: Iterable[ast.AST]) -> list[str]:
    """Names that the statements assign or delete, in order; also names that functions defined there assign as nonlocal."""
    names: dict[str, None] = {}
    for statement in statements:
        _note_stored(statement, names)
    return list(names)


def _note_stored(node: ast.AST, names: dict[str, None]) -> None:
    if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
        names[node.id] = None
    elif isinstance(node, _NAMED) and node.name:
        names[node.name] = None
    elif isinstance(node, (ast.Import, ast.ImportFrom)):
        names.update(dict.fromkeys((alias.asname or alias.name).split(".")[0] for alias in node.names))
    elif isinstance(node, ast.MatchMapping) and node.rest:
        names[node.rest] = None
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
        names.update(dict.fromkeys(n for each in ast.walk(node) if isinstance(each, ast.Nonlocal) for n in each.names))
        return
    if isinstance(node, ast.ClassDef):
        return
    if isinstance(node, COMPREHENSIONS):  # its targets are its own; a walrus in it is the function's
        for each in ast.walk(node):
            if isinstance(each, ast.NamedExpr) and isinstance(each.target, ast.Name):
                names[each.target.id] = None
        return
    for child in children(node):
        _note_stored(child, names)


def reads(node: ast.AST) -> Names:
    """Names that *node* may read, in functions that it defines, too."""
    names = set()
    for each in nodes_in(node):
        if isinstance(each, ast.Name) and not isinstance(each.ctx, ast.Store):
            names.add(each.id)
        elif isinstance(each, ast.AugAssign) and isinstance(each.target, ast.Name):
            names.add(each.target.id)
    return frozenset(names)


def captured(function: ast.AST) -> Names:
    """Names that are read in functions, classes and generators inside *function*: at any time."""
    names: set[str] = set()
    for node in nodes_in(function):
        if node is not function and isinstance(node, (*SCOPES, ast.GeneratorExp)):
            names |= reads(node)
            names.update(n for each in nodes_in(node) if isinstance(each, ast.Nonlocal) for n in each.names)
    return frozenset(names)


def declared(function: ast.AST, kind: type[ast.Global | ast.Nonlocal]) -> Names:
    """Names that *function* itself declares global or nonlocal."""
    return frozenset(n for each in own_nodes(function) if isinstance(each, kind) for n in each.names)


class Liveness:
    """Which names are live after, and at the beginning of, the statements of a function without early exits.

    A name is live where some path may read it before it is assigned again. after: by statement, the names that are live after
    it; other: by `if`, the names that are live where its second branch begins; heads: by loop, the names that are live where
    an iteration begins; always: the names that functions inside read, at any time.
    """

    def __init__(self, function: ast.AST, statements: list[ast.stmt]):
        self.always = captured(function)
        self.after: dict[ast.AST, Names] = {}
        self.other: dict[ast.AST, Names] = {}
        self.heads: dict[ast.AST, Names] = {}
        self._block(statements, frozenset())

    def _block(self, statements: list[ast.stmt], after: Names) -> Names:
        for statement in reversed(statements):
            after = self._statement(statement, after)
        return after

    def _statement(self, s: ast.stmt, after: Names) -> Names:
        self.after[s] = after | self.always
        if isinstance(s, ast.If):
            then, other = self._block(s.body, after), self._block(s.orelse, after)
            self.other[s] = other | self.always
            return reads(s.test) | then | other
        if isinstance(s, (ast.For, ast.AsyncFor)):
            return reads(s.iter) | self._loop(s, [*_targets(s.target)], frozenset(), after)
        if isinstance(s, ast.While):
            return self._loop(s, [], reads(s.test), after)
        if isinstance(s, (ast.With, ast.AsyncWith)):
            live = self._block(s.body, after)
            for item in reversed(s.items):
                if item.optional_vars is not None:
                    live = (live - set(_targets(item.optional_vars))) | reads(item.optional_vars)
                live = live | reads(item.context_expr)
            return live
        if isinstance(s, ast.Try) or type(s).__name__ == "TryStar":
            # an exception may leave the body at any place: what follows any of them is live in all of it
            assert isinstance(s, ast.Try)
            last = self._block(s.finalbody, after)
            handlers = frozenset[str]().union(*(self._block(h.body, last) | reads(h) for h in s.handlers))
            around = last | handlers | reads(ast.Module(s.finalbody, []))
            els = self._block(s.orelse, last) | around
            self._block(s.body, els)
            return reads(s) | els | after
        if isinstance(s, ast.Match):
            live = after | reads(s.subject)
            for case in s.cases:
                live |= reads(case.pattern) | (reads(case.guard) if case.guard else frozenset())
                live |= self._block(case.body, after)
            return live
        if isinstance(s, ast.Assign):
            kept = after - {n for target in s.targets for n in _targets(target)}
            return kept | reads(s.value) | frozenset[str]().union(*map(reads, s.targets))
        if isinstance(s, ast.AnnAssign) and s.value is not None:
            return (after - set(_targets(s.target))) | reads(s.value) | reads(s.target)
        if isinstance(s, ast.AugAssign):
            return after | reads(s) | set(_targets(s.target))
        if isinstance(s, (ast.Return, ast.Raise)):
            return reads(s)
        return after | reads(s)

    def _loop(self, s: ast.For | ast.AsyncFor | ast.While, targets: list[str], test: Names, after: Names) -> Names:
        head = after | test
        while True:
            inside = self._block(s.body, head)
            live = (
                head | (inside - set(targets)) | reads(s.target if isinstance(s, (ast.For, ast.AsyncFor)) else s.test)
            )
            if live == head:
                break
            head = live
        # live where the body begins; what is live only after the loop is in `after`
        self.heads[s] = (inside - set(targets)) | test | self.always
        return head | after


def _targets(target: ast.expr) -> Iterator[str]:
    """Names that an assignment to *target* gives a value to."""
    if isinstance(target, ast.Name):
        yield target.id
    elif isinstance(target, (ast.Tuple, ast.List)):
        for each in target.elts:
            yield from _targets(each)
    elif isinstance(target, ast.Starred):
        yield from _targets(target.value)


# ---- source ----------------------------------------------------------------------------------------------------------
#
# The syntax tree of a function, found by its code in a file that `linecache` knows: also text that was executed, if its lines
# were given to `linecache`.


def syntax_of(function: types.FunctionType) -> tuple[ast.FunctionDef, str | None] | None:
    """A copy of the function's syntax tree, without decorators and annotations, and the name of the class around it. None if
    there is no source, or if several functions of its line may be it. A lambda becomes a function that returns."""
    code = function.__code__
    lines = linecache.getlines(code.co_filename, function.__globals__)
    functions = _functions("".join(lines)).get((code.co_firstlineno, code.co_name), ())
    alike = [each for each in functions if len(functions) == 1 or _is_code_of(each[0], code)]
    if not alike:
        return None
    node, around = alike[0]
    if isinstance(node, ast.Lambda):
        if not _is_code_of(node, code):
            return None
        returned = ast.copy_location(ast.Return(copied(node.body)), node.body)
        made = _definition("<lambda>", copied(node.args), [returned])
        ast.copy_location(made, node)
    else:
        made = copied(node)
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
    functions: dict[tuple[int, str], list[tuple[Any, str | None]]] = {}

    def visit(node: ast.AST, around: str | None) -> None:
        for child in children(node):
            if isinstance(child, (ast.FunctionDef, ast.Lambda)):
                name = child.name if isinstance(child, ast.FunctionDef) else "<lambda>"
                lines = {child.lineno, *(each.lineno for each in getattr(child, "decorator_list", ()))}
                for line in lines:
                    functions.setdefault((line, name), []).append((child, around))
            visit(child, child.name if isinstance(child, ast.ClassDef) else around)

    try:
        visit(ast.parse(text), None)
    except (SyntaxError, ValueError):
        return {}
    return functions


def _is_code_of(node: Any, code: types.CodeType) -> bool:
    """Whether *code* is the code of this syntax tree, compiled again with the same names around it."""
    inner: Any = copied(node)
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
    """A key that tells constants apart that are equal: -0.0 and 0.0, True and 1."""
    if isinstance(value, types.CodeType):
        return _key(value)
    if isinstance(value, tuple):
        return tuple(map(_constant, value))
    return type(value), repr(value) if isinstance(value, (float, complex)) else value


# ---- files -----------------------------------------------------------------------------------------------------------
#
# Files of which functions are rewritten: the user's, and those of installed packages that have schedules.

#: Packages that bodies may call, wherever they are installed: `pip install --target` puts them into any folder.
_CALLED = ("cutlass", "numpy", "torch")
_PLACES = list(map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib")))
for _name in _CALLED:
    _PLACES += getattr(find_spec(_name), "submodule_search_locations", None) or ()
_PACKAGES = tuple({os.path.join(os.path.abspath(each), "") for each in _PLACES})
_homes: set[str] = set()  # folders of installed packages that have schedules, and such modules


def note_home(schedule: type) -> None:
    """Lets functions be rewritten of packages in which a schedule or a base of it is written, wherever they are installed."""
    root = next((kind for kind in schedule.__mro__ if kind.__module__ == "tmapipe.schedule"), object)
    for kind in schedule.__mro__[: schedule.__mro__.index(root)]:
        if issubclass(kind, root):
            _note_module(kind.__module__)


def note_home_of(function: Any) -> None:
    """As `note_home`, of the package in which a function that a body calls is written."""
    while isinstance(function, functools.partial):
        function = function.func
    _note_module(getattr(function, "__module__", None) or type(function).__module__)


def _note_module(module: Any) -> None:
    name = str(module).partition(".")[0]
    top = sys.modules.get(name)
    if top is None or top is tmapipe or name in _CALLED or name in sys.stdlib_module_names:
        return
    folders = [os.path.join(os.path.abspath(each), "") for each in getattr(top, "__path__", ())]
    files = [os.path.abspath(str(top.__file__))] if getattr(top, "__file__", None) and not folders else []
    if not _homes.issuperset((*folders, *files)):
        _homes.update((*folders, *files))
        is_users_file.cache_clear()


@functools.lru_cache(maxsize=4096)
def is_users_file(file: str) -> bool:
    """Whether functions of a file of this name are rewritten."""
    path = os.path.abspath(file)
    if path.startswith(LIBRARY):
        return path.startswith(SCHEDULES)
    if path.startswith(tuple(_homes)):
        return True
    return not path.startswith(_PACKAGES) and "site-packages" not in path and not file.startswith("<frozen")


# ---- code ------------------------------------------------------------------------------------------------------------


class NotCanonical(Exception):
    """A value has no canonical bytes; in words, which."""


def named_by(code: types.CodeType, package: str) -> Iterator[tuple[Any, frozenset[str]]]:
    """The globals, and as (module,) the imports, that a code and the functions inside name; each with the names of attributes
    in the code."""
    attributes, seen = frozenset(attributes_of(code)), set()
    for each in _codes(code):
        before: list[Any] = [None, None]
        for step in dis.get_instructions(each):
            if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                named: Any = step.argval
            elif step.opname == "IMPORT_NAME":
                if any(type(value) is int and value for value in before):
                    raise NotCanonical(f"an import of {step.argval} in {package}")
                named = (step.argval,)
            else:
                named = None
            before = [before[1], step.argval]
            if named is not None and named not in seen:
                seen.add(named)
                yield named, attributes


def attributes_of(code: types.CodeType) -> Iterator[str]:
    for each in _codes(code):
        yield from each.co_names


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            yield from _codes(each)
