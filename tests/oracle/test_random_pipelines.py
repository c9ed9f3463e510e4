"""Random pipelines from the public objects: the checker accepts them, and they run right on the model.

The same ones, and mutants that the checker rejects, run on a GPU by `python -m tests.oracle.reality`.
"""

import pytest

from tests.oracle.mutations import Mutation
from tests.oracle.random_pipelines import COPIED, NEW, OVER, draw
from tests.oracle.reality_worker import check, run_model
from tests.sweeps import sample

SEEDS = (*range(30), *range(NEW, NEW + 20), *range(OVER, OVER + 12), *range(COPIED, COPIED + 16))


@pytest.mark.parametrize("seed", sample(SEEDS, 13, first=2))
def test_accepted_and_right(seed):
    pipeline = draw(seed, "small")
    verdict = check(pipeline, None)
    assert verdict["ok"], f"{pipeline.text}: {verdict}"
    assert run_model(pipeline, None)[0] == "right"


@pytest.mark.parametrize(
    "mutation",
    [
        Mutation("drop", "mbarrier_wait", "ring.free"),
        Mutation("drop", "mbarrier_wait", "ring.full"),
        Mutation("flip parity", "mbarrier_wait", "ring.full"),
        Mutation("shift count", "mbarrier_init", "ring.free", 1),
        Mutation("shift bytes", "mbarrier_arrive_expect_tx", "ring.full", 128),
        Mutation("shift bytes", "mbarrier_arrive_expect_tx", "ring.full", -128),
    ],
    ids=str,
)
@pytest.mark.parametrize("seed", range(2))
def test_mutants_are_rejected(seed, mutation):
    assert not check(draw(seed, "small"), mutation)["ok"]


@pytest.mark.parametrize("seed", [5, 7])
def test_lanes_that_are_not_synchronized_are_found(seed):
    """One lane's arrival says nothing about what the other lanes have read."""
    verdict = check(draw(seed, "small"), Mutation("drop", "warp_sync"))
    assert "RACE" in verdict["kinds"]


def test_the_schedule_does_not_depend_on_the_size():
    for seed in (*range(20), *range(NEW, NEW + 10), *range(OVER, OVER + 5), *range(COPIED, COPIED + 5)):
        assert len({draw(seed, size).text.split(" on ")[0] for size in ("small", "laps", "any", "many")}) == 1
