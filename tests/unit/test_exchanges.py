"""Reductions of rows that lie in several CTAs of a cluster."""

import numpy as np
import pytest

import tmapipe as tp
from tests.oracle.peer_forms import LogSumExp, LongRows, PairsOfRows
from tests.unit.errors import refused
from tmapipe.errors import DeadlockError, HazardError


def rows_over(ctas):
    schedule = LongRows()
    schedule.cluster = {"n": ctas}
    return schedule


def normalized(x):
    return (x - x.max(1, keepdims=True)) / x.sum(1, keepdims=True)


@pytest.mark.parametrize("ctas", [1, 2, 3, 8])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_row_is_reduced_over_all_ctas(ctas, seed):
    rng = np.random.default_rng(seed)
    x = rng.integers(1, 5, (4, 4 * rng.integers(1, 128 * ctas + 1))).astype(np.float32)
    schedule = rows_over(ctas)
    y = np.zeros_like(x)
    run = schedule.simulate(x, out=y, clusters=1, seed=seed)
    assert (y == normalized(x)).all()
    assert run.counts["StAsync"] == (0 if ctas == 1 else 4 * ctas * 2 * 2)  # rows, CTAs, warps, reductions


@pytest.mark.parametrize("ctas", [1, 2, 4])
def test_it_is_proved(ctas):
    report = rows_over(ctas).check()
    assert report.ok and report.trips == "every trip count" and "note" not in str(report)


@pytest.mark.parametrize("columns", [512, 1024, 1500, 5000])
def test_two_of_four_ctas_reduce_together(columns):
    """Rows of any length, of which each 1024 elements are reduced by themselves."""
    x = np.random.default_rng(0).integers(1, 5, (3, columns)).astype(np.float32)
    y = np.zeros_like(x)
    PairsOfRows().simulate(x, out=y, clusters=2, seed=1)
    for first in range(0, columns, 1024):
        assert (y[:, first : first + 1024] == normalized(x[:, first : first + 1024])).all()


def test_pairs_are_proved():
    report = PairsOfRows().check()
    assert report.ok and report.trips == "every trip count" and "note" not in str(report)


def test_groups_divide_the_cluster():
    schedule = PairsOfRows()
    schedule.across = tp.ReductionScratch(schedule.work, group=tp.MulticastGroup("n", ctas=3))
    refused(schedule.plan, argument="MulticastGroup(ctas)", rule="divides the cluster's 4 CTAs along n")


def test_explain_says_what_is_armed():
    assert "across.full: 2 barriers of 2 arrivals = 2 expect-tx (work)" in rows_over(2).explain()
    assert "across.full" not in rows_over(1).explain()


class OneReduces(LongRows):
    """CTA 1 leaves out a reduction, for which CTA 0 waits."""

    load, work = LongRows.load, LongRows.work

    @work.jit
    def normalize(self, k, tile):
        with k.ring.consume() as slot:
            values = slot.x.read()
        if k.rank("n") == 0:
            values = values - tp.math.row_max(values)
        k.y.store(tile, values)


def test_all_ctas_reduce():
    assert not OneReduces().check().ok
    with pytest.raises((DeadlockError, HazardError)):
        OneReduces()(np.ones((4, 1024), np.float32))


def test_longer_rows_than_a_cluster_has_are_refused():
    x = np.ones((4, 1028), np.float32)
    refused(rows_over(2), x, argument="shape", rule="at most 2 x 512 elements along n, since across")
    refused(rows_over(1), x, argument="shape", rule="at most 1 x 512 elements along n")
    refused(rows_over(2).simulate, x, argument="shape", rule="at most 2 x 512")


class Columns(LongRows):
    load, work = LongRows.load, LongRows.work
    x = tp.TmaLoadStage("m n", tile=(16, 256), ring=LongRows.ring)
    y = tp.TmaStoreStage("m n", tile=(16, 256), role=work, stages=1)
    across = tp.ReductionScratch(work, rows=16, group=tp.MulticastGroup("n"))

    @work.jit
    def normalize(self, k, tile):
        with k.ring.consume() as slot:
            values = slot.x.read()
        k.y.store(tile, values - tp.math.column_max(values))


class Short(LongRows):
    load, work = LongRows.load, LongRows.work
    x = tp.TmaLoadStage("m n", tile=(16, 64), ring=LongRows.ring)
    y = tp.TmaStoreStage("m n", tile=(16, 64), role=work, stages=1)
    across = tp.ReductionScratch(work, rows=16, group=tp.MulticastGroup("n"))


def test_what_does_not_fit_is_refused():
    work, group = LongRows.work, tp.MulticastGroup("n")
    refused(tp.ReductionScratch, work, group="n", argument="group", rule="MulticastGroup")
    refused(tp.ReductionScratch, work, columns=8, group=group, argument="group", rule="no columns")
    other = LongRows()
    other.across = tp.ReductionScratch(other.work, group=tp.MulticastGroup("k"))
    refused(other.plan, argument="across.group", rule="no dimension of the output's tiles")
    refused(other, np.ones((4, 512), np.float32), argument="across.group", rule="no dimension of the output's tiles")
    refused(Columns(), np.ones((16, 512), np.float32), argument="reduction", rule="columns in several warps")
    refused(Short(), np.ones((16, 128), np.float32), argument="reduction", rule="all lanes of a warp")


@pytest.mark.parametrize("ctas", [1, 2, 4])
def test_log_sum_exp_takes_one_exchange(ctas):
    x = np.random.default_rng(0).normal(0, 40, (6, 512 * ctas - 44)).astype(np.float32)
    x[1], x[2, :300], x[3, 7], x[4, 9] = -np.inf, -np.inf, np.inf, np.nan
    schedule, y = LogSumExp(), np.zeros_like(x)
    schedule.cluster = {"n": ctas}
    run = schedule.simulate(x, out=y, clusters=1)
    assert run.counts["StAsync"] == (0 if ctas == 1 else 6 * ctas * 2)  # rows, CTAs, warps
    with np.errstate(all="ignore"):
        want = np.logaddexp.reduce(x.astype(np.float64), axis=1, keepdims=True)
    np.testing.assert_allclose(y, np.broadcast_to(want, y.shape), rtol=1e-6)


def test_log_sum_exp_of_integers():
    class Integers(LogSumExp):
        load, work = LogSumExp.load, LogSumExp.work
        y = tp.TmaStoreStage("m n", tile=(1, 512), role=work, stages=1, dtype="fp32")

    x = np.random.default_rng(0).integers(-9, 10, (3, 900)).astype(np.int32)
    y = np.zeros((3, 900), np.float32)
    Integers()(x, out=y)
    want = np.log(np.exp(x.astype(np.float64)).sum(1, keepdims=True))
    np.testing.assert_allclose(y, np.broadcast_to(want, y.shape), rtol=1e-6)
