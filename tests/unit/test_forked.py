"""`tests.forked`: outcomes of tests that run in several processes."""

import sys
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]
ROOT = Path(__file__).parents[2]
PLUGIN = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from tests.forked import Forked

def pytest_configure(config):
    config.pluginmanager.register(Forked(2, lambda name: name.partition("[")[0]))
"""
TESTS = """
import os, warnings
import pytest

@pytest.fixture(scope="module")
def broken():
    yield
    raise ValueError("at the end")

def test_right(tmp_path):
    print("nobody sees this")
    warnings.warn("with a warning")

def test_wrong():
    print("said before")
    assert 1 == 2

def test_skipped():
    pytest.skip("for a reason")

@pytest.mark.parametrize("i", range(4))
def test_dies(i):
    if i == 1:
        os._exit(3)

def test_of_module(broken):
    pass
"""


@pytest.mark.skipif(sys.platform != "linux", reason="processes are forked")
def test_outcomes(pytester):
    pytester.makeconftest(PLUGIN)
    pytester.makepyfile(TESTS)
    options = ("-p", "no:xdist", "-p", "no:hypothesispytest", "-p", "no:cacheprovider", "-q")
    found = pytester.runpytest_subprocess(*options)
    found.assert_outcomes(passed=5, failed=2, skipped=1, errors=1, warnings=1)
    for line in ("said before", "*test_dies[[]1]: the process that ran it ended: status 3"):
        found.stdout.fnmatch_lines([line])
    found.stdout.no_fnmatch_line("*nobody sees this*")
    stopped = pytester.runpytest_subprocess(*options, "-x")
    stopped.stdout.fnmatch_lines(["*stopping after 1 failures*"])
