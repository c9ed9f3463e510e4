"""Kernels that are kept: equal schedules share them, another process loads them, and both compute the same bits."""

import os
import subprocess
import sys

import torch
from cutlass.utils import HardwareInfo

import tmapipe as tp
from tmapipe.gpu.launch import resident_clusters

PROGRAM = """
import sys
import torch
import tmapipe as tp
from tmapipe.gpu import kernels
from tmapipe import prove as verdicts

made, build = [], kernels.build
kernels.build = lambda *given, **named: made.append(given) or build(*given, **named)
torch.manual_seed(0)
a, b = (torch.randn(rows, 512, device="cuda").bfloat16() for rows in (1000, 768))
torch.mm(a, b.T)
torch.cuda.synchronize()
first = tp.schedules.Gemm()(a, b)
torch.cuda.synchronize()
second = tp.schedules.Gemm()(a, b)
assert torch.equal(first, second)
print(len(made), first.float().sum().item())
"""


def test_another_process_loads_it(tmp_path):
    environment = {**os.environ, "TMAPIPE_CACHE_DIR": str(tmp_path)}
    found = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environment, timeout=100
        )
        assert done.returncode == 0, done.stderr
        found.append(done.stdout.split())
    (cold, before), (warm, after) = found
    assert (cold, warm) == ("1", "0") and before == after


def test_as_many_clusters_as_the_dsl_says():
    torch.zeros(1, device="cuda")  # what the DSL asks needs a context
    for size in (1, 2, 4, 8, 16):
        assert resident_clusters(0, size) == HardwareInfo(0).get_max_active_clusters(size), size


def test_equal_schedules_share_a_kernel():
    x = torch.randn(300, 1000, device="cuda").bfloat16()[:, :992]
    one, other = tp.schedules.Copy((4, 64)), tp.schedules.Copy((4, 64))
    assert torch.equal(one(x), other(x))
    (mine,), (its,) = (vars(each)["_compiled"].values() for each in (one, other))
    assert mine is its
