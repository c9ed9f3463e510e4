"""Random tensors, boxes, strides and windows: ``python -m tests.fuzz.boxes --cases 2000 --seed 1``.

Each case moves a tensor through a ring by a load of some kind and a store of some kind. It either gives what PyTorch
gives, on the CPU model or with ``--device cuda``, and writes nothing else; or it is refused by a rule that the error names.
With ``--write`` the counts go to ``benchmarks/results/boxes.json``.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import re
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from tests.fuzz.box_cases import draw
from tests.fuzz.outcomes import Call, Outcome, judge

__all__ = ["judged", "rule_of", "summary"]

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "boxes.json"
Judged = tuple[int, str, str, str, Outcome, str]  # seed, load, store, text, outcome, detail


def judge_one(seed: int, device: str) -> Judged:
    case = draw(seed)
    outcome, detail = judge(Call(case.text, lambda: case.run(device)))
    return seed, case.moves.load, case.moves.store, case.text, outcome, detail


def judged(seeds: Iterable[int], device: str, jobs: int) -> Iterator[Judged]:
    """The outcomes. jobs: processes."""
    if jobs == 1:
        yield from (judge_one(seed, device) for seed in seeds)
        return
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        yield from (future.result() for future in [pool.submit(judge_one, seed, device) for seed in seeds])


def accepted(seed: int) -> bool:
    """Whether the case runs on the model: what a GPU is worth being asked."""
    return judge_one(seed, "cpu")[4] is Outcome.RIGHT


def rule_of(detail: str) -> str:
    """The rule that an error names: its text without names and numbers."""
    text = detail.split(". Fix:")[0]
    _, _, rest = text.partition(" = ")
    rule = rest.split(": ", 1)[-1] if rest else text.split(" at /")[0].split("]  at ")[0]
    rule = re.sub(r"\([^()]*\)|\[[^\[\]]*\]", "", rule)
    return re.sub(r"-?\d+(\.\d+)?", "#", rule).strip()[:100]


def summary(found: list[Judged]) -> dict[str, Any]:
    """Counts by kind of load and of store, and of refusals by rule."""
    outcomes = Counter(entry[4].name.lower() for entry in found)
    by = {
        kind: {
            name: {o: n for (k, o), n in Counter((e[at], e[4].name.lower()) for e in found).items() if k == name}
            for name in sorted({entry[at] for entry in found})
        }
        for kind, at in (("loads", 1), ("stores", 2))
    }
    refused = Counter(rule_of(entry[5]) for entry in found if entry[4] is Outcome.REFUSED)
    return {"outcomes": dict(outcomes), **by, "refused": dict(refused.most_common())}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--show", type=int, default=20, help="cases of a bad outcome to print")
    parser.add_argument(
        "--write", type=Path, nargs="?", const=RESULTS, help=f"a file for the counts, by default {RESULTS}"
    )
    given = parser.parse_args()
    started = time.perf_counter()
    seeds: Iterable[int] = range(given.seed * 1_000_003, given.seed * 1_000_003 + given.cases)
    if given.device == "cuda":  # as many cases of those that run on the model
        with ProcessPoolExecutor(given.jobs, multiprocessing.get_context("spawn")) as pool:
            first, wanted = given.seed * 1_000_003, []
            while len(wanted) < given.cases:
                block = range(first, first + given.cases)
                wanted += [s for s, good in zip(block, pool.map(accepted, block, chunksize=8), strict=True) if good]
                first += given.cases
        seeds = wanted[: given.cases]
    found = list(judged(seeds, given.device, given.jobs))
    counts = summary(found)
    print(f"{len(found)} cases of seed {given.seed} on {given.device}, {time.perf_counter() - started:.0f} s")
    print(json.dumps(counts, indent=1))
    bad = [entry for entry in found if not entry[4].good]
    for seed, _, _, text, outcome, detail in bad[: given.show]:
        print(f"\n{outcome.name.lower()}: {detail}\n    {text}  # draw({seed})")
    if given.write:
        key = f"{given.device}, seed {given.seed}, {given.cases} cases"
        rows = json.loads(given.write.read_text()) if given.write.exists() else {}
        rows[key] = {"date": time.strftime("%Y-%m-%d"), **counts, "bad": [entry[3] for entry in bad]}
        given.write.write_text(json.dumps(rows, indent=1) + "\n")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
