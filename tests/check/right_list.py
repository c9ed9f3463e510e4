"""Right programs, nearly all of which are proved for every trip count and shape: ``python -m tests.check.right_list``.

Those of the tests (twins of broken ones), of `examples/`, the registered schedules and their forms, and those of
`more_right.py`. The command prints a line for each that is not proved, has an error or takes long, and then the counts.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import tmapipe as tp
from tests.check import slips, test_right_programs, test_schedules
from tests.check.deciding import CASES
from tests.check.mistakes.form import PROGRAMS as TEXTS
from tests.check.mistakes.form import make
from tests.check.more_right import MORE
from tests.matmul_schedules import FORMS as MATMULS
from tests.oracle.registry import REGISTRY
from tests.programs import PROGRAMS as EXAMPLES

SECONDS = 3  # CPU, of one check


def _of_text(text: str) -> tp.Schedule:
    with TemporaryDirectory() as folder:
        return make(text, Path(folder) / "mine.py")


def programs() -> dict[str, Callable[[], tp.Schedule]]:
    """By name."""
    found: dict[str, Callable[[], tp.Schedule]] = {}
    found |= {f"shipped: {each.name}": each.make for each in REGISTRY}
    found |= {f"shipped: {name}": make_ for name, make_ in test_schedules.FORMS.items()}
    found |= {f"example: {name}": each.make for name, each in EXAMPLES.items()}
    found |= {f"matmuls: {name}": each.make for name, each in MATMULS.items()}
    found |= {f"twin: {case.name}": case.right for case in CASES}
    found |= {f"twin: {name}": twin.right for name, twin in test_right_programs.TWINS.items()}
    found |= {f"twin of a mistake: {name}": lambda text=text: _of_text(text) for name, text in TEXTS.items()}
    texts = {slip.program: slip.right for slip in slips.SLIPS if slip.program not in TEXTS}
    found |= {f"twin of a slip: {name}": lambda text=text: _of_text(text) for name, text in texts.items()}
    found |= {f"more: {name}": make_ for name, make_ in MORE.items()}
    return found


def judge(name: str) -> dict[str, Any]:
    """What the check says of a program, and the CPU seconds that it takes."""
    schedule = programs()[name]()
    began = time.process_time()
    report = schedule.check()
    return {
        "name": name,
        "proved": report.trips == "every trip count",
        "errors": sorted({finding.kind.name for finding in report.errors}),
        "outputs": list(report.outputs),
        "seconds": round(time.process_time() - began, 2),
        "trips": report.trips,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--results", type=Path, help="a JSON file for what was found")
    parser.add_argument("--some", default="", help="only programs whose names contain this")
    given = parser.parse_args()
    names = [name for name in programs() if given.some in name]
    with ProcessPoolExecutor(given.jobs) as pool:
        judged = []
        for each in pool.map(judge, names):
            judged.append(each)
            if not each["proved"] or each["errors"] or each["seconds"] > SECONDS:
                print(
                    f"{each['name']}: {each['seconds']} s, {', '.join(each['errors']) or each['trips'][:150]}",
                    flush=True,
                )
    proved, wrong = sum(each["proved"] for each in judged), sum(bool(each["errors"]) for each in judged)
    slow = sum(each["seconds"] > SECONDS for each in judged)
    share = 100 * proved / len(judged)
    print(
        f"{len(judged)} right programs: {proved} proved ({share:.1f} %), {wrong} with a false error, {slow} over {SECONDS} s"
    )
    if given.results:
        lines = ",\n".join(json.dumps(each) for each in judged)
        given.results.write_text(f"[\n{lines}\n]\n")
    return 1 if wrong or share < 97 else 0


if __name__ == "__main__":
    sys.exit(main())
