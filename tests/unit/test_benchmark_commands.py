"""The benchmarks as programs: their command lines, their kept results, and the pages made from these."""

import importlib
import json
import pathlib
import re
import subprocess
import sys
import time

import pytest

import tmapipe as tp
from benchmarks import checker
from benchmarks.results import read as read_results

ROOT = pathlib.Path(__file__).parents[2]
MODULES = sorted(path.stem for path in (ROOT / "benchmarks").glob("*.py"))
PROGRAMS = [name for name in MODULES if "__main__" in (ROOT / "benchmarks" / f"{name}.py").read_text()]
ON_A_GPU = [
    "attention",
    "attention_variants",
    "byproducts",
    "ceiling",
    "conv2d",
    "copy",
    "dequant",
    "epilogue",
    "first_calls",
    "gather",
    "gemm",
    "grouped",
    "host_time",
    "kernels",
    "l2_requests",
    "mlp",
    "norm_gradients",
    "steps",
    "predicted",
    "programs",
    "random_epilogues",
    "random_kernels",
    "random_problems",
    "random_rows",
    "random_views",
    "user_kernels",
    "rows",
    "stamps",
    "transpose",
    "tuning",
    "tutorials",
    "twelve",
    "versions",
]


def test_which_are_programs():
    assert sorted([*ON_A_GPU, "checker", "page", "plot", "sass"]) == PROGRAMS


@pytest.mark.parametrize("name", PROGRAMS)
def test_help(name, capsys):
    with pytest.raises(SystemExit) as info:
        importlib.import_module(f"benchmarks.{name}").main(["--help"])
    assert info.value.code == 0 and "usage:" in capsys.readouterr().out


@pytest.mark.parametrize("name", ON_A_GPU)
def test_without_a_gpu_they_say_so(name, capsys, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert importlib.import_module(f"benchmarks.{name}").main([]) == 2
    assert f"no GPU here: benchmarks.{name} " in capsys.readouterr().out


def test_runs_as_a_module():
    done = subprocess.run([sys.executable, "-m", "benchmarks.plot", "--help"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and "--mode" in done.stdout


def test_kept_results_are_small():
    assert sum(path.stat().st_size for path in (ROOT / "benchmarks" / "results").glob("*.json")) < 2 << 20


@pytest.mark.parametrize("path", sorted((ROOT / "benchmarks" / "results").glob("*.json")), ids=lambda path: path.stem)
def test_kept_results_are_readable(path):
    if path.stem.split("_")[0] in (
        "boxes",
        "deciding",
        "fuzz",
        "mutants",
        "reality",
        "right",
        "robust",
    ):  # of another form
        assert json.loads(path.read_text())
    else:
        read = read_results(path)
        assert read["suite"] == path.stem.removesuffix("_sustained") and read["rows"]


def test_checks_are_timed(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(checker, "REPEATS", 1)
    monkeypatch.setattr(checker, "EVERY", {"Copy": checker.EVERY["Copy"]})
    monkeypatch.setattr(checker, "K_TILES", (8,))
    checker.main(["--out", str(tmp_path)])
    rows = read_results(tmp_path / "checker.json")["rows"]
    assert [row["verdict"] == "safe" for row in rows] == [True, True, False, True]
    assert "Copy" in capsys.readouterr().out


@pytest.mark.parametrize("backend", ["without loads", "without stores"])
def test_backends_that_measure_still_compile(backend):
    from benchmarks import ceiling
    from tmapipe.gpu.build import build

    schedule = tp.schedules.Gemm((64, 64, 64), (1, 1))
    made = ceiling.BACKENDS[backend]()
    plan = schedule.plan(dict.fromkeys("abd", "bf16"), arch="sm_90a")
    ptx = build(schedule, plan, keep=True, backend=made).ptx
    assert (".bulk_group" in ptx) == (backend != "without stores")


def test_the_tables_of_the_pages_are_those_of_the_result_files():
    from benchmarks import page

    text = "".join(each.read_text() for each in page.PAGES)
    assert page.filled(text) == text, "run python -m benchmarks.page"
    assert set(re.findall(r"<!-- table ([\w-]+) -->", text)) == set(page.TABLES)
    changed = text.replace("| 8192x8192x8192 | 794 |", "| 8192x8192x8192 | 795 |", 1)
    assert changed != text == page.filled(changed)


def test_the_plot_of_the_performance_page_is_that_of_the_result_files():
    from benchmarks import page, plot

    drawn = page.PAGES[0].parents[1] / "img" / "performance.svg"
    assert plot.mark(page.groups()) in drawn.read_text(), "run python -m benchmarks.page --plot"
    assert plot.mark({"a": [1.0]}) != plot.mark({"a": [1.001]})


def test_drawn_kernels_are_right_on_the_cpu(capsys):
    """One of each suite, small; what is drawn follows from the seed."""
    from benchmarks import random_kernels, row_kernels

    for name, draw in random_kernels.SUITES.items():
        cases = draw(7, random_kernels.SMALL)
        assert [case.name for case in cases] == [case.name for case in draw(7, random_kernels.SMALL)]
        assert len(cases) == {"kernels": 132, "copies": 40, "products": 20, "rows": 80, "users": 6}[name]
        assert name in ("products", "users") or row_kernels.rehearse(cases[1:2]) == 0
    assert "relative error" in capsys.readouterr().out


def test_a_kernel_of_users_is_right_on_the_cpu():
    from benchmarks import row_kernels, user_kernels

    cases = user_kernels.cases(small=True)
    assert row_kernels.rehearse(cases[3:4]) == 0 and len(user_kernels.cases()) == len(cases) == 6


def test_a_worker_is_asked_and_may_end():
    from benchmarks.row_kernels import Worker

    said = "import json\nmine, until, lock = json.loads(input())\nprint(mine[1:], flush=True)\n"
    said += "print(json.dumps([{'us': int(input())}]), flush=True)"
    worker = Worker([sys.executable, "-I", "-c", said], [4, 5, 6], time.monotonic(), "")
    assert worker.await_ready() == [5, 6] and worker.measure(5) == [{"us": 5}] and worker.measure(6) == []
    worker.end()
