"""Random calls, most of them bad: ``python -m tests.fuzz --calls 20000 --seed 1``."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

from tests.fuzz import bodies, options, tensors
from tests.fuzz.outcomes import Call, Outcome, judge

__all__ = ["KINDS", "calls_of", "table"]

KINDS: dict[str, Callable[[int], Call]] = {"tensors": tensors.call, "options": options.call, "bodies": bodies.call}
CHUNK = 100
Judged = tuple[str, str, Outcome, str]  # kind, text of the call, outcome, detail


def calls_of(seed: int, start: int, count: int, kinds: Sequence[str] = tuple(KINDS)) -> list[Judged]:
    """*count* calls from the *start*-th on, the kinds in turn."""
    found = []
    for i in range(start, start + count):
        kind = kinds[i % len(kinds)]
        call = KINDS[kind](seed * 1_000_003 + i)
        found.append((kind, call.text, *judge(call)))
    return found


def table(judged: Iterable[Judged]) -> str:
    """Outcomes by kind."""
    counts = Counter((kind, outcome) for kind, _, outcome, _ in judged)
    lines = [" ".join([f"{'':10}", *(f"{kind:>9}" for kind in KINDS), f"{'all':>9}"])]
    for outcome in Outcome:
        row = [counts[kind, outcome] for kind in KINDS]
        lines.append(
            " ".join([f"{outcome.name.lower():10}", *(f"{n:9}" for n in (*row, sum(row))), f"  {outcome.value}"])
        )
    return "\n".join(lines)


def _all(seed: int, calls: int, jobs: int, kinds: Sequence[str]) -> Iterator[Judged]:
    starts = range(0, calls, CHUNK)
    done = 0
    while done < len(starts):
        with ProcessPoolExecutor(jobs) as pool:
            futures = [pool.submit(calls_of, seed, start, min(CHUNK, calls - start), kinds) for start in starts[done:]]
            try:
                for future in futures:
                    yield from future.result()
                    done += 1
                    print(f"\r{min(done * CHUNK, calls)} of {calls}", end="", file=sys.stderr)
            except BrokenProcessPool:
                done += 1
                yield "tensors", f"one of the calls from {starts[done - 1]} on", Outcome.CRASH, ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--kind", choices=list(KINDS), help="only calls of this kind")
    parser.add_argument("--show", type=int, default=30, help="calls of a bad outcome to print")
    given = parser.parse_args()
    judged = list(_all(given.seed, given.calls, given.jobs, [given.kind] if given.kind else list(KINDS)))
    print(f"\n{given.calls} calls of seed {given.seed}\n{table(judged)}")
    bad = [entry for entry in judged if not entry[2].good]
    alike = Counter((outcome, detail.split(" At ")[0]) for _, _, outcome, detail in bad)
    for (outcome, detail), count in alike.most_common(given.show):
        text = next(text for _, text, o, d in bad if o == outcome and d.split(" At ")[0] == detail)
        print(f"\n{count} x {outcome.name.lower()}: {detail}\n    {text}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
