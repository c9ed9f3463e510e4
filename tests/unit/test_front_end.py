"""What the front end rewrites: each construct, traced with symbols and read with numbers, against CPython with these."""

import collections
import contextlib
from typing import NamedTuple

import pytest

from tests.unit.traced import agree, cases_of

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
    return n in (1, m), n not in [2], n in range(4), (n in (1, 2)) + 1, "a" in {"a": n}, "b" not in {"a": n}


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


CASES = cases_of(globals(), scope)


@pytest.mark.parametrize("body", [False, True], ids=["function", "body"])
@pytest.mark.parametrize(("function", "values"), CASES, ids=[f.__name__ for f, _ in CASES])
def test_it_does_what_it_does_in_cpython(function, values, body):
    agree(function, values, body=body)
