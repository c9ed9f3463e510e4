"""Changes the library's code at random, and says which changes no test notices: ``python -m tests.mutation --count 150``.

All tests are collected and run once, to see which functions each calls. Then a process is forked for each change, in which
the changed function takes the place of the right one, and the tests that call it run, quick ones first, until one fails.
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType, FunctionType
from typing import Any, NamedTuple

import pytest

from tests.mutation.changes import Change, changed_code, changes_of

__all__ = ["Driver", "Mutant", "draw", "swapped"]

ROOT = Path(__file__).parents[2]
#: What users declare, plans, what bodies hold, schedules, tile schedulers and binding.
FILES = (
    "tmapipe/*.py",
    *(
        f"tmapipe/{name}/*.py"
        for name in ("base", "parts", "plan", "bind", "protocol", "tiles", "epilogue", "schedules")
    ),
)
NOTICED, SURVIVES, LATE, LEFT_OUT = "noticed", "SURVIVES", "late", "left out"
SECONDS = 900.0  # of tests for one change; then it counts as neither
Function = tuple[str, int]  # file, first line


class Mutant(NamedTuple):
    """A change of the code in *file*."""

    file: str
    change: Change

    @property
    def function(self) -> Function:
        return self.file, self.change.function

    def __str__(self) -> str:
        text = (ROOT / self.file).read_text().splitlines()[self.change.line - 1].strip()
        return f"{self.file}:{self.change.line}: {self.change.what}: {text}"


def draw(seed: int, count: int) -> list[Mutant]:
    """*count* different changes."""
    found = _changes()
    return random.Random(seed).sample(found, min(count, len(found)))


@functools.cache
def _changes() -> list[Mutant]:
    files = sorted(str(path.relative_to(ROOT)) for pattern in FILES for path in ROOT.glob(pattern))
    return [Mutant(file, change) for file in files for change in changes_of((ROOT / file).read_text())]


def swapped(mutant: Mutant) -> int:
    """Puts the changed code in the place of the right one. Returns in how many functions."""
    file = str(ROOT / mutant.file)
    code = changed_code((ROOT / mutant.file).read_text(), file, mutant.change)
    gc.unfreeze()  # or it leaves out what was there before the tests
    functions = [
        each
        for each in gc.get_objects()
        if isinstance(each, FunctionType)
        and (each.__code__.co_filename, each.__code__.co_firstlineno) == (file, mutant.change.function)
        and each.__code__.co_name == code.co_name
    ]
    for function in functions:
        function.__code__ = code
    return len(functions)


class Driver:
    """Runs tests as pytest has collected them. seen: what each test calls, and its seconds, by its name."""

    def __init__(self, mutants: list[Mutant], seen: Path, jobs: int):
        self.mutants, self.file, self.jobs = mutants, seen, jobs
        self.failed = False
        self.ends: dict[str, list[Mutant]] = {NOTICED: [], SURVIVES: [], LATE: [], LEFT_OUT: []}

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.failed |= report.failed

    def pytest_runtestloop(self, session: Any) -> bool:
        seen = dict(self._read())
        for item in session.items:
            if item.nodeid not in seen:
                seen[item.nodeid] = self._watched(item)
        self._judge({item.nodeid: item for item in session.items}, seen)
        return True

    def _read(self) -> Iterator[tuple[str, tuple[float, set[Function]]]]:
        for line in self.file.read_text().splitlines() if self.file.exists() else ():
            name, seconds, functions = json.loads(line)
            yield name, (seconds, {tuple(each) for each in functions})

    def _watched(self, item: Any) -> tuple[float, set[Function]]:
        """Runs one test, and notes the functions that it calls."""
        codes: set[Any] = set()

        def called(frame: FrameType, event: str, argument: Any) -> None:
            codes.add(frame.f_code)

        started = time.perf_counter()
        sys.settrace(called)
        try:
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
        finally:
            sys.settrace(None)
        seconds = round(time.perf_counter() - started, 3)
        root = f"{ROOT}{os.sep}"
        functions = {
            (code.co_filename[len(root) :], code.co_firstlineno)
            for code in codes
            if code.co_filename.startswith(f"{root}tmapipe{os.sep}")
        }
        with self.file.open("a") as lines:
            lines.write(json.dumps([item.nodeid, seconds, sorted(functions)]) + "\n")
        return seconds, functions

    def _judge(self, items: dict[str, Any], seen: dict[str, tuple[float, set[Function]]]) -> None:
        running: dict[int, tuple[Mutant, float]] = {}
        todo, killed = list(reversed(self.mutants)), set[int]()
        while todo or running:
            while todo and len(running) < self.jobs:
                mutant = todo.pop()
                names = [name for name in items if name in seen and mutant.function in seen[name][1]]
                names.sort(key=lambda name: seen[name][0])
                running[self._fork(mutant, [items[name] for name in names])] = mutant, time.monotonic()
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                for late, (_, since) in running.items():
                    if time.monotonic() - since > SECONDS:
                        killed.add(late)
                        os.kill(late, signal.SIGKILL)
                time.sleep(0.05)
            elif pid in running:
                mutant, _ = running.pop(pid)
                code = os.waitstatus_to_exitcode(status)
                end = LATE if pid in killed else {0: SURVIVES, 3: LEFT_OUT}.get(code, NOTICED)
                self.ends[end].append(mutant)
                print(f"{end:9} {mutant}", flush=True)

    def _fork(self, mutant: Mutant, items: list[Any]) -> int:
        """A process that ends with 0 if no test notices, and with 3 if the code cannot take the other's place."""
        pid = os.fork()
        if pid:
            return pid
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        try:
            if not swapped(mutant):
                os._exit(3)
        except ValueError:  # it encloses other variables
            os._exit(3)
        try:
            for item, following in zip(items, [*items[1:], None], strict=True):
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                if self.failed:
                    os._exit(1)
        except BaseException:
            os._exit(2)
        os._exit(0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=150)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument(
        "--seen", type=Path, default=Path(".pytest_cache/called.jsonl"), help="what each test calls: kept here"
    )
    parser.add_argument("tests", nargs="*", default=["tests"], help="files or folders of tests")
    given = parser.parse_args()
    given.seen.parent.mkdir(exist_ok=True)
    driver = Driver(draw(given.seed, given.count), given.seen, given.jobs)
    options = ["-o", "addopts=--import-mode=importlib", "-p", "no:terminal", "-p", "no:xdist", "-p", "no:cacheprovider"]
    pytest.main([*options, "--ignore", "tests/gpu", *given.tests], plugins=[driver])
    noticed, survive, late, left_out = (len(driver.ends[end]) for end in (NOTICED, SURVIVES, LATE, LEFT_OUT))
    print(f"{noticed} of {noticed + survive} changes of seed {given.seed} are noticed")
    print(f"{late} took more than {SECONDS:.0f} s of tests, and {left_out} could not be tried: no verdict")
    return 1 if survive else 0


if __name__ == "__main__":
    sys.exit(main())
