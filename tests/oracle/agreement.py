"""``python -m tests.oracle.agreement 10000``: the linear check against the exhaustive oracle, on programs drawn at random.

Prints how many programs agree, how many were wrong, and how many the oracle gave up on. With ``--write``, programs on which
the two disagree are written to a folder, a file each, as small as they can be made.
"""

from __future__ import annotations

import argparse
import os
import time
from collections import Counter
from collections.abc import Callable

import attrs

from tests.oracle.explore import explore_program
from tests.oracle.one_run import check_program
from tests.oracle.random_programs import draw
from tests.oracle.small_program import SmallProgram
from tmapipe.model.layout import Kind

__all__ = ["Verdicts", "compare", "shrunk"]

LIMIT = 60_000


@attrs.frozen
class Verdicts:
    """linear, exhaustive: kinds of errors that each found; decided: whether the oracle came to an answer."""

    linear: frozenset[Kind]
    exhaustive: frozenset[Kind]
    decided: bool

    @property
    def agree(self) -> bool:
        """Whether both call the program right, or both wrong."""
        return not self.decided or bool(self.linear) == bool(self.exhaustive)


def compare(program: SmallProgram, limit: int = LIMIT) -> Verdicts:
    """Both verdicts on *program*."""
    plan, shapes = program.plan(), program.shapes()
    found = explore_program(plan, program.entry, shapes, limit=limit, first_only=True)
    linear = check_program(plan, program.entry, shapes)
    return Verdicts(frozenset(linear.kinds()), found.kinds, found.ok is not None)


def shrunk(program: SmallProgram, still: Callable[[SmallProgram], bool]) -> SmallProgram:
    """*program* without calls that do not matter to *still*."""
    smaller = True
    while smaller:
        smaller = False
        for w in range(len(program.calls)):
            for i in range(len(program.calls[w]) - 1, -1, -1):
                calls = list(program.calls)
                calls[w] = (*calls[w][:i], *calls[w][i + 1 :])
                candidate = attrs.evolve(program, calls=tuple(calls))
                if still(candidate):
                    program, smaller = candidate, True
    return program


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("programs", type=int)
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--write", default="", help="folder for programs on which the verdicts differ")
    options = parser.parse_args()
    started = time.perf_counter()
    counts: Counter[str] = Counter()
    for seed in range(options.first, options.first + options.programs):
        program = draw(seed)
        verdicts = compare(program)
        wrong = bool(verdicts.exhaustive)
        counts["undecided" if not verdicts.decided else "wrong" if wrong else "right"] += 1
        if not verdicts.agree:
            counts["disagree"] += 1
            missed = bool(verdicts.exhaustive)
            small = shrunk(program, lambda p, missed=missed: _differs(p, missed))  # type: ignore[misc]
            _tell(seed, small, compare(small), options.write)
    seconds = time.perf_counter() - started
    agree = options.programs - counts["undecided"] - counts["disagree"]
    print(
        f"{agree} of {options.programs} programs agree ({counts['right']} right, {counts['wrong']} wrong), "
        f"{counts['disagree']} disagree, {counts['undecided']} undecided by the oracle at {LIMIT} steps; {seconds:.0f} s"
    )


def _differs(program: SmallProgram, missed: bool) -> bool:
    verdicts = compare(program, limit=5_000)
    return not verdicts.agree and bool(verdicts.exhaustive) == missed


def _tell(seed: int, program: SmallProgram, verdicts: Verdicts, folder: str) -> None:
    linear, exhaustive = (sorted(k.name for k in kinds) for kinds in (verdicts.linear, verdicts.exhaustive))
    print(f"seed {seed} ({program.text}): linear {linear}, exhaustive {exhaustive}", flush=True)
    if folder:
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, f"{seed}.json"), "w") as file:
            file.write(f"{program}\n")


if __name__ == "__main__":
    main()
