"""Matmuls of every form, on the model and in the check."""

import ml_dtypes
import numpy as np
import pytest

import tmapipe as tp
from tests.matmul_schedules import FORMS, Written
from tests.sweeps import ALL


@pytest.mark.parametrize("name", FORMS)
def test_on_the_model(name):
    form, rng = FORMS[name], np.random.default_rng(1)
    for seed in range(4 if ALL else 2):
        arrays = form.arrays(rng)
        schedule = form.make()
        expected = form.expected(**arrays).astype(ml_dtypes.bfloat16)
        d = np.zeros_like(expected)
        schedule.simulate(**{n: x.astype(ml_dtypes.bfloat16) for n, x in arrays.items()}, out=d, clusters=2, seed=seed)
        np.testing.assert_array_equal(d.astype(np.float32), expected.astype(np.float32))


@pytest.mark.parametrize("name", FORMS)
def test_proved(name):
    report = FORMS[name].make().check()
    assert report.ok and "every trip count" in str(report), report


def test_a_role_that_ends_in_a_warpgroup_of_its_own():
    """Warps 1 to 4 of eight: the other three of the second warpgroup have nothing to do."""

    class Wider(Written):
        double = tp.Role(warps=4)

    assert Wider().plan().role("double").first_warp == 1 and Wider().check().ok
