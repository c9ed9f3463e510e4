"""A function traced with symbols, and its trace read with numbers: what the tests of the front end compare with CPython."""

import ast
import inspect
import itertools
import textwrap
import weakref
from typing import Any
from unittest.mock import Mock

from tmapipe.isa.fragment import Carried
from tmapipe.model.layout import line_of_errors, locate
from tmapipe.program.control import Cells, Tracing
from tmapipe.program.expressions import FOLD, Call, Expr, For, If, Let, Var, While, resolve, symbolic
from tmapipe.program.rewrite import tracing


def without_statements(cls: type) -> set[str]:
    """Methods of a class, its own or inherited, of which there is a docstring alone: another class has to have them."""
    found = set()
    for name, method in inspect.getmembers(cls, inspect.isfunction):
        if method.__module__.startswith("tmapipe.isa") and not method.__code__.co_names and method.__doc__:
            (function,) = ast.parse(textwrap.dedent(inspect.getsource(method))).body
            if isinstance(function, ast.FunctionDef) and len(function.body) == 1:
                found.add(name)
    return found


class Device(Carried):
    """What a function under test acts on: `act` is an operation, `read` answers, `count` is a cell."""

    def __init__(self, tracer: Tracing):
        self.tracer = tracer
        self.cells = Cells(tracer, ["count"], [0])
        tracer.cells.append(weakref.ref(self.cells))
        for name in ("act", "read", "count"):  # as functions of the library, which are not rewritten
            setattr(self, name, Mock(side_effect=getattr(self, f"_{name}")))

    def _act(self, *values: Any) -> None:
        self.tracer.nodes.append(Call("act", values, {}, [], [], locate()))

    def _read(self, i: Any) -> Any:
        found = self.tracer.var("word")
        self.tracer.nodes.append(Call("read", (i,), {}, [found], [], locate()))
        return found

    def _count(self) -> Any:
        self.cells[0] = self.cells[0] + 1
        return self.cells[0]


class Plain:
    """The same, in CPython."""

    def __init__(self, table: list[int]):
        self.table, self.log, self.counted = table, [], 0

    def act(self, *values: Any) -> None:
        self.log.append(("act", numbers(values, {})))

    def read(self, i: Any) -> int:
        self.log.append(("read", i))
        return self.table[i]

    def count(self) -> int:
        self.counted += 1
        return self.counted


class Program:
    """A traced function of k and of so many numbers."""

    def __init__(self, function: Any, count: int, body: bool = False, constants: Any = ()):
        self.tracer = tracer = Tracing()
        self.symbols = [Expr.of("symbol", f"n{i}") for i in range(count)]
        k = Device(tracer)
        with tracing(tracer), line_of_errors():
            tracer.open(None)
            self.result = tracer.user(function, top=body)(k, *self.symbols, *constants)
            self.nodes = tracer.close()

    def run(self, values: Any, table: list[int]) -> tuple[Any, list[Any]]:
        """(what it returns, its operations)."""
        reader = _Reader(dict(zip(self.symbols, values, strict=True)), table)
        reader.nodes(self.nodes)
        return numbers(self.result, reader.env), reader.log


def evaluate(value: Any, env: dict[Any, Any]) -> Any:
    """The number that an expression is."""
    value = resolve(value)
    if not isinstance(value, Expr):
        return value
    if isinstance(value, Var) or value.op == "symbol":
        return env[value]
    if value.op == "divisor":
        return evaluate(value.args[1], env)
    if value.op == "select":  # lazily: the other side may have no value
        return evaluate(value.args[1] if evaluate(value.args[0], env) else value.args[2], env)
    return FOLD[value.op](*(evaluate(a, env) for a in value.args))


def numbers(value: Any, env: Any) -> Any:
    value = resolve(value)
    if symbolic(value):
        return evaluate(value, env)
    if isinstance(value, tuple):
        return tuple(numbers(v, env) for v in value)
    if isinstance(value, list):
        return [numbers(v, env) for v in value]
    return value


class _Reader:
    def __init__(self, env: Any, table: list[int]):
        self.env, self.table, self.log = env, table, []

    def value(self, x: Any) -> Any:
        return numbers(x, self.env)

    def nodes(self, nodes: Any) -> None:
        for node in nodes:
            if type(node) is not Let:
                getattr(self, type(node).__name__)(node)

    def Call(self, node: Call) -> None:
        if node.method == "act":
            self.log.append(("act", self.value(node.args)))
        else:
            i = self.value(node.args[0])
            self.log.append(("read", i))
            self.env[node.results[0]] = self.table[i]

    def If(self, node: If) -> None:
        taken = self.value(node.condition)
        assert isinstance(taken, bool), taken
        self.nodes(node.then if taken else node.other)
        self.env.update({found: self.value(then if taken else other) for found, then, other in node.phis})

    def For(self, node: For) -> None:
        self._begin(node)
        for i in range(self.value(node.count)):
            self.env[node.index] = i
            self.nodes(node.body)
            self._next(node)
        self._end(node)

    def While(self, node: While) -> None:
        self._begin(node)
        turns = 0
        while self.value(node.condition):
            self.nodes(node.body)
            self._next(node)
            turns += 1
            assert turns < 10000
        self._end(node)

    def _begin(self, node: Any) -> None:
        self.env.update({phi: self.value(initial) for phi, initial, _, _ in node.carried})

    def _next(self, node: Any) -> None:
        self.env.update({phi: self.value(last) for phi, _, last, _ in node.carried})

    def _end(self, node: Any) -> None:
        self.env.update({after: self.env[phi] for phi, _, _, after in node.carried})


#: Numbers for functions of one number, and of two.
ONE = [(i,) for i in range(-3, 8)]
TWO = list(itertools.product(range(-2, 6), range(-1, 6)))


def cases_of(module: dict[str, Any], *besides: Any) -> list[tuple[Any, Any]]:
    """The functions of a module of tests that begin with `k`, each with numbers to call it with; without *besides*."""
    own = [f for f in module.values() if getattr(f, "__module__", "") == module["__name__"] and hasattr(f, "__code__")]
    found = [f for f in own if f.__code__.co_varnames[:1] == ("k",) and f not in besides]
    return [(f, ONE if f.__code__.co_argcount == 2 else TWO) for f in found]


def agree(
    function: Any, values: Any, table: Any = (3, 1, 4, 0, 5, 9, 2, 6), body: bool = False, constants: Any = ()
) -> Any:
    """Compares a function's trace with the function itself, for each tuple of numbers. Returns the program."""
    values = list(values)
    program = Program(function, len(values[0]), body, constants)
    for each in values:
        plain = Plain(list(table))
        try:
            wanted = function(plain, *each, *constants)
        except (UnboundLocalError, ZeroDivisionError, IndexError):
            continue  # no right program
        found, log = program.run(each, list(table))
        assert log == plain.log, (each, log, plain.log)
        assert found == wanted, (each, found, wanted)
    return program
