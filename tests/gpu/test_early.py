"""Two kernels follow one another: the second loads its weights before the first has ended, which writes the other operand."""

import torch

from tests.early import EarlyGemm
from tmapipe.schedules import Gemm


def test_a_chain_of_products_is_right_every_time():
    torch.manual_seed(0)
    first, early = Gemm(), EarlyGemm()
    x, v, w = (torch.randn(1024, 1024, device="cuda").bfloat16() / 32 for _ in range(3))
    wanted = early(first(x, v).clone(), w)
    torch.cuda.synchronize()
    a, d = torch.empty_like(x), torch.empty_like(x)
    for turn in range(200):
        a.fill_(float("nan"))
        first(x, v, out=a)
        early(a, w, out=d)
        assert turn % 20 or torch.equal(d, wanted), turn
    assert torch.equal(d, wanted)


def test_it_is_captured_in_a_graph():
    first, early = Gemm(), EarlyGemm()
    x, v, w = (torch.randn(512, 512, device="cuda").bfloat16() / 32 for _ in range(3))
    a, d = torch.empty_like(x), torch.empty_like(x)
    wanted = early(first(x, v).clone(), w)
    first(x, v, out=a), early(a, w, out=d)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        first(x, v, out=a)
        early(a, w, out=d)
    for _ in range(20):
        a.fill_(float("nan"))
        graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(d, wanted)
