"""What the front end rewrites: each construct, traced with symbols and read with numbers, against CPython with these."""

import collections
import contextlib
import functools
import itertools
import linecache
import operator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.generated_functions import Generator
from tests.unit.traced import Plain, Program, agree
from tmapipe.program.expressions import For, If, Let, While

ONE = [(i,) for i in range(-3, 8)]
TWO = list(itertools.product(range(-2, 6), range(-1, 6)))


# ---- operands and conditions ------------------------------------------------------------------------------------------


def operands_of_or(k, n, m):
    for i in range(n % 4 or 2):
        k.act(i)
    return (n or m) + (n and m), (n or m or 7), (n > 1 or m > 2), (n and k.count() and m)


def guarded_read(k, i, n):
    if 0 <= i < n and k.read(i) > 0:
        k.act(1)
    return i >= 0 and k.read(i) or n  # noqa: RUF021


def guarded_division(k, n, m):
    if m != 0 and n // m > 1:
        k.act(1)
    return (m and n % m), (n // m if m else 0), not (m and n // m)


def chains(k, n, m):
    if 0 < k.count() + n <= m < 6:
        k.act(1)
    return 1 < n < m, (n < m) == (m > n) != 0, 0 <= n != m <= 5


def conditional_expressions(k, n, m):
    x = k.read(n % 8) if n < m else m
    return x if n else (x + 1 if m else -x)


def truth_of_others(k, n, m):
    empty, full = [], [1]
    if (n > 1 and full) or (m > 1 and empty) or None:
        k.act(1)
    return not full, not n


def membership(k, n, m):
    return n in (1, m), n not in [2], n in range(4), (n in (1, 2)) + 1


def extremes(k, n, m):
    return min(n, m, 3), max(n, m), min([4, 2], key=lambda v: -v), max((n, 5)), min(3, 4), max([], default=3)


def some_of_several(k, n, m):
    return (
        any(n == j for j in (1, 4)),
        all(n > k.read(j) for j in (1, 2)),
        any([]),
        sum(x * n for x in (1, m)),
        any((n, m)),
    )


def assigned_in_a_condition(k, n, m):
    if (x := n + 1) > m:
        k.act(x)
    i = 0
    while (w := k.read(i)) != 0:
        i += w - w + 1
    return x, i, [y := n, y + 1][1], y


# ---- branches ---------------------------------------------------------------------------------------------------------


def names_of_both_branches(k, n):
    if n > 2:
        a, b = n + 1, 2
        k.act(a)
    else:
        a = n - 1
        b = 3
    c = d = a
    return a * b, c, d


def many_branches(k, n):
    if n == 0:
        x = 1
    elif n == 1:
        x = k.read(2)
    elif n == 2:
        return 7
    else:
        x = n
    if n > 4:
        pass
    else:
        x += 1
    return x


def flags(k, n):
    first, seen = True, False
    for i in range(n):
        if first:
            k.act("first")
            first = False
        seen = seen or i == 2
        k.act(i)
    return first, seen


def a_deleted_name(k, n):
    x = n
    if n > 2:
        x = 5
        y = 1
        del y
    y = x
    del x
    return y


def branches_of_tuples(k, n):
    pair = (n, (1, 2))
    if n > 2:
        pair = (3, (n, 4))
    a, (b, c) = pair
    return a, b, c


class Point(NamedTuple):
    x: int
    y: int


def branches_of_named_tuples(k, n):
    point = Point(n, 1)
    for i in range(n):
        point = Point(point.y, point.x + i)
    if n > 3:
        point = point._replace(x=0)
    return point.x, point.y


class Shifted:
    """A number with operators of its own, which decide by what only the kernel knows."""

    def __init__(self, by):
        self.by = by

    def __add__(self, other):
        return other + self.by if other > self.by else self.by

    def __rsub__(self, other):
        return Shifted(other - self.by if other < 3 else 0)

    def __mul__(self, other):
        return NotImplemented

    __rmul__ = __add__

    def __iadd__(self, other):
        return Shifted(self.by + other if other < 4 else 1)

    def __neg__(self):
        return -self.by if self.by > 2 else self.by

    def __le__(self, other):
        return self.by <= other if other > 1 else other == 0


def operators_of_objects(k, n, m):
    shifted = n - Shifted(m)
    for i in range(n):
        k.act(shifted + i, Shifted(2) + (i + m))
    shifted += m
    if Shifted(n) <= 2:
        k.act(-shifted)
    return shifted.by, n * Shifted(5)


# ---- exits ------------------------------------------------------------------------------------------------------------


def early_returns(k, n, m):
    x = 0
    if n > 0:
        if m > 0:
            return x, 1
        x = 5
    else:
        x = 7
        if m == 2:
            k.act("out")
            return 100, n
    k.act(x)
    y = x + 1
    return y, x


def returns_nothing(k, n):
    if n > 2:
        return
    k.act(n)


def returns_from_a_loop(k, n, m):
    for i in range(n):
        k.act(i)
        if i == m:
            return i * 10
    return -1


def breaks(k, n, m):
    s = 0
    for i in range(n):
        if i == m:
            break
        s += i
        k.act(s)
    else:
        s += 100
    return s


def continues(k, n, m):
    s = 0
    for i in range(n):
        if i % 2 == 0:
            continue
        s = s + i
        if s > m:
            s -= 1
            continue
        k.act(s)
    return s


def nested_exits(k, n, m):
    s = 0
    for i in range(n):
        for j in range(i):
            if j == m:
                break
            s += j
            if s > 20:
                return s
        else:
            s += 1
    return s


def breaks_of_constants(k, n):
    for x in (3, 1, 4, 2):
        if x == 4:
            break
        if x == n:
            continue
        k.act(x)
    for x in [3, 1, 4, 2]:
        if x == n:
            break
        k.act(x)
    else:
        x = -9
    return x


class Scope:
    def __init__(self, k, name="scope"):
        self.k, self.name = k, name

    def __enter__(self):
        self.k.act("enter", self.name)
        return self

    def __exit__(self, *error):
        self.k.act("leave", self.name)


@contextlib.contextmanager
def scope(k, n):
    k.act("begin", 1 if n > 1 else 2)
    yield n + 1
    k.act("end")


def exits_from_with(k, n, m):
    with Scope(k) as outer, scope(k, n) as x:
        if n > 1:
            return x
        k.act("inside", outer.name)
    for i in range(4):
        with Scope(k, "loop"):
            if i == m:
                break
            if i == n:
                continue
            k.act(i)
        k.act("tail")
    return -n


def exits_from_try(k, n):
    try:
        if n > 1:
            return 5
        k.act(2)
    except KeyError:
        k.act(9)
    else:
        if n == 0:
            return 1
        k.act("else")
    finally:
        k.act(3)
    return 6


def names_of_finally(k, n, m):
    x = 1
    try:
        for i in range(n):
            x = i
            if i == m:
                return x + 1
        x = x + 1
    finally:
        k.act(x)
    return x


def counts_in_try(k, n):
    x = y = 1
    for i in range(n):
        try:
            x += i
            with Scope(k):
                y *= 2
        finally:
            k.act(x, y)
        x = y + 1
    return x


def caught_errors(k, n):
    try:
        {1: 2}[3]
    except KeyError as error:
        k.act(error.args[0])
        x = n
    try:
        raise ValueError(1)
    except (ValueError, TypeError):
        x += 1
    with contextlib.suppress(ZeroDivisionError):
        x //= 0
    return x


# ---- loops ------------------------------------------------------------------------------------------------------------


def while_loops(k, n, m):
    i = 0
    while i < n:
        k.act(i)
        i += 2
    while i < 8 and k.read(i) != m:
        i += 1
    while True:
        i += 1
        k.act(i)
        if i > 5:
            break
    else:
        i = 0
    j = 3
    while j:
        j -= 1
        if j == m:
            continue
        k.act("j", j)
    while n > 0 and m > 0:
        n, m = n - 1, m - n
    return i, j, n, m


def steps(k, n):
    s = 0
    for i in range(n, -2, -2):
        s += i
        k.act(i)
    for i in range(1, n, 3):
        k.act(i)
    for i in reversed(range(n)):
        k.act(i)
    for i in range(1, 8, 3):
        k.act(i)
    return s


def names_that_loops_set(k, n):
    for i in range(3):
        y = n + i
        k.act(i)
    x = False
    for _ in range(n):
        x = x + 1
    t = (n, 1)
    for _ in range(3 + n):
        a, b = t
        t = (b, a + b)
    return y, i, x, t


def two_names_of_a_number(k, n):
    a = b = n
    for i in range(3):
        k.act(a, b)
        a, b = b + 1, a - i
    return a, b


def lists_that_keep_their_length(k, n):
    held, ring, queue = [0, 1], [0, 0], collections.deque([5, 6], 2)
    for i in range(n):
        held.append(i)
        k.act(held.pop(0))
        ring[1], ring[0] = ring[0], i
        queue.append(i)
        queue.rotate(1)
        ring[0] += 1
    if n > 3:
        held[0] = 99
        queue.popleft()
        queue.append(1)
    return held, ring, list(queue)


def lists_made_inside(k, n):
    for i in range(n):
        parts = []
        for j in (1, 2):
            parts.append(i * j)
        parts += [7]
        names = {"a": 1}
        names["b"] = i
        k.act(*parts, names["b"], *[p + 1 for p in parts], *{1: 2}.values())
    return n


# ---- functions --------------------------------------------------------------------------------------------------------


def helper(x, *rest, scale=2, **named):
    for r in rest:
        if r > x:
            return r * scale
    return x + named.get("e", 0)


def arguments(k, n, m):
    return helper(n, m, 3, scale=n, e=m), helper(*(n, m)), helper(x=n, e=5), functools.partial(helper, 3, scale=m)(n)


def nested_functions(k, n):
    total = 0

    def add(x, /, *, by=1):
        nonlocal total
        total += x * by

    add(n)
    add(2, by=3)
    for i in range(n):
        last = 0

        def note(x):
            nonlocal last
            last = x + 1

        note(i)
        k.act(last)
    f = lambda y: y if y > 0 else -y  # noqa: E731
    return (
        total,
        f(n),
        (lambda a, b=total: a if a > b else b)(n),
        [g(n) for g in (lambda x: x + 1, lambda x: x if x else 4)],
    )


def counted(function):
    @functools.wraps(function)
    def wrapper(k, *arguments):
        k.act("called")
        return function(k, *arguments)

    return wrapper


@counted
def decorated(k, n):
    return 1 if n > 2 else k.read(0)


def decorators(k, n):
    @counted
    def inside(k, n):
        return n if n > 2 else 2

    return decorated(k, n), inside(k, n)


class Base:
    def __init__(self, n):
        self.n = n if n > 0 else -n
        self.__private = 3

    def value(self, m):
        return self.n if self.n > m else m

    @property
    def larger(self):
        return self.n if self.n > 2 else self.__private

    @staticmethod
    def double(n):
        return 2 * n if n > 1 else n

    @classmethod
    def of(cls, n):
        return cls(n if n < 3 else 3)

    def __call__(self, m):
        if m > 2:
            return m
        return self.n

    def __iter__(self):
        yield self.n
        yield 4


class Derived(Base):
    def value(self, m):
        found = super().value(m)
        return found if found < 5 else 5


def objects(k, n, m):
    one = Derived.of(n)
    other = Base(m)
    other.n += 1
    return one.value(m), one.larger, one.double(n), one(m), sum(other), other.n, list(map(Base.double, (n, m)))


def generators(k, n):
    def some(x):
        for i in range(3):
            if i == 1:
                continue
            yield x if x > i else i

    for each in some(n):
        k.act(each)
    return list(some(n)), [*zip((1, 2), some(n), strict=False)], functools.reduce(operator.add, some(n))


def comprehensions(k, n):
    kept = [n + j if j else 0 for j in range(3) if j != 1]
    flat = [x for y in ((n, 1), (2, 3)) for x in y if x is not None]
    return kept, flat, dict(zip("ab", kept, strict=True))["b"], sorted({3, 1})


def matches(k, n):
    for what in ("a", ("b", 2), {"c": 3}, 4):
        match what:
            case "a" if n is not None:
                k.act("a")
            case ("b", x):
                k.act(x, n)
            case {"c": y}:
                if n > 2:
                    continue
                k.act(y)
            case _:
                k.act(n)
    return n


def classes(k, n):
    class Local:
        size = 3

        def scaled(self, x):
            return x * self.size if x > 1 else x

    return Local().scaled(n)


def text_of_constants(k, n):
    return f"{3}-{'x'!r}", str(4), "%d" % 5, "{}".format(6), int("7"), isinstance(3, int), {1: n}[1], len([n, n])  # noqa: UP031, UP032


CASES = [(f, ONE if f.__code__.co_argcount == 2 else TWO) for f in list(globals().values())
         if getattr(f, "__module__", "") == __name__ and hasattr(f, "__code__") and f.__code__.co_varnames[:1] == ("k",)
         and f not in (scope, decorated)]  # fmt: skip


@pytest.mark.parametrize("body", [False, True], ids=["function", "body"])
@pytest.mark.parametrize(("function", "values"), CASES, ids=[f.__name__ for f, _ in CASES])
def test_it_does_what_it_does_in_cpython(function, values, body):
    agree(function, values, body=body)


@settings(max_examples=30)
@given(
    seed=st.integers(0, 2**32),
    numbers=st.lists(st.tuples(st.integers(-9, 9), st.integers(-9, 9)), min_size=1, max_size=8),
)
def test_generated_functions(seed, numbers):
    function = Generator(seed).function()
    right = []
    for each in numbers:
        plain = Plain([3, 1, 4, 0, 5, 9, 2, 6])
        with contextlib.suppress(UnboundLocalError):
            function(plain, *each)
            if len(plain.log) < 1000:
                right.append(each)
    if right:
        agree(function, right, body=bool(seed % 2))


# ---- what the trace looks like ----------------------------------------------------------------------------------------


def kinds(nodes):
    return [type(n).__name__ for n in nodes if type(n) is not Let]


def test_a_known_range_is_a_loop_in_a_body_alone():
    def body(k):
        for i in range(3):
            k.act(i)

    assert kinds(Program(body, 0, body=True).nodes) == ["For"]
    assert kinds(Program(body, 0).nodes) == ["Call"] * 3


def test_dead_names_are_not_carried():
    def body(k, n):
        x = 0
        for i in range(n):
            x = i + 1
            y = x * 2
            k.act(y)
        if n > 1:
            x = 3
        else:
            x = 4
        k.act(1)

    loop, call = (n for n in Program(body, 1).nodes if type(n) is not Let)
    assert isinstance(loop, For) and loop.carried == [] and kinds([call]) == ["Call"]


def test_an_operand_without_operations_is_an_expression():
    def body(k, n, m):
        k.act((n or m), n if m else 3, n > 1 and m > 2)

    assert kinds(Program(body, 2).nodes) == ["Call"]


def test_a_loop_that_is_left_early_is_a_while():
    def body(k, n, m):
        for i in range(n):
            if i == m:
                break
            k.act(i)

    (loop,) = (n for n in Program(body, 2).nodes if type(n) is not Let)
    assert isinstance(loop, While)


def test_what_follows_a_return_is_in_the_other_branch():
    def body(k, n):
        if n == 0:
            return 1
        k.act(n)
        return 2

    (branch,) = (n for n in Program(body, 1).nodes if type(n) is not Let)
    assert isinstance(branch, If) and kinds(branch.then) == [] and kinds(branch.other) == ["Call"]


# ---- where functions come from ----------------------------------------------------------------------------------------


def test_code_that_was_executed_from_text():
    text = "def f(k, n):\n    if n > 1:\n        k.act(n)\n    return 3 if n else 4\n"
    linecache.cache["<some text>"] = (len(text), None, text.splitlines(True), "<some text>")
    space = {}
    exec(compile(text, "<some text>", "exec"), space)
    agree(space["f"], ONE)


def test_code_without_source_runs_once():
    space = {}
    exec(compile("def f(k, n):\n    k.act(n + 1)\n    return n * 2\n", "<no text>", "exec"), space)
    agree(space["f"], ONE)


def test_lambdas_of_one_line():
    some = [lambda k, n: 1 if n > 2 else 2, lambda k, n: 3 if n > 4 else n, lambda k, n: some[0](k, n) or n]
    for each in some:
        agree(each, ONE)
    signs = (lambda k, n: 0.0, lambda k, n: -0.0, lambda k, n: (0.0,), lambda k, n: (-0.0,))
    assert [repr(Program(each, 1).result) for each in signs] == ["0.0", "-0.0", "(0.0,)", "(-0.0,)"]


def test_two_threads_trace_at_once():
    def body(k, n):
        for i in range(n):
            k.act(i + 1)
        return n * 3

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(lambda _: agree(body, ONE) is not None, range(16)))


def test_equal_functions_of_two_files():
    text = "def f(k, n):\n    k.act(1)\n    return [1, 2][n]\n"
    for name in ("<one>", "<two>"):
        linecache.cache[name] = (len(text), None, text.splitlines(True), name)
        space = {}
        exec(compile(text, name, "exec"), space)
        with pytest.raises(Exception, match=f"{name}:3"):
            Program(space["f"], 1)
