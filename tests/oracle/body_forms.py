"""Forms of the bodies of `tests.oracle.bodies`: the module around them, what keeps state, is seldom, or asks Python."""

from __future__ import annotations

__all__ = ["ASKED", "FUNCTIONS", "MODULE", "RARE", "SHOWN", "STATES"]

MODULE = """
import array, collections, functools, itertools

import numpy as np

import tmapipe as tp


class Box:
    n = 0


box, ledger, table_of, calls = Box(), [0], {{0: 0}}, 0
{functions}

class {name}(tp.Schedule):
    load, work = tp.Role(warps=1), tp.Role(warps=1)
    ring = tp.BarrierRing(3, producer=load, consumer=work)
    x = tp.TmaLoadStage("m n", tile=(8, 16), ring=ring, dtype="fp32")
    t = tp.Table("e")
    y = tp.TmaStoreStage("m n", tile=(8, 16), role=work, dtype="fp32")
    {cluster}

{methods}
    @load.jit
    def fill(self, k, tile):
{load}

    @work.jit
    def add(self, k, tile):
        total = other = k.full("y", 0.0)
{work}
        k.y.store(tile, total + other)
"""

#: Kind of state -> (what the body says first, what a statement says; {v} is a number and {c} the name that it changes).
STATES: dict[str, tuple[str, str]] = {
    "list": ("seen = [0]", "seen[0] += {v}; {c} = seen[0] % 7"),
    "list that grows": ("seen = []", "seen.append({v}); {c} = len(seen)"),
    "list, in place": ("seen = []", "seen += [{v}]; {c} = len(seen)"),
    "list handed to a function": ("seen = []", "grow(seen, {v}); {c} = len(seen)"),
    "slice": ("seen = [0, 0]", "seen[:] = [{v}, seen[0]]; {c} = seen[1] % 9"),
    "deque": ("seen = collections.deque([1, 2, 3])", "seen.rotate(1); {c} = {c} + seen[0]"),
    "deque of numbers": ("seen = collections.deque(); seen.append(4)", "seen.append({v}); {c} = seen.popleft() % 9"),
    "dictionary": ("seen = {}", "seen['n'] = seen.get('n', 0) + 1; {c} = {c} + seen['n']"),
    "set": ("seen = set()", "seen.add(len(seen)); {c} = {c} + len(seen)"),
    "object": ("one = Box()", "one.n += 1; {c} = {c} + one.n"),
    "object of the module": ("", "box.n += 1; {c} = {c} + box.n % 5"),
    "attribute of a class": ("", "Box.n = Box.n + 1; {c} = {c} + Box.n % 5"),
    "list of the module": ("", "ledger[0] += 1; {c} = {c} + ledger[0] % 5"),
    "dictionary of the module": ("", "table_of[0] = table_of[0] + 1; {c} = {c} + table_of[0] % 5"),
    "global": ("", "{c} = {c} + counted_up() % 5"),
    "nonlocal": (
        "steps_done = 0\ndef done():\n    nonlocal steps_done\n    steps_done += 1\n    return steps_done",
        "{c} = {c} + done()",
    ),
    "self": ("", "self.seen = getattr(self, 'seen', 0) + 1; {c} = {c} + self.seen % 5"),
    "setattr of self": ("", "setattr(self, 'seen', getattr(self, 'seen', 0) + 1); {c} = {c} + self.seen % 5"),
    "__dict__ of self": ("", "self.__dict__['seen'] = self.__dict__.get('seen', 0) + 1; {c} = {c} + self.seen % 5"),
    "k": ("", "k.seen = vars(k).get('seen', 0) + 1; {c} = {c} + k.seen % 5"),
    "k, deleted": ("k.seen = 1", "k.seen += 1; {c} = {c} + k.seen % 5"),
    "default of a parameter": ("", "{c} = {c} + with_default() % 5"),
    "attribute of a function": ("", "{c} = {c} + marked() % 5"),
    "functools.cache": ("", "{c} = {c} + first_time({v} % 2)"),
    "functools.cache without arguments": ("", "{c} = {c} + only_once()"),
    "itertools.count": ("ticks = itertools.count()", "{c} = {c} + next(ticks) % 5"),
    "itertools.cycle": ("ticks = itertools.cycle((1, 2, 3))", "{c} = {c} + next(ticks)"),
    "iterator": ("ticks = iter(range(1000))", "{c} = {c} + next(ticks) % 5"),
    "generator": ("ticks = ticking()", "{c} = {c} + next(ticks) % 5"),
    "bound method": ("seen = []; note = seen.append", "note(1); {c} = {c} + len(seen)"),
    "partial": ("seen = []; note = functools.partial(seen.insert, 0)", "note(1); {c} = {c} + len(seen)"),
    "functools.reduce": ("seen = []", "functools.reduce(lambda s, i: seen.append(i), (1, 2), None); {c} = {c} + len(seen)"),
    "array": ("seen = array.array('i', [0])", "seen[0] += 1; {c} = {c} + seen[0]"),
    "bytes": ("seen = bytearray()", "seen.append(1); {c} = {c} + len(seen)"),
    "ndarray": ("seen = np.zeros(1, np.int64)", "seen[0] += 1; {c} = {c} + int(seen[0])"),
    "ndarray, in place": ("seen = np.zeros(1, np.int64)", "seen += 1; {c} = {c} + int(seen[0])"),
    "ndarray, by out=": ("seen = np.zeros(1, np.int64)", "np.add(seen, 1, out=seen); {c} = {c} + int(seen[0])"),
    "list in a dictionary": ("seen = {'n': [0]}", "seen['n'][0] += 1; {c} = {c} + seen['n'][0]"),
    "two names of a list": ("seen = also = [0]", "also[0] += 1; {c} = {c} + seen[0]"),
    "list in a tuple": ("seen = ([],)", "seen[0].append(1); {c} = {c} + len(seen[0])"),
    "list in a closure": ("seen = []\nnote = lambda: seen.append(1)", "note(); {c} = {c} + len(seen)"),
    "callable object": ("count = Counting()", "{c} = {c} + count()"),
    "property": ("one = Counting()", "{c} = {c} + one.next"),
    "operator": ("one = Counting()", "{c} = {c} + (one + 1)"),
}  # fmt: skip

#: Forms of Python that are right, and seldom needed; {c} and {d} are names, {v} a number, {t} a condition.
RARE: dict[str, str] = {
    "walrus": "if ({c} := {v} % 7) > 3 and {c} < 6:\n    {d} = {d} + {c}",
    "walrus in while": "left = {v} % 4 + 1\nwhile (left := left - 1) > 0:\n    {d} = {d} + left",
    "in": "if {v} % 7 in (1, 2, 5):\n    {d} = {d} + 1",
    "not in": "{d} = {d} + 2 if {v} % 5 not in (1, 3) else {d}",
    "in range": "if {v} in range(2, 9):\n    {d} = {d} + 1",
    "match": "match {v} % 4:\n    case 0:\n        {d} = {d} + 1\n    case 1 | 2:\n        {d} = {d} + {c}\n"
    "    case _:\n        {d} = 3",
    "finally": "try:\n    {d} = {v} % 9\nfinally:\n    {c} = {c} % 11",
    "del": "gone = {v}\n{d} = {d} + gone\ndel gone",
    "assert": "assert {c} == {c}\n{d} = {d} + 1",
    "starred": "{c}, *others = {v} % 5, {d} % 9, 3\n{d} = others[0] + others[1]",
    "else of for": "for i in range({v} % 3):\n    {d} = {d} + i\nelse:\n    {d} = {d} + 5",
    "else of while": "left = {v} % 3\nwhile left > 0:\n    left = left - 1\nelse:\n    {d} = {d} + 5",
    "any": "if any([{t}, {c} > 3]):\n    {d} = {d} + 1",
    "all": "if all([{t}, {c} > 3]):\n    {d} = {d} + 1",
    "reversed range": "for i in reversed(range({v} % 4)):\n    {d} = {d} * 2 % 31 + i",
    "enumerate": "for n, each in enumerate(({c}, {d}, 4)):\n    {d} = ({d} * 3 + n * each) % 37",
    "zip": "for p, q in zip(({c}, {d}), (2, 3)):\n    {d} = ({d} + p * q) % 41",
    "augmented, of a tuple": "pair = ({c}, 1)\npair += ({d},)\n{d} = pair[0] % 7 + pair[2] % 5",
    "power": "{d} = ({v} % 5) ** 2",
    "sorted": "{d} = sorted(({c}, {d}, 3))[1] % 51",
    "xor of conditions": "if ({t}) ^ ({c} > 2):\n    {d} = {d} + 1",
    "is": "if {d} is not None:\n    {d} = {d} + 1",
    "annotated": "extra: int = {v} % 8\n{d} = {d} + extra",
    "nested tuple": "({c}, {d}), extra = ({d} % 9, {c} % 7), {v} % 3\n{c} = {c} + extra",
    "with of two": "with contextlib_null() as _, contextlib_null() as also:\n    {d} = {d} + also",
    "keyword by **": "{d} = {d} + add_two(**{{'p': {v} % 5, 'q': {c} % 3}})",
}  # fmt: skip

#: Forms that mutants of the front end are shown by, and that are not drawn.
SHOWN: dict[str, str] = {
    "guarded division in a condition": "if {c} % 3 and {v} % ({c} % 3) == 0:\n    {d} = {d} + 1",
    "break alone": "{d} = {d} + stopped({v} % 5 + 2, {c} % 3)",
    "continue alone": "{d} = {d} + skipped({v} % 5 + 3)",
    "return alone": "{d} = {d} + at_least({v} % 5 + 4, {c} % 3)",
    "a name that stays": "for e in range({v} % 3 + 2):\n    {c} = {c}\n    {d} = {d} + {c} + 1",
}

#: Questions to Python about a number, that only the kernel knows. They are refused, or by luck right.
ASKED: dict[str, str] = {
    "isinstance": "{d} = {d} + (1 if isinstance({v}, int) else 2)",
    "type": "{d} = {d} + (1 if type({v}) is int else 2)",
    "int": "{d} = {d} + int({v})",
    "f-string": "{d} = {d} + len(f'{{{v}}}')",
    "str": "{d} = {d} + len(str({v}))",
    "key": "{d} = {d} + {{0: 1, 1: 2, 2: 5}}[{v} % 3]",
    "get": "{d} = {d} + {{0: 1, 2: 5}}.get({v} % 3, 7)",
    "index": "{d} = {d} + (4, 9, 1)[{v} % 3]",
    "hash": "{d} = {d} + hash({v} % 5) % 3",
    "len of range": "{d} = {d} + len(range({v} % 5))",
    "list of range": "{d} = {d} + sum([i for i in range({v} % 5)])",
    "caught": "try:\n    {d} = {d} + 6 // ({v} % 3)\nexcept ZeroDivisionError:\n    {d} = {d} + 9",
    "key error": "try:\n    {d} = {d} + {{0: 1, 1: 2}}[{v} % 3]\nexcept KeyError:\n    {d} = {d} + 9",
    "case int()": "match {v}:\n    case int():\n        {d} = {d} + 1\n    case _:\n        {d} = {d} + 2",
    "float": "{d} = {d} + (1 if float({v}) > 2.5 else 2)",
    "bit_length": "{d} = {d} + ({v}).bit_length()",
    "true division": "{d} = {d} + (1 if ({v}) / 2 > 1 else 2)",
    "identity": "{d} = {d} + (1 if ({v}) % 3 is 1 else 2)",
    "hasattr": "{d} = {d} + (1 if hasattr({v}, 'bit_length') else 2)",
    "callable": "{d} = {d} + (1 if callable({v}) else 2)",
}  # fmt: skip

FUNCTIONS = """
def counted_up():
    global calls
    calls += 1
    return calls


def grow(seen, v):
    seen.append(v)


def at_least(n, c):
    for i in range(n):
        if i >= c:
            return i
    return n


def stopped(n, c):
    total = 0
    for i in range(n):
        if i == c:
            break
        total = total + i + 1
    return total


def skipped(n):
    total = 0
    for i in range(n):
        if i % 2 == 1:
            if i % 3 == 1:
                continue
            total = total + 5
        total = total + i + 1
    return total


def with_default(seen=[0]):
    seen[0] += 1
    return seen[0]


def marked():
    marked.n = getattr(marked, "n", 0) + 1
    return marked.n


@functools.cache
def first_time(n):
    ledger[0] += 1
    return ledger[0]


@functools.cache
def only_once():
    ledger[0] += 1
    return ledger[0]


def ticking():
    n = 0
    while True:
        yield n
        n += 1


class Counting:
    def __init__(self):
        self.n = 0

    def __call__(self):
        self.n += 1
        return self.n

    @property
    def next(self):
        self.n += 1
        return self.n

    def __add__(self, other):
        self.n += other
        return self.n


class contextlib_null:
    def __enter__(self):
        return 2

    def __exit__(self, *error):
        pass


def add_two(p, q):
    return p * 2 + q
"""
