"""Looks on this GPU: a first call measures forms of rows, and keeps the fastest for later calls and other processes."""

import os
import subprocess
import sys

import pytest
import torch

import tmapipe.torch as tt
from tmapipe import tuning
from tmapipe.schedules.crossentropy import CrossEntropy, Softmax
from tmapipe.schedules.normgradients import LayerNormBackward

ROWS = 1031, 20013
#: Prints how many measurements a process makes, how many kernels are built in it, and how often others compile.
PROGRAM = f"""
import torch
import tmapipe.torch as tt
from tmapipe import tuning
from tmapipe.gpu import kernels

made, asked, timed = [], [], []
build, tuning_timed, each = kernels.build, tuning.timed, tuning.compile_each
kernels.build = lambda *given, **named: made.append(given) or build(*given, **named)
tuning.timed = lambda *given: timed.append(given) or tuning_timed(*given)
tuning.compile_each = lambda *given, **named: asked.append(given) or each(*given, **named)
x = torch.randn{ROWS}.cuda().bfloat16()
torch.testing.assert_close(tt.softmax(x), torch.softmax(x, -1))
print(len(timed), len(made), len(asked))
"""


@pytest.fixture(autouse=True)
def apart(tmp_path, monkeypatch):
    monkeypatch.setenv("TMAPIPE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(tuning, "taken", {})


def rows(*shape, dtype=torch.bfloat16):
    torch.manual_seed(0)
    return torch.randn(*(shape or ROWS), device="cuda", dtype=dtype)


def looks_of(monkeypatch):
    found, timed = [], tuning.timed

    def noted(runs, device):
        found.append(timed(runs, device))
        return found[-1]

    monkeypatch.setattr(tuning, "timed", noted)
    return found


def test_another_process_builds_nothing():
    said = []
    for _ in range(2):
        found = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=os.environ)
        assert found.returncode == 0, found.stderr
        said.append(found.stdout.split())
    assert said == [["1", "0", "1"], ["0", "0", "0"]]


def test_a_first_call_looks_and_is_remembered(monkeypatch):
    found, x = looks_of(monkeypatch), rows()
    softmax = Softmax()
    for _ in range(3):
        torch.testing.assert_close(softmax(x), torch.softmax(x, -1))
    assert len(found) == 1 and len(found[0]) == 4
    assert len(vars(softmax)["_again"]) == 1, "only the launch of the fastest form makes the call again"
    (entry,) = tuning.taken.values()
    assert entry["tried"] == 4 and entry["us"] == min(timing.us for _, timing in found[0])
    torch.testing.assert_close(tt.softmax(x), torch.softmax(x, -1))
    assert len(found) == 1, "the operator's kernel finds it"


def test_losses_and_gradients(monkeypatch):
    found, x = looks_of(monkeypatch), rows()
    target = torch.randint(0, x.shape[1], x.shape[:1], device="cuda")
    loss, _ = CrossEntropy()(x, target)
    torch.testing.assert_close(loss, torch.nn.functional.cross_entropy(x.float(), target, reduction="none"))
    weight, dy = rows(x.shape[1], dtype=torch.float32), torch.randn_like(x)
    of_x, of_weight, of_bias = LayerNormBackward()(x, weight, dy)
    leaves = [each.detach().requires_grad_() for each in (x.float(), weight, torch.zeros_like(weight))]
    torch.nn.functional.layer_norm(leaves[0], weight.shape, leaves[1], leaves[2]).backward(dy.float())
    for mine, leaf in zip((of_x.float(), of_weight, of_bias), leaves, strict=True):
        assert (mine - leaf.grad).norm() < 1e-2 * leaf.grad.norm()
    assert [len(each) > 1 for each in found] == [True, True]


def test_no_look_in_a_graph_nor_in_place_nor_where_it_is_switched_off(monkeypatch):
    found, x = looks_of(monkeypatch), rows()
    expected, graph, softmax = torch.softmax(x, -1), torch.cuda.CUDAGraph(), Softmax()
    with torch.cuda.graph(graph):
        y = softmax(x)
    graph.replay()
    torch.testing.assert_close(y, expected)
    even = rows(ROWS[0], 20016)  # rows that begin anywhere are copied first, and a call with a copy looks
    expected = torch.softmax(even, -1)
    softmax(even, out=even)
    torch.testing.assert_close(even, expected)
    other = Softmax()
    other.look = 1
    other(rows())
    assert not found
    softmax(rows())
    assert len(found) == 1


def test_compiled_graphs_look_when_they_run(monkeypatch):
    found, x = looks_of(monkeypatch), rows()
    compiled = torch.compile(lambda x: tt.softmax(x) + 1, mode="reduce-overhead")
    for _ in range(3):
        torch.testing.assert_close(compiled(x), torch.softmax(x, -1) + 1)
    assert len(found) == 1
