"""Numbers that only the kernel knows meet what Python has besides int: taken, or refused with the line."""

import numpy as np
import pytest
import torch

import tmapipe as tp
from tests.oracle.ptx_run import judged
from tests.user_copy import copy_of

TAKEN = {
    "a power": lambda m: m**2,
    "an integer of NumPy": lambda m: m + np.int64(0),
    "the same on the left": lambda m: np.int32(0) + m,
}


def without_end(m):
    return 1 if m == 0 else without_end(m - 1)


REFUSED = {
    "a tensor": (lambda m: torch.tensor(0) + m, "with a Tensor. It takes int"),
    "an array": (lambda m: m + np.ones(3, int), "with a ndarray. It takes int"),
    "a string": (lambda m: m + "a", "with a str. It takes int"),
    "an exponent": (lambda m: 2**m, "write 1 << number"),
    "a power modulo": (lambda m: pow(m, 2, 3), "pow() with three arguments"),
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


def counted_turns(m, n):
    some = 0
    for i in range(n):
        some = m > i
    return some + (m == 2)


def of_one_arm(m, n):
    some = 0
    if n > 0:
        some = m > 1
    return some + (m == 2)


CONDITIONS = {
    "a sum": lambda m, n: (m > 1) + (n > 0),
    "a difference": lambda m, n: (m > 1) - (n > 0),
    "a shift": lambda m, n: (m > 1) << (n > 0),
    "a sum of three": lambda m, n: any([m == 1, n == 2]) + all([m > 0, n > 0]) + (m == 2),
    "of their bits": lambda m, n: ((m > 1) | (n > 1)) + ((m > 1) & n) + ((m > 1) ^ (n > 1)),
    "a choice": lambda m, n: ((n > 1) if m > 2 else m) + (n if m > 1 else n > 1),
    "a branch": of_one_arm,
    "a loop": counted_turns,
}


def test_conditions_are_0_and_1():
    """On the model, in the emitted PTX and in Python."""

    class Counted(tp.Schedule):
        load, work = tp.Role(warps=1), tp.Role(warps=1)
        ring = tp.BarrierRing(1, producer=load, consumer=work)
        x = tp.TmaLoadStage("m n", tile=(4, 32), ring=ring, dtype="int32")
        y = tp.TmaStoreStage("m n", tile=(4, 32), role=work, dtype="int32")

        @load.jit
        def fill(self, k, tile):
            with k.ring.produce() as slot:
                slot.x.load(tile)

        @work.jit
        def count(self, k, tile):
            with k.ring.consume() as slot:
                values = slot.x.read()
            for i, number in enumerate(CONDITIONS.values()):
                values = values | ((number(tile.m, tile.n) & 7) << 3 * i)
            k.y.store(tile, values)

    with judged() as launches:
        found = Counted()(torch.zeros(16, 96, dtype=torch.int32))
    assert launches.launches == 1
    for m, n in np.ndindex(4, 3):
        wanted = sum((int(number(m, n)) & 7) << 3 * i for i, number in enumerate(CONDITIONS.values()))
        assert int(found[4 * m, 32 * n]) == wanted, (m, n)


def test_recursion_that_a_number_of_the_kernel_ends():
    with pytest.raises(
        tp.errors.ScopeError,
        match=r"calls itself without an end that Python knows.* At .*test_numbers_of_kernels.py:\d+\.$",
    ):
        stored_at(without_end).check()


def test_conditions_are_places():
    """A condition as an index is 0 or 1; NumPy's arrays would take it for a mask."""

    class Chosen(tp.Schedule):
        load, work = tp.Role(warps=1), tp.Role(warps=1)
        ring = tp.BarrierRing(1, producer=load, consumer=work)
        x = tp.TmaLoadStage("m n", tile=(4, 32), ring=ring, dtype="int32")
        v = tp.TmaLoadStage("i", tile=(4,), ring=ring, dtype="int32")
        t = tp.Table("r")
        y = tp.TmaStoreStage("m n", tile=(4, 32), role=work, dtype="int32")

        @load.jit
        def fill(self, k, tile):
            with k.ring.produce() as slot:
                slot.x.load(tile)
                slot.v.load(i=0)

        @work.jit
        def choose(self, k, tile):
            with k.ring.consume() as slot:
                values = slot.x.read() + slot.v.read(at=tile.m > 0)
            k.y.store(tile, values + 10 * k.t.entry(tile.n > 0))

    x, v, t = (torch.tensor(each, dtype=torch.int32) for each in ([0], [5, 6, 7, 8], [3, 4, 1, 1]))
    with judged() as launches:
        found = Chosen()(x.expand(8, 64).contiguous(), v, t)[::4, ::32]
    assert launches.launches == 1 and found.tolist() == [[35, 45], [36, 46]]
