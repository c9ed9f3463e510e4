"""`tmapipe doctor` and `tmapipe demo` on a GPU: they run a copy and a GEMM."""

import json

import pytest
from typer.testing import CliRunner

from tmapipe.command.app import app


@pytest.mark.parametrize("verb", ["doctor", "demo"])
def test_a_copy_and_a_gemm_are_compared(verb):
    result = CliRunner().invoke(app, [verb, "--json"], catch_exceptions=False)
    document = json.loads(result.stdout)
    assert [run["ok"] for run in document["runs"]] == [True, True], document
    wrong = [item for item in document.get("items", ()) if item["state"] == "bad"]
    assert result.exit_code == 0 and not wrong, document
