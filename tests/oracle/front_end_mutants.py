"""Mistakes of a front end, each of which the judge must find: ``python -m tests.oracle.front_end_mutants --jobs 4``.

A mutant is a change of the text of one file of `tmapipe/program`. It takes the place of the right code in a process of its own,
which traces and replays drawn bodies until one differs from the judge.
"""
# ruff: noqa: E501 - the texts are those of the files, line by line

from __future__ import annotations

import argparse
import gc
import os
import subprocess
import sys
import tempfile
import traceback
import types
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from tests.oracle.bodies import body
from tests.oracle.body_forms import SHOWN
from tests.oracle.judged_bodies import DIFFERS, FAILS, outcome
from tmapipe.program import trace

__all__ = ["MUTANTS", "Mutant", "found_by"]

assert trace  # it is imported, with all that they use, before anything takes their place

PROGRAM = Path(__file__).parents[2] / "tmapipe" / "program"
SEED, MOST = 29_000_000, 250  #: of the first body, and how many are drawn for a mutant at most


class Mutant(NamedTuple):
    """what: the mistake; file: in `tmapipe/program`; old, new: its text, which stands there once, on as many lines; feature: of
    the bodies that show it; first: the number of the body that is tried first, on which it was seen."""

    what: str
    file: str
    old: str
    new: str
    feature: str = ""
    first: int = 0


MUTANTS = (
    Mutant("`or` gives a truth, not its operand", "control.py", '(second, 0)))', '(second, 0))) if word == "and" else self.flag(first)', "and / or of numbers"),
    Mutant("`and` gives 1", "control.py", "(second, 0)))", "(1, 0)))", "and / or of numbers", first=3),
    Mutant("`or` takes its second operand first", "control.py", '*((first, second) if word == "or"', '*((second, first) if word == "or"', "and / or of numbers"),
    Mutant("the second operand is always evaluated", "loops.py", "    if total(second):\n        return Expr.of(\"and\"", "    if True:\n        return Expr.of(\"and\"", "guarded division in a condition"),
    Mutant("`or` as `and`", "loops.py", 'return Expr.of("or", first, second)', 'return Expr.of("and", first, second)', "and / or", first=3),
    Mutant("what an operand does is not guarded", "control.py", "        branch.turn()\n        if test and not symbolic(second):", "        branch.turn(); self.nodes[:0] = branch.nodes.pop(); branch.nodes.append([])\n        if test and not symbolic(second):", "guarded read", first=10),
    Mutant("the arms of a conditional expression are swapped", "control.py", "return select(branch.condition, then, other)", "return select(branch.condition, other, then)", "conditional expression"),
    Mutant("the middle of a chain is its first operand", "control.py", "        return self.pending[-1][5]", "        return self.pending[-1][1]", "chain", first=3),
    Mutant("a chain stops at its first pair", "rewrite_expressions.py", "made = pair if made is None else self._joined(", "made = pair if made is None else (lambda *_: pair)(", "chain", first=3),
    Mutant("`not` of a number is its complement", "control.py", "else value == 0", "else Expr.of(\"invert\", value)", first=3),
    Mutant("the arms of `if` are swapped", "rewrite.py", "self.block(node.body), self.block(node.orelse))", "self.block(node.orelse), self.block(node.body))", first=3),
    Mutant("the second arm begins with the names of the first", "blocks.py", "        self.state = self.before\n", "        pass\n", first=18),
    Mutant("the second arm begins with the cells of the first", "blocks.py", "        self.restore()\n        self.state = self.before", "        self.state = self.before\n", "branches in a slot", first=18),
    Mutant("a joined name has one arm's value", "blocks.py", "        return joined(name, (then, other), self._number", "        return joined(name, (then, then), self._number", first=3),
    Mutant("a range ends one early", "refuse.py", "            return self.stop - self.start\n", "            return self.stop - self.start - 1\n", first=3),
    Mutant("a range with a step rounds down", "refuse.py", "(width + (abs(self.step) - 1)) // abs(self.step)", "width // abs(self.step)", first=21),
    Mutant("an index counts by one", "control.py", "yield self.around.start + index * self.around.step", "yield self.around.start + index", first=25),
    Mutant("an index counts from 0", "control.py", "yield self.around.start + index * self.around.step", "yield index * self.around.step", first=19),
    Mutant("a loop hands on what was before it", "loops.py", "        self.carried.append((phi, initial, last, after))\n        return after\n\n    def _after", "        self.carried.append((phi, initial, initial, after))\n        return after\n\n    def _after"),
    Mutant("after a loop, names are as before it", "loops.py", "        after = Var(phi.name, phi.is_bool)\n        self.carried.append((phi, initial, last, after))\n        return after\n\n    def _after", "        after = Var(phi.name, phi.is_bool)\n        self.carried.append((phi, initial, last, after))\n        return initial\n\n    def _after", first=3),
    Mutant("a loop does not restore what was before it", "loops.py", "            phi.alias = (initial,)\n            return resolve(initial)", "            phi.alias = (0,)\n            return resolve(initial)", "a name that stays", first=16),
    Mutant("an early return does not end its loop", "rewrite_expressions.py", "stops = (*([broken] if breaks else []), *([RETURNED] if returns else []))", "stops = (*([broken] if breaks else []),)", "return alone", first=94),
    Mutant("`break` does not end its loop", "rewrite_expressions.py", "stops = (*([broken] if breaks else []), *([RETURNED] if returns else []))", "stops = (*([RETURNED] if returns else []),)", "break alone", first=16),
    Mutant("`continue` is `break`", "rewrite_expressions.py", "            s.body = [_set(continued, False, s), *s.body]", "            pass", "continue alone", first=16),
    Mutant("what follows a return is forgotten", "rewrite_expressions.py", "s.orelse, rest = [*s.orelse, *rest], []", "s.orelse, rest = [*s.orelse], []", "early return", first=94),
    Mutant("a returned value is forgotten", "rewrite_expressions.py", "return [*begin, *made, located(ast.Return(ast.Name(VALUE, ast.Load())), last)]", "return [*begin, *made, located(ast.Return(ast.Constant(1)), last)]", "early return", first=3),
    Mutant("`max` is `min`", "refuse.py", "            found = Expr.of(name, found, each)", '            found = Expr.of("min", found, each)', "min and max", first=21),
    Mutant("`divmod` truncates", "refuse.py", "return (a // b, a % b) if symbolic(a)", "return (a // b, a - a // b) if symbolic(a)", "divmod", first=16),
    Mutant("// rounds to zero", "python_text.py", 'text = f"{args[0]} {sign} {args[1]}"', 'text = f"int({args[0]} / {args[1]})" if sign == "//" else f"{args[0]} {sign} {args[1]}"', first=19),
    Mutant("% has the sign of the dividend", "python_text.py", 'text = f"{args[0]} {sign} {args[1]}"', 'text = f"{args[0]} - {args[1]} * int({args[0]} / {args[1]})" if sign == "%" else f"{args[0]} {sign} {args[1]}"'),
    Mutant("- with its operands swapped", "expressions.py", "Expr.of(name, other, self) if swapped else", "Expr.of(name, self, other) if swapped else"),
    Mutant("a constant on the left is taken to the right", "expressions.py", 'if op in ("add", "mul", "and", "or", "xor") and', 'if op in ("add", "mul", "and", "or", "xor", "sub") and'),
    Mutant("constants that are added are subtracted", "expressions.py", 'if a[0].op == "add" else -a[0].args[1])', 'if a[0].op == "sub" else -a[0].args[1])'),
    Mutant("a condition in arithmetic is dropped", "expressions.py", "if _is(a[1], 0) and not _condition(a[0]):", "if _is(a[1], 0) or _condition(a[0]):", "condition as a number", first=111),
    Mutant("an augmented assignment forgets the name", "rewrite.py", "return located(ast.Assign([node.target], value), node)", "return located(ast.Expr(value), node)", first=3),
    Mutant("defaults of closures are forgotten", "rewrite.py", "    def visit_Lambda(self, node: ast.Lambda) -> Any:\n        node.args.defaults = [self.visit(each) for each in node.args.defaults]", "    def visit_Lambda(self, node: ast.Lambda) -> Any:\n        node.args.defaults = [ast.Constant(1) for each in node.args.defaults]", "closure", first=214),
    Mutant("an entry of a table is read once", "python_text.py", """text = f"{on}{name}({', '.join(given)})\"""", """text = f"vars(isa).setdefault('first', isa.load_entry({', '.join(given)}))" if name == "load_entry" else f"{on}{name}({', '.join(given)})\"""", "table", first=18),
    Mutant("a loop's index is that of the first turn", "python_text.py", "in range({count}):", "in [0] * {count}:"),
    Mutant("what a loop carries is set one by one", "python_text.py", '" = ".join(", ".join(each) for each in zip(*changed, strict=True))', '"; ".join(" = ".join(each) for each in changed)', "tuple", first=10),
    Mutant("a branch gives what its other arm made", "python_text.py", "self.of(phi[which])", "self.of(phi[3 - which])", first=3),
    Mutant("what an arm has computed is known after it", "python_text.py", "while len(self.computed) > known:", "while len(self.computed) > known + 999:"),
)  # fmt: skip


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            yield from _codes(each)


def swap(mutant: Mutant) -> None:
    """Puts the changed code in the place of the right one. Raises `AssertionError` if its text stands elsewhere now, or if it
    changes nothing that runs."""
    file = PROGRAM / mutant.file
    text = file.read_text()
    assert text.count(mutant.old) == 1 and mutant.old.count("\n") == mutant.new.count("\n"), mutant.what
    right, wrong = (compile(each, str(file), "exec") for each in (text, text.replace(mutant.old, mutant.new)))
    pairs = {(a.co_name, a.co_firstlineno): b for a, b in zip(_codes(right), _codes(wrong), strict=False) if a != b}
    done = 0
    gc.unfreeze()
    for function in [each for each in gc.get_objects() if isinstance(each, types.FunctionType)]:
        code = function.__code__
        new = pairs.get((code.co_name, code.co_firstlineno))
        if code.co_filename == str(file) and new is not None and len(code.co_freevars) == len(new.co_freevars):
            function.__code__ = new
            done += 1
    assert done, mutant.what


def found_by(mutant: Mutant) -> int | None:
    """The seed of the first drawn body on which the mutant differs; None if there is none. Runs in a process of its own."""
    reads, writes = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            seed = _first(mutant)
            os.write(writes, str(seed or 0).encode())
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(writes)
    with os.fdopen(reads) as answer:
        text = answer.read()
    os.waitpid(pid, 0)
    assert text, f"{mutant.what}: it could not be tried"
    return int(text) or None


def _first(mutant: Mutant) -> int | None:
    swap(mutant)
    with tempfile.TemporaryDirectory() as folder:
        for seed in (SEED + mutant.first, *range(SEED, SEED + MOST)):
            drawn = body(seed, shown=mutant.feature) if mutant.feature in SHOWN else body(seed)
            shows = drawn.right and (mutant.feature in ("", *SHOWN) or mutant.feature in drawn.features)
            if shows and outcome(drawn, Path(folder)).end in (DIFFERS, FAILS):
                return seed
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="of mutants: those whose names have one of them; by default all")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    given = parser.parse_args()
    chosen = [each for each in MUTANTS if not given.words or any(word in each.what for word in given.words)]
    lost = 0
    with ThreadPoolExecutor(given.jobs) as pool:  # each waits for the process of a mutant
        for mutant, seed in zip(chosen, pool.map(_found_alone if given.jobs > 1 else found_by, chosen), strict=True):
            lost += seed is None
            print(f"{'NOT FOUND' if seed is None else f'body {seed}':14} {mutant.file:24} {mutant.what}", flush=True)
    print(f"{len(chosen) - lost} of {len(chosen)} mutants found")
    return int(lost > 0)


def _found_alone(mutant: Mutant) -> int | None:
    """As `found_by`, in a new interpreter: threads may not fork."""
    command = "from tests.oracle import front_end_mutants as f; print(f.found_by(f.MUTANTS[{}]))"
    done = subprocess.run(
        [sys.executable, "-c", command.format(MUTANTS.index(mutant))], capture_output=True, text=True, check=True
    )
    answer = done.stdout.split()[-1]
    return None if answer == "None" else int(answer)


if __name__ == "__main__":
    sys.exit(main())
