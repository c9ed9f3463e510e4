"""Random calls, most of them bad: ``python -m tests.fuzz --calls 20000 --seed 1``."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

from tests.fuzz import bodies, options, publics, tensors
from tests.fuzz.outcomes import Call, Outcome, judge

__all__ = ["KINDS", "calls_of", "read", "summary", "table", "write"]

KINDS: dict[str, Callable[[int], Call]] = {
    "tensors": tensors.call,
    "options": options.call,
    "bodies": bodies.call,
    "publics": publics.call,
}
CHUNK = 100
Judged = tuple[str, str, Outcome, str]  # kind, text of the call, outcome, detail
Chunk = list[Judged]


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


def summary(seed: int, judged: Sequence[Judged]) -> dict[str, Any]:
    """What a results file has: the commit, the counts by kind and outcome, and each bad outcome with a call that shows it."""
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    counts = Counter((kind, outcome.name.lower()) for kind, _, outcome, _ in judged)
    every = Counter(outcome.name.lower() for _, _, outcome, _ in judged)
    return {
        "commit": commit,
        "seed": f"{seed:#x}",
        "calls": len(judged),
        "all": {outcome.name.lower(): every[outcome.name.lower()] for outcome in Outcome},
        "by kind": {kind: {o.name.lower(): counts[kind, o.name.lower()] for o in Outcome} for kind in KINDS},
        "bad": [{"outcome": o.name.lower(), "detail": d, "call": text} for _, text, o, d in judged if not o.good],
    }


def _chunks(
    seed: int, calls: int, starts: Sequence[int], jobs: int, kinds: Sequence[str]
) -> Iterator[tuple[int, Chunk]]:
    """The calls from each of *starts* on, in processes of which one may end."""
    done = 0
    while done < len(starts):
        with ProcessPoolExecutor(jobs) as pool:
            futures = [pool.submit(calls_of, seed, start, min(CHUNK, calls - start), kinds) for start in starts[done:]]
            try:
                for future in futures:
                    yield starts[done], future.result()
                    done += 1
            except BrokenProcessPool:
                text = f"one of the calls from {starts[done]} on"
                yield starts[done], [("tensors", text, Outcome.CRASH, "")]
                done += 1


def read(file: Path, of: list[Any]) -> dict[int, Chunk]:
    """What an earlier run has written to *file*. of: seed, number of calls, kinds."""
    lines = map(json.loads, file.read_text().splitlines()) if file.exists() else ()
    return {
        line["start"]: [(kind, text, Outcome[name], detail) for kind, text, name, detail in line["judged"]]
        for line in lines
        if line["of"] == of
    }


def write(file: Path, of: list[Any], start: int, judged: Chunk) -> None:
    entries = [(kind, text, outcome.name, detail) for kind, text, outcome, detail in judged]
    with file.open("a") as lines:
        lines.write(json.dumps({"of": of, "start": start, "judged": entries}) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--seed", type=lambda text: int(text, 0), default=0, help="0x: the digits of a commit")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--kind", choices=list(KINDS), help="only calls of this kind")
    parser.add_argument("--show", type=int, default=30, help="calls of a bad outcome to print")
    parser.add_argument("--out", type=Path, help="a file to which outcomes are added, from which a later run goes on")
    parser.add_argument("--results", type=Path, help="a JSON file for the counts, with the commit")
    given = parser.parse_args()
    kinds = [given.kind] if given.kind else list(KINDS)
    of = [given.seed, given.calls, *kinds]
    done = read(given.out, of) if given.out else {}
    starts = [start for start in range(0, given.calls, CHUNK) if start not in done]
    for start, found in _chunks(given.seed, given.calls, starts, given.jobs, kinds):
        done[start] = found
        if given.out:
            write(given.out, of, start, found)
        print(f"\r{min(len(done) * CHUNK, given.calls)} of {given.calls}", end="", file=sys.stderr)
    judged = [each for start in sorted(done) for each in done[start]]
    print(f"\n{given.calls} calls of seed {given.seed}\n{table(judged)}")
    bad = [entry for entry in judged if not entry[2].good]
    if given.results:
        given.results.write_text(json.dumps(summary(given.seed, judged), indent=1) + "\n")
    alike = Counter((outcome, detail.split(" At ")[0]) for _, _, outcome, detail in bad)
    for (outcome, detail), count in alike.most_common(given.show):
        text = next(text for _, text, o, d in bad if o == outcome and d.split(" At ")[0] == detail)
        print(f"\n{count} x {outcome.name.lower()}: {detail}\n    {text}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
