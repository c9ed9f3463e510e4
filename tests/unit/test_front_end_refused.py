"""What the front end refuses, each with its line: the one that a comment `# here` marks."""

import collections
import dataclasses
import functools
import inspect
import itertools
import operator

import numpy as np
import pytest

from tests.unit.traced import Program
from tmapipe.errors import ScopeError

FIRST = [True]
COUNTS = collections.deque([0])
ARRAY = np.zeros(3)
TICKS = itertools.count()
TABLE = {"n": 1}
NAMES = {1}


class Flag:
    first = True
    slots = ()


FLAG = Flag()
GLOBAL = 0


def stores_global(k, n):
    global GLOBAL
    GLOBAL = 1  # here


def stores_to_an_object_of_a_global(k, n):
    if FLAG.first:
        FLAG.first = False  # here


def stores_to_a_class(k, n):
    Flag.first = False  # here


def stores_to_k(k, n):
    if not hasattr(k, "first"):
        k.first = False  # here


def stores_by_setattr(k, n):
    setattr(FLAG, "first", False)  # here  # noqa: B010


def deletes_an_attribute(k, n):
    del FLAG.first  # here


def stores_an_item_of_a_global(k, n):
    FIRST[0] = False  # here


def deletes_an_item(k, n):
    del FIRST[0]  # here


def adds_to_a_global_list(k, n):
    FIRST.append(n)  # here


def adds_by_a_method_of_its_type(k, n):
    list.append(FIRST, n)  # here


def adds_by_a_bound_method(k, n):
    add = FIRST.append
    add(n)  # here


def adds_by_a_partial(k, n):
    functools.partial(FIRST.append, 3)()  # here


def adds_by_an_operator(k, n):
    held = FIRST
    held += [n]  # here


def adds_by_an_operator_of_attributes(k, n):
    FLAG.slots += (1,)  # here


def counts_in_a_deque(k, n):
    COUNTS[0] += 1  # here


def counts_by_rotating(k, n):
    COUNTS.rotate(1)  # here


def counts_in_an_array(k, n):
    ARRAY[0] += 1  # here


def fills_an_array(k, n):
    ARRAY.fill(1)  # here


def counts_in_a_dictionary(k, n):
    TABLE["n"] += 1  # here


def updates_a_dictionary(k, n):
    TABLE.setdefault("m", 1)  # here


def adds_to_a_set(k, n):
    NAMES.add(1)  # here


def counts_by_an_iterator(k, n):
    if next(TICKS) == 0:  # here
        k.act(1)


def goes_through_an_iterator(k, n):
    for x in TICKS:  # here
        k.act(x)


def takes_of_an_iterator(k, n):
    return list(zip(TICKS, (1, 2)))  # here  # noqa: B905


def changes_by_a_function(k, n):
    operator.setitem(FIRST, 0, False)  # here


def changes_what_it_is_given(k, n):
    def helper(held):
        held.append(1)  # here

    helper(FIRST)


def stores_an_attribute_in_a_loop(k, n):
    state = Flag()
    for i in range(n):
        state.first = i  # here


def stores_an_attribute_in_a_branch(k, n):
    state = Flag()
    if n > 1:
        state.first = 2  # here


def adds_in_a_loop(k, n):
    held = []
    for i in range(n):  # at: the list has another length at its end
        held.append(i)  # here


def adds_in_a_branch(k, n):
    held = []
    if n > 1:
        held += [n]  # here


def counts_in_a_loop_by_a_local_dictionary(k, n):
    seen = {"n": 0}
    for _ in range(n):
        seen["n"] += 1  # here


def counts_in_a_loop_by_a_local_iterator(k, n):
    ticks = itertools.count()
    for _ in range(n):
        k.act(next(ticks))  # here


def counts_by_a_function_around(k, n):
    total = 0

    def count():
        nonlocal total
        total += 1  # here

    for _ in range(n):
        count()
    return total


def counts_by_a_generator(k, n):
    def counting():
        yield 0
        yield 1

    ticks = counting()
    for _ in range(n):
        k.act(next(ticks))  # here


def key(k, n):
    return {1: 2}[n]  # here


def key_of_a_display(k, n):
    return {n: 2}  # here


@dataclasses.dataclass(frozen=True)
class Place:
    x: object


def tuple_in_a_set(k, n):
    k.act((n, 0) in {(0, 0)})  # here


def tuple_among_keys(k, n):
    keys = {(0, 0): 1}.keys()
    k.act((n, 0) in keys)  # here


def object_that_is_hashed_by_a_number(k, n):
    k.act(Place(n) in {Place(0)})  # here


def keys_of_a_list(k, n):
    k.act(len(dict.fromkeys([n, 0])))  # here


def counts_of_a_list(k, n):
    k.act(collections.Counter([(n, 0), (0, 0)])[0, 0])  # here


def element_of_a_set(k, n):
    return {n, 2}  # here


def key_in_a_tuple(k, n):
    return {(1, 1): 2}.get((1, n))  # here


def in_a_dictionary(k, n):
    return n in {1: 2}  # here


def hashed(k, n):
    return hash(n)  # here


def text(k, n):
    return f"x{n}"  # here


def text_by_percent(k, n):
    return "x%d" % n  # here  # noqa: UP031


def text_by_format(k, n):
    return "{}".format(n)  # here  # noqa: UP032


def text_by_str(k, n):
    return str((1, n))  # here


def text_by_repr(k, n):
    return repr(n)  # here


def type_test(k, n):
    return isinstance(n, int)  # here


def type_of(k, n):
    return type(n) is int  # here


def as_int(k, n):
    return int(n)  # here


def as_float(k, n):
    return float(n)  # here


def index_of_a_list(k, n):
    return [1, 2, 3][n]  # here


def length(k, n):
    return "x" * n  # here


def matched(k, n):
    match n:  # here
        case int():
            k.act(1)


def matched_in_a_tuple(k, n):
    match (1, n):  # here
        case (1, 2):
            k.act(1)


def filtered(k, n):
    return [x for x in (1, 2) if x < n]  # here


def gone_through(k, n):
    return [x for x in range(n)]  # here  # noqa: C416


def asserted(k, n):
    assert n > 1  # here


def raised(k, n):
    if n > 1:
        raise ValueError(n)  # here


def caught(k, n):
    try:
        if n > 1:
            k.nothing()
    except AttributeError:  # here
        k.act(1)


def not_caught(k, n):
    try:
        k.act({1: 2}[n])  # here
    except Exception:
        k.act(2)


def division_is_caught(k, n):
    try:
        k.act(4 // n)  # here
    except ZeroDivisionError:
        k.act(2)


def is_the_same(k, n):
    return n is n  # here


def exits_in_finally(k, n):
    for i in range(3):
        try:
            k.act(i)
        finally:
            break  # here  # noqa: B012


@functools.cache
def cached(n):
    return n


@functools.cache
def once(k):
    k.act("once")


def calls_a_cached_one(k, n):
    return cached(n)  # here


def calls_once(k, n):
    once(k)  # here


def names(k, n):
    return locals()  # here


def walrus(k, n):
    x = 0
    if n > 1 and (x := k.read(n)):  # here
        k.act(x)
    return x


def step(k, n):
    for i in range(0, 5, n):  # here
        k.act(i)


def other_forms(k, n):
    x = None
    for i in range(n):
        if x is not None:
            k.act(x)
        x = i  # at the end of the loop: here


def read_after_a_branch(k, n):
    x = "one"
    if n > 1:
        x = 1
    k.act(x)  # here


def read_after_a_loop(k, n):
    for i in range(n):
        x = i
    k.act(x)  # here


@dataclasses.dataclass
class Mutable:
    x: int = 0

    def count(self):
        self.x += 1  # here
        return self.x


MUTABLE = Mutable()


def counts_in_a_method(k, n):
    k.act(MUTABLE.count())


LINES = {Mutable.count.__qualname__: Mutable.count}


def _refused():
    here = dict(globals())
    functions = [f for f in here.values() if inspect.isfunction(f) and f.__module__ == __name__]
    return [
        f for f in functions if "# here" in inspect.getsource(f) and list(inspect.signature(f).parameters) == ["k", "n"]
    ]


def _line(function):
    lines, first = inspect.getsourcelines(function)
    return first + next(i for i, line in enumerate(lines) if "here" in line and "#" in line)


@pytest.mark.parametrize("function", _refused(), ids=lambda f: f.__name__)
def test_it_is_refused_with_its_line(function):
    with pytest.raises(ScopeError) as caught:
        Program(function, 1)
    assert f"{__file__}:{_line(function)}" in str(caught.value), str(caught.value)


def test_a_method_that_changes_its_object():
    with pytest.raises(ScopeError) as caught:
        Program(counts_in_a_method, 1)
    assert f"{__file__}:{_line(Mutable.count)}" in str(caught.value)


class Summed:
    """Its operators change it."""

    total = 0

    def __add__(self, other=1):
        self.total += other  # here
        return self.total

    __rmul__ = __neg__ = __lt__ = __ge__ = __add__


def augmented(kept):
    before = 2
    before *= kept
    kept += 1


@pytest.mark.parametrize(
    "use",
    [
        lambda kept: kept + 1,
        lambda kept: 2 * kept,
        lambda kept: -kept,
        lambda kept: kept < 3,
        lambda kept: kept >= 3,
        augmented,
    ],
    ids=["left", "right", "unary", "comparison", "reflected comparison", "augmented assignment"],
)
def test_an_operator_that_changes_its_object(use):
    kept = Summed()

    def body(k, n):
        for _ in range(n):
            use(kept)

    with pytest.raises(ScopeError) as caught:
        Program(body, 1)
    assert f"{__file__}:{_line(Summed.__add__)}" in str(caught.value)


def made(held):
    first = True

    def body(k, n):
        nonlocal first
        if first:
            k.act(1)
            first = False  # here
        held.append(1)

    return body


def test_what_a_body_encloses():
    with pytest.raises(ScopeError, match="`first` of a function around is set"):
        Program(made([]), 1)
