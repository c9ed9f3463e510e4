"""One thing changed in a kernel at all places alike: in the model, and traced for the GPU, where places are not told apart.

`Mutation.entry(schedule)` is the kernel with the change, for either backend. The GPU's makes no operations, so that what
changes is a call of an instruction; `python -m tests.oracle.mutants` changes operations at single places of the shipped
schedules.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from tmapipe.isa.fragment import Carried
from tmapipe.kernel import kernel_main
from tmapipe.plan.model import Plan

__all__ = ["Mutation", "mutations_of"]

Call = Callable[..., Any]
Args = tuple[Any, ...]


def _drop(call: Call, by: int, args: Args, options: dict[str, Any]) -> None:
    return None


def _double(call: Call, by: int, args: Args, options: dict[str, Any]) -> Any:
    call(*args, **options)
    return call(*args, **options)


def _last(call: Call, by: int, args: Args, options: dict[str, Any]) -> Any:
    return call(*args[:-1], args[-1] + by, **options)


def _flip(call: Call, by: int, args: Args, options: dict[str, Any]) -> Any:
    return call(*args[:-1], args[-1] ^ 1, **options)


def _pending(call: Call, by: int, args: Args, options: dict[str, Any]) -> Any:
    return call(max(0, args[0] + by), *args[1:], **options)


def _lanes(call: Call, by: int, args: Args, options: dict[str, Any]) -> Any:
    return call(*args[:2], lanes=32, when=options.get("when", True))


def _mask(call: Call, by: int, args: Args, options: dict[str, Any]) -> Any:
    """The lowest CTA of the mask only."""
    return call(*args[:2], args[2] & -args[2], *args[3:], **options)


RULES: dict[str, Callable[..., Any]] = {
    "drop": _drop,
    "double": _double,
    "shift count": _last,
    "shift bytes": _last,
    "flip parity": _flip,
    "shift pending": _pending,
    "all lanes": _lanes,
    "shift mask": _mask,
}


@attrs.frozen
class Mutation:
    """rule: what is done, one of `RULES`; operation: to which method of the instruction set; only: name of the barrier that
    it must concern ("" for any); by: its number, if it takes one."""

    rule: str
    operation: str
    only: str = ""
    by: int = 0

    def __str__(self) -> str:
        where = f" on {self.only}" if self.only else ""
        return f"{self.rule} {self.operation}{where}" + (f" by {self.by:+d}" if self.by else "")

    def entry(self, schedule: Any) -> Callable[[Any], None]:
        return lambda isa: kernel_main(self.on(isa), schedule)

    def on(self, isa: Any) -> Any:
        """The instruction set *isa* with the mutation."""
        return _MutantIsa(isa, self)


class _MutantIsa(Carried):
    """A backend with one mutation; all else goes to *isa*."""

    def __init__(self, isa: Any, mutation: Mutation):
        self.isa, self.mutation = isa, mutation

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        found = getattr(self.isa, name)
        mutation = self.mutation
        if name != mutation.operation:
            return found

        def call(*args: Any, **options: Any) -> None:
            if mutation.only and args[0].name != mutation.only:
                found(*args, **options)
            else:
                RULES[mutation.rule](found, mutation.by, args, options)

        return call


def mutations_of(plan: Plan) -> list[Mutation]:
    """Every mutation that concerns something in *plan*."""
    found = [
        Mutation("drop", "fence_proxy_async"),
        Mutation("drop", "fence_mbarrier_init"),
        Mutation("drop", "cta_sync" if plan.cluster_size == 1 else "cluster_wait"),
        Mutation("drop", "warp_sync"),
        Mutation("drop", "bulk_wait_group"),
        Mutation("shift pending", "bulk_wait_group", by=1),
        Mutation("drop", "bulk_commit_group"),
    ]
    if plan.matmuls:
        found += [
            Mutation("drop", "wgmma_wait"),
            Mutation("shift pending", "wgmma_wait", by=1),
            Mutation("drop", "wgmma_commit"),
        ]
    for named in plan.named_barriers:
        found.append(Mutation("drop", "named_barrier_sync", named.name))
    peers = any(ring.peers > 1 for ring in plan.rings)
    for barrier in plan.barriers:
        name = barrier.name
        found += [Mutation("shift count", "mbarrier_init", name, by) for by in (-1, 1) if barrier.count + by > 0]
        found += [Mutation(rule, "mbarrier_wait", name) for rule in ("drop", "flip parity")]
        found += [Mutation(rule, "mbarrier_arrive", name) for rule in ("drop", "double", "all lanes")]
        if peers:
            found += [Mutation("drop", "mbarrier_arrive_cluster", name)]
            found += [Mutation("shift mask", "mbarrier_arrive_cluster", name)]
        found += [Mutation("drop", "mbarrier_arrive_expect_tx", name)]
        found += [Mutation("shift bytes", "mbarrier_arrive_expect_tx", name, by) for by in (-128, 128)]
    return found
