"""Bodies drawn at random, on which the judge and the program must agree: ``python -m tests.oracle.bodies 5000 --jobs 32``.

Grammar (a seed draws one body; `body(seed)` is the same text on every machine)::

    schedule    a ring of three slots, one loader, one reader that sums slots times numbers, maybe a table, maybe clusters
    body        numbers, then 1 to 4 statements, printed twice: the loader loads where the reader reads; then one store
    statement   assign | if | for | while | slot | slots kept open | call | early exit | state | rare
    assign      name = number; name op= number; a, b = b, number; a = b = number; in one or in both branches
    for         range(n), range(a, b), range(a, b, step), of constants and of numbers; its index changed, and read after it
    while       counts down, halves, clears bits; with further conditions
    slot        with k.ring...: one load or read, maybe in the branches of an `if`
    kept open   two slots open at once; a slot that a loop hands on
    call        a method, a function, a closure, a lambda that reads what changes later; keywords, defaults, *arguments,
                several results, calls of calls; slots taken in a method; returns in branches, loops and `with`
    early exit  break, continue, return, of loops over constants and over numbers
    number      names, constants, tile.m, tile.n, extents, steps, entries of a table, + - * // % << >> & | ^ ~, abs, min, max,
                divmod, conditional expressions, operand values of and / or, conditions in arithmetic, calls, guarded divisions
    condition   comparisons, chains of them, and / or / not, numbers, guarded reads of the table
    state       what is kept elsewhere than in local names: `STATES`
    rare        := , in, match, try, del, assert, comprehensions, else of loops, a starred target: `RARE`
    asked       what Python alone could answer, of a number of the kernel: `ASKED`

A body without `state` and `asked` is right in plain Python. The command prints how many bodies agree, are refused (by reason),
or differ: of the right ones at most 2 % may be refused, and of all none may differ. Numbers stay far below 2^31, so Python's
are those of the kernel.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs

from tests.oracle.body_forms import ASKED, FUNCTIONS, MODULE, RARE, SHOWN, STATES

__all__ = ["Body", "body"]

SEED = 27  #: of the table in the documentation


@attrs.frozen
class Body:
    """seed: that it is drawn by; source: of a module with its schedule, whose name is `name`; features: what it has of the
    grammar; state, asked: a kind of `STATES` or `ASKED`, or "".
    """

    seed: int
    name: str
    source: str
    features: frozenset[str]
    state: str = ""
    asked: str = ""

    @property
    def right(self) -> bool:
        """Whether it is to be traced: it keeps no state, and asks Python nothing that only the kernel knows."""
        return not self.state and not self.asked


def body(seed: int, state: str | None = None, asked: str | None = None, shown: str = "") -> Body:
    """The body of this seed. state, asked: a kind that it has; by default drawn, too. shown: one of `SHOWN` besides."""
    return _Drawing(seed).made(state, asked, shown)


class _Drawing:
    """One body as it is drawn. lines: of the block at work, for the loader and for the reader."""

    def __init__(self, seed: int):
        self.seed, self.rng = seed, random.Random(f"body {seed}")
        self.features: set[str] = set()
        self.lines: list[tuple[str, str]] = []
        self.depth = self.nested = self.loops = self.made_names = 0
        self.names: list[str] = []
        self.kept: list[str] = []  # names that statements may not change: those which end a loop
        self.functions: list[str] = []
        self.methods: list[str] = []
        self.calls: list[str] = []  # of helpers on numbers, with {} for each argument
        self.in_helper = False
        self.state = self.asked = ""

    # ---- text -----------------------------------------------------------------------------------------------------

    def say(self, text: str, reader: str | None = None) -> None:
        """A statement of both roles, or of the loader and of the reader."""
        indent = "    " * self.depth
        texts = [text, text if reader is None else reader]
        load, work = ("\n".join(indent + line for line in each.split("\n")) for each in texts)
        self.lines.append((load, work))

    @contextlib.contextmanager
    def block(self, head: str, reader: str | None = None) -> Iterator[None]:
        """The statements said inside belong to *head*."""
        self.say(head, reader)
        self.depth, self.nested = self.depth + 1, self.nested + 1
        names, before = list(self.names), len(self.lines)
        yield
        if len(self.lines) == before:
            self.say("pass")
        self.depth, self.nested = self.depth - 1, self.nested - 1
        self.names = names

    def name(self, wanted: str) -> str:
        self.made_names += 1
        return f"{wanted}{self.made_names}"

    def has(self, feature: str, chance: float) -> bool:
        if self.rng.random() < chance:
            self.features.add(feature)
            return True
        return False

    def target(self) -> str:
        return self.rng.choice([name for name in self.names if name not in self.kept])

    # ---- numbers and conditions -----------------------------------------------------------------------------------

    def number(self, depth: int = 2) -> str:
        rng = self.rng
        if depth == 0 or rng.random() < 0.2:
            return self.atom()
        a, b = self.number(depth - 1), self.number(depth - 1)
        kind = rng.randrange(22)
        if kind < 7:
            return f"({a} {rng.choice('+-+-&|^')} {b})"
        if kind < 9:
            return f"({a} % 23 * ({b} % 19))"
        if kind < 12:
            return f"({a} {rng.choice(('//', '%', '%'))} {rng.choice((1, 2, 3, 5, 8, -3, -4))})"
        if kind == 12:
            return f"({a} % 30 << {rng.randrange(4)})" if rng.random() < 0.5 else f"({a} >> {rng.randrange(4)})"
        if kind == 13:
            self.features.add("min and max")
            return f"{rng.choice(('min', 'max'))}({a}, {b}{rng.choice(('', ', 5', f', {self.atom()}'))})"
        if kind == 14:
            return rng.choice((f"abs({a})", f"(-{a})", f"(~{a})", f"(+{a})"))
        if kind == 15:
            self.features.add("conditional expression")
            return f"({a} if {self.condition(depth - 1)} else {b})"
        if kind == 16:
            self.features.add("and / or of numbers")
            return rng.choice(
                (f"({a} and {b})", f"({a} or {b})", f"({a} and {b} or {self.atom()})", f"({a} or {rng.randrange(4)})")
            )
        if kind == 17:
            self.features.add("guarded division")
            n = self.atom()
            return rng.choice((f"({a} // {n} if {n} else {b})", f"({n} and {a} % {n})", f"({a} // (1 + {b} % 4))"))
        if kind == 18:
            self.features.add("condition as a number")
            return (
                f"(({self.condition(depth - 1)}) {rng.choice('+*')} {a} % 50)"
                if rng.random() < 0.5
                else f"{a} * ({self.comparison(0)})"
            )
        if kind == 19 and self.calls:
            return self.call(depth - 1)
        if kind == 20:
            self.features.add("divmod")
            return f"divmod({a}, {rng.choice((2, 3, 7))})[{rng.randrange(2)}]"
        return f"({a} + {b})"

    def atom(self) -> str:
        rng = self.rng
        if self.names and rng.random() < 0.55:
            return rng.choice(self.names)
        if rng.random() < 0.4 or self.in_helper:
            return str(rng.choice((0, 1, 2, 3, 4, 7, 11, -1, -2, -5)))
        if self.has("table", 0.15):
            return f"k.t.entry({self.rng.choice(self.names or ['1'])} % 6)"
        return rng.choice(
            ("tile.m", "tile.n", 'k.steps("x", "m")', 'k.steps("x", "n")', 'k.extent("m")', 'k.extent("n")')
        )

    def comparison(self, depth: int) -> str:
        a, b = self.number(depth), self.number(depth)
        return f"{a} {self.rng.choice(('<', '<=', '>', '>=', '==', '!='))} {b}"

    def condition(self, depth: int = 1) -> str:
        rng = self.rng
        kind = rng.randrange(12)
        if kind < 5 or (depth == 0 and kind < 9):
            return self.comparison(depth)
        if kind < 7:
            a, b = self.condition(depth - 1), self.condition(depth - 1)
            self.features.add("and / or")
            return f"({a} {rng.choice(('and', 'or'))} {b})"
        if kind == 7:
            return f"not ({self.condition(max(0, depth - 1))})"
        if kind == 8:
            self.features.add("chain")
            middle = self.number(depth)
            return (
                f"({self.atom()} {rng.choice(('<', '<=', '!='))} {middle} {rng.choice(('<', '<=', '>'))} {self.atom()})"
            )
        if kind == 9 and not self.in_helper and self.names:
            self.features.add("guarded read")
            i = rng.choice(self.names)
            return f"(0 <= {i} < 6 and k.t.entry({i}) > {rng.randrange(4)})"
        if kind == 10:
            return f"{self.number(depth)} % {rng.choice((2, 3))}"
        return self.number(depth)

    def call(self, depth: int) -> str:
        self.features.add("helper")
        form = self.rng.choice(self.calls)
        return form.format(*(self.number(depth) for _ in range(form.count("{}"))))

    # ---- statements -----------------------------------------------------------------------------------------------

    def statements(self, count: int) -> None:
        for _ in range(count):
            self.statement()

    def statement(self) -> None:
        rng = self.rng
        deep, looped = self.nested >= 3, self.nested >= 3 or self.loops >= 2
        kinds: list[tuple[Any, float]] = [(self.assign, 6), (self.if_, 0 if deep else 4)]
        kinds += [(self.for_, 0 if looped else 3), (self.while_, 0 if looped else 1.5)]
        if not self.in_helper:
            kinds += [(self.slot, 6), (self.slots_in_method, 0.7), (self.late_closure, 0.4)]
            kinds += [(self.rare, 0.08), (self.fragments, 0.6)]
            kinds += [] if deep else [(self.open_slots, 0.5), (self.both, 0.5)]
        rng.choices([each for each, _ in kinds], [weight for _, weight in kinds])[0]()

    def assign(self) -> None:
        rng, name = self.rng, self.target()
        kind = rng.randrange(8)
        if kind < 4:
            self.say(f"{name} = {self.number(3)}")
        elif kind < 6:
            self.say(f"{name} {rng.choice(('+=', '-=', '^=', '|=', '&='))} {self.number(1)}")
        elif kind == 6:
            other = self.target()
            if other != name:
                self.features.add("tuple")
                self.say(f"{name}, {other} = {other}, {self.number(2)}")
        else:
            self.say(f"{name} = {self.target()} = {self.number(2)}")
        self.say(f"{name} = {name} % 101" if rng.random() < 0.8 else f"{name} %= -89")

    def if_(self) -> None:
        with self.block(f"if {self.condition(2)}:"):
            self.statements(self.rng.randint(1, 2))
        if self.rng.random() < 0.2:
            with self.block(f"elif {self.condition(1)}:"):
                self.statements(1)
        if self.rng.random() < 0.5:
            with self.block("else:"):
                self.statements(self.rng.randint(1, 2))

    def both(self) -> None:
        """A name that is first assigned in both branches."""
        self.features.add("first assigned in branches")
        name = self.name("e")
        with self.block(f"if {self.condition()}:"):
            self.say(f"{name} = {self.number()} % 61")
        with self.block("else:"):
            self.statements(self.rng.randrange(2))
            self.say(f"{name} = {self.number()} % 61")
        self.names.append(name)

    def for_(self) -> None:
        rng, index = self.rng, self.name("i")
        count = rng.choice((str(rng.randint(1, 3)), f"{self.number(1)} % {rng.randint(2, 4)}"))
        kind = rng.randrange(6)
        if kind < 3:
            around = f"range({count})"
        elif kind == 3:
            low = self.name("n")
            self.say(f"{low} = {self.number(1)} % 9")
            around = f"range({low}, {low} + {count})"
        elif kind == 4:
            around = f"range({rng.randrange(3)}, {count} * 2, 2)"
        else:
            around = f"range({count}, {rng.choice((0, -1))}, {rng.choice((-1, -2))})"
        after = rng.random() < 0.15
        if after:
            self.features.add("index after the loop")
            self.say(f"{index} = {rng.randrange(9)}")
        self.loops += 1
        with self.block(f"for {index} in {around}:"):
            self.names.append(index)
            self.statements(rng.randint(1, 3))
            self.exit_()
        self.loops -= 1
        if after:
            self.names.append(index)

    def exit_(self) -> None:
        """Maybe leaves the loop early."""
        if not self.has("early exit of a loop", 0.12 if self.in_helper else 0.012):
            return
        kinds = ["break", "continue"] + [f"return {self.number(1)}"] * self.in_helper
        with self.block(f"if {self.condition(0)}:"):
            self.say(self.rng.choice(kinds))
        self.say(f"{self.target()} += 1")

    def while_(self) -> None:
        rng, n = self.rng, self.name("w")
        start, test, step = rng.choice(
            (
                (f"{self.number(1)} % 4", f"{n} > 0", f"{n} -= 1"),
                (f"{self.number(1)} % 40 + 1", f"{n} > 1", f"{n} = {n} // 2"),
                (f"{self.number(1)} % 30", n, f"{n} = {n} & ({n} - 1)"),
                (f"{self.number(1)} % 5", f"{n} < 6 and {self.condition(1)}", f"{n} += {rng.randint(1, 2)}"),
                (f"{self.number(1)} % 5", f"not {n} >= 5", f"{n} = {n} + 1"),
            )
        )
        self.features.add("while")
        self.say(f"{n} = {start}")
        self.names.append(n)
        self.kept.append(n)
        self.loops += 1
        with self.block(f"while {test}:"):
            if rng.random() < 0.3:
                self.say(step)
                self.statements(rng.randint(1, 2))
            else:
                self.statements(rng.randint(1, 2))
                self.say(step)
        self.loops -= 1

    # ---- slots ----------------------------------------------------------------------------------------------------

    def use(self, slot: str, total: str = "total") -> tuple[str, str]:
        """A load into *slot*, and a read of it."""
        row = f"{self.number(2)} % {self.rng.choice((4, 40))}"
        factor = self.rng.choice(("1.0", f"({self.number(1)})", "0.5"))
        return f"{slot}.x.load(tile, m={row})", f"{total} = {total} + {slot}.x.read() * {factor}"

    def slot(self) -> None:
        with self.block("with k.ring.produce() as slot:", "with k.ring.consume() as slot:"):
            if self.has("branches in a slot", 0.25):
                with self.block(f"if {self.condition(1)}:"):
                    self.say(*self.use("slot"))
                with self.block("else:"):
                    self.say(*self.use("slot", self.rng.choice(("total", "other"))))
            else:
                self.say(*self.use("slot"))
            if self.rng.random() < 0.3:
                self.assign()

    def fragments(self) -> None:
        self.features.add("fragments")
        self.say(
            "pass",
            self.rng.choice(("total, other = other, total", "other = total + other", "total = total * 0.5 + 1.0")),
        )

    def open_slots(self) -> None:
        self.features.add("slots kept open")
        rng, first, second = self.rng, self.name("s"), self.name("s")
        if rng.random() < 0.35 and self.loops < 2:
            self.features.add("slot handed on by a loop")
            count = f"{self.number(1)} % 3"
            turns = self.name("n")
            self.say(f"{turns} = {count}")
            load, read = self.use(first)
            self.say(f"{first} = k.ring.acquire()\n{load}\nk.ring.commit({first})", f"{first} = k.ring.wait()")
            self.loops += 1
            with self.block(f"for _ in range({turns}):"):
                load, second_read = self.use(second, "other")
                maybe = rng.choice((read, "pass"))
                self.say(
                    f"{second} = k.ring.acquire()\n{load}\nk.ring.commit({second})",
                    f"{second} = k.ring.wait()\n{maybe}\n{second_read}\nk.ring.release({first})\n{first} = {second}",
                )
            self.loops -= 1
            self.say("pass", f"{read}\nk.ring.release({first})")
            return
        (load, read), (load_too, read_too) = self.use(first), self.use(second)
        self.say(f"{first} = k.ring.acquire()\n{load}\nk.ring.commit({first})", f"{first} = k.ring.wait()")
        self.assign()
        self.say(
            f"{second} = k.ring.acquire()\n{load_too}\nk.ring.commit({second})", f"{second} = k.ring.wait()\n{read}"
        )
        with self.block(f"if {self.condition(1)}:"):
            self.say("pass", read_too)
        self.say("pass", f"k.ring.release({first})")
        self.statement() if self.rng.random() < 0.3 and self.loops == 2 else self.assign()
        self.say("pass", f"{read_too}\nk.ring.release({second})")

    def slots_in_method(self) -> None:
        """A method that takes slots, one of each role."""
        self.features.add("slots in a method")
        name, count = self.name("take"), self.rng.choice(("1", "2", "p % 3"))
        kind = self.rng.randrange(3)
        load, read = "slot.x.load(tile, m=p % 40)", "total = total + slot.x.read() * (p + 1)"
        if kind == 0:
            self.features.add("return in with")
            lines = (
                ["with k.ring.produce() as slot:", f"    {load}", "    return p + 1"],
                ["with k.ring.consume() as slot:", "    return total + slot.x.read() * p"],
            )
        elif kind == 1:
            lines = (
                [
                    f"for n in range({count}):",
                    "    with k.ring.produce() as slot:",
                    f"        {load}",
                    "    p += n",
                    "return p",
                ],
                [
                    f"for n in range({count}):",
                    "    with k.ring.consume() as slot:",
                    f"        {read}",
                    "    p += n",
                    "return total",
                ],
            )
        else:
            self.features.add("early return")
            lines = (
                ["if p % 2:", "    return p", "with k.ring.produce() as slot:", f"    {load}", "return p"],
                ["if p % 2:", "    return total", "with k.ring.consume() as slot:", f"    {read}", "return total"],
            )
        for role, extra, body in (("fill", "tile", lines[0]), ("read", "total", lines[1])):
            self.methods.append("\n        ".join([f"    def {name}_{role}(self, k, {extra}, p):", *body]))
        given = f"{self.number(2)} % 29"
        self.say(f"self.{name}_fill(k, tile, {given})", f"total = self.{name}_read(k, total, {given})")

    # ---- helpers --------------------------------------------------------------------------------------------------

    def late_closure(self) -> None:
        """A closure that reads a name which changes after it was made."""
        self.features.add("closure")
        name, read, changed = self.name("f"), self.rng.choice(self.names), self.target()
        self.say(
            self.rng.choice(
                (
                    f"{name} = lambda p: p % 13 + {read}",
                    f"{name} = lambda p, q={read}: {read} if p > q else q + 1",
                    f"def {name}(p):\n    if p > {read}:\n        return p % 17 - {read}\n    return {read} % 7",
                )
            )
        )
        self.assign()
        self.say(f"{changed} = {name}({self.number(1)}) % 103")

    def helper(self) -> None:
        """A function on numbers: a method, or of the module."""
        outer = self.names, self.kept, self.lines, self.depth, self.nested, self.loops
        name, several, method = self.name("h"), self.rng.random() < 0.15, self.rng.random() < 0.5
        calls = list(self.calls)
        self.calls = [call for call in calls if method or "self." not in call]
        parameters = ["p", "q"][: self.rng.randint(1, 2)]
        self.names, self.kept, self.lines = [*parameters, "r"], [], []
        self.depth, self.nested, self.loops, self.in_helper = 1, 1, 1, True
        self.say("r = 1")
        for _ in range(self.rng.randint(0, 3)):
            if self.has("early return", 0.5):
                with self.block(f"if {self.condition(1)}:"):
                    self.statements(self.rng.randrange(2))
                    self.say(f"return {self.result(several)}")
                if self.rng.random() < 0.3:
                    with self.block("else:"):
                        self.statements(1)
            else:
                self.statement()
        if self.has("return in a loop", 0.06):
            with self.block(f"for i in range({self.rng.choice(('3', 'p % 4', '2'))}):"):
                self.assign()
                with self.block(f"if {self.condition(0)}:"):
                    self.say(f"return {self.result(several)}")
        self.say(f"return {self.result(several)}")
        text = "\n".join(first for first, _ in self.lines)
        self.names, self.kept, self.lines, self.depth, self.nested, self.loops = outer
        self.in_helper, self.calls = False, calls
        shown = list(parameters)
        if len(shown) == 2 and self.rng.random() < 0.4:
            shown[1] = "q=3"
        if method:
            inner = text.replace("\n", "\n    ")
            self.methods.append(f"    def {name}({', '.join(['self', *shown])}):\n    {inner}")
            called = f"self.{name}"
        else:
            self.functions.append(f"def {name}({', '.join(shown)}):\n{text}")
            called = name
        if several:
            self.features.add("several results")
            called, end = f"add_two(*{called}", ")"
        else:
            end = ""
        self.calls.append(
            f"{called}({{}} % 43){end}" if "q=3" in shown or len(shown) == 1 else f"{called}({{}} % 43, {{}} % 37){end}"
        )
        if "q=3" in shown:
            self.calls.append(f"{called}({{}} % 43, q={{}} % 31){end}")

    def result(self, several: bool) -> str:
        return f"{self.number(1)}, {self.number(1)}" if several else self.number(2)

    # ---- what is seldom, and what is kept ---------------------------------------------------------------------------

    def rare(self) -> None:
        kind = self.rng.choice(list(RARE))
        self.features.add(f"rare: {kind}")
        self.say(RARE[kind].format(c=self.target(), d=self.target(), v=self.number(1), t=self.condition(0)))

    def strange(self, form: str) -> None:
        """*form*, maybe in a loop, in a branch, or as it stands."""
        text = form.format(c=self.target(), d=self.target(), v=self.number(1)).replace("; ", "\n")
        heads = self.rng.choice(
            ("for _ in range(3):", f"for _ in range({self.number(1)} % 4):", f"if {self.condition(1)}:", "")
        )
        if not heads:
            return self.say(text)
        with self.block(heads):
            self.say(text)

    def made(self, state: str | None = None, asked: str | None = None, shown: str = "") -> Body:
        rng = self.rng
        if state is not None or asked is not None:
            self.state, self.asked = state or "", asked or ""
        elif rng.random() < 0.25:
            self.state = rng.choice(list(STATES))
        elif rng.random() < 0.06:
            self.asked = rng.choice(list(ASKED))
        for _ in range(rng.choice((0, 1, 1, 2))):
            self.helper()
        self.depth = 2
        for name in "abcd":
            self.say(f"{name} = {self.number(1)} % 53")
            self.names.append(name)
        if self.state and STATES[self.state][0]:
            self.say(STATES[self.state][0].replace("; ", "\n"))
        count = rng.randint(1, 4)
        strange = rng.randrange(count)
        for n in range(count):
            self.statement()
            if n == strange and (self.state or self.asked):
                self.strange(STATES[self.state][1] if self.state else ASKED[self.asked])
        if shown:
            self.say(SHOWN[shown].format(c=self.target(), d=self.target(), v=self.number(1)))
        self.slot()
        name = f"Body{self.seed}"
        cluster = 'cluster = {"m": 2}' if self.has("cluster", 0.1) else ""
        source = MODULE.format(
            name=name,
            cluster=cluster,
            functions=FUNCTIONS + "\n\n" + "\n\n\n".join(self.functions) + "\n",
            methods="\n\n".join(self.methods),
            load="\n".join(load for load, _ in self.lines),
            work="\n".join(work for _, work in self.lines),
        )
        return Body(self.seed, name, source, frozenset(self.features), self.state, self.asked)


def main() -> int:
    from tests.oracle.judged_bodies import MILLION, table

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=SEED, help="of the first body, in units of a million")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--out", type=Path, default=None, help="a file for the results")
    parser.add_argument(
        "--show", type=int, default=None, help="print the body with this number, and what becomes of it"
    )
    given = parser.parse_args()
    if given.show is not None:
        print(body(given.show).source)
        return table([given.show])
    return table(range(given.seed * MILLION, given.seed * MILLION + given.count), given.jobs, given.out)


if __name__ == "__main__":
    sys.exit(main())
