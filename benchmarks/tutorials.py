"""The programs of the tutorials as they are printed, beside torch and beside themselves with one thing changed.

python -m benchmarks.tutorials
python -m benchmarks.tutorials --rehearse      small ones, on the CPU model: right or not

A program is the page's own text. What `tmapipe.schedules` has for the same stands beside it.
Writes ``benchmarks/results/tutorials.json``; `python -m benchmarks.page` writes the pages' tables from it.
"""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.cases import Case, checker, main_of, returning
from benchmarks.results import OURS

PAGES = Path(__file__).resolve().parents[1] / "docs" / "tutorials"
KEPT = (ast.Import, ast.ImportFrom, ast.ClassDef, ast.FunctionDef)
Runs = dict[tuple[str, str], Callable[[], Any]]


def page(number: int) -> Any:
    """The classes and functions of a tutorial's page, as a module."""
    path = next(PAGES.glob(f"{number:02}-*.md"), None)
    if path is None:
        raise FileNotFoundError(f"{PAGES} has no page {number}: run it in a whole checkout, with docs/tutorials")
    blocks = re.findall(r"^```python\n(.*?)^```$", path.read_text(), re.M | re.S)
    parts = [
        ast.get_source_segment(block, node) for block in blocks for node in ast.parse(block).body if type(node) in KEPT
    ]
    file = Path(tempfile.mkdtemp()) / "mine.py"
    file.write_text("\n\n\n".join(filter(None, parts)) + "\n")
    spec = importlib.util.spec_from_file_location(f"tutorial_{number}", file)
    assert spec and spec.loader
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def ours(schedule: Any, *inputs: Any) -> Callable[[], Any]:
    """A call of *schedule* that writes the same output each time."""
    return into(schedule, *inputs)


def into(function: Callable[..., Any], *inputs: Any) -> Callable[[], Any]:
    """A call of *function*, which takes `out=`, that writes the same output each time."""
    out = function(*inputs)
    return returning(lambda: function(*inputs, out=out), out)


def normal(device: str, *shape: int, dtype: str = "bfloat16") -> Any:
    """Random normal numbers."""
    import torch

    return torch.randn(*shape, device=device, dtype=getattr(torch, dtype))


def copies(rows: int, columns: int) -> list[Case]:
    """Pages 1 to 4: copies with 2, 4 and 6 slots, and with stores that overlap or not."""
    import tmapipe as tp

    def slots(copy: Any, stages: int) -> Any:
        made = copy()
        made.ring = tp.BarrierRing(stages, producer=copy.load, consumer=copy.store)
        made.x = tp.TmaLoadStage(tile=(64, 128), ring=made.ring)
        made.y = tp.TmaStoreStage(source=made.x)
        return made

    def stores(schedule: Any, stages: int) -> Any:
        made = schedule()
        source = {"source": made.x} if schedule.__name__ == "Copy" else {"tile": (32, 128), "role": made.work}
        made.y = tp.TmaStoreStage("m n", stages=stages, **source)
        return made

    def first(device: str) -> tuple[Runs, Any]:
        x = normal(device, rows, columns // 2, dtype="float32")
        return {("torch", "copy_"): _copy(x), (OURS, "Move"): ours(page(1).Move(), x)}, x

    def second(device: str) -> tuple[Runs, Any]:
        x = normal(device, rows, columns)
        theirs = {("torch", "copy_"): _copy(x)}
        mine = {(OURS, "Copy"): ours(page(2).Copy(), x), (OURS, "schedules.Copy"): ours(tp.schedules.Copy(), x)}
        return {**theirs, **mine}, x

    def third(device: str) -> tuple[Runs, Any]:
        x, copy = normal(device, rows, columns), page(3).Copy
        return {(OURS, f"{stages} slots"): ours(slots(copy, stages), x) for stages in (2, 4, 6)}, x

    def fourth(device: str) -> tuple[Runs, Any]:
        x, made = normal(device, rows, columns), page(4)
        return {(OURS, f"stages={n}"): ours(stores(made.Copy, n), x) for n in (0, 1, 2)}, x

    def doubled(device: str) -> tuple[Runs, Any]:
        import torch

        x, made = normal(device, rows, columns), page(4)
        mine: Runs = {(OURS, f"stages={n}"): ours(stores(made.Doubled, n), x) for n in (1, 2, 4)}
        return {("torch", "mul"): into(torch.mul, x, torch.tensor(2.0, device=device, dtype=x.dtype)), **mine}, 2 * x

    moved = 4.0 * rows * columns
    makes = {"1. Move": first, "2. Copy": second, "3. Copy": third, "4. Copy": fourth, "4. Doubled": doubled}
    return [Case(name, "fp32" if name[0] == "1" else "bf16", moved, make, limit=0.0) for name, make in makes.items()]


def _copy(x: Any) -> Callable[[], Any]:
    import torch

    out = torch.empty_like(x)
    return returning(lambda: out.copy_(x), out)


def rows(m: int) -> list[Case]:
    """Pages 5, 6 and 11: a softmax, a vector that the CTAs of a cluster share, and a function of elements."""
    import tmapipe as tp

    def softmax(device: str) -> tuple[Runs, Any]:
        import torch

        x = normal(device, m, 1000, dtype="float32")
        mine = {"Softmax": page(5).Softmax(), "schedules.Softmax": tp.schedules.Softmax()}
        made: Runs = {(OURS, name): ours(schedule, x) for name, schedule in mine.items()}
        return {("torch", "softmax"): into(lambda x, **to: torch.softmax(x, 1, **to), x), **made}, torch.softmax(x, 1)

    def shifted(device: str) -> tuple[Runs, Any]:
        import torch

        x, w, shared = normal(device, m, 1024, dtype="float32"), normal(device, 1024, dtype="float32"), page(6).Shifted
        alone = shared()
        alone.cluster, alone.w = {}, tp.TmaLoadStage("n", tile=(256,), ring=alone.ring)
        made: Runs = {(OURS, "multicast"): ours(shared(), x, w), (OURS, "each CTA for itself"): ours(alone, x, w)}
        return {("torch", "add"): into(torch.add, x, w), **made}, x + w

    def squared(device: str) -> tuple[Runs, Any]:
        import torch

        x = normal(device, m, 1024, dtype="float32")
        shorter = tp.schedules.Elementwise(lambda x: tp.math.relu(x) * tp.math.relu(x))
        made: Runs = {
            (OURS, "SquaredRelu"): ours(page(11).SquaredRelu(), x),
            (OURS, "schedules.Elementwise"): ours(shorter, x),
        }
        return {("torch", "relu, square"): lambda: torch.relu(x).square_(), **made}, torch.relu(x) ** 2

    makes = {"5. softmax": (softmax, 1000), "6. Shifted": (shifted, 1024), "11. squared relu": (squared, 1024)}
    return [Case(name, "fp32", 8.0 * m * n, make, limit=1e-5) for name, (make, n) in makes.items()]


def products(m: int, short: int, heads: int) -> list[Case]:
    """Pages 6 to 10: a GEMM, multicast, turns, an epilogue, attention."""
    import tmapipe as tp

    def gemms(k: int, mine: Callable[[], dict[str, Any]], then: str = "") -> Callable[[str], tuple[Runs, Any]]:
        def make(device: str) -> tuple[Runs, Any]:
            import torch

            a, b = normal(device, m, k), normal(device, m, k)
            out = torch.empty(m, m, device=device, dtype=a.dtype)
            gelu = torch.nn.functional.gelu

            def torch_run() -> Any:
                torch.mm(a, b.T, out=out)
                return gelu(out, approximate="tanh") if then else out

            want = a.float() @ b.float().T
            want = (gelu(want, approximate="tanh") if then else want).to(a.dtype)
            return {("torch", f"mm{then}"): torch_run, **{(OURS, n): ours(s, a, b) for n, s in mine().items()}}, want

        return make

    def attention(device: str) -> tuple[Runs, Any]:
        import torch

        q, k, v = (normal(device, heads, m, 64) for _ in range(3))
        attend = torch.nn.functional.scaled_dot_product_attention
        mine: Runs = {(OURS, "Attention"): ours(page(10).Attention(), q, k, v)}
        fast = ours(tp.schedules.Attention(64), q[None], k[None], v[None])
        return {
            ("torch", "attention"): lambda: attend(q[None], k[None], v[None])[0],
            **mine,
            (OURS, "schedules.Attention"): lambda: fast()[0],
        }, attend(q[None], k[None], v[None])[0]

    def multicast() -> dict[str, Any]:
        clusters = {"no cluster": (1, 1), "cluster 2 x 1": (2, 1), "cluster 1 x 2": (1, 2)}
        return {name: tp.schedules.Gemm(cluster=cluster) for name, cluster in clusters.items()}

    def turns() -> dict[str, Any]:
        return {"PingPong": page(8).PingPong(), "Gemm of page 7": page(7).Gemm()}

    def functions() -> dict[str, Any]:
        return {"GeluGemm": page(9).GeluGemm(), "schedules.Gemm": tp.schedules.Gemm(epilogue=tp.math.gelu)}

    long, little, scores = 2.0 * m * m * m, 2.0 * m * m * short, 4.0 * heads * m * m * 64
    makes = {
        "6. Gemm": (gemms(m, multicast), long),
        "7. Gemm": (gemms(m, lambda: {"Gemm": page(7).Gemm(), "schedules.Gemm": tp.schedules.Gemm()}), long),
        "8. PingPong": (gemms(short, turns), little),
        "9. GeluGemm": (gemms(m, functions, " and gelu"), long),
        "10. Attention": (attention, scores),
    }
    return [Case(name, "bf16", work, make, limit=2e-2, measure="tflops") for name, (make, work) in makes.items()]


def rehearse() -> int:
    """Runs small problems on the CPU model; the exit status."""
    import torch

    wrong = 0
    for case in (*copies(130, 264), *rows(9), *products(136, 72, 2)):
        torch.manual_seed(0)
        runs, want = case.make("cpu")
        errors = {" ".join(key): checker(want)(run) for key, run in runs.items()}
        wrong += sum(not error <= max(case.limit, 1e-2 * (case.measure == "tflops")) for error in errors.values())
        print(case.name, {name: f"{error:.1e}" for name, error in errors.items()}, flush=True)
    return int(wrong > 0)


def main(argv: list[str] | None = None) -> int:
    if "--rehearse" in (sys.argv[1:] if argv is None else argv):
        return rehearse()
    cases = [*copies(16384, 8192), *rows(65536), *products(4096, 512, 32)]
    return main_of("tutorials", __doc__, cases, ["--keep", "9", *(sys.argv[1:] if argv is None else argv)])


if __name__ == "__main__":
    sys.exit(main())
