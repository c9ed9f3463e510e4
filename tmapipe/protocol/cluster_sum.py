"""A `ClusterSum` in its role: parts of a sum go from each CTA to its peers by st.async."""

from __future__ import annotations

import functools
import operator
from typing import Any, ClassVar

from tmapipe.errors import ScopeError
from tmapipe.isa.fragment import Fragment
from tmapipe.isa.interface import Isa
from tmapipe.isa.values import Carried, SlotRef
from tmapipe.multicast import along, rank_stride
from tmapipe.plan.model import HeldTile
from tmapipe.protocol.cluster import cluster_coordinate, peer_mask
from tmapipe.protocol.matmuls import Accumulator, BoundRegisterTile, TileValues
from tmapipe.protocol.registry import stands_for
from tmapipe.register_tile import RegisterTile

__all__ = ["BoundClusterSum"]


class BoundClusterSum(Carried):
    """All warps of the role tell the peers when the slot is free, send, and add. Its parity is in a register.

    At the end nothing is in flight: a CTA has got all parts, and its peers wait for what it has sent.
    """

    _facts: ClassVar[dict[str, str]] = {"started": "same"}

    def __init__(self, isa: Isa, plan: HeldTile):
        assert plan.sent is not None
        self.isa, self.plan, self.sent = isa, plan, plan.sent
        self.slot, self.parity = SlotRef(plan.sent.buffer, 0), isa.cells(0)
        self.started = False
        isa.follow(self)

    def start(self) -> None:
        """Tells the peers that this CTA can take their parts of the next sum. Once before each `add`: the earlier, the less
        they wait for it."""
        isa, sent = self.isa, self.sent
        if self.started:
            raise ScopeError(f"k.{self.plan.name}.start() a second time. Call add() first.")
        self.started = True
        isa.when(
            isa.warp == self.plan.first_warp,
            lambda: isa.mbarrier_arrive_expect_tx(sent.full, 0, sent.buffer.slot_bytes),
        )
        isa.mbarrier_arrive_cluster(sent.free, 0, peer_mask(isa, along(isa.plan.cluster, [sent.axis])))

    def add(self, acc: Accumulator) -> TileValues:
        """The sums over the CTAs of this CTA's columns of *acc*, as a store takes them. Every peer calls it as often."""
        if not self.started:
            raise ScopeError(f"k.{self.plan.name}.add() without start(). Call that before the mainloop.")
        isa, sent, parity, columns = self.isa, self.sent, self.parity[0], self.plan.shape[1]
        own, stride = cluster_coordinate(isa, sent.axis), rank_stride(isa.plan.cluster, sent.axis)
        isa.mbarrier_wait(sent.free, 0, parity)
        first = isa.cta_rank - own * stride
        for i in range(sent.ctas):
            values = acc.columns(0, i * columns, columns)
            isa.fragments.send(values, self.slot, sent.full, first + i * stride, self._share(own), self._shares)
        isa.mbarrier_wait(sent.full, 0, parity)
        total = functools.reduce(operator.add, map(self._received, range(sent.ctas)))
        isa.fence_proxy_async()
        isa.warp_sync()
        self.parity[0], self.started = parity ^ 1, False
        return TileValues(self.plan, total)

    @property
    def _shares(self) -> int:
        """Parts of the slot: one from each warp of each CTA."""
        return self.sent.ctas * 4 * self.plan.warpgroups

    def _share(self, cta: Any) -> Any:
        """That from the warp of this number in CTA *cta* of the peers."""
        return cta * 4 * self.plan.warpgroups + self.isa.warp - self.plan.first_warp

    def _received(self, cta: int) -> Fragment:
        return self.isa.fragments.received(self.slot, self._share(cta), self._shares)


@stands_for(RegisterTile)
def _of_tile(k: Any, name: str, tile: RegisterTile) -> BoundRegisterTile | BoundClusterSum:
    plan: HeldTile = k.plan.distributed(name)
    return BoundRegisterTile(plan) if plan.sent is None else BoundClusterSum(k.isa, plan)
