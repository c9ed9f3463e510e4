"""Tiles and numbers that the CTAs of a cluster send each other: on the GPU as PyTorch says."""

import functools

import pytest
import torch

from examples.exchange import Counts, Shares, Votes
from tests.oracle.peer_forms import (
    Counted,
    LogSumExp,
    Looked,
    Paired,
    PairsOfRows,
    Reduced,
    Rotated,
    RotatedInPairs,
    Scattered,
    Swapped,
    WholeBoxes,
)


@pytest.mark.parametrize("peers", [2, 4, 8])
def test_each_gets_its_neighbours_tile(peers):
    schedule = Rotated()
    schedule.cluster = {"m": peers}
    x = torch.randint(-9, 10, (4 * peers * 40, 1000), device="cuda").to(torch.bfloat16)
    tiles = x.view(40, peers, 4, 1000)
    wanted = tiles + tiles.roll(-1, dims=1)
    for _ in range(3):
        assert torch.equal(schedule(x), wanted.view(x.shape))


@pytest.mark.parametrize("kind", [Scattered, Looked])
def test_parts_go_to_all(kind):
    x = torch.randint(-9, 10, (2, 800, 1600), device="cuda").float()
    for _ in range(3):
        assert torch.equal(kind()(x), x.sum(0))


@pytest.mark.parametrize("shape", [(3, 5, 256), (7, 123, 1000)])
def test_one_loads_for_all(shape):
    x = torch.randint(-9, 10, shape, device="cuda").to(torch.bfloat16)
    s = torch.randint(-9, 10, shape[1:], device="cuda").to(torch.bfloat16)
    assert torch.equal(WholeBoxes()(x, s), x + s)


def test_pairs_of_four_send_each_other_tiles():
    x = torch.randint(-9, 10, (1600, 1000), device="cuda").float()
    pairs = x.view(200, 2, 4, 1000)
    for _ in range(3):
        assert torch.equal(RotatedInPairs()(x), (pairs + pairs.flip(1)).view(x.shape))


@pytest.mark.parametrize("whole", [False, True])
def test_some_ctas_of_an_axis_share(whole):
    for heads, rows, columns in ((8, 10, 136), (6, 100, 1000), (32, 256, 4096)):
        x = torch.randint(-9, 10, (heads // 2, rows, columns), device="cuda").to(torch.bfloat16)
        z = torch.randint(-9, 10, (heads, rows, columns), device="cuda").to(torch.bfloat16)
        assert torch.equal(Paired(whole)(x, z), x.repeat_interleave(2, 0) + z)


def test_threads_send_what_they_have():
    x = torch.randint(-9, 10, (800, 1000), device="cuda").to(torch.bfloat16)
    pairs = x.view(100, 2, 4, 1000)
    for _ in range(3):
        assert torch.equal(Swapped()(x), (pairs + 2 * pairs.flip(1)).view(x.shape))


@pytest.mark.parametrize("ctas", [1, 2, 8])
def test_log_sum_exp(ctas):
    x = 40 * torch.randn(100, 512 * ctas - 44, device="cuda")
    x[1], x[2, :300], x[3, 7], x[4, 9] = -torch.inf, -torch.inf, torch.inf, torch.nan
    schedule = LogSumExp()
    schedule.cluster = {"n": ctas}
    want = torch.logsumexp(x.double(), 1, keepdim=True).float().expand_as(x)
    torch.testing.assert_close(schedule(x), want, rtol=1e-5, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("columns", [1024, 8192, 40_000])
def test_two_of_four_ctas_reduce_together(columns):
    x = torch.randint(1, 5, (200, columns), device="cuda").float()
    for _ in range(3):
        y = PairsOfRows()(x)
        for part, found in zip(x.split(1024, 1), y.split(1024, 1), strict=True):
            want = (part - part.amax(1, keepdim=True)) / part.sum(1, keepdim=True)
            torch.testing.assert_close(found, want, rtol=1e-6, atol=0)


#: What an element becomes, of what it is and what comes. Numbers of "inc" and "dec" are positive here.
BY_TORCH = {
    "add": torch.add,
    "min": torch.minimum,
    "max": torch.maximum,
    "and": torch.bitwise_and,
    "or": torch.bitwise_or,
    "xor": torch.bitwise_xor,
    "inc": lambda old, new: torch.where(old >= new, 0, old + 1),
    "dec": lambda old, new: torch.where((old == 0) | (old > new), new, old - 1),
}


@pytest.mark.parametrize("reduce", BY_TORCH)
@pytest.mark.parametrize("peers", [2, 8])
def test_parts_are_reduced_in_place(reduce, peers):
    x = torch.randint(-(2**31), 2**31 - 1, (peers, 160, 1600), dtype=torch.int32)
    if reduce in ("inc", "dec"):  # whose order makes a difference
        x = torch.randint(0, 6, x.shape[1:], dtype=torch.int32).expand(x.shape).contiguous()
    schedule = Reduced(reduce, peers)
    want = functools.reduce(BY_TORCH[reduce], x, torch.full(x.shape[1:], 3, dtype=torch.int32))
    for _ in range(3):
        assert torch.equal(schedule(x.cuda()).cpu(), want)


@pytest.mark.parametrize("reduce", BY_TORCH)
@pytest.mark.parametrize("peers", [2, 8])
def test_numbers_of_threads_are_reduced_in_place(reduce, peers):
    x = torch.randint(-(2**31), 2**31 - 1, (peers, 160, 1600), dtype=torch.int32)
    if reduce in ("inc", "dec"):
        x = torch.randint(0, 6, x.shape[1:], dtype=torch.int32).expand(x.shape).contiguous()
    schedule = Counted(reduce, peers)
    want = functools.reduce(BY_TORCH[reduce], x, torch.full(x.shape[1:], 3, dtype=torch.int32))
    for _ in range(3):
        assert torch.equal(schedule(x.cuda()).cpu(), want)


def test_the_example():
    x = torch.randn(4, 1000, 2000, device="cuda")
    torch.testing.assert_close(Shares()(x), torch.softmax(x, 0))
    assert torch.equal(Counts()(x), (x > 0).sum(0).int()) and torch.equal(Votes()(x), (x > 0).sum(0).int())
