"""What each module pulls in: only `gpu` may import cutlass, only `gpu.launch` and `ops` torch. The protocol runs anywhere."""

import pathlib
import pkgutil
import subprocess
import sys

import tmapipe

ROOT = pathlib.Path(tmapipe.__file__).parent
HEAVY = ("cutlass", "torch", "cuda", "tvm_ffi", "triton")


def modules():
    """Every module of the package outside those that are for the GPU."""
    found = ["tmapipe"]
    for module in pkgutil.walk_packages([str(ROOT)], "tmapipe."):
        if not module.name.startswith(("tmapipe.gpu", "tmapipe.ops")):
            found.append(module.name)
    return found


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT.parent, timeout=100)


def test_protocol_imports_neither_cutlass_nor_torch():
    """One process imports them one by one, and says which was the first to bring in something heavy."""
    code = f"""
import importlib, sys
for name in {modules()!r}:
    importlib.import_module(name)
    heavy = sorted(set({HEAVY!r}) & set(sys.modules))
    if heavy:
        sys.exit(f"{{name}} imports {{', '.join(heavy)}}")
"""
    result = run(code)
    assert result.returncode == 0, result.stderr
    names = modules()
    for stem in ("barrier", "stage", "store_pipeline", "schedule", "machine", "check", "planner", "kernel", "tensors"):
        assert f"tmapipe.{stem}" in names


def test_planning_and_simulating_need_no_cutlass():
    code = """
import sys
import numpy as np
import tmapipe as tp
tp.schedules.Gemm().explain()
x = np.arange(64 * 256, dtype=np.float32).reshape(64, 256)
assert (tp.schedules.Copy()(x) == x).all()
assert "cutlass" not in sys.modules and "torch" not in sys.modules, "imported"
"""
    result = run(code)
    assert result.returncode == 0, result.stderr


def test_reading_ptx_needs_no_cutlass():
    result = run("import sys, tmapipe.gpu.ptx; sys.exit('cutlass' in sys.modules)")
    assert result.returncode == 0, result.stderr


def test_import_is_quick():
    """Nothing is compiled, searched or downloaded at import. (A tenth of a second here; the bound is for slow machines.)"""
    result = run("import time; t = time.perf_counter(); import tmapipe; print(time.perf_counter() - t)")
    assert float(result.stdout) < 3
