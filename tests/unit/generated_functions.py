"""Functions of random statements, each with its source, for comparisons of a trace with CPython.

block      := statement+
statement  := name = expr | name op= expr | name, name = expr, expr | k.act(expr) | list[i] = expr | deque in and out
            | if / elif / else | for .. in range of constants or numbers, or a list [else] | while, bounded
            | with | try .. finally | break | continue | return expr
expr       := number | name | expr op expr | cond and expr | expr or expr | expr if cond else expr | min | max
            | k.read(expr) | helper(k, expr, expr) | cond
cond       := comparison | chain of comparisons | not cond | cond and / or cond | expr in (expr, number) | expr
"""

import linecache
import random
from typing import Any

SCOPE = """\
import collections
class Scope:
    def __init__(self, k, x): self.k, self.x = k, x
    def __enter__(self): self.k.act('enter', self.x)
    def __exit__(self, *e): self.k.act('leave', self.x)
"""


class Generator:
    """Makes one function of (k, n, m), and up to two helpers of it."""

    def __init__(self, seed: int):
        self.seed, self.r, self.count = seed, random.Random(seed), 0
        self.helpers: list[str] = []

    def function(self) -> Any:
        text = self.text()
        file = f"<generated {self.seed}>"
        linecache.cache[file] = (len(text), None, text.splitlines(True), file)
        space: dict[str, Any] = {}
        exec(compile(text, file, "exec"), space)
        return space["f"]

    def text(self) -> str:
        text = [SCOPE.rstrip()]
        for i in range(self.r.randint(0, 2)):
            text += [
                f"def h{i}(k, n, m):",
                *self._within([*self._begin(), *self.block(1, False), f"return {self.expr()}"]),
            ]
            self.helpers.append(f"h{i}")
        end = ["k.act(*items, *queue)", f"return {self.name()} * 3 + {self.name()}"]
        text += ["def f(k, n, m):", *self._within([*self._begin(), *self.block(0, False), *end])]
        return "\n".join(text) + "\n"

    def _begin(self) -> list[str]:
        names = [f"{name} = {self.r.randint(-1, 3)}" for name in "abcde"]
        return [*names, "items = [0, 1]", "queue = collections.deque([2, 3])"]

    def _within(self, block: list[str]) -> list[str]:
        return ["    " + line for line in block]

    def name(self) -> str:
        return self.r.choice("abcde")

    def expr(self, depth: int = 2) -> str:
        r = self.r
        if depth == 0 or r.random() < 0.3:
            return r.choice([self.name(), self.name(), "n", "m", str(r.randint(-2, 5))])
        a, b = self.expr(depth - 1), self.expr(depth - 1)
        forms = [
            f"({a} {r.choice('+-')} {b})", f"({a} {r.choice('+-')} {b})", f"({a} * {r.randint(-2, 3)})",
            f"({a} {r.choice(['//', '%'])} {r.choice([2, 3, 4])})", f"({self.cond(depth - 1)} and {a})", f"({a} or {b})",
            f"({a} if {self.cond(depth - 1)} else {b})", f"{r.choice(['min', 'max'])}({a}, {b})", f"k.read({a} % 8)",
            self.cond(depth - 1), *(f"{helper}(k, {a}, {b})" for helper in self.helpers),
        ]  # fmt: skip
        return r.choice(forms)

    def cond(self, depth: int = 2) -> str:
        r, less = self.r, max(0, depth - 1)
        a, b, c = (self.expr(less) for _ in range(3))
        inner = [self.cond(less) if depth > 0 else each for each in (a, b)]
        forms = [
            f"{a} {r.choice(['<', '<=', '>', '>=', '==', '!='])} {b}", f"{a} == {b}", f"{a} < {b} <= {c}",
            f"not {inner[0]}", f"{inner[0]} {r.choice(['and', 'or'])} {inner[1]}",
            f"{a} {r.choice(['in', 'not in'])} ({b}, {r.randint(0, 3)})", a,
        ]  # fmt: skip
        return f"({r.choice(forms)})"

    def block(self, depth: int, loop: bool) -> list[str]:
        made: list[str] = []
        for _ in range(self.r.randint(1, 4 if depth else 5)):
            made += self.statement(depth, loop)
            if made[-1].split()[0] in ("break", "continue", "return"):
                break
        return made

    def statement(self, depth: int, loop: bool) -> list[str]:
        r = self.r
        form = r.random()
        if depth >= 3 or form < 0.42:
            return self._simple()
        if form < 0.5:
            exits = [
                "k.act(1)",
                *(["break", "continue"] * 2 if loop else []),
                *([f"return {self.expr()}"] if depth else []),
            ]
            return [r.choice(exits)]
        inside = self._within(self.block(depth + 1, loop))
        self.count += 1
        if form < 0.74:
            made = [f"if {self.cond()}:", *inside]
            if r.random() < 0.3:
                made += [f"elif {self.cond()}:", *self._within(self.block(depth + 1, loop))]
            return [*made, "else:", *self._within(self.block(depth + 1, loop))] if r.random() < 0.5 else made
        if form < 0.86:
            some = f"range({self.expr(1)} % 4, 5, 2)"
            around = r.choice(["range(n % 5)", "range(3)", "[2, 0, 1]", some, "range(m % 4)"])
            name = r.choice([self.name(), f"i{self.count}"])
            made = [f"for {name} in {around}:", *self._within(self.block(depth + 1, True))]
            return [*made, "else:", *inside] if r.random() < 0.15 else made
        if form < 0.91:
            i = f"w{self.count}"
            test = f"{i} < {r.choice(['3', 'n % 4', 'm % 3'])}" + r.choice(["", f" and {self.cond(1)}"])
            return [f"{i} = 0", f"while {test}:", *self._within([f"{i} += 1", *self.block(depth + 1, True)])]
        if form < 0.96:
            return [f"with Scope(k, {r.randint(0, 9)}):", *inside]
        return ["try:", *inside, "finally:", f"    k.act({self.expr(1)})"]

    def _simple(self) -> list[str]:
        r, x, y = self.r, self.expr(), self.expr()
        forms = [
            [f"{self.name()} = {x}"], [f"{self.name()} = {x}"], [f"{self.name()} {r.choice(['+=', '-='])} {x}"],
            [f"{self.name()}, {self.name()} = {x}, {y}"], [f"k.act({r.randint(0, 99)}, {x})"], [f"k.act({x}, {y})"],
            [f"items[{r.randint(0, 1)}] = {x}"], [f"{self.name()} = items[{r.randint(0, 1)}]"],
            [f"queue.append({x})", f"{self.name()} = queue.popleft()"], [f"t = ({x}, {y})", f"{self.name()} = t[0] - t[1]"],
        ]  # fmt: skip
        return r.choice(forms)
