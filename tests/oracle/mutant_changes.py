"""What can be wrong at one call: dropped, doubled, moved past the next one, or with a number shifted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import attrs

from tests.oracle.mutant_sites import Change, Site
from tmapipe.isa.values import SlotRef
from tmapipe.plan.model import NamedBarrier, Plan

__all__ = ["CHANGES", "changes_at", "rule_of"]

Call = Callable[..., Any]
Args = tuple[Any, ...]


def _drop(isa: Any, method: Call, by: int, args: Args, options: dict[str, Any]) -> None:
    return None


def _double(isa: Any, method: Call, by: int, args: Args, options: dict[str, Any]) -> Any:
    method(*args, **options)
    return method(*args, **options)


def _later(isa: Any, method: Call, by: int, args: Args, options: dict[str, Any]) -> None:
    isa.held = lambda: method(*args, **options)


def _stage(isa: Any, method: Call, by: int, args: Args, options: dict[str, Any]) -> Any:
    """The next slot, of the barrier or of the buffer."""
    first = args[0]
    if isinstance(first, SlotRef):
        return method(SlotRef(first.buffer, (first.stage + by) % first.buffer.stages), *args[1:], **options)
    stages: int = getattr(first, "buffer", first).stages  # type: ignore[union-attr]
    return method(first, (args[1] + by) % stages, *args[2:], **options)


def _last(isa: Any, method: Call, by: int, args: Args, options: dict[str, Any]) -> Any:
    return method(*args[:-1], args[-1] + by, **options)


def _flip(isa: Any, method: Call, by: int, args: Args, options: dict[str, Any]) -> Any:
    return method(*args[:-1], args[-1] ^ 1, **options)


def _named(isa: Any, method: Call, by: int, args: Args, options: dict[str, Any]) -> Any:
    """The next named barrier."""
    return method(args[0], (args[1] if len(args) > 1 else 0) + by, **options)


def _threads(isa: Any, method: Call, by: int, args: Args, options: dict[str, Any]) -> Any:
    barrier: NamedBarrier = args[0]
    return method(attrs.evolve(barrier, threads=barrier.threads + by), *args[1:], **options)


def _pending(isa: Any, method: Call, by: int, args: Args, options: dict[str, Any]) -> Any:
    return method(max(0, args[0] + by), *args[1:], **options)


def _no_read(isa: Any, method: Call, by: int, args: Args, options: dict[str, Any]) -> Any:
    read = options.pop("read") if "read" in options else args[1]
    return method(args[0], read=not read)


def _lanes(isa: Any, method: Call, by: int, args: Args, options: dict[str, Any]) -> Any:
    return method(*args[:2], lanes=32, when=options.get("when", True))


def _mask(isa: Any, method: Call, by: int, args: Args, options: dict[str, Any]) -> Any:
    """by 0: without its lowest CTA, 1: the lowest only, 2: the mask of the next CTA, 3: a CTA outside the cluster too."""
    where = 4 if method.__name__ == "tma_load" else 2
    mask, ctas = args[where], isa.plan.cluster_size
    if mask is None:
        return method(*args, **options)
    low = mask & -mask
    other = (mask ^ low, low, (mask << 1 | mask >> (ctas - 1)) & ((1 << ctas) - 1), mask | 1 << ctas)[by]
    if by == 0 and not other:
        return None
    return method(*args[:where], other, *args[where + 1 :], **options)


def _share(isa: Any, method: Call, by: int, args: Args, options: dict[str, Any]) -> Any:
    return method(*args[:5], (args[5] + by) % args[0].peers, **options)


def _scope(isa: Any, method: Call, by: int, args: Args, options: dict[str, Any]) -> Any:
    now = args[4] if len(args) > 4 else options.get("scope", "cluster")
    return method(
        *args[:3], args[3] if len(args) > 3 else True, "cta" if by else "relaxed" if now == "cluster" else now
    )


def _registers(isa: Any, method: Call, by: int, args: Args, options: dict[str, Any]) -> Any:
    return method(args[0] + by, **options)


CHANGES: dict[str, Callable[..., Any]] = {
    "drop": _drop,
    "double": _double,
    "move": _later,
    "shift stage": _stage,
    "shift count": _last,
    "shift bytes": _last,
    "shift id": _named,
    "shift threads": _threads,
    "flip parity": _flip,
    "shift pending": _pending,
    "swap read": _no_read,
    "all lanes": _lanes,
    "shift mask": _mask,
    "shift share": _share,
    "shift scope": _scope,
    "shift registers": _registers,
}

#: Methods whose first operand has no stage of its own, or is a matmul.
_UNSTAGED = (
    "mbarrier_init",
    "accumulator",
    "accumulator_columns",
    "wgmma",
    "write_columns",
    "write_row_sums",
    "write_column_sums",
)

_THINGS = {
    "mbarrier_init": "init",
    "fence_mbarrier_init": "init",
    "mbarrier_wait": "wait",
    "mbarrier_arrive": "arrive",
    "mbarrier_arrive_cluster": "arrive",
    "mbarrier_arrive_expect_tx": "arrive",
    "mbarrier_expect_tx": "arrive",
    "cta_sync": "sync",
    "warp_sync": "sync",
    "named_barrier_sync": "sync",
    "named_barrier_arrive": "sync",
    "cluster_arrive": "sync",
    "cluster_wait": "sync",
    "fence_proxy_async": "fence",
    "wgmma_fence": "wgmma fence",
    "bulk_commit_group": "commit",
    "wgmma_commit": "commit",
    "bulk_wait_group": "group wait",
    "wgmma_wait": "group wait",
    "tma_load": "copy",
    "tma_store": "copy",
    "store_words": "copy",
    "setmaxnreg": "registers",
}


def rule_of(change: Change) -> str:
    """The rule in the table of kill rates, e.g. "drop arrive", "flip parity", "move tail"."""
    site, how = change.site, change.how
    if how not in ("drop", "double", "move", "shift stage"):
        return how
    if site.tail:
        return f"{how} tail"
    if site.role == "set-up":
        return f"{how} init"
    return f"{how} {_THINGS.get(site.method, 'access')}"


def changes_at(site: Site, plan: Plan, arguments: set[Args]) -> Iterator[tuple[str, int]]:
    """(how, by) of everything that can be wrong at *site*. arguments: those that it is called with."""
    method = site.method
    if method in _THINGS:
        if method != "setmaxnreg":
            yield "drop", 0
            yield "double", 0
        else:
            yield "drop", 0
            yield from (("shift registers", by) for by in (-8, 8))
    if method != "read_words":  # its values decide what comes next
        yield "move", 0
    if site.operand and method not in _UNSTAGED:
        stages = _stages(site, plan)
        if stages > 1 and method not in ("named_barrier_sync", "named_barrier_arrive"):
            yield "shift stage", 1
    if method == "mbarrier_init":
        counts = {args[2] for args in arguments}
        yield from (("shift count", by) for by in (-1, 1) if min(counts) + by >= 0)
    elif method == "mbarrier_wait":
        yield "flip parity", 0
    elif method in ("named_barrier_sync", "named_barrier_arrive"):
        yield "shift id", 1
        yield from (("shift threads", by) for by in (-32, 32))
    elif method in ("mbarrier_arrive_expect_tx", "mbarrier_expect_tx"):
        yield from (("shift bytes", by) for by in (-16, 16))
    elif method in ("bulk_wait_group", "wgmma_wait"):
        yield "shift pending", 1
        if max(args[0] for args in arguments) > 0:
            yield "shift pending", -1
        if method == "bulk_wait_group":
            yield "swap read", 0
    elif method == "mbarrier_arrive":
        yield "all lanes", 0
    elif method == "mbarrier_arrive_cluster":
        yield from (("shift mask", by) for by in range(4))
        yield from (("shift scope", by) for by in (0, 1))
    elif method == "tma_load" and plan.load(site.operand).peers > 1:
        yield from (("shift mask", by) for by in range(4))
        yield "shift share", 1


def _stages(site: Site, plan: Plan) -> int:
    parts: list[tuple[str, int]] = [(barrier.name, barrier.stages) for barrier in plan.barriers]
    parts += [(buffer.name, buffer.stages) for buffer in plan.buffers]
    parts += [(load.name, load.buffer.stages) for load in plan.loads]
    parts += [(store.name, store.buffer.stages) for store in plan.stores]
    return dict(reversed(parts)).get(site.operand, 1)
