"""Candidates compiled in processes of their own, and loaded here."""

import tmapipe as tp
from tmapipe.tuning import Candidate, Problem
from tmapipe.tuning.compiling import compile_all, load


def test_compiled_elsewhere_and_loaded(tmp_path):
    good, bad = Candidate("Gemm", (64, 64), (1, 1)), Candidate("Gemm", (64, 1000), (1, 1))
    said = []
    errors = compile_all(Problem(256, 256, 256), [bad, good], tmp_path, 2, lambda c, error: said.append((c, error)))
    assert errors[good] == "" and "InputError" in errors[bad] and "1000" in errors[bad]
    assert dict(said) == errors
    assert callable(load(tmp_path, 1))


def test_an_epilogue_goes_along(tmp_path):
    """A function that pickle does not take, with an operand, and an output that is reduced."""
    fused = {
        "epilogue": lambda acc, bias: {"d": tp.math.relu(acc + bias), "sums": acc},
        "operands": {"bias": tp.epilogue.PerColumn("fp32")},
        "outputs": {"sums": tp.epilogue.RowSum()},
    }
    few = [Candidate("Gemm", (64, 64), (1, 1)), Candidate("SplitK", (128, 128), (1, 1), (("parts", 2),))]
    errors = compile_all(Problem(256, 256, 256), few, tmp_path, 1, fused=fused)
    assert errors[few[0]] == "" and "parts of k" in errors[few[1]]
    assert callable(load(tmp_path, 0))
