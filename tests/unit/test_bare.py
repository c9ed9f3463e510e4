"""Without torch, CuTe DSL and the packages for GPUs: model and proof run, and what needs one of these says which.

Here these packages are hidden in a process; `python -m tests.versions` runs this file where they are not installed.
"""

import importlib.util
import subprocess
import sys

import pytest

HIDDEN = ("cloudpickle", "cuda", "cutlass", "filelock", "rich", "torch", "tqdm", "tvm_ffi", "typer")

PROGRAM = """
import sys
hidden = sys.argv[1:]
def hides(finder):
    class Hiding:
        def find_spec(self, name, path=None, target=None):
            return None if name.partition(".")[0] in hidden else finder.find_spec(name, path, target)
    return Hiding()
sys.meta_path[:] = map(hides, sys.meta_path)
import numpy as np
import tmapipe as tp

gemm = tp.schedules.Gemm((64, 64, 64), (1, 1))
a, b = (np.random.default_rng(0).integers(-3, 4, (rows, 72)).astype(tp.dtypes.bf16.numpy) for rows in (40, 24))
d = gemm(a, b)
assert (d == (a.astype(float) @ b.astype(float).T).astype(tp.dtypes.bf16.numpy)).all()
assert gemm.check().ok and "mma" in gemm.explain() and gemm.program()
assert (gemm.prepare(a, b)() == d).all()
(best, _), *_ = tp.tuning.ranked(tp.tuning.Problem(512, 512, 512), most=1)
assert best.build(tp.tuning.Problem(512, 512, 512))

def says(call):
    try:
        call()
    except tp.errors.MissingPackageError as error:
        print(str(error).split()[0])

def ops():
    import tmapipe.torch

says(gemm.compile)
says(lambda: gemm.export("x.so", (8, 64), (8, 64)))
says(lambda: tp.tuning.tune(tp.tuning.Problem(512, 512, 512)))
says(ops)
try:
    tp.load("none.so")
except tp.InputError:
    print("load")
print(*sorted({*hidden} & {*sys.modules}))
"""


def test_model_and_proof_run_and_the_rest_says_what_it_needs(tmp_path):
    command = [sys.executable, "-c", PROGRAM, *HIDDEN]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    wanted = ["nvidia-cutlass-dsl", "nvidia-cutlass-dsl", "torch", "torch", "load", ""]
    assert done.stdout.split("\n")[:-1] == wanted


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="torch is installed here")
def test_a_bare_environment_has_none_of_them():
    assert [name for name in HIDDEN if importlib.util.find_spec(name) is not None] == []
