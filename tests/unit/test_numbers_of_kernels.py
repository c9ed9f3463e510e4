"""Numbers that only the kernel knows meet what Python has besides int: taken, or refused with the line."""

import numpy as np
import pytest
import torch

import tmapipe as tp
from tests.user_copy import copy_of

TAKEN = {
    "a power": lambda m: m**2,
    "an integer of NumPy": lambda m: m + np.int64(0),
    "the same on the left": lambda m: np.int32(0) + m,
}
REFUSED = {
    "a tensor": (lambda m: torch.tensor(0) + m, "with a Tensor. It takes int"),
    "an array": (lambda m: m + np.ones(3, int), "with a ndarray. It takes int"),
    "a string": (lambda m: m + "a", "with a str. It takes int"),
    "an exponent": (lambda m: 2**m, "write 1 << number"),
    "a power that is no int": (lambda m: m**0.5, "to the power of 0.5"),
    "a shift to the other side": (lambda m: m >> -1, "a shift of `tile.m` by -1"),
    "too far a shift": (lambda m: m << 40, "by 40"),
    "a division by 0": (lambda m: m // 0, "`tile.m` is divided by 0"),
    "more digits than Python prints": (lambda m: m + 10**5000, "an int of 16610 bits"),
}


def stored_at(number):
    """A copy that stores row of tiles `number(tile.m)`."""

    def body(k, tile):
        with k.ring.consume() as slot:
            values = slot.x.read()
        k.y.store(tile.also(m=number(tile.m)), values)

    return copy_of(body)


@pytest.mark.parametrize("name", TAKEN)
def test_taken(name):
    x, y = np.arange(512, dtype=np.float32).reshape(8, 64), np.zeros((8, 64), np.float32)
    assert (stored_at(TAKEN[name])(x, out=y) == x).all()


@pytest.mark.parametrize("name", REFUSED)
def test_refused_alike(name):
    number, said = REFUSED[name]
    schedule = stored_at(number)
    for call in (schedule.check, lambda: schedule(np.ones((8, 64), np.float32))):
        with pytest.raises(tp.errors.ScopeError) as info:
            call()
        assert said in str(info.value) and __file__ in str(info.value)


def test_an_epilogue_that_returns_too_large_a_number():
    gemm = tp.schedules.Gemm((64, 64, 64), (1, 1), 2, epilogue=lambda acc: 10**400)
    for call in (gemm.check, lambda: gemm(np.ones((8, 64), np.float16), np.ones((8, 64), np.float16))):
        with pytest.raises(tp.errors.ScopeError, match="an int of more than 128 bits"):
            call()
