"""One thing changed in a kernel, at the level of the instruction set: the same change in the model and on the GPU.

`Mutation.entry(schedule)` is the kernel with the change, for either reading.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from tmapipe.isa import Carried
from tmapipe.kernel import kernel_main
from tmapipe.plan import Plan

__all__ = ["Mutation", "mutations_of"]


@attrs.frozen
class Mutation:
    """rule: what is done ("drop", "double", "count", ...); operation: to which method of the instruction set; only: name
    of the barrier that it must concern ("" for any); by: how much is added to a number."""

    rule: str
    operation: str
    only: str = ""
    by: int = 0

    def __str__(self) -> str:
        where = f" on {self.only}" if self.only else ""
        return f"{self.rule} {self.operation}{where}" + (f" by {self.by:+d}" if self.by else "")

    def entry(self, schedule: Any) -> Callable[[Any], None]:
        return lambda isa: kernel_main(MutantIsa(isa, self), schedule)


class MutantIsa(Carried):
    """A reading of the instruction set with one mutation; all else goes to *isa*."""

    def __init__(self, isa: Any, mutation: Mutation):
        self.isa, self.mutation = isa, mutation

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        found = getattr(self.isa, name)
        return self._changed(found) if name == self.mutation.operation else found

    def _changed(self, method: Callable[..., None]) -> Callable[..., None]:
        mutation = self.mutation
        change = CHANGES[mutation.rule]

        def call(*args: Any, **options: Any) -> None:
            if mutation.only and args[0].name != mutation.only:
                method(*args, **options)
            else:
                change(method, mutation.by, *args, **options)

        return call


def _drop(method: Any, by: int, *args: Any, **options: Any) -> None:
    pass


def _double(method: Any, by: int, *args: Any, **options: Any) -> None:
    method(*args, **options)
    method(*args, **options)


def _last(method: Any, by: int, *args: Any, **options: Any) -> None:
    """Adds to the last positional operand: a count, bytes or a parity's bit."""
    *rest, number = args
    method(*rest, number + by, **options)


def _flip(method: Any, by: int, *args: Any, **options: Any) -> None:
    *rest, parity = args
    method(*rest, parity ^ 1, **options)


def _pending(method: Any, by: int, *args: Any, **options: Any) -> None:
    method(args[0] + by, *args[1:], **options)


def _lanes(method: Any, by: int, barrier: Any, stage: Any, **options: Any) -> None:
    method(barrier, stage, 32, **options)


def _no_peers(method: Any, by: int, barrier: Any, stage: Any, mask: Any, *args: Any, **options: Any) -> None:
    """Tells one CTA only: the lowest of the mask."""
    method(barrier, stage, mask & -mask, *args, **options)


CHANGES: dict[str, Callable[..., None]] = {
    "drop": _drop,
    "double": _double,
    "change": _last,
    "flip parity of": _flip,
    "relax": _pending,
    "arrive with all lanes in": _lanes,
    "one CTA only in": _no_peers,
}


def mutations_of(plan: Plan) -> list[Mutation]:
    """Every mutation that concerns something in *plan*."""
    found = [
        Mutation("drop", "fence_proxy_async"),
        Mutation("drop", "fence_mbarrier_init"),
        Mutation("drop", "cta_sync" if plan.cluster_size == 1 else "cluster_wait"),
        Mutation("drop", "warp_sync"),
        Mutation("drop", "bulk_wait_group"),
        Mutation("relax", "bulk_wait_group", by=1),
        Mutation("drop", "bulk_commit_group"),
    ]
    if plan.matmuls:
        found += [
            Mutation("drop", "wgmma_wait"),
            Mutation("relax", "wgmma_wait", by=1),
            Mutation("drop", "wgmma_commit"),
        ]
    for named in plan.named_barriers:
        found.append(Mutation("drop", "named_barrier_sync", named.name))
    peers = any(ring.peers > 1 for ring in plan.rings)
    for barrier in plan.barriers:
        found += [Mutation("change", "mbarrier_init", barrier.name, by) for by in (-1, 1) if barrier.count + by > 0]
        found += [Mutation(rule, "mbarrier_wait", barrier.name) for rule in ("drop", "flip parity of")]
        found += [
            Mutation(rule, "mbarrier_arrive", barrier.name) for rule in ("drop", "double", "arrive with all lanes in")
        ]
        if peers:
            found += [Mutation(r, "mbarrier_arrive_cluster", barrier.name) for r in ("drop", "one CTA only in")]
        found += [Mutation("drop", "mbarrier_arrive_expect_tx", barrier.name)]
        found += [Mutation("change", "mbarrier_arrive_expect_tx", barrier.name, by) for by in (-128, 128)]
    return found
