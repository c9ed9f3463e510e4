"""Bulk stores without a descriptor, and what they do to what is there: as the model says, bit by bit."""

import numpy as np
import pytest
import torch

from examples.vectors import Axpy
from tests.emit.forms import BulkBothWays, BulkReduced, BulkRows
from tests.oracle.copy_forms import BulkFromSlots

CASES = [(how, "int32") for how in ("add", "min", "max", "and", "or", "xor", "inc", "dec")]
CASES += [(how, dtype) for how in ("add", "min", "max") for dtype in ("bf16", "fp16")] + [("add", "fp32")]
TYPES = {"int32": torch.int32, "bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


@pytest.mark.parametrize(("reduce", "dtype"), CASES)
def test_as_the_model_says(reduce, dtype):
    generator = torch.Generator().manual_seed(1)
    for n in (8, 256, 1000, 100_000):
        x, y = (torch.randint(-(2**31), 2**31 - 1, (n,), generator=generator) for _ in range(2))
        if dtype != "int32":
            x, y = x / 2**31, y / 2**31
        x, y = x.to(TYPES[dtype]), y.to(TYPES[dtype])
        there, wanted = torch.full((n + 64,), 3, dtype=TYPES[dtype], device="cuda"), y.clone()
        there[:n] = y.cuda()
        schedule = BulkReduced(reduce, dtype)
        schedule(x, out=wanted)
        schedule(x.cuda(), out=there[:n])
        assert torch.equal(there[:n].cpu(), wanted) and bool((there[n:] == 3).all())


@pytest.mark.parametrize("pieces", [1, 3, 1000])
def test_copies(pieces):
    x = torch.from_numpy(np.random.default_rng(0).standard_normal(1024 * pieces).astype(np.float32)).cuda()
    assert torch.equal(BulkBothWays()(x), x)


def test_pieces_of_rows():
    x = torch.randn(37, 512 * 5, device="cuda").to(torch.bfloat16)
    assert torch.equal(BulkRows()(x), x)
    wide = torch.randn(37, 512 * 5 + 8, device="cuda").to(torch.bfloat16)[:, : 512 * 5]  # rows with gaps between
    assert torch.equal(BulkRows()(wide), wide)


@pytest.mark.parametrize("reduce, dtype", [(how, torch.int64) for how in ("add", "min", "max", "and", "or", "xor")]
                         + [("add", torch.float64)])  # fmt: skip
def test_64_bits(reduce, dtype):
    generator = torch.Generator().manual_seed(1)
    for n in (256, 1024, 256_000):
        x, y = (torch.randint(-(2**63), 2**63 - 1, (n,), generator=generator) for _ in range(2))
        x, y = (x, y) if dtype is torch.int64 else (x.double() / 2.0**63, y.double() / 2.0**63)
        there, wanted = y.cuda(), y.clone()
        schedule = BulkFromSlots(reduce, "int64" if dtype is torch.int64 else "fp64")
        schedule(x, out=wanted)
        schedule(x.cuda(), out=there)
        assert torch.equal(there.cpu(), wanted)


def test_the_example():
    x = torch.randn(1000 * 4096, device="cuda")
    y = torch.ones_like(x)
    Axpy()(x, out=y)
    assert torch.equal(y, 1 + 2 * x)
