"""The verbs that are about this machine: doctor, demo, cache, bench and tune."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.table import Table

import tmapipe
from tmapipe import schedules
from tmapipe.command.answer import WRONG, Answer, answering, working
from tmapipe.command.compared import off, product, within
from tmapipe.command.examined import BAD, NONE, Item, examine
from tmapipe.command.tensors import extents, filled
from tmapipe.disk import cache_folder
from tmapipe.dtypes import bf16
from tmapipe.errors import InputError
from tmapipe.tuning.choose import ranked
from tmapipe.tuning.problem import Problem

__all__ = ["bench", "cache", "demo", "doctor", "tune"]

Json = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]
_ON_MODEL = {"m": 160, "n": 200, "k": 136}  # no whole numbers of tiles
_ON_GPU = {"m": 4000, "n": 4104, "k": 4072}


def _compare(on_gpu: bool) -> list[dict[str, Any]]:
    """A copy and a GEMM, on the GPU or on the CPU model: how far they are from what NumPy computes, and how long they took."""
    generator = np.random.default_rng(0)
    m, n, k = (_ON_GPU if on_gpu else _ON_MODEL).values()
    a, b = filled(generator, (m, k), bf16), filled(generator, (n, k), bf16)
    gemm = schedules.Gemm() if on_gpu else schedules.Gemm((128, 128, 64), (1, 1))
    right = product(a.astype(np.float32), b.astype(np.float32))
    found = []
    for name, schedule, inputs, expected in (("Copy", schedules.Copy(), (a,), a), ("Gemm", gemm, (a, b), right)):
        run: dict[str, Any] = {"name": f"{name} {'x'.join(map(str, (m, k) if name == 'Copy' else (m, n, k)))} bf16"}
        found.append(run | {"error": None, "ok": False})
        began = time.perf_counter()
        try:
            result = _on_gpu(schedule, inputs) if on_gpu else schedule(*inputs)
        except Exception as error:  # on a machine that is not set up: to be said with the rest
            found[-1] |= {"failed": f"{type(error).__name__}: {error}"}
        else:
            apart = off(result, expected)
            right_enough = apart <= (0.0 if name == "Copy" else within(result))
            found[-1] |= {"error": apart if np.isfinite(apart) else None, "ok": right_enough}
        found[-1]["seconds"] = time.perf_counter() - began
    return found


def _on_gpu(schedule: Any, inputs: tuple[np.ndarray, ...]) -> np.ndarray:
    """A call of bf16 arrays on the GPU. Compilation is part of it."""
    import torch

    tensors = [torch.from_numpy(x.view(np.int16)).view(torch.bfloat16).cuda() for x in inputs]
    result = schedule(*tensors)
    torch.cuda.synchronize()
    return np.asarray(result.cpu().view(torch.int16).numpy()).view(bf16.numpy)


def doctor(json_: Json = False) -> None:
    """Says what this machine has, what does not go together, and how to repair it. On a GPU, runs a copy and a GEMM. Exit
    code 1: something is wrong."""
    with answering("doctor", json_) as answer:
        with working("looking at this machine"):
            items, gpu = examine()
        runs: list[dict[str, Any]] = []
        if gpu and all(item.state != BAD for item in items):
            with working("a copy and a GEMM on the GPU"):
                runs = _compare(on_gpu=True)
        elif gpu:
            items.append(Item("runs on the GPU", "none, before what is wrong is repaired", NONE))
        else:
            items.append(Item("runs on the GPU", "none: this machine has no GPU. Nothing was compiled", NONE))
        for run in runs:
            why = "the kernel did not run" if "failed" in run else "the kernel computes wrong numbers"
            fix = "" if run["ok"] else f"{why} here: please report it with this output"
            items.append(Item(run["name"], _said(run), "ok" if run["ok"] else BAD, fix))
        table = Table(box=None, show_header=False, padding=(0, 1))
        for _ in range(3):
            table.add_column(overflow="fold")
        for item in items:
            table.add_row(item.state, item.name, item.value + (f"\nFix: {item.fix}." if item.fix else ""))
        wrong = any(item.state == BAD for item in items)
        answer.facts = {"gpu": gpu, "items": [item.facts() for item in items], "runs": runs}
        answer.text, answer.code = [table], WRONG if wrong else 0


def _said(run: dict[str, Any]) -> str:
    if "failed" in run:
        return f"{run['failed']} (FAILED)"
    error = "not finite" if run["error"] is None else f"{run['error']:.1e}"
    return f"differs from NumPy's by {error}, {run['seconds']:.1f} s{'' if run['ok'] else ' (WRONG)'}"


def demo(json_: Json = False) -> None:
    """Runs a copy and a GEMM, on the GPU if there is one, else on the CPU model, and compares them with NumPy's."""
    with answering("demo", json_) as answer:
        with working("looking for a GPU"):
            gpu = _has_gpu()
        with working(f"a copy and a GEMM on {'the GPU' if gpu else 'the CPU model'}"):
            runs = _compare(gpu)
        where = "the GPU" if gpu else "the CPU model of the hardware (there is no GPU here)"
        answer.facts = {"device": "gpu" if gpu else "model", "runs": runs}
        answer.text = [f"on {where}", *(f"  {run['name']}: {_said(run)}" for run in runs)]
        answer.code = 0 if all(run["ok"] for run in runs) else WRONG


def _has_gpu() -> bool:
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return bool(torch.cuda.is_available())


def cache(
    clear: Annotated[
        bool, typer.Option("--clear", help="Remove what is kept: it is made anew when it is needed.")
    ] = False,
    json_: Json = False,
) -> None:
    """Says what the library keeps on disk, and where."""
    with answering("cache", json_) as answer:
        folder = cache_folder()
        kinds: dict[str, list[Path]] = {}
        for path in sorted(folder.rglob("*")) if folder.is_dir() else ():
            if path.is_file() and not path.is_symlink():
                parts = path.relative_to(folder).parts
                kinds.setdefault(parts[0] if len(parts) > 1 else parts[0].partition("-")[0], []).append(path)
        rows = [{"kind": k, "files": len(of), "bytes": sum(p.stat().st_size for p in of)} for k, of in kinds.items()]
        removed = 0
        for path in (path for kind, of in kinds.items() if kind != "locks" for path in of) if clear else ():
            try:
                path.unlink()
            except OSError as error:
                rule = f"cannot be removed: {error.strerror}"
                raise InputError("--clear", str(path), rule, "make it yours, or set TMAPIPE_CACHE_DIR") from None
            removed += 1
        answer.facts = {"folder": str(folder), "kinds": rows, "removed": removed}
        lines = [f"  {row['kind']}: {row['files']} files, {row['bytes']} bytes" for row in rows] or ["  nothing"]
        answer.text = [str(folder), *lines, *([f"removed {removed} files"] if clear else [])]


def bench(
    context: typer.Context,
    suite: Annotated[str | None, typer.Argument(help="A suite; without: which there are.")] = None,
    json_: Json = False,
) -> None:
    """Runs a benchmark suite of a checkout, with the options that follow: tmapipe bench gemm --help."""
    with answering("bench", json_) as answer:
        root = Path(tmapipe.__file__).resolve().parents[1]
        folder = root / "benchmarks"
        if not (folder / "__init__.py").is_file():
            rule = "is part of a checkout of the repository, and the package is installed without one"
            raise InputError(
                "benchmarks", str(folder), rule, "clone the repository, and run pip install -e '.[bench]' in it"
            )
        suites = sorted(p.stem for p in folder.glob("*.py") if 'if __name__ == "__main__"' in p.read_text())
        if suite is None:
            answer.facts, answer.text = {"suites": suites}, suites
            return
        if suite not in suites:
            raise InputError("SUITE", suite, f"is one of {', '.join(suites)}", "name one of them")
        command = [sys.executable, "-m", f"benchmarks.{suite}", *context.args]
        ended = subprocess.run(command, cwd=root, stdout=sys.stderr if json_ else None, check=False)
        answer.facts, answer.code = {"suite": suite, "arguments": context.args}, ended.returncode


def tune(
    problem: Annotated[str, typer.Argument(metavar="MxNxK", help="Extents of the GEMM d[m, n] = a[m, k] b[n, k]^T.")],
    dtype: Annotated[str, typer.Option(help="Element type of a and b.")] = "bf16",
    out: Annotated[str | None, typer.Option(help="Element type of d; by default that of a.")] = None,
    most: Annotated[int, typer.Option(min=1, help="Candidates to try.")] = 12,
    again: Annotated[bool, typer.Option("--again", help="Measure even if the result is on disk.")] = False,
    estimate: Annotated[
        bool, typer.Option("--estimate", help="Rank candidates for an H200 by estimate: needs no GPU.")
    ] = False,
    json_: Json = False,
) -> None:
    """Measures which schedule of a GEMM is the fastest on this GPU, and remembers it."""
    with answering("tune", json_) as answer:
        if not re.fullmatch(r"\d+x\d+x\d+", problem):
            raise InputError("MxNxK", problem, "is three extents with an x between them", "e.g. 4096x4096x1024")
        m, n, k = extents("MxNxK", problem)
        wanted = Problem(m, n, k, dtype, out or ("int32" if dtype == "int8" else dtype))
        if estimate:
            with working("estimating"):
                rows = [{"candidate": str(c), "us": us, "measured": False} for c, us in ranked(wanted, most=most)]
            answer.facts = {"problem": str(wanted), "candidates": rows, "refused": []}
        else:
            from tmapipe.tuning.tuner import tune as measure

            tuned = measure(wanted, most=most, again=again, progress=sys.stderr.isatty())
            timed = [(str(c), t.us) for c, t in tuned.timings] or [(str(tuned.candidate), tuned.us)]
            rows = [{"candidate": name, "us": us, "measured": True} for name, us in timed]
            refused = [{"candidate": str(c), "reason": why} for c, why in tuned.refused]
            answer.facts = {"problem": str(wanted), "candidates": rows, "refused": refused}
        _say(answer, rows)


def _say(answer: Answer, rows: list[dict[str, Any]]) -> None:
    table = Table("us", "candidate", box=None, title=f"{answer.facts['problem']}", title_justify="left")
    for row in rows:
        table.add_row(f"{row['us']:.1f}", row["candidate"])
    answer.text = [table]
