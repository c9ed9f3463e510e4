"""The emitted PTX, executed with data, computes what the model computes from the same program.

A wrong unpacking of words has the right addresses and events, and the model never sees it. `tests.oracle.ptx_run` as a plugin
judges all launches of other tests.
"""

import pytest
import torch

import tmapipe as tp
from tests.oracle.ptx_run import judged

S = tp.schedules


def some(*shape, dtype=torch.bfloat16):
    return torch.randint(-100, 100, shape, generator=torch.Generator().manual_seed(0)).to(dtype)


def copied(x, start=0):
    """To rows that begin *start* elements after the start of wider ones."""
    whole = torch.full((*x.shape[:-1], x.shape[-1] + start + 3), 77).to(x.dtype)
    S.Copy()(x, out=whole[..., start : start + x.shape[-1]])


def test_copies_by_the_engine():
    with judged() as judge:
        S.Copy((8, 64))(some(21, 136)[:, 8:])
    assert judge.launches == 1


CALLS = {
    "runs of bytes": lambda: copied(some(37, dtype=torch.int8)[1:], 2),
    "runs of halves": lambda: copied(some(68)[3:]),
    "rows of bytes": lambda: copied(some(3, 5, 21, dtype=torch.int8)[:, 1:, 3:], 1),
    "every second of 64 bits": lambda: S.Copy()(some(3, 33, dtype=torch.int64)[:, ::2]),
    "to another type": lambda: S.Copy()(torch.randn(3, 67)[:, 1:], out=torch.empty(3, 66).half()),
    "softmax": lambda: S.Softmax()(torch.randn(3, 125).bfloat16()),
    "cumsum": lambda: S.Cumsum()(torch.randn(3, 67)),
    "transpose": lambda: S.Transpose()(some(9, 35).mT),
}


@pytest.mark.parametrize("name", CALLS)
def test_numbers(name):
    with judged() as judge:
        CALLS[name]()
    assert judge.launches and not judge.left_out
