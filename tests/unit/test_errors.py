"""Errors go from process to process, as they are."""

import copy
import pickle
import threading
from concurrent.futures import ProcessPoolExecutor

import pytest

import tmapipe as tp
from tests.unit.limits import ended

S = tp.schedules


def refused():
    S.Gemm(tile=(100, 128, 64)).plan()


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda error: pickle.loads(pickle.dumps(error))])
def test_an_input_error_can_be_copied_and_pickled(again):
    error = tp.InputError("tile", (100, 128), "is a multiple of 64", "use 128")
    other = again(error)
    assert type(other) is tp.InputError and str(other) == str(error)
    assert (other.argument, other.value, other.rule, other.fix) == (
        "tile",
        (100, 128),
        "is a multiple of 64",
        "use 128",
    )


def test_a_value_that_cannot_be_pickled_is_shown():
    error = tp.InputError("epilogue", threading.Lock(), "is a function", "pass one")
    other = pickle.loads(pickle.dumps(error))
    assert str(other) == str(error) and repr(other.value) == repr(error.value)


def test_a_worker_hands_it_on():
    with ProcessPoolExecutor(1) as pool:
        error = ended(pool.submit(refused).exception)
    assert isinstance(error, tp.InputError) and error.argument == "a.tile[0]" and error.value == 100
