"""The front end, of functions, objects and generators, and of where their source comes from, beside CPython."""

import contextlib
import functools
import linecache
import operator
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.generated_functions import Generator
from tests.unit.traced import ONE, Plain, Program, agree, cases_of
from tmapipe.program.expressions import For, If, Let, While


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


CASES = cases_of(globals(), decorated)


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
