"""A traced program as Python code, by which instruction sets whose values are numbers, such as the model's, carry it out."""

from __future__ import annotations

import collections
import functools
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

from tmapipe.errors import PipelineError
from tmapipe.isa.fragment import ClusterExchange, Fragment, SlotRef
from tmapipe.model.layout import TRACED
from tmapipe.program.calls import Captured, tile_with
from tmapipe.program.expressions import (
    FOLD,
    LEAST,
    MOST,
    SIGNS,
    Call,
    Expr,
    For,
    Function,
    If,
    Let,
    OfModel,
    Var,
    While,
    every,
    resolve,
    wrapped,
)
from tmapipe.program.loops import may_fail
from tmapipe.protocol.tile import Tile

# ---- uses ------------------------------------------------------------------------------------------------------------
#
# How often instructions, loops and branches depend on each value. Values on which nothing depends are left out.


class Uses:
    """counts: how often each value is used; made: by variable of a loop or branch, the values that it takes."""

    def __init__(self, nodes: Sequence[Any]):
        self.counts: Counter[Expr] = Counter()
        self.made: dict[Expr, list[Any]] = {}
        self.pending: list[Any] = []
        self.look(nodes)
        while self.pending:
            self.use(self.pending.pop())

    def look(self, nodes: Sequence[Any]) -> None:
        for node in every(nodes):
            for variable, x in chain.from_iterable(node.assigned):
                self.made.setdefault(variable, []).append(x)
            if type(node) is Call:
                self.pending += [node.args, node.named]
            elif type(node) is not Let:
                self.pending += [node.test, getattr(node, "iterations", None)]
            elif isinstance(node.value, Tile):
                self.pending.append(node.value)

    def use(self, x: Any) -> None:
        x = resolve(x)
        if isinstance(x, Expr):
            self.counts[x] += 1
            if self.counts[x] == 1:
                self.pending += self.made.get(x, x.args)
        elif isinstance(x, Function):
            self.look(x.body)
            self.pending.append(x.outputs)
        elif isinstance(x, OfModel):
            self.look(x.nodes)
            self.pending.append(x.values)
        else:
            self.pending += parts(x)


def mapped(x: Any, of: Callable[[Any], Any]) -> Any:
    """An operand with ``of(x)`` in the place of each part x that has no parts, such as an expression."""
    if isinstance(x, Tile):
        return tile_with(x, lambda part: mapped(part, of))
    if isinstance(x, Captured):
        return x.bound(lambda part: mapped(part, of))
    if isinstance(x, SlotRef):
        return SlotRef(x.buffer, mapped(x.stage, of))
    if type(x) in (tuple, list):
        return type(x)([mapped(each, of) for each in x])
    return {name: mapped(each, of) for name, each in x.items()} if type(x) is dict else of(x)


class Given:
    """An operand with expressions inside, such as a function that has captured some. Called with values of the expressions, it
    gives the operand with these values. inside: the expressions."""

    def __init__(self, x: Any):
        self.x = x
        self.inside: list[Expr] = []
        mapped(x, self._note)
        self.places = {id(each): i for i, each in enumerate(self.inside)}

    def _note(self, each: Any) -> Any:
        self.inside += [each] if isinstance(each, Expr) else []
        return each

    def __call__(self, *values: Any) -> Any:
        return mapped(self.x, lambda each: values[self.places[id(each)]] if isinstance(each, Expr) else each)


def parts(x: Any) -> Iterator[Any]:
    """The parts of an operand in which expressions may be."""
    if isinstance(x, Fragment):
        yield x.data
    elif isinstance(x, ClusterExchange):
        yield from (x.rank, x.mask)
    elif isinstance(x, (Captured, Tile)):
        yield from Given(x).inside
    elif type(x) in (tuple, list) or isinstance(x, SlotRef):
        yield from x
    elif type(x) is dict:
        yield from x.values()


# ---- python text -----------------------------------------------------------------------------------------------------
#
# The code is a function of the instruction set. Loops and branches are Python's; instructions are calls of methods; variables
# of the program are local names. A value that is used in several places is computed once, where the trace computed it, unless
# it may fail: a value under a condition may have none where the condition does not hold.


MOST_TURNS = 5_000_000  #: of a `while` loop of a body
DEPTH = 8  #: nested operations, after which an expression gets a name even if it is used once


def code_of(program: Any) -> Callable[[Any], None]:
    """The function that carries out *program*, for one warp, on the instruction set that it is called with."""
    writer = _Writer(program)
    names = {**writer.constants, "lines": writer.lines_of_user, "known": {}}
    exec(_compiled("\n".join(writer.lines)), names)
    run: Callable[[Any], None] = names["program"]
    return run


@functools.lru_cache(maxsize=256)  # instances of one schedule have the same text
def _compiled(text: str) -> Any:
    return compile(text, TRACED, "exec")


# ---- text ----------------------------------------------------------------------------------------------------------------

_SIGNS = {op: sign for op, (sign, _) in SIGNS.items() if op not in ("lshift", "rshift")}  # which may fail
_MAY_WRAP = ("add", "sub", "mul", "floordiv")


def _counted(where: str | None) -> Iterator[bool]:
    """True for each iteration of a loop. Raises `PipelineError` after too many."""
    yield from itertools.repeat(True, MOST_TURNS)
    at = "" if where is None else f" at {where}"
    fix = "Fix: see that every loop of a body ends."
    error = PipelineError(f"stopped after {MOST_TURNS} iterations of the loop{at}. {fix}")
    error.where = where
    raise error


#: A `ClusterExchange` with numbers.
_Exchange = collections.namedtuple("_Exchange", "rank mask peers full")


def _data(value: Any) -> Any:
    return value.data if isinstance(value, Fragment) else value


def _is_positive(x: Any) -> bool:
    """Whether a number is surely at least 1: the number of clusters, or one of two such numbers."""
    x = resolve(x)
    if not isinstance(x, Expr):
        return bool(x > 0)
    if x.op == "select":
        condition, yes, no = map(resolve, x.args)
        tested = isinstance(condition, Expr) and condition is Expr.of("gt", yes, 0)
        return (tested or _is_positive(yes)) and _is_positive(no)
    return x.op == "symbol" and x.args == ("clusters",)


class _Writer:
    """Writes the text. lines_of_user: by line of the text, the line of the body that it comes from."""

    def __init__(self, program: Any):
        self.constants: dict[str, Any] = {
            "wrapped": wrapped,
            "data_of": _data,
            "SlotRef": SlotRef,
            "Fragment": Fragment,
            "Exchange": _Exchange,
            "counted": _counted,
        }
        self.numbers: dict[int, str] = {}  # of constants, by id
        self.lines: list[str] = []
        self.lines_of_user: list[str | None] = [None]
        self.level = 0
        self.where: str | None = None
        self.names: dict[Expr, str] = {}
        self.computed: list[Expr] = []  # expressions that have names in the blocks around
        self.depths: dict[Expr, tuple[int, bool]] = {}
        self.named = 0
        self.uses = Uses(program.nodes).counts
        self._function("program", "isa", lambda: self._whole(program))

    def say(self, text: str) -> None:
        self.lines.append(" " * self.level + text)
        self.lines_of_user.append(self.where)

    def _whole(self, program: Any) -> None:
        self.say("fragments, without_data = isa.fragments, isa.memory is None")
        symbols = {Expr.of("symbol", name): f"isa.{name}" for name in ("warp", "clusters")}
        symbols[Expr.of("symbol", "rank")] = "isa.cta_rank"
        symbols[Expr.of("symbol", "cluster")] = "isa.cluster_id"
        for symbol, (argument, dim) in program.isa.symbols["extents"].items():
            symbols[symbol] = f"isa.extent({argument!r}, {dim})"
        if "launch" in program.isa.symbols:
            in_machine, words = program.isa.symbols["launch"]
            self.say(f"launch = isa.launch_words({self.constant(in_machine)})")
            symbols |= {word: f"launch[{i}]" for i, word in enumerate(words)}
        for symbol, text in symbols.items():
            if self.uses[symbol]:
                self.say(f"{self.name(symbol)} = {text}")
        self.block(program.nodes)

    def _function(self, name: str, arguments: str, body: Callable[[], None]) -> None:
        self.say(f"def {name}({arguments}):")
        self.scope(body)

    def scope(self, body: Callable[[], None]) -> None:
        """An indented block. Of the names in it, only those of variables are known after it."""
        begun, known = len(self.lines), len(self.computed)
        self.level += 1
        body()
        if len(self.lines) == begun:
            self.say("pass")
        self.level -= 1
        while len(self.computed) > known:
            del self.names[self.computed.pop()]

    def name(self, x: Any) -> str:
        """A new name for a variable, or for another value."""
        self.named += 1
        self.names[resolve(x)] = text = f"v{self.named}"
        return text

    def constant(self, x: Any) -> str:
        if x is None or type(x) in (bool, int, str):
            return repr(x)
        if id(x) not in self.numbers:  # the program keeps it alive
            self.numbers[id(x)] = name = f"K{len(self.numbers)}"
            self.constants[name] = x
        return self.numbers[id(x)]

    # ---- nodes ----------------------------------------------------------------------------------------------------

    def block(self, nodes: Sequence[Any]) -> None:
        for node in nodes:
            if type(node) is Let:
                self._let(node.value)
            else:
                self.where = node.where
                getattr(self, f"_{type(node).__name__.lower()}")(node)

    def _let(self, value: Any) -> None:
        if isinstance(value, Tile):
            return self.say(f"isa.enter({self.operand(value)})")
        value = resolve(value)
        uses = self.uses[value]
        if not uses or not value.args or value in self.names or value.op in ("symbol", "divisor"):
            return
        depth, safe = self._depth(value)
        if safe and (uses > 1 or depth % DEPTH == 0):
            try:
                text = self.of(value)
            except KeyError:  # it is of what an instruction will ask for later, such as entries of a table
                return
            self.say(f"{self.name(value)} = {text}")
            self.computed.append(value)

    def _depth(self, x: Any) -> tuple[int, bool]:
        """How deep operations are nested in an expression, and whether it has a value whatever its variables are."""
        x = resolve(x)
        if not isinstance(x, Expr) or not x.args or x.op == "symbol":
            return 0, True
        if x not in self.depths:
            depths, safe = zip(*map(self._depth, x.args), strict=True)
            self.depths[x] = (
                1 + max(depths),
                all(safe) and (not may_fail(x) or (x.op in ("floordiv", "mod") and _is_positive(x.args[-1]))),
            )
        return self.depths[x]

    def _for(self, node: For) -> None:
        count, carried = self.of(node.count), self._start(node)
        self.say(f"for {self.name(node.index)} in range({count}):")
        self._turns(node, carried)

    def _while(self, node: While) -> None:
        carried = self._start(node)
        if node.iterations is not None:
            self.say("if without_data:")
            self.scope(lambda: self._known_turns(node, carried))
            self.say(f"while {self.of(node.condition)}:")
        else:  # of a body, which may forget to end it
            self.named += 1
            counted = f"v{self.named}"
            self.say(f"{counted} = counted({self.constant(node.where)})")
            self.say(f"while ({self.of(node.condition)}) and next({counted}):")
        self._turns(node, carried)

    def _known_turns(self, node: While, carried: list[Any]) -> None:
        often = self._of_model(node.iterations)
        self.say(f"for _ in range({often}):")
        self._turns(node, carried)

    def _start(self, node: Any) -> list[Any]:
        """The carried values of a loop that are used, which take their first values."""
        carried = [each for each in node.carried if self.uses[each[0]] or self.uses[each[3]]]
        self._assign([(self.name(phi), self.of(before)) for phi, before, _, _ in carried])
        return carried

    def _turns(self, node: Any, carried: list[Any]) -> None:
        def turn() -> None:
            self.block(node.body)
            self.where = node.where
            self._assign([(self.names[phi], self.of(last)) for phi, _, last, _ in carried])

        self.scope(turn)
        self.names.update((after, self.names[phi]) for phi, _, _, after in carried)

    def _assign(self, pairs: list[tuple[str, str]]) -> None:
        """All at once."""
        changed = [(name, value) for name, value in pairs if name != value]
        if changed:
            self.say(" = ".join(", ".join(each) for each in zip(*changed, strict=True)))

    def _if(self, node: If) -> None:
        phis = [each for each in node.phis if self.uses[each[0]]]
        names = [self.name(phi) for phi, _, _ in phis]

        def arm(nodes: Sequence[Any], which: int) -> None:
            self.block(nodes)
            self.where = node.where
            self._assign([(name, self.of(phi[which])) for name, phi in zip(names, phis, strict=True)])

        self.say(f"if {self.of(node.condition)}:")
        self.scope(lambda: arm(node.then, 1))
        if node.other or phis:
            self.say("else:")
            self.scope(lambda: arm(node.other, 2))

    # ---- instructions ---------------------------------------------------------------------------------------------

    def _call(self, node: Call) -> None:
        special = getattr(self, f"_{node.method}", None)
        if special is not None:
            return special(node)
        on, name = ("", node.method) if node.method.startswith("fragments.") else ("isa.", node.method)
        given = [self.operand(x) for x in node.args] + [f"{n}={self.operand(x)}" for n, x in node.named.items()]
        text = f"{on}{name}({', '.join(given)})"
        if name == "fragments.apply" and list(node.args[0].outputs) != [""]:
            self.say(f"{self._results(node)} = map(data_of, {text}.values())")
        elif node.results:
            self.say(f"{self.name(node.results[0])} = {text if on else f'data_of({text})'}")
        else:
            self.say(text)

    def _results(self, node: Call) -> str:
        return "".join(f"{self.name(each)}, " for each in node.results).rstrip()

    def _here(self, node: Call) -> None:
        self.say(f"{self.name(node.results[0])} = {self.of(node.args[0])}")

    def _skip(self, node: Call) -> None:
        slot, parity, slots, ring = map(self.operand, node.args)
        self.say(f"state = [{slot}, {parity}]")
        self.say(f"isa.skip(state, {slots}, {ring})")
        self.say(f"{self._results(node)} = state")

    def _read_words(self, node: Call) -> None:
        slot, count, known = node.args
        self.say("words = None")
        self.say("if without_data:")
        self.scope(lambda: self.say(f"words = {self._of_model(known)}"))
        self.say(f"{self._results(node)} = isa.read_words({self.operand(slot)}, {count}, lambda words=words: words)")

    def _atomic_add(self, node: Call) -> None:
        counter, in_turn = node.args
        self.say(f"before = {self._of_model(in_turn)}")
        self.say(f"{self.name(node.results[0])} = isa.atomic_add({self.of(counter)}, lambda before=before: before)")

    def _of_model(self, of: OfModel) -> str:
        self.block(of.nodes)
        return self.operand(of.values)

    def _ballot(self, node: Call) -> None:
        table, first, count, (index, entry, holds), without = node.args
        test = f"lambda {self.name(index)}, {self.name(entry)}: {self.of(holds)}"
        del self.names[index], self.names[entry]
        given = f"{table!r}, {self.of(first)}, {self.of(count)}, {test}, {self.of(without)}"
        self.say(f"{self.name(node.results[0])} = isa.ballot({given})")

    def _defined(self, function: Function) -> str:
        """The name of a function of fragments, which is defined here."""
        self.named += 1
        name = f"f{self.named}"
        inputs = [f"x{i}" for i in range(len(function.inputs))]

        def body() -> None:
            for variable, each in zip(function.inputs, inputs, strict=True):
                self.say(f"{self.name(variable)} = {each}.data")
            for key, variable in function.named.items():
                self.say(f"{self.name(variable)} = named[{key!r}].data")
            self.block(function.body)
            self.say(f"return {self.operand(function.of(function.outputs))}")

        where = self.where
        self._function(name, ", ".join([*inputs, "**named"]), body)
        self.where = where
        return name

    # ---- values ---------------------------------------------------------------------------------------------------

    def operand(self, x: Any) -> str:
        """An argument of an instruction."""
        if isinstance(x, Expr):
            return self.of(x)
        if isinstance(x, Function):
            return self._defined(x)
        if isinstance(x, (Captured, Tile)):
            given = Given(x)
            return f"{self.constant(given)}({', '.join(map(self.of, given.inside))})"
        if isinstance(x, SlotRef):
            return f"SlotRef({self.constant(x.buffer)}, {self.of(x.stage)})"
        if type(x) is tuple:
            return f"({''.join(f'{self.operand(each)}, ' for each in x)})"
        if type(x) is list:
            return f"[{', '.join(map(self.operand, x))}]"
        if type(x) is dict:
            return f"{{{', '.join(f'{self.constant(n)}: {self.operand(each)}' for n, each in x.items())}}}"
        if isinstance(x, Fragment):
            fixed = f"{self.constant(x.layout)}, {x.along!r}, {x.kind!r}"
            return f"Fragment(fragments, {fixed}, {self.of(x.data)})"
        if isinstance(x, ClusterExchange):
            return f"Exchange({self.of(x.rank)}, {self.of(x.mask)}, {x.peers}, {self.constant(x.full)})"
        return self.constant(x)

    def of(self, x: Any) -> str:
        """A number, or data of a fragment."""
        x = resolve(x)
        if not isinstance(x, Expr):
            return self.constant(x)
        if x in self.names or isinstance(x, Var):
            return self.names[x]
        if x.op == "divisor":
            return self.of(x.args[1])
        args = [self.of(each) for each in x.args]
        sign = _SIGNS.get(x.op)
        if sign is not None:
            text = f"{args[0]} {sign} {args[1]}"
            positive = x.op == "floordiv" and type(x.args[1]) is int and x.args[1] > 0
            if x.op in _MAY_WRAP and not positive:
                return f"(n if {LEAST} <= (n := {text}) <= {MOST} else wrapped(n))"
            return f"({text})"
        if x.op == "select":
            return f"({args[1]} if {args[0]} else {args[2]})"
        if x.op == "next":
            return f"(0 if (n := {args[0]} + 1) == {args[1]} else n)"
        if x.op == "flipped":
            return f"({args[0]} ^ ({args[1]} + 1 == {args[2]}))"
        if x.op == "not":
            return f"(not {args[0]})"
        return f"{self.constant(FOLD[x.op])}({', '.join(args)})"
