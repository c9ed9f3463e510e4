"""The pytest plugin, in pytests of its own."""

import json
import pathlib
import re
import subprocess
import sys

import pytest

import tmapipe as tp
from tests.user_copy import COPY
from tmapipe.testing import assert_safe

pytest_plugins = ["pytester"]
ROOT = pathlib.Path(__file__).parents[2]
HEAD = f"""
import numpy as np
import pytest

import tmapipe as tp
from pytest_tmapipe import safe

{COPY}

made = []

def counted():
    made.append(Copy())
    return made[-1]
"""


@pytest.fixture
def run(pytester):
    assert_safe(tp.schedules.Copy())  # imports what a check needs: a pytest inside forgets what it has imported

    def run(text, *options):
        pytester.makepyfile(test_mine=HEAD + text)
        return pytester.runpytest_inprocess("-p", "pytest_tmapipe", "-p", "no:xdist", "--strict-markers", *options)

    return run


def test_a_safe_schedule_is_handed_to_the_test(run):
    result = run(
        """
@safe(counted, dtypes={"x": "fp32"})
def test_numbers(schedule, interleaving):
    x = np.arange(20 * 256, dtype=np.float32).reshape(20, 256)
    y = np.zeros_like(x)
    schedule.simulate(x, out=y, seed=interleaving)
    assert (x == y).all() and made == [schedule], "checked once"

@safe(Copy())
def test_without_arguments():
    pass
""",
        "-v",
    )
    result.assert_outcomes(passed=4)
    result.stdout.fnmatch_lines(["*test_numbers[[]seed0]*", "*test_numbers[[]seed2]*"])


def test_seeds_follow_the_options(run):
    text = "def test_seed(interleaving):\n    assert interleaving in (7, 8)\n"
    run(text, "--interleavings", "2", "--interleaving-seed", "7").assert_outcomes(passed=2)
    assert run(text, "--interleavings", "0").ret == pytest.ExitCode.USAGE_ERROR


def test_a_wrong_schedule_fails_with_its_report_and_timeline(run, pytester):
    result = run(
        """
@safe(Broken)
def test_broken(schedule):
    raise RuntimeError("is not reached")
"""
    )
    result.assert_outcomes(failed=1)
    line = next(i for i, text in enumerate(HEAD.strip().splitlines(), 1) if "as again:" in text)
    result.stdout.fnmatch_lines(
        ["Broken: 2 errors found*", f"test_mine.py:{line}: error: *TRIP_COUNTS*", "*^^^^*", "  Fix: *"]
    )
    shown = result.stdout.str()
    assert "is not reached" not in shown and "pytest_tmapipe" not in shown and "Traceback" not in shown
    drawn, path = re.search(r"timeline: (\S+\.html) \(for a browser\), (\S+\.json)", shown).groups()
    assert json.loads(pathlib.Path(path).read_text())["traceEvents"]
    assert pathlib.Path(drawn).read_text().lower().startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("marker", "said"),
    [
        ("Copy, dtypes={'z': 'fp32'}", "*names no stage; the stages are x, y*"),
        ("3", "*assert_safe(schedule) = 3: is an object of type Schedule*"),
        ("lambda: None", "*assert_safe(schedule) = None*"),
        ("Copy, every_trip_count=3", "*every_trip_count*is True or False*"),
    ],
)
def test_bad_markers_are_refused(marker, said, run):
    result = run(f"@safe({marker})\ndef test_mine():\n    pass\n")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([said])


def test_the_fixture_needs_the_marker(run):
    result = run("def test_mine(schedule):\n    pass\n")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*the test has no schedule. Fix: @pytest_tmapipe.safe(Copy)*"])


def test_pytest_starts_without_the_library():
    """A conftest.py that sets how many threads NumPy has comes before NumPy."""
    code = "import sys, pytest_tmapipe\nassert not {'tmapipe', 'numpy'} & {*sys.modules}"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, timeout=60)
    project = (ROOT / "pyproject.toml").read_text()
    assert '[project.entry-points.pytest11]\npytest_tmapipe = "pytest_tmapipe"\n' in project
    assert 'packages = ["tmapipe", "pytest_tmapipe", ' in project
