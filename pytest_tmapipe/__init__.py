"""A pytest plugin: tests that check a schedule first, and that run it on the CPU model in several interleavings.

    from pytest_tmapipe import safe

    @safe(Copy, dtypes={"x": "fp32"})
    def test_copy(schedule, interleaving):
        y = np.zeros_like(x)
        schedule.simulate(x, out=y, seed=interleaving)
        assert (x == y).all()

It is a package of its own since pytest imports plugins before it reads a conftest.py: tmapipe, and NumPy with it, is imported
by the first test that needs it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tmapipe import DType, Schedule
    from tmapipe.check import Report

__all__ = ["safe"]

MARKER = "tmapipe_safe"


def safe(
    schedule: Schedule | Callable[[], Schedule],
    dtypes: Mapping[str, DType | str] | None = None,
    *,
    every_trip_count: bool = True,
    notes: bool = True,
) -> pytest.MarkDecorator:
    """A mark of a test: its schedule is proved safe before the test runs, or else the test fails with the report.

    Args:
        schedule: A schedule, its class, or a function that makes one.
        dtypes: Element types by stage name, as of `Schedule.plan`.
        every_trip_count: As of `tmapipe.testing.assert_safe`.
        notes: As of `tmapipe.testing.assert_safe`.
    """
    mark = getattr(pytest.mark, MARKER)
    found: pytest.MarkDecorator = mark.with_args(schedule, dtypes, every_trip_count=every_trip_count, notes=notes)
    return found


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options of interleavings."""
    group = parser.getgroup("tmapipe")
    group.addoption(
        "--interleavings", type=int, default=3, metavar="N", help="runs of each test that takes `interleaving`"
    )
    group.addoption(
        "--interleaving-seed", type=int, default=0, metavar="SEED", help="of the first of them; others follow"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Makes the marker known. Raises `pytest.UsageError` for options that leave no interleaving."""
    config.addinivalue_line("markers", f"{MARKER}: what pytest_tmapipe.safe(schedule) makes")
    if config.getoption("--interleavings") < 1:
        raise pytest.UsageError("--interleavings: at least 1 is needed")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that takes `interleaving` runs once a seed, which is part of its name."""
    if "interleaving" in metafunc.fixturenames:
        first = metafunc.config.getoption("--interleaving-seed")
        seeds = range(first, first + metafunc.config.getoption("--interleavings"))
        metafunc.parametrize("interleaving", seeds, ids=[f"seed{seed}" for seed in seeds])


@pytest.fixture
def schedule(request: pytest.FixtureRequest) -> Schedule:
    """The schedule of the test's mark. The test runs if it has been proved safe."""
    if _VERDICT not in request.node.stash:
        pytest.fail(
            "the test has no schedule. Fix: @pytest_tmapipe.safe(Copy), of a schedule or its class.", pytrace=False
        )
    made: Schedule = request.node.stash[_VERDICT].schedule
    return made


class Verdict(NamedTuple):
    """On one marker. wrong: what is wrong with its schedule, "" if nothing; report: that shows it, if there is one."""

    marker: pytest.Mark
    schedule: Any
    wrong: str
    report: Report | None


_VERDICT: pytest.StashKey[Verdict] = pytest.StashKey()
_VERDICTS: pytest.StashKey[dict[int, Verdict]] = pytest.StashKey()  # of a session, by the marker, which stays alive


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Checks the schedule of the test's nearest mark, once for all its parameters."""
    marker = item.get_closest_marker(MARKER)
    if marker is not None:
        known = item.session.stash.setdefault(_VERDICTS, {})
        if id(marker) not in known:
            known[id(marker)] = _checked(marker)
        item.stash[_VERDICT] = known[id(marker)]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    """Fails the test in place of its body if its schedule is not safe."""
    verdict = item.stash.get(_VERDICT, None)
    if verdict is not None and verdict.wrong:
        pytest.fail(verdict.wrong + _drawn(item, verdict.report), pytrace=False)


def _checked(marker: pytest.Mark) -> Verdict:
    """Makes the schedule, and checks it."""
    from tmapipe.errors import PipelineError
    from tmapipe.schedule import Schedule
    from tmapipe.testing import NotSafe, assert_safe

    schedule, dtypes = marker.args
    try:
        made = schedule if isinstance(schedule, Schedule) or not callable(schedule) else schedule()
        assert_safe(made, dtypes, **marker.kwargs)
    except NotSafe as error:
        return Verdict(marker, made, str(error), error.report)
    except (PipelineError, TypeError) as error:
        return Verdict(marker, None, f"{type(error).__name__}: {error}", None)
    return Verdict(marker, made, "", None)


def _drawn(item: pytest.Item, report: Report | None) -> str:
    """Writes a report's timeline into pytest's cache, if it has one, as a page and as JSON; says where."""
    cache = getattr(item.config, "cache", None)
    if cache is None or report is None or not any(finding.steps for finding in report.findings):
        return ""
    start = cache.mkdir("tmapipe") / re.sub(r"[^A-Za-z0-9]+", "-", item.nodeid)
    paths = [f"{start}{end}" for end in (".html", ".json")]
    for path in paths:
        report.write_timeline(path)
    return f"\n\ntimeline: {paths[0]} (for a browser), {paths[1]} (for https://ui.perfetto.dev)"
