"""Symbolic numbers of a proof, in one form each, and which numbers of a program decide what its warps do."""

from __future__ import annotations

import functools
import inspect
import itertools
import math
from collections.abc import Mapping
from itertools import chain
from typing import Any

from tmapipe.isa.fragment import ClusterExchange, SlotRef
from tmapipe.isa.fragments import Fragments
from tmapipe.isa.ops import Isa
from tmapipe.program.expressions import Call, Expr, Let, Var, every, resolve

# ---- symbols ---------------------------------------------------------------------------------------------------------
#
# A number that no launch has decided is a `Sym`: a sum of products with integer factors. Equal sums are one object, whatever
# role they come from: `2 * (i + 1)` is `i + i + 2`. Comparisons are kept as "this sum is at least 0" and "this sum is 0",
# without common factors, so a condition and its opposite are found from each other.


LONG = 60  # parts of a number, beyond which a report does not spell it out
LARGE = 80  # parts of a quotient or choice, beyond which it is a number of its own
#: The symbols by operation and arguments. The end of a check empties it.
made: dict[Any, Sym] = {}
_numbers = itertools.count()


class Sym:
    """A number or a condition that is not decided. Interned: equal ones are one object. Numbers have the operators + - * //.

    op: "leaf" (args: its name, a tuple), "sum" (args: constant, ((term, factor), ...)), "prod" (terms), "ge" and "eq" (args: a
    sum that is at least 0, or 0), or the name of another operation. number: of its making, by which terms are ordered.
    """

    __slots__ = ("args", "leaves", "number", "op", "opposite", "size")
    __hash__ = object.__hash__

    def __init__(self, op: str, args: tuple[Any, ...]):
        self.op, self.args, self.number = op, args, next(_numbers)
        self.opposite: Any = None  # of a condition, once it is known
        self.size = 1 if op == "leaf" else 1 + sum(map(_size, args))
        inside = _leaves_of(args)
        self.leaves: frozenset[Sym] = inside | {self} if op == "leaf" else inside

    @property
    def condition(self) -> bool:
        """Whether it is a condition."""
        return self.op in ("ge", "eq", "not", "all", "any")

    def __bool__(self) -> bool:
        raise TypeError(f"a decision on {text(self)}, which is open")

    __index__ = __int__ = __bool__

    def __add__(self, other: Any) -> Any:
        return add(self, other)

    def __mul__(self, other: Any) -> Any:
        return multiply(self, other)

    __radd__, __rmul__ = __add__, __mul__

    def __sub__(self, other: Any) -> Any:
        return add(self, other, -1)

    def __rsub__(self, other: Any) -> Any:
        return add(other, self, -1)

    def __neg__(self) -> Any:
        return add(0, self, -1)

    def __floordiv__(self, other: Any) -> Any:
        return divide(self, other)

    def __repr__(self) -> str:
        return text(self)


def _size(x: Any) -> int:
    if isinstance(x, Sym):
        return x.size
    return sum(map(_size, x)) if isinstance(x, tuple) else 0


def _leaves_of(args: Any) -> frozenset[Sym]:
    found: set[Sym] = set()
    for each in args:
        if isinstance(each, Sym):
            found |= each.leaves
        elif isinstance(each, tuple):
            found |= _leaves_of(each)
    return frozenset(found)


def intern(op: str, *args: Any) -> Sym:
    """The number of this operation, which is one object for the same arguments."""
    key = op, *args
    found = made.get(key)
    if found is None:
        found = made[key] = Sym(op, args)
    return leaf("large", found) if found.size > LARGE and op in ("select", "div", "min", "max") else found


def leaf(*name: Any) -> Sym:
    """The number of this name."""
    return intern("leaf", *name)


def leaves(value: Any) -> frozenset[Sym]:
    """The leaves that a value is computed of."""
    return value.leaves if isinstance(value, Sym) else frozenset()


def is_word(x: Sym) -> bool:
    """Whether this is a word of a queue."""
    return x.op == "leaf" and bool(x.args[0] == "word")


def of_launch(count: Any) -> bool:
    """Whether a count of iterations is the same in a whole run."""
    return all(each.args[0] in ("extent", "of the launch") for each in leaves(count))


# ---- sums ---------------------------------------------------------------------------------------------------------------


def parts(value: Any) -> tuple[int, dict[Sym, int]]:
    """(constant, term -> factor) of a number."""
    if not isinstance(value, Sym):
        return int(value), {}
    if value.op == "sum":
        return value.args[0], dict(value.args[1])
    return 0, {value: 1}


def total(constant: int, terms: Mapping[Sym, int]) -> Any:
    """The sum of these terms."""
    left = sorted(((term, n) for term, n in terms.items() if n), key=lambda each: each[0].number)
    if not left:
        return constant
    if constant == 0 and len(left) == 1 and left[0][1] == 1:
        return left[0][0]
    return intern("sum", constant, tuple(left))


def add(a: Any, b: Any, times: int = 1) -> Any:
    """a + times * b."""
    if not isinstance(b, Sym):
        return _more(a, times * int(b))
    if times == 1 and not isinstance(a, Sym):
        return _more(b, int(a))
    constant, terms = parts(a)
    more, others = parts(b)
    for term, n in others.items():
        terms[term] = terms.get(term, 0) + times * n
    return total(constant + times * more, terms)


def _more(a: Any, by: int) -> Any:
    """a and a number."""
    if not isinstance(a, Sym):
        return int(a) + by
    if not by:
        return a
    constant, terms = a.args if a.op == "sum" else (0, ((a, 1),))
    if constant + by == 0 and len(terms) == 1 and terms[0][1] == 1:
        return terms[0][0]
    return intern("sum", constant + by, terms)


def multiply(a: Any, b: Any) -> Any:
    """a * b, with products of sums multiplied out."""
    (m, x), (n, y) = parts(a), parts(b)
    constant, terms = m * n, dict[Sym, int]()
    for term, factor in x.items():
        terms[term] = terms.get(term, 0) + factor * n
    for term, factor in y.items():
        terms[term] = terms.get(term, 0) + factor * m
    for one, p in x.items():
        for other, q in y.items():
            both = _product(one, other)
            terms[both] = terms.get(both, 0) + p * q
    return total(constant, terms)


def _product(a: Sym, b: Sym) -> Sym:
    factors = [f for each in (a, b) for f in (each.args if each.op == "prod" else (each,))]
    return intern("prod", *sorted(factors, key=lambda each: each.number))


def divide(a: Any, b: Any) -> Any:
    """a // b, rounded down. What *b* divides is taken out."""
    if not isinstance(a, Sym) and not isinstance(b, Sym):
        return a // b if b else 0
    if not isinstance(b, Sym) and b > 0:
        constant, terms = parts(a)
        whole, rest = divmod(constant, b)
        inside = {term: n % b for term, n in terms.items()}
        outside = total(whole, {term: n // b for term, n in terms.items()})
        left = total(rest, inside)
        if not isinstance(left, Sym):
            return add(outside, left // b)
        if b == 1:
            return add(outside, left)
        if left.op == "div" and not isinstance(left.args[1], Sym):  # n // a // b
            return add(outside, divide(left.args[0], left.args[1] * b))
        return add(outside, intern("div", left, b))
    return intern("div", a, b)


def modulo(a: Any, b: Any) -> Any:
    """a % b, with the sign of *b*."""
    return add(a, multiply(divide(a, b), b), -1)


# ---- conditions ---------------------------------------------------------------------------------------------------------


def at_least_0(value: Any) -> Any:
    """The condition value >= 0."""
    if not isinstance(value, Sym):
        return value >= 0
    constant, terms = parts(value)
    common = math.gcd(*terms.values())
    terms = {term: n // common for term, n in terms.items()}
    return intern("ge", total(constant // common, terms))


def is_0(value: Any) -> Any:
    """The condition value == 0."""
    if not isinstance(value, Sym):
        return value == 0
    if value.condition:
        return negated(value)
    constant, terms = parts(value)
    common = math.gcd(*terms.values())
    if constant % common:
        return False
    if next(iter(terms.values())) < 0:
        common = -common
    return intern("eq", total(constant // common, {term: n // common for term, n in terms.items()}))


def negated(condition: Any) -> Any:
    """The opposite of a condition."""
    if not isinstance(condition, Sym):
        return not condition
    if condition.op == "not":
        return condition.args[0]
    if condition.op == "eq":
        return intern("not", condition)  # which keeps the condition: if that kept it, too, both would stay for ever
    if condition.opposite is None:
        condition.opposite = _negated(condition)
    return condition.opposite


def _negated(condition: Sym) -> Any:
    if condition.op == "ge":
        return at_least_0(add(-1, condition.args[0], -1))
    if condition.op in ("all", "any"):
        return _several("any" if condition.op == "all" else "all", *map(negated, condition.args))
    return intern("not", condition)


def _several(op: str, *conditions: Any) -> Any:
    known = op == "any"  # the value that decides
    found: dict[Sym, None] = {}
    for each in conditions:
        if not isinstance(each, Sym):
            if bool(each) == known:
                return known
        else:
            found.update(dict.fromkeys(each.args if each.op == op else (each,)))
    if any(negated(each) in found for each in found):
        return known
    if len(found) < 2:
        return next(iter(found), not known)
    return intern(op, *sorted(found, key=lambda each: each.number))


def both(*conditions: Any) -> Any:
    """Whether all of them are true."""
    return _several("all", *conditions)


def either(*conditions: Any) -> Any:
    """Whether one of them is true."""
    return _several("any", *conditions)


def truth(value: Any) -> Any:
    """A number as a condition: whether it is not 0."""
    if not isinstance(value, Sym):
        return bool(value)
    return value if value.condition else negated(is_0(value))


# ---- text ---------------------------------------------------------------------------------------------------------------


def text(value: Any) -> str:
    """A number or condition in words, for reports; of a long formula, only the names in it."""
    if not isinstance(value, Sym):
        return str(value)
    if value.size > LONG:
        names = sorted(
            str(each.args[-1]) for each in value.leaves if len(each.args) == 2 and type(each.args[-1]) is str
        )
        more = f" and {len(names) - 4} others" if len(names) > 4 else ""
        return f"(a formula of {', '.join(names[:4])}{more})"
    a = value.args
    if value.op == "leaf":
        if a[0] == "tile":
            return f"tile.{a[1]}"
        if a[0] == "index":
            return "a turn"
        return str(a[-1]) if len(a) == 2 else f"{a[0]}({', '.join(map(text, a[1:]))})"
    if value.op == "sum":
        terms = [(n, text(t) if abs(n) == 1 else f"{abs(n)} * {text(t)}") for t, n in a[1]] + [(a[0], str(abs(a[0])))]
        ordered = sorted(((n < 0, each) for n, each in terms if n), key=lambda each: each[0])
        said = "".join((" - " if less else " + ") + each for less, each in ordered)
        return f"({said[3:] if said.startswith(' + ') else '-' + said[3:]})"
    if value.op == "prod":
        return " * ".join(map(text, a))
    if value.op == "div":
        return f"{text(a[0])} // {text(a[1])}"
    if value.op in ("ge", "eq"):
        return f"{text(a[0])} {'>=' if value.op == 'ge' else '=='} 0"
    return f"{value.op}({', '.join(map(text, a))})"


# ---- slicing ---------------------------------------------------------------------------------------------------------
#
# Which numbers of a program decide what its warps do: conditions, counts, and operands of operations that synchronize. The
# proof follows these alone: where a tile lies is computed at length, and decides nothing unless a body looks at it.


#: Instructions on fragments that execute no operation.
WITHOUT_OPERATIONS = frozenset(
    f"fragments.{name}"
    for name in ("number", "convert", "expand", "indices", "elementwise", "columns_of", "row_sums", "column_sums",
                 "join_row_sums", "reduce_in_warp", "apply", "only_inside", "sum_parts", "join_parts", "packed",
                 "scan_in_warp", "chunk_totals", "add_chunks", "swapped_pairs",
                 "picked_of_pairs", "joined_pairs", "beside")
)  # fmt: skip
#: Instructions that synchronize nothing: on counters, tables, and among lanes.
LOCAL = frozenset(
    {"atomic_add", "store_counter", "ballot", "smid", "shuffle", "load_entry", "here", "fragments.load_joined"}
)
#: Parameters of instructions that only data depends on.
_DATA = {"at", "offsets", "words", "values", "data", "index", "inside", "sums", "before"}
#: More of these, by instruction: rows that are stored or gathered, what a descriptor shows.
_DATA_OF = {
    "tma_store": {"rows"},
    "tma_gather": {"rows"},
    "tma_scatter": {"rows"},
    "descriptor_write": {"first", "rows"},
}
_PURE = ("here", "shuffle")


@functools.cache
def _parameters(method: str) -> tuple[str, ...]:
    of, name = (Fragments, method[10:]) if method.startswith("fragments.") else (Isa, method)
    return tuple(inspect.signature(getattr(of, name)).parameters)[1:]


def named(node: Call) -> list[tuple[str, Any]]:
    """(parameter, argument) of an instruction."""
    return [*zip(_parameters(node.method), node.args, strict=False), *node.named.items()]


def operands(node: Call) -> list[tuple[int | str, Any, bool]]:
    """(place, argument, whether only data depends on it) of an instruction."""
    names = _parameters(node.method)
    data = _DATA | _DATA_OF.get(node.method, set())
    if node.method == "fragments.write":
        data -= {"at"}  # plain numbers, which say what is written of a slot
    found: list[tuple[int | str, Any, bool]] = [(i, x, names[i] in data) for i, x in enumerate(node.args)]
    return found + [(name, x, name in data) for name, x in node.named.items()]


class Slice:
    """decides: the variables on which conditions, counts or such operands depend."""

    def __init__(self, nodes: list[Any]):
        self.decides: set[Any] = set()
        self._from: dict[Any, list[Any]] = {}  # what a variable is computed of
        for node in every(nodes):
            self._look(node)
        todo = list(self.decides)
        while todo:
            for x in self._from.get(todo.pop(), ()):
                for var in variables(x):
                    if var not in self.decides:
                        self.decides.add(var)
                        todo.append(var)

    def _look(self, node: Any) -> None:
        if type(node) is Call:
            self._call(node)
        elif type(node) is not Let:
            test = [node.test] if is_silent(node) else []  # it decides only what the node gives, or what is executed
            self.decides |= set() if test else variables(node.test)
            for variable, x in chain.from_iterable(node.assigned):
                self._from.setdefault(variable, []).extend((x, *test))

    def _call(self, node: Call) -> None:
        if node.method in WITHOUT_OPERATIONS:
            return
        if node.method == "skip":
            slot, parity, slots, _ = node.args
            self.decides |= variables(slots)
            for result in node.results:
                self._from.setdefault(result, []).extend((slot, parity))
        elif node.method in _PURE or node.method == "load_entry":
            for result in node.results:
                self._from.setdefault(result, []).extend(node.args)
        elif node.method == "read_words":
            self.decides |= variables(node.args[0])
        elif node.method in ("atomic_add", "store_counter", "ballot", "smid"):
            pass
        else:
            for _, x, data in operands(node):
                if not data:
                    self.decides |= variables(x)


def tested(nodes: list[Any]) -> frozenset[Any]:
    """All expressions in conditions, counts and numbers of slots to skip."""
    found: set[Any] = set()
    todo: list[Any] = []
    for node in every(nodes):
        if type(node) is Call:
            todo += [node.args[2]] if node.method == "skip" else []
        elif type(node) is not Let:
            todo.append(node.test)
    while todo:
        x = resolve(todo.pop())
        if isinstance(x, Expr) and x not in found:
            found.add(x)
            todo += x.args
    return frozenset(found)


def is_silent(node: Any) -> bool:
    """Whether nothing in a node synchronizes, or can be waited for."""
    if type(node) is Call:
        return node.method in WITHOUT_OPERATIONS or node.method in LOCAL
    return all(map(is_silent, node.inside))


def variables(x: Any) -> set[Any]:
    """The variables in an argument."""
    x = resolve(x)
    if isinstance(x, Var):
        return {x}
    if isinstance(x, Expr):
        return _of_expression(x)
    if isinstance(x, SlotRef):
        return variables(x.stage)
    if isinstance(x, ClusterExchange):
        return variables((x.rank, x.mask))
    if isinstance(x, (list, tuple)):
        return set().union(*map(variables, x)) if x else set()
    if isinstance(x, dict):
        return variables(list(x.values()))
    return set()


@functools.lru_cache(maxsize=100_000)
def _of_expression(x: Expr) -> Any:
    return frozenset().union(*(variables(a) for a in x.args)) if x.args else frozenset()
