"""`tmapipe doctor` and `tmapipe demo` on a GPU run a copy and a GEMM; `tmapipe timeline --gpu` traces kernels."""

import json

import pytest
from typer.testing import CliRunner

from tmapipe.command import app


@pytest.mark.parametrize("verb", ["doctor", "demo"])
def test_a_copy_and_a_gemm_are_compared(verb):
    result = CliRunner().invoke(app, [verb, "--json"], catch_exceptions=False)
    document = json.loads(result.stdout)
    assert [run["ok"] for run in document["runs"]] == [True, True], document
    wrong = [item for item in document.get("items", ()) if item["state"] == "bad"]
    assert result.exit_code == 0 and not wrong, document


@pytest.mark.parametrize("name, shapes", [("Gemm", ["a=512x512", "b=512x512"]), ("Softmax", ["x=256x1024"])])
def test_a_kernel_is_drawn(name, shapes, tmp_path):
    options = [word for shape in shapes for word in ("--shape", shape)]
    result = CliRunner().invoke(app, ["timeline", name, *options, "--gpu", "-o", str(tmp_path / "x.json"), "--json"])
    document = json.loads(result.stdout)
    assert result.exit_code == 0 and document["cycles"] > 1000 and "load" in document["roles"], document
    assert json.loads((tmp_path / "x.json").read_text())["traceEvents"]
