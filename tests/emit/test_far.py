"""Loads from the shared memory of other CTAs, and tiles sent or reduced there, by the emitted PTX executed: which bytes of
whom."""

import pytest

from examples.exchange import Shares
from tests.emit.kernels import Kernel, build, built
from tests.oracle.peer_forms import Counted, Swapped
from tests.oracle.ptx_execution import BASE, Execution
from tests.oracle.ptx_launch import Launch
from tests.sweeps import ALL
from tmapipe.isa import declared, ops


class Reads(Execution):
    """found: (CTA, offset, bytes) of each load, in order."""

    def __init__(self, *place):
        super().__init__(*place)
        self.found = []

    def step(self, instruction, action):
        if instruction.opcode.startswith("ld.shared::cluster"):
            peer = self.address(instruction.operands[1])
            words = 4 if ".v4" in instruction.opcode else 2 if ".v2" in instruction.opcode else 1
            self.found.append((peer.rank, peer.address - BASE, 4 * words))
        super().step(instruction, action)


@pytest.mark.parametrize("rank", [*ALL * [0], 1], ids="read from peers-{}".format)  # the kernel: see tests/conftest.py
def test_each_lane_reads_its_vectors_of_both(rank):
    kernel = built("read from peers")
    buffer, warp = kernel.plan.buffer("mine"), kernel.plan.role("add").first_warp
    launch = Launch(kernel.extents, 1, 0, rank)
    for lane in (0, 1, 9, 31):
        thread = Reads(kernel.ptx, kernel.schedule, launch, warp, lane)
        thread.run()
        tiles = 3 * 4  # of 8 x 32 in 24 x 100
        own = 4 * rank * 32 * 4 + 16 * lane  # half of the rows, in vectors of four numbers
        wanted = [
            (peer, buffer.offset + tile % 2 * buffer.pitch + own, 16) for tile in range(tiles) for peer in range(2)
        ]
        assert thread.found == wanted, lane


def test_vectors_of_32_bytes_are_read_in_halves():
    kernel = build(Kernel(Shares, {"x": "fp32", "y": "fp32"}, {"s": 4, "m": 8, "n": 128}))
    buffer, role = kernel.plan.buffer("powers"), kernel.plan.role("divide")
    for warp, lane in ((0, 0), (1, 9)):
        thread = Reads(kernel.ptx, kernel.schedule, Launch(kernel.extents, 1, 0, 2), role.first_warp + warp, lane)
        thread.run()
        own = [32 * (32 * warp + lane + 64 * i) + half for i in range(2) for half in (0, 16)]
        assert thread.found == [(peer, buffer.offset + place, 16) for peer in range(4) for place in own]


@pytest.mark.parametrize("rank", [*ALL * [0], 1], ids="read from peers-{}".format)  # the kernel: see tests/conftest.py
def test_each_lane_sends_its_vectors_to_the_other(rank):
    kernel = build(Kernel(Swapped, {}, {"m": 24, "n": 100}))
    buffer, role = kernel.plan.buffer("theirs"), kernel.plan.role("work")
    for warp in range(2):
        for lane in (0, 5, 31):
            launch = Launch(kernel.extents, 1, 0, rank)
            found = Execution(kernel.ptx, kernel.schedule, launch, role.first_warp + warp, lane).run()
            wanted = []
            for tile in range(3 * 2):  # of 4 x 64, for each CTA, in 24 x 100
                stage = tile % 2
                thread = 32 * warp + lane
                place = (
                    buffer.offset + stage * buffer.pitch + 16 * thread
                )  # vectors of four numbers, in bf16 and in fp32
                wanted.append(("store_words", place, (None,) * 4, "ring.full", stage, 1 - rank))
            sent = [event for event in found if event[0] == "store_words"]
            armed = [event for event in found if event[:2] == ("arm", "ring.full")]
            assert sent == wanted
            assert armed == (
                [("arm", "ring.full", i % 2, buffer.slot_bytes // 2) for i in range(6)] if lane == 0 else []
            )


@pytest.mark.parametrize("arch, reduce, kind", [("sm_90a", "add", "add s32"), *ALL * [("sm_100a", "xor", "xor b32")]])
def test_each_lane_reduces_its_numbers_in_all(arch, reduce, kind):
    kernel = build(Kernel(lambda: Counted(reduce), {}, {"s": 2, "m": 16, "q": 16, "n": 32}), arch)
    buffer, role = kernel.plan.buffer("sums"), kernel.plan.role("count")
    opcodes = {i.opcode for i in kernel.ptx.instructions if i.is_a("red.async")}
    assert opcodes == {f"{declared(ops.RedAsync).ptx}.{kind.replace(' ', '.')}"}
    for warp, lane in ((0, 0), (1, 31)):
        found = Execution(
            kernel.ptx, kernel.schedule, Launch(kernel.extents, 1, 0, 1), role.first_warp + warp, lane
        ).run()
        first = buffer.offset + 8 * (32 * warp + lane)  # two of the 4 x 32 numbers
        one = [(kind, first + 4 * j, (None,), "ring.ready1", 0, peer) for peer in range(2) for j in range(2)]
        armed = [("arm", "ring.ready1", 0, buffer.slot_bytes)] if lane == 0 else []
        assert [event for event in found if event[0] == kind] == 2 * one
        assert [event for event in found if event[:2] == ("arm", "ring.ready1")] == 2 * armed
