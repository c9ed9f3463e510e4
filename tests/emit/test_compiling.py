"""Candidates compiled in processes of their own, and loaded here."""

from tmapipe.tuning import Candidate, Problem
from tmapipe.tuning.compiling import compile_all, load


def test_compiled_elsewhere_and_loaded(tmp_path):
    good, bad = Candidate("Gemm", (64, 64), (1, 1)), Candidate("Gemm", (64, 1000), (1, 1))
    said = []
    errors = compile_all(Problem(256, 256, 256), [bad, good], tmp_path, 2, lambda c, error: said.append((c, error)))
    assert errors[good] == "" and "InputError" in errors[bad] and "1000" in errors[bad]
    assert dict(said) == errors
    assert callable(load(tmp_path, 1))
