"""Tuning a function that makes schedules: what is tried, what falls out, what is remembered, on a machine without a GPU."""

import functools
import math

import numpy as np
import pytest
import torch

from tests.unit.errors import refused
from tests.unit.scaled import crowded_of, scaled_of
from tmapipe import autotune
from tmapipe.errors import PipelineError
from tmapipe.tuning import differing, job_of
from tmapipe.tuning.compiling import compile_each, keep
from tmapipe.tuning.compiling import recall_entry as recall
from tmapipe.tuning.cost import fastest


def test_what_the_model_expects_to_be_the_fastest_is_taken_without_a_gpu():
    tuned = autotune({"rows": (3, 8, 16), "stages": (4000, 2)}, key=lambda x: {"columns": x.shape[1]})(scaled_of)
    x = torch.randn(20, 128)
    assert torch.equal(tuned(x), 2 * x) and tuned.__name__ == "scaled_of"
    few, bad = tuned.candidates(x)
    assert few == [{"rows": rows, "stages": 2} for rows in (16, 8, 3)] and list(bad) == [0, 2, 4]
    assert "shared memory" in bad[0]
    assert tuned.choice(x).parameters == few[0] and tuned.choice(x).us is None
    assert tuned.choice(torch.randn(7, 128)) is tuned.choice(x)  # of another height: the key is the same
    assert tuned.choice(x.half()) is not tuned.choice(x)
    assert (tuned(np.ones((4, 64), np.float32)) == 2).all() and len(tuned.choices) == 3
    out = torch.empty_like(x)
    assert tuned(x, out=out) is out and torch.equal(out, 2 * x)


def test_no_more_than_most_are_tried():
    tuned = autotune({"rows": (8, 16, 32)}, most=2)(functools.partial(scaled_of))
    assert tuned.candidates(torch.randn(20, 64))[0] == [{"rows": 16}, {"rows": 8}]


def test_bad_input():
    refused(autotune, {}, argument="autotune(space)", rule="parameters with their values")
    refused(autotune, {"rows": 8}, argument="autotune(space['rows'])", rule="sequence")
    refused(autotune, {"rows": "abc"}, argument="autotune(space['rows'])", rule="sequence")
    refused(autotune, {"rows": (8,)}, argument="autotune(most)", rule="positive", most=0)
    refused(autotune({"rows": (8,)}), None, argument="autotune()", rule="function")
    tuned = autotune({"rows": (8,), "stages": (4000,)})(scaled_of)
    refused(tuned, torch.randn(8, 64), argument="autotune(space)", rule="has no candidate for these tensors")
    nothing = autotune({"rows": (8,)})(lambda rows: None)
    refused(nothing, torch.randn(8, 64), argument="autotune(space)", rule="no candidate.*is a `return` missing")
    other = autotune({"lines": (8,)})(lambda rows: None)
    refused(other, torch.randn(8, 64), argument="autotune(space)", rule="is what the function takes: .*'rows'")
    twice = autotune({"rows": (8,)}, key=lambda x: {"rows": 8})(lambda rows: None)
    refused(twice, torch.randn(8, 64), argument="autotune(space)", rule="is what the function takes: .*multiple values")


def test_results_that_differ_fall_out():
    x = torch.randn(100)

    def fails():
        raise PipelineError("it does not work")

    runs = {0: fails, 1: lambda: (x, 2 * x), 2: lambda: (x, 2 * x + 1), 3: lambda: (x * (1 + 1e-3), 2 * x)}
    runs[4] = lambda: (x * math.nan, x)
    runs[5] = lambda: (x[:50], x)
    wrong = differing(runs)
    assert set(wrong) == {0, 2, 4, 5} and wrong[0] == "it does not work" and "off" in wrong[2] and "shape" in wrong[5]


class Clock:
    """Each run says how long it takes."""

    def rest(self, seconds):
        pass

    def batch(self, run, launches):
        return [run()] * launches


def test_the_fastest_comes_first():
    runs = {number: functools.partial(float, us) for number, us in enumerate((9, 5, 7, 30, 6, 40))}
    found = fastest(runs, Clock())
    assert [number for number, _ in found] == [1, 4, 2, 0] and found[0][1].us == 5


def test_found_is_remembered(tmp_path, monkeypatch):
    monkeypatch.setenv("TMAPIPE_CACHE_DIR", str(tmp_path))
    pytest.importorskip("cutlass")
    assert recall("a kernel", "some GPU") is None
    keep("a kernel", "some GPU", {"parameters": {"rows": 8}, "us": 2.5})
    assert recall("a kernel", "some GPU") == {"parameters": {"rows": 8}, "us": 2.5}
    assert recall("a kernel", "another") is None


def test_what_spills_falls_out(tmp_path, monkeypatch):
    """Functions are sent to the processes that compile; a kernel with too few registers a thread is refused there."""
    monkeypatch.setenv("TMAPIPE_CHECK", "0")  # which the proof has tests of its own for
    kinds = {"x": "fp32", "y": "fp32"}, {"x": 2, "y": 2}
    jobs = [functools.partial(job_of, make, {"rows": rows}, kinds) for make, rows in ((scaled_of, 8), (crowded_of, 64))]
    errors = compile_each(jobs, tmp_path, 1, spills=False)
    assert errors[0] == "" and "local memory" in errors[1]
