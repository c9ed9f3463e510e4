"""Looks on this GPU: a first call measures forms of rows, and keeps the fastest for later calls and other processes."""

import os
import subprocess
import sys

import pytest
import torch

import tmapipe as tp
import tmapipe.torch as tt
from tmapipe import tuning
from tmapipe.schedules import Copy, Rotary, Transpose
from tmapipe.schedules.crossentropy import CrossEntropy, Cumsum, Softmax
from tmapipe.schedules.normgradients import LayerNormBackward

ROWS = 1031, 20013
#: Prints how many measurements a process makes, how many kernels are built in it, and how often others compile.
PROGRAM = f"""
import torch
import tmapipe.torch as tt
from tmapipe import tuning
from tmapipe.gpu import kernels
from tmapipe.tuning import compiling

made, asked, timed = [], [], []
build, tuning_timed, each = kernels.build, tuning.timed, compiling.compile_each
kernels.build = lambda *given, **named: made.append(given) or build(*given, **named)
tuning.timed = lambda *given: timed.append(given) or tuning_timed(*given)
compiling.compile_each = lambda *given, **named: asked.append(given) or each(*given, **named)
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


def test_copies_of_a_few_mebibytes(monkeypatch):
    found, x = looks_of(monkeypatch), rows(4099, 1001)[:, 3:980]
    assert torch.equal(Copy()(x), x) and len(found) == 1 and len(found[0]) > 1
    assert torch.equal(Copy()(x), x) and len(found) == 1
    assert torch.equal(Copy()(x[:400]), x[:400]) and len(found) == 1, "less than 4 MiB"


@pytest.mark.parametrize("columns", [2048, 2047])
def test_transposes(monkeypatch, columns):
    found, x, transpose = looks_of(monkeypatch), rows(2051, columns), Transpose()
    for _ in range(2):
        assert torch.equal(transpose(x), x.T)
    assert len(found) == 1 and len(found[0]) > 1 and len(vars(transpose)["_again"]) == 1


@pytest.mark.parametrize("columns", [20016, 20013])
def test_functions_share_what_they_compute(monkeypatch, columns):
    found, x, gate = looks_of(monkeypatch), rows(ROWS[0], columns), rows(ROWS[0], columns)
    expected = x * torch.sigmoid(gate.float())
    for function in (lambda x, gate: x * tp.math.sigmoid(gate), lambda a, b: a * tp.math.sigmoid(b)):
        kernel = tp.schedules.Elementwise(function)
        for _ in range(2):
            torch.testing.assert_close(kernel(x, gate).float(), expected.float(), atol=1e-2, rtol=1e-2)
    assert len(found) == 1 and len(found[0]) > 1
    tp.schedules.Elementwise(lambda x, gate: x + gate)(x, gate)
    assert len(found) == 2


@pytest.mark.parametrize("pairs", [False, True])
def test_rotary(monkeypatch, pairs):
    found, x, angles = looks_of(monkeypatch), rows(4, 2048, 32, 80), torch.rand(2048, 1, 40, device="cuda")
    rotary, plain = Rotary(pairs), Rotary(pairs)
    plain.look = 1
    for _ in range(2):
        torch.testing.assert_close(rotary(x, angles.cos(), angles.sin()), plain(x, angles.cos(), angles.sin()))
    assert len(found) == 1 and len(found[0]) > 1 and len(vars(rotary)["_again"]) == 1


def test_running_sums(monkeypatch):
    found, x = looks_of(monkeypatch), rows(1 << 17, 164)
    torch.testing.assert_close(Cumsum()(x).float(), x.float().cumsum(1), atol=0.2, rtol=1e-2)
    assert len(found) == 1 and len(found[0]) > 1


@pytest.mark.parametrize("m", [8, 1000])
def test_weights_of_few_bits(monkeypatch, m):
    found, device = looks_of(monkeypatch), tuning.tuner.device_of()
    first, again = (tuning.choose_dequant((m, 2048, 4096), "int4", group=128, device=device) for _ in range(2))
    assert len(found) == 1 and len(found[0]) > 1 and first.a.tile == again.a.tile
    w, x = torch.randint(-8, 8, (2048, 4096), device="cuda"), rows(m, 4096)
    scale = torch.rand(32, 2048, device="cuda")
    wide = (w * scale.T.repeat_interleave(128, 1)).bfloat16()
    for each in (first, again):
        d = each(x, each.pack_int4(w), scale)
        assert (d.float() - x.float() @ wide.float().T).norm() < 1e-2 * d.float().norm()
    tuning.choose_dequant((m, 2048, 4096), "int4", group=128, device=device, look=1)
    assert len(found) == 1
