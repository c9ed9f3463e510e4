"""`GridTiles`: a cluster for each span of tiles, in the proof, in the problems that are run, and on the model, as on a GPU."""

import numpy as np
import pytest

import tmapipe as tp
from tests.check.deciding import CASES
from tests.sweeps import sample
from tests.unit.errors import refused
from tmapipe import schedules as S
from tmapipe.program import trace
from tmapipe.prove.problem import Problem, every_cluster

BY_NAME = {each.name: each for each in CASES}
SOME = ("to the diagonal", "from the third row on", "the first cluster", "an entry of a table", "a triangle")


def on_a_grid(make, each):
    schedule = make()
    schedule.tiles = tp.tiles.GridTiles(each=each)
    return schedule


@pytest.mark.parametrize("each", [1, 2])
@pytest.mark.parametrize("name", [*SOME, *sample([name for name in BY_NAME if name not in SOME], 40)])
def test_bodies_that_decide(name, each):
    right, broken = (on_a_grid(make, each).check() for make in (BY_NAME[name].right, BY_NAME[name].broken))
    assert right.ok and right.trips == "every trip count"
    assert not broken.ok


def test_the_cluster_that_goes_wrong_is_named():
    """The fourth row of tiles is wrong; a cluster takes one tile, so the first clusters of the problem are right."""
    report = on_a_grid(BY_NAME["from the third row on"].broken, 1).check()
    cluster, clusters = report.problem.cluster, report.problem.clusters
    assert 3 <= cluster < clusters and f"cluster {cluster} of {clusters}" in report.runs[-1]


@pytest.mark.parametrize(("each", "clusters"), [(1, 15), (2, 8), (20, 1)])
def test_the_model_runs_as_many_clusters_as_there_are_spans(each, clusters):
    copy = S.Copy((16, 64), stages=2, pending=0)
    copy.tiles = tp.tiles.GridTiles(each=each)
    x = np.arange(80 * 192, dtype=np.int32).reshape(80, 192)
    y = np.zeros_like(x)
    plain = copy.simulate(x, out=y)
    assert (y == x).all() and plain.stored_tiles == 15
    assert copy.simulate(x, out=y, clusters=clusters).stored_tiles == 15
    assert copy.spans({"x": x.shape, "y": x.shape}) == clusters
    assert len(list(every_cluster(trace(copy), Problem({"x": x.shape, "y": x.shape})))) == clusters
    refused(
        copy.simulate, x, out=y, clusters=clusters + 1, argument="clusters", rule=f"is {clusters}, since each cluster"
    )
