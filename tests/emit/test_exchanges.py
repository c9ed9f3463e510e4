"""Reductions over the CTAs of a cluster: what the emitted PTX, executed, sends to whom and waits for."""

import pytest

from tests.emit.kernels import Kernel, build
from tests.oracle.peer_forms import LongRows, PairsOfRows
from tests.oracle.ptx_execution import Execution
from tests.oracle.ptx_launch import Launch
from tests.sweeps import ALL


class Four(LongRows):
    """Over four CTAs, three of whose warps take part."""

    load, work = LongRows.load, LongRows.work

    def __init__(self):
        self.cluster = {"n": 4}


@pytest.fixture(scope="module", params=[*ALL * [LongRows], Four, PairsOfRows])
def kernel(request):
    return build(Kernel(request.param, {}, {"m": 3, "n": 1000}))


def test_each_warp_sends_its_numbers_to_every_cta(kernel):
    plan, tiles = kernel.plan, 3
    full, buffer = plan.barrier("across.full"), plan.buffer("across")
    first, warps = plan.role("work").first_warp, plan.role("work").warps
    peers = kernel.schedule.across.group.size(plan.cluster)
    assert buffer.tile == (peers * warps, 4) and full.count == warps
    sent = {}
    for rank in range(plan.cluster_size):
        own = range(rank // peers * peers, (rank // peers + 1) * peers)
        for warp in range(first, first + warps):
            for lane in {0, 1, *own, plan.cluster_size, 31}:
                found = Execution(kernel.ptx, kernel.schedule, Launch(kernel.extents, 1, 0, rank), warp, lane).run()
                mine = [event for event in found if event[0] == "store_words" or "across.full" in event]
                wanted = []
                for i in range(2 * tiles):  # two reductions a tile, whose copies alternate
                    copy, parity = i % 2, i // 2 % 2
                    place = buffer.offset + copy * buffer.pitch + 16 * (warps * (rank % peers) + warp - first)
                    wanted += [("arm", "across.full", copy, buffer.slot_bytes // warps)] if lane == 0 else []
                    words = (None, 0, 0, 0)
                    wanted += [("store_words", place, words, "across.full", copy, lane)] if lane in own else []
                    wanted.append(("wait", "across.full", copy, parity))
                assert [e for e in mine if e[0] != "init"] == wanted, (rank, warp, lane)
                for _, place, _, _, copy, to in (e for e in mine if e[0] == "store_words"):
                    sent.setdefault((copy, to), set()).add(place)
    for places in sent.values():
        assert len(places) == peers * warps  # every warp its own


def test_a_proxy_fence_follows_what_is_read(kernel):
    """Before the next numbers are sent, which may let others overwrite the copy."""
    first = kernel.plan.role("work").first_warp
    found = Execution(kernel.ptx, kernel.schedule, Launch(kernel.extents, 1, 0, 1), first, 0).run()
    kinds = [event[0] for event in found]
    waits = [i for i, event in enumerate(found) if event[:2] == ("wait", "across.full")]
    for i in waits:
        after = kinds[i + 1 :]
        assert "proxy_fence" in after[: after.index("store_words") if "store_words" in after else None]
