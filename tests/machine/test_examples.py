"""The examples, run as programs on the CPU model: they check their own results and end in an error if those are wrong."""

import pathlib
import runpy
import sys

import pytest

FOLDER = pathlib.Path(__file__).parents[2] / "examples"
PROGRAMS = {
    "stream_copy": ([], "y == x is True"),
    "gemm_ws": (["--device", "cpu", "--shape", "200", "264", "136"], "relative error"),
    "gemm_epilogue": (["--shape", "130", "264", "72"], "safe for every trip count"),
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
    assert said in capsys.readouterr().out
