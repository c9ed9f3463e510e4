"""The examples, run as programs on the CPU model: they check their own results and end in an error if those are wrong."""

import pathlib
import runpy
import sys

import numpy as np
import pytest

import tmapipe as tp

FOLDER = pathlib.Path(__file__).parents[2] / "examples"
PROGRAMS = {
    "stream_copy": ([], "y == x is True"),
    "gemm_ws": (["--device", "cpu", "--shape", "200", "264", "136"], "relative error"),
    "gemm_epilogue": (["--shape", "130", "264", "72"], "safe for every trip count"),
    "softmax": ([], "off by at most"),
    "rmsnorm": ([], "off by at most"),
    "exchange": ([], "right is True"),
    "vectors": ([], "right is True"),
    "two_passes": ([], "off by at most"),
    "transpose": ([], "y == x.T is True"),
    "gemm_row_max": ([], "off by at most"),
    "gemm_block_scaled": ([], "relative error"),
    "conv": ([], "safe for every trip count"),
    "stencil": ([], "safe for every trip count"),
    "row_sums": ([], "safe for every trip count"),
    "histogram": ([], "safe for every trip count"),
    "ragged": ([], "safe for every trip count"),
    "paged_attention": ([], "off by at most"),
    "pages": ([], "safe for every trip count"),
    "odd_rows": ([], "safe for every trip count"),
    "groups_anywhere": ([], "right is True"),
    "embedding": ([], "safe for every trip count"),
    "double_buffer": ([], "off by at most"),
    "attention": ([], "off by at most"),
    "mlp": ([], "relative error"),
    "dequant_gemm": ([], "relative error"),
}


def test_none_is_left_out():
    assert {path.stem for path in FOLDER.glob("*.py")} == set(PROGRAMS)


@pytest.mark.parametrize("name", PROGRAMS)
def test_runs_as_a_program(name, monkeypatch, capsys):
    """As `python examples/<name>.py` does it, with the package installed: where modules are found is left alone."""
    path, (options, said) = FOLDER / f"{name}.py", PROGRAMS[name]
    assert "sys.path" not in path.read_text()
    monkeypatch.setattr(sys, "argv", [str(path), *options])
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    runpy.run_path(str(path), run_name="__main__")
    output = capsys.readouterr().out
    assert said in output
    assert "check()" not in path.read_text() or "safe for every trip count" in output


def test_the_epilogue_element_by_element():
    gemm = runpy.run_path(str(FOLDER / "gemm_epilogue.py"))["GeluGemm"]()
    rng = np.random.default_rng(0)
    a, b, bias = (rng.standard_normal(shape).astype(tp.dtypes.bf16.numpy) for shape in ((130, 72), (264, 72), 264))
    expected = tp.math.gelu(a.astype(np.float32) @ b.astype(np.float32).T + bias.astype(np.float32))
    np.testing.assert_allclose(gemm(a, b, bias=bias).astype(np.float32), expected, rtol=1e-2, atol=1e-2)
