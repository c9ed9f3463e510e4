"""The watchdog on the device. A kernel that hangs leaves its process without a GPU, so each has a process of its own."""

import json
import os
import subprocess
import sys

import pytest
import torch

import tmapipe as tp
from tests import watched

HANGS = """
import faulthandler, json, os, sys, time
faulthandler.dump_traceback_later(40, exit=True)
import torch
import tmapipe as tp
from tests import watched

made = getattr(watched, sys.argv[1])()
tensors = [torch.ones(shape, device="cuda", dtype=torch.bfloat16) for shape in watched.inputs(type(made))]
launch = made.prepare(*tensors)
torch.cuda.synchronize()
print("ready", file=sys.stderr, flush=True)
began = time.perf_counter()
try:
    launch()
except tp.errors.DeadlockError as error:
    took = time.perf_counter() - began
    print(json.dumps({"seconds": took, "text": str(error), "where": error.where, "cause": str(error.__cause__)}))
print("over", file=sys.stderr, flush=True)
sys.stdout.flush()
os._exit(0)  # its GPU is gone: nothing is left to be tidied up
"""
#: Of each: roles that wait, what the report has besides, and a rule of the check.
SAID = {
    "OneTooMany": (["store"], "ring.full[", "TRIP_COUNTS"),
    "Counted": (["store"], "slot 1 of ring ring", "TRIP_COUNTS"),
    "Crossed": (["load", "store"], "of ring second", "DEADLOCK"),
    "Raw": (["store"], "no warp of", "safe for every trip count"),
    "Product": (["math"], "ring.full[0], parity 0", "TRIP_COUNTS"),
    "InCluster": (["math"], "ring.full[1]", "TRIP_COUNTS"),
}


def run(name):
    """(exit code, standard output, standard error) of a process whose kernel hangs."""
    environment = {**os.environ, "TMAPIPE_WATCHDOG": "5"}
    command = [sys.executable, "-c", HANGS, name]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as done:
        try:
            out, wrong = done.communicate(timeout=50)
        except subprocess.TimeoutExpired as error:
            done.kill()
            out, wrong = "", f"{error}: {error.stderr!r}"
    return done.returncode, out, wrong


@pytest.mark.parametrize("name", SAID)
def test_a_hanging_kernel_is_stopped_and_explained(name):
    code, out, wrong = run(name)
    assert code == 0 and out, wrong[-3000:]
    said = json.loads(out)
    roles, part, rule = SAID[name]
    text = said["text"]
    alone = "PYTEST_XDIST_WORKER" not in os.environ  # 5.8 to 7.8 beside thirty processes that compile
    assert 5 <= said["seconds"] < (7 if alone else 30), text
    assert all(f"  {role} (warp" in text for role in roles), text
    assert part in text and rule in text and f"{watched.__file__}:" in text, text
    assert said["where"].startswith(watched.__file__)


def test_the_hanging_ones_are_those_of_the_file():
    assert [kind.__name__ for kind in watched.HANGING] == list(SAID)


def test_what_is_right_stays_right():
    copy = watched.Rows()
    copy.watchdog = 5
    x = torch.randn(1000, 1024, device="cuda").to(torch.bfloat16)
    assert torch.equal(copy(x), x)
    gemm = tp.schedules.Gemm()
    gemm.watchdog = 5
    a, b = (torch.randn(rows, 264, device="cuda").to(torch.bfloat16) for rows in (520, 304))
    plain = tp.schedules.Gemm()(a, b)
    assert torch.equal(gemm(a, b), plain)
    graph = torch.cuda.CUDAGraph()
    out = torch.zeros_like(plain)
    with torch.cuda.graph(graph):
        gemm(a, b, out=out)
    graph.replay()
    assert torch.equal(out, plain)
