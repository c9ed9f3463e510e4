"""Which values of the accumulator each stored sum is made of, by the emitted PTX executed in all lanes of a warp."""

import itertools
import re
import types
from collections import Counter

import numpy as np
import pytest

from tests.emit.kernels import EPILOGUES, built, swept
from tests.oracle.ptx_execution import BASE, Execution
from tests.oracle.ptx_launch import Launch
from tmapipe.gpu import sums
from tmapipe.plan.thread_layout import AccumulatorLayout
from tmapipe.plan.transfers import pieces

NAMES = [name for name in swept(EPILOGUES) if "sums" in name]


class Sums(Execution):
    """Follows sums of squares. terms: what was added up in each register: ("sum", block, which value of the accumulator) or
    ("lane", lane, n), what that lane gave to its n-th shuffle. written: address -> what was left there, in order; stored:
    likewise in global memory."""

    def __init__(self, kernel, launch, warp, lane):
        super().__init__(kernel.ptx, kernel.schedule, launch, warp, lane)
        matmul = kernel.plan.matmuls[0]
        self.blocks, self.wgmmas = matmul.shape[0] // (64 * matmul.warpgroups), 0
        self.buffers = [each for each in kernel.plan.buffers if each.name == "columns"]
        self.terms, self.shuffled, self.written, self.stored = {}, [], {}, {}

    def step(self, i, action):
        to, *given = [re.findall(r"%\w+|0f00000000", operand) for operand in i.operands] or [[]]
        terms = [self.terms.get(name, ()) for names in given for name in names]
        if i.is_a("wgmma.mma_async"):
            block, self.wgmmas = self.wgmmas % self.blocks, self.wgmmas + 1
            self.terms |= {name: (("sum", block, n),) for n, name in enumerate(to)}
        elif i.is_a("add.f32", "add.rn.f32"):
            self.terms[to[0]] = terms[0] + terms[1]
        elif i.is_a("mul.f32", "mul.rn.f32", "fma.rn.f32"):
            assert terms[0] == terms[1], "no square"
            self.terms[to[0]] = terms[0] + (terms[2] if len(terms) > 2 else ())
        elif i.is_a("selp.f32"):
            self.terms[to[0]] = terms[0 if self.registers[given[2][0]] else 1]
        elif i.is_a("shfl.sync.bfly"):
            self.shuffled.append(terms[0])
            self.terms[to[0]] = (("lane", self.lane ^ int(i.operands[2]), len(self.shuffled) - 1),)
        elif i.is_a("st.shared"):
            start = self.address(i.operands[0]) - BASE
            if any(0 <= start - each.offset < each.stages * each.slot_bytes for each in self.buffers):
                for n, each in enumerate(terms):
                    self.written.setdefault(start + 4 * n, []).append(each)
        elif i.is_a("st.global") and any(terms):  # those of columns have been read from shared memory
            self.stored.setdefault(self.address(i.operands[0]), []).extend(terms)
        elif i.is_a("mov.b32", "mov.f32"):
            self.terms[to[0]] = terms[0] if terms else ()
        super().step(i, action)


def run(kernel, warp, m, n):
    """Address -> sums in order, each a count of (row of the warp's 16, column), by block: of those left in shared memory,
    and of those stored."""
    k = kernel.plan.matmuls[0].shape[2]
    sizes = {"l": 1, "m": m, "n": n, "k": k}
    for store in kernel.schedule.declared.stores.values():
        sizes |= store.derive(sizes)
    extents = {part.argument: tuple(sizes[dim] for dim in part.dims) for part in kernel.plan.transfers}
    lanes = [Sums(kernel, Launch(extents), warp, lane) for lane in range(32)]
    for thread in lanes:
        thread.run()

    def places(lane, terms):
        for kind, which, n in terms:
            if kind == "lane":
                yield from places(which, lanes[which].shuffled[n])
            else:
                yield which, lane // 4 + 8 * (n // 2 % 2), 8 * (n // 4) + 2 * (lane % 4) + n % 2

    found = [{}, {}]
    for lane, thread in enumerate(lanes):
        for of, sums_of in zip(found, (thread.written, thread.stored), strict=True):
            for address, given in sums_of.items():
                assert address not in of, "two lanes write to one place"
                of[address] = [Counter(places(lane, terms)) for terms in given]
    return found


@pytest.mark.parametrize("name", NAMES)
def test_each_value_inside_is_counted_once(name):
    kernel = built(name)
    (matmul,), role = kernel.plan.matmuls, kernel.plan.role("math")
    tile_m, tile_n, _ = matmul.shape
    m, n = tile_m - 35, tile_n - 12  # of an output of one tile, whose edges it does not fill
    blocks = tile_m // (64 * matmul.warpgroups)
    width = kernel.plan.buffer("d").tile[1]
    for warp in (role.first_warp, role.first_warp + 4 * matmul.warpgroups - 1):
        found, stored = run(kernel, warp, m, n)
        group, part = AccumulatorLayout.of(matmul).group(warp), warp % 4
        first_rows = [64 * (block * matmul.warpgroups + group) + 16 * part for block in range(blocks)]
        start = min(stored) - 4 * first_rows[0]
        for block, row in itertools.product(range(blocks), range(16)):
            if first_rows[block] + row < -(-m // 4) * 4:  # of the workspace
                expected = [Counter((block, row, column) for column in range(n))]
                assert stored.pop(start + 4 * (first_rows[block] + row)) == expected
        assert not stored
        if "columns" in kernel.schedule.outputs:
            columns = kernel.plan.buffer("columns").tile[1]
            slot = kernel.plan.buffer("columns").offset + 16 * columns * group
            for column in range(width):
                expected = [
                    Counter((block, row, first + column) for row in range(16) if first_rows[block] + row < m)
                    for block, first in pieces(tile_m, tile_n, matmul.warpgroups, width)
                ]
                assert found.pop(slot + 4 * (columns * part + column)) == expected
        assert not found


@pytest.mark.parametrize("name", [name for name in swept(EPILOGUES) if "sums" in name or "reduced" in name])
def test_no_spills(name):
    assert built(name).compiled.resources.spill_bytes == 0


@pytest.mark.parametrize("name", NAMES)
def test_no_sum_is_fused_with_the_product_before(name):
    """A compiler would fuse them in one kernel and not in another, whose bits would then differ."""
    assert "fma.rn.f32" not in built(name).compiled.ptx


@pytest.mark.parametrize("width", [8, 24, 32, 40, 64])
def test_lanes_share_out_their_columns(width, monkeypatch):
    """Of arrays with a number for each lane: each column's sum is with some lane, where it says that it is."""
    lane = np.arange(32)
    monkeypatch.setattr(sums, "Float32", lambda x: x)
    monkeypatch.setattr(sums, "cutlass", types.SimpleNamespace(select_=np.where))
    shuffled = types.SimpleNamespace(shuffle_sync_bfly=lambda values, distance: values[lane ^ distance])
    monkeypatch.setattr(sums, "cute", types.SimpleNamespace(arch=shuffled))
    own = np.random.default_rng(width).integers(-8, 8, (width // 4, 32))
    first, found = sums.columns_over_lanes(lane, list(own))
    want, got = np.zeros(width), np.full(width, np.nan)
    for i, values in enumerate(own):
        np.add.at(want, 8 * (i // 2) + i % 2 + 2 * (lane % 4), values)
    for column, total in found.items():
        got[first + column] = total
    assert (got == want).all()
