"""A small program as data: a few mbarriers and slots, and for each warp of the cluster a list of calls of the instruction set.

So it can be drawn and changed at random (`random_programs`), written to a file, and run by every instruction set
(`SmallProgram.entry`).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import attrs

from tests.machine.slots import read_slot, write_slot
from tmapipe.base.arithmetic import fp16
from tmapipe.isa import ops
from tmapipe.isa.fragment import SlotRef
from tmapipe.plan.model import Load, Plan, RoleWarps, Store
from tmapipe.plan.rings import Barrier, Buffer, Matmul, NamedBarrier

__all__ = ["SLOT_BYTES", "Call", "SmallProgram"]

Call = tuple[Any, ...]  #: (what, operands ...), as in `_PLAYERS`
TILE = (64, 16)  # of every slot: 64 rows, so that wgmma can read it
SLOT_BYTES = 64 * 16 * 2


@attrs.frozen
class SmallProgram:
    """counts: of each mbarrier; slots: how many; calls: by warp, those of CTA 0 first; ctas: of the cluster; mma: whether each
    CTA's warps 0-3 are a warpgroup that multiplies; overlap: bytes that each slot shares with the next; text: where it comes
    from."""

    counts: tuple[int, ...]
    slots: int
    calls: tuple[tuple[Call, ...], ...]
    ctas: int = 1
    mma: bool = False
    overlap: int = 0
    text: str = ""

    @property
    def warps(self) -> int:
        """Of one CTA."""
        return len(self.calls) // self.ctas

    def plan(self) -> Plan:
        """The plan that the calls' operands come from."""
        barriers = tuple(Barrier(f"b{i}", 16 * i, 1, count) for i, count in enumerate(self.counts))
        start = 1024
        step = SLOT_BYTES - self.overlap
        buffers = tuple(Buffer(f"s{i}", start + step * i, 1, TILE, fp16) for i in range(self.slots))
        loads = tuple(
            Load(f"s{i}" if peers == 1 else f"s{i}x{peers}", f"x{i}", b, ("m", "n"), TILE, peers, vector=16)
            for i, b in enumerate(buffers)
            for peers in (1, 2)
        )
        stores = tuple(Store(f"y{i}", f"y{i}", buffer, ("m", "n"), TILE) for i, buffer in enumerate(buffers))
        if self.mma:
            roles: tuple[RoleWarps, ...] = (RoleWarps("math", 0, 4),)
            roles += tuple(RoleWarps(f"w{i}", i, 1) for i in range(4, self.warps))
        else:
            roles = tuple(RoleWarps(f"w{i}", i, 1) for i in range(self.warps))
        return Plan(
            name="small",
            arch="sm_90a",
            cluster={"m": self.ctas},
            roles=roles,
            barriers=barriers,
            named_barriers=(),
            buffers=buffers,
            rings=(),
            loads=loads,
            stores=stores,
            matmuls=tuple(Matmul(f"mma{i}", b, b, (64, 64, 16), 1, 0) for i, b in enumerate(buffers))
            if self.mma
            else (),
            arguments=(*(load.argument for load in loads), *(store.argument for store in stores)),
            warps=self.warps,
            smem_bytes=start + SLOT_BYTES * self.slots,
            launch_registers=64,
            registers={},
        )

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: TILE for i in range(self.slots) for name in (f"x{i}", f"y{i}")}

    def entry(self, isa: Any) -> None:
        """The kernel: the calling warp's list."""
        for what, *operands in self.calls[isa.cta_rank * self.warps + isa.warp]:
            _PLAYERS[what](isa, *operands)

    def __str__(self) -> str:
        """As JSON, one warp a line."""
        head = json.dumps({**{f: getattr(self, f) for f in ("counts", "slots", "ctas", "mma", "overlap", "text")}})
        return head[:-1] + ', "calls": [\n' + ",\n".join(json.dumps(warp) for warp in self.calls) + "\n]}"

    @staticmethod
    def parse(text: str) -> SmallProgram:
        """From `str`."""
        data = json.loads(text)
        calls = tuple(tuple(tuple(call) for call in warp) for warp in data.pop("calls"))
        return SmallProgram(tuple(data.pop("counts")), calls=calls, **data)


# ---- calls ------------------------------------------------------------------------------------------------------------


def _load(isa: Any, slot: int, bar: int, mask: int | None = None, share: int = 0) -> None:
    load = isa.plan.load(f"s{slot}" if mask is None else f"s{slot}x2")
    isa.tma_load(load, 0, (0, 0), isa.plan.barriers[bar], mask, share)


def _slot(isa: Any, slot: int) -> SlotRef:
    return SlotRef(isa.plan.buffers[slot], 0)


def _role(isa: Any, parts: int, part: int) -> RoleWarps:
    return RoleWarps("part", isa.warp - part, parts)


_PLAYERS: dict[str, Callable[..., None]] = {
    "init": lambda isa, bar: isa.mbarrier_init(isa.plan.barriers[bar], isa.plan.barriers[bar].count),
    "fence init": lambda isa: isa.fence_mbarrier_init(),
    "sync": lambda isa: isa.cta_sync(),
    "cluster arrive": lambda isa, scope="cluster": isa.cluster_arrive(scope),
    "cluster wait": lambda isa: isa.cluster_wait(),
    "wait": lambda isa, bar, parity: isa.mbarrier_wait(isa.plan.barriers[bar], 0, parity),
    "arrive": lambda isa, bar, lanes=1: isa.mbarrier_arrive(isa.plan.barriers[bar], 0, lanes),
    "arrive at": lambda isa, bar, mask, scope="cluster": isa.mbarrier_arrive_cluster(
        isa.plan.barriers[bar], 0, mask, True, scope
    ),
    "arrive tx": lambda isa, bar, nbytes: isa.mbarrier_arrive_expect_tx(isa.plan.barriers[bar], 0, nbytes),
    "expect tx": lambda isa, bar, nbytes: isa.mbarrier_expect_tx(isa.plan.barriers[bar], 0, nbytes),
    "warp sync": lambda isa: isa.warp_sync(),
    "bar sync": lambda isa, id, threads: isa.named_barrier_sync(NamedBarrier("n", id, threads)),
    "bar arrive": lambda isa, id, threads: isa.named_barrier_arrive(NamedBarrier("n", id, threads)),
    "fence": lambda isa: isa.fence_proxy_async(),
    "load": _load,
    "copy": lambda isa, slot, bar, share=0, shares=1: isa.cp_async(
        isa.plan.load(f"s{slot}"), 0, (0, 0), isa.plan.barriers[bar], share, shares, False
    ),
    "store": lambda isa, slot: isa.tma_store(isa.plan.stores[slot], 0, (0, 0)),
    "commit": lambda isa: isa.bulk_commit_group(),
    "bulk wait": lambda isa, pending, read=True: isa.bulk_wait_group(pending, read),
    "acc": lambda isa: isa.fragments.accumulator(isa.plan.matmuls[0]),
    "mma fence": lambda isa: isa.wgmma_fence(),
    "mma": lambda isa, slot: isa.wgmma(isa.plan.matmuls[slot], None, _slot(isa, slot), _slot(isa, slot)),
    "mma commit": lambda isa: isa.wgmma_commit(),
    "mma wait": lambda isa, pending: isa.wgmma_wait(pending),
    "acc read": lambda isa: isa.fragments.accumulator_columns(isa.plan.matmuls[0], None, 0, 0, 8),
    "read": lambda isa, slot, parts=1, part=0: read_slot(isa, _slot(isa, slot), _role(isa, parts, part)),
    "write": lambda isa, slot, parts=1, part=0: write_slot(isa, _slot(isa, slot), 0.0, _role(isa, parts, part)),
    "op": lambda isa, name, *operands: isa.emit(getattr(ops, name)(*operands)),
}
