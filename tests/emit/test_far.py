"""Loads from the shared memory of other CTAs, by the emitted PTX executed: who reads which bytes of whom."""

import pytest

from tests.emit.kernels import built
from tests.oracle.ptx_execution import BASE, Execution, Launch


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


@pytest.mark.parametrize("rank", [0, 1])
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
