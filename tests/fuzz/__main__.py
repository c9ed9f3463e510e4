"""Random calls, most of them bad: ``python -m tests.fuzz --calls 20000 --seed 1``.

    python -m tests.fuzz --calls 20000 --seed 0x1a2b3c4d --jobs 16 --out calls.jsonl     # all
    python -m tests.fuzz --calls 20000 --seed 0x1a2b3c4d --jobs 16 --out calls.jsonl --minutes 8

A later run with the same ``--out`` goes on from there. Each fourth chunk of calls runs under another core type of OpenBLAS, of
which one has none of NumPy's faster instructions.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from pathlib import Path

from tests.fuzz.chunks import KINDS, RESULTS, alike, read, run, starts_of, summary, table, total, write


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--seed", type=lambda text: int(text, 0), default=0, help="0x: the digits of a commit")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--kind", choices=list(KINDS), help="only calls of this kind")
    parser.add_argument("--show", type=int, default=30, help="calls of a bad outcome to print")
    parser.add_argument("--minutes", type=float, default=math.inf, help="how long to go on")
    parser.add_argument("--out", type=Path, help="a file to which outcomes are added, from which a later run goes on")
    parser.add_argument("--results", type=Path, help=f"a JSON file for the counts, such as {RESULTS.name}")
    given = parser.parse_args()
    kinds = [given.kind] if given.kind else list(KINDS)
    of = [given.seed, given.calls, *kinds]
    done = read(given.out, of) if given.out else {}
    starts = [start for start in starts_of(given.calls) if start not in done]
    end = time.perf_counter() + 60 * given.minutes
    for chunk in run(given.seed, given.calls, starts, given.jobs, kinds, end):
        done[chunk["start"]] = chunk
        if given.out:
            write(given.out, of, chunk)
        print(f"\r{len(done)} of {len(starts_of(given.calls))} chunks", end="", file=sys.stderr)
    chunks = [done[start] for start in sorted(done)]
    found = summary(given.seed, chunks)
    print(f"\n{found['calls']} of {given.calls} calls of seed {given.seed:#x}, {found['CPU seconds']:.0f} CPU s")
    print(table(total(chunks)))
    if given.results:
        given.results.write_text(json.dumps(found, indent=1) + "\n")
    for n, name, detail, text in alike(chunks)[: given.show]:
        print(f"\n{n} x {name.lower()}: {detail}\n    {text}")
    return 1 if found["bad"] else 0


if __name__ == "__main__":
    sys.exit(main())
