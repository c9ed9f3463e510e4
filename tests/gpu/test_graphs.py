"""CUDA graphs: captured cold, replayed in any order, after the schedule has changed, on memory that was filled with junk."""

import gc

import pytest
import torch

import tmapipe as tp
from tmapipe.gpu import kernels, launch
from tmapipe.tuning import Problem, choose

SMALL = (128, 128, 64), (1, 1)
S = tp.schedules
ORDERS = {
    "fetched": lambda: S.Gemm(*SMALL, tiles=tp.tiles.DynamicTiles()),
    "by GPC": lambda: S.Gemm(*SMALL, tiles=tp.tiles.GpcTiles()),
    "clusters": lambda: S.Gemm((128, 128, 64), (2, 1), tiles=tp.tiles.DynamicTiles(tp.tiles.Snake(4))),
    "ping-pong": lambda: S.PingPong(tiles=tp.tiles.DynamicTiles()),
    "parts of k": lambda: S.SplitK(2, *SMALL, tiles=tp.tiles.DynamicTiles()),
    "none": lambda: S.Gemm(*SMALL),
}


def half(*shape):
    return torch.randint(-3, 4, shape, device="cuda").bfloat16()


def product(a, b):
    return (a.double() @ b.double().mT).bfloat16()


def fill_with_junk():
    """What is allocated next lies where nothing is 0."""
    for size in (512, 4096, 1 << 16, 2 << 20, 32 << 20):
        junk = [torch.full((size,), -1, dtype=torch.int8, device="cuda") for _ in range(8)]
        del junk


def captured(run):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = run()
    return graph, result


@pytest.mark.parametrize("order", ORDERS)
def test_cold_graphs_in_any_order(order):
    gemm = ORDERS[order]()
    gemm(half(128, 128), half(128, 128))  # compiles; what follows is of another signature
    a, b = half(1000, 256), half(776, 256)
    fill_with_junk()
    graphs = [captured(lambda: gemm(a, b)) for _ in range(2)]
    for graph, d in (graphs[1], graphs[0], graphs[1]):
        d.fill_(-7)
        graph.replay()
        assert torch.equal(d, product(a, b))
    assert torch.equal(gemm(a, b), product(a, b))
    sides = [torch.cuda.Stream() for _ in graphs]
    for _ in range(5):  # at once, with counters of their own
        for side, (graph, _) in zip(sides, graphs, strict=True):
            with torch.cuda.stream(side):
                graph.replay()
        gemm(a, b)
    torch.cuda.synchronize()
    assert all(torch.equal(d, product(a, b)) for _, d in graphs)


def test_a_first_call_of_all_in_a_capture():
    """The kernel, too, is compiled, loaded and launched first in a capture."""
    gemm = S.Gemm((128, 64, 64), (1, 1), tiles=tp.tiles.DynamicTiles())
    a, b = half(640, 192), half(328, 192)
    graph, d = captured(lambda: gemm(a, b))
    graph.replay()
    assert torch.equal(d, product(a, b))


def test_graphs_keep_what_they_use():
    gemm = ORDERS["fetched"]()
    a, b = half(1000, 256), half(776, 256)
    graph, d = captured(lambda: gemm(a, b))
    gemm.tiles = tp.tiles.PersistentTiles()
    kernels.kept.clear()
    gc.collect()
    fill_with_junk()
    for _ in range(3):
        d.zero_()
        graph.replay()
        assert torch.equal(d, product(a, b)) and torch.equal(gemm(a, b), product(a, b))


def test_after_a_warm_up_a_capture_makes_nothing(monkeypatch):
    gemm = ORDERS["fetched"]()
    a, b, d = half(1000, 256), half(776, 256), half(1000, 776)
    before = d.clone()
    gemm.warm_up(a, b, out=d)
    assert torch.equal(d, before)
    with monkeypatch.context() as patched:
        for of, name in ((launch.Launcher, "_made"), (launch, "compiled_for")):
            patched.delattr(of, name)
        graph, _ = captured(lambda: gemm(a, b, out=d))
    graph.replay()
    assert torch.equal(d, product(a, b)) and torch.equal(gemm(a, b, out=half(1000, 776)), d)
    split = S.SplitK(2, *SMALL)
    split.warm_up(a, b)
    assert torch.equal(split(a, b), product(a, b))


def test_what_is_chosen_in_a_capture():
    problem = Problem(640, 512, 256)
    a, b = half(640, 256), half(512, 256)
    gemm = choose(problem)
    graph, d = captured(lambda: gemm(a, b))
    graph.replay()
    assert torch.equal(d, product(a, b))
