"""Where a kernel calls the instruction set, and an instruction set in which one such place does something else.

A *site* is one call in the source as one role reaches it: the method, what it names (a barrier, a load, ...), and the lines of
the library and of the schedule on the way there. A `Change` says what happens instead, and when: at every execution, or at the
first or last one of each warp.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Collection
from typing import Any

import attrs

import tmapipe
from tmapipe.isa.values import Carried
from tmapipe.kernel import kernel_main
from tmapipe.machine.nodata import NO_DATA

__all__ = ["OPERATIONS", "Change", "ChangedIsa", "Site", "SiteIsa", "play"]

_LIBRARY = os.path.dirname(os.path.abspath(tmapipe.__file__))
_OUTERMOST = ("play",)

#: Methods that do something to the machine.
OPERATIONS = frozenset(
    (
        "mbarrier_init",
        "fence_mbarrier_init",
        "mbarrier_wait",
        "mbarrier_arrive",
        "mbarrier_arrive_cluster",
        "mbarrier_arrive_expect_tx",
        "mbarrier_expect_tx",
        "cta_sync",
        "warp_sync",
        "named_barrier_sync",
        "named_barrier_arrive",
        "cluster_arrive",
        "cluster_wait",
        "fence_proxy_async",
        "tma_load",
        "tma_store",
        "bulk_commit_group",
        "bulk_wait_group",
        "accumulator",
        "wgmma_fence",
        "wgmma",
        "wgmma_commit",
        "wgmma_wait",
        "accumulator_columns",
        "write_columns",
        "write_row_sums",
        "write_column_sums",
        "read",
        "write",
        "raw",
        "store_words",
        "read_words",
        "setmaxnreg",
    )
)


@attrs.frozen
class Site:
    """role: of the warps that come here ("set-up" before any; of a branch that a warpgroup's roles share, that of its first
    warp); operand: name of the first operand, if it has one; path: lines from the call outwards, as "file:line"; tail:
    whether it belongs to what a role does after its last tile."""

    role: str
    method: str
    operand: str
    path: tuple[str, ...]
    tail: bool

    def __str__(self) -> str:
        operand = f"({self.operand})" if self.operand else "()"
        return f"{self.method}{operand} in {self.role} at {self.path[0] if self.path else '?'}"


@attrs.frozen
class Change:
    """What one site does instead. how: one of `mutant_changes.CHANGES`; by: its number, if it takes one; when: "all", "first"
    or "last" execution by each warp; warps: "all", "last": the last warp of the role (in the set-up: of any role) in the
    first CTA, or "first": its first warp in the last CTA."""

    site: Site
    how: str
    by: int = 0
    when: str = "all"
    warps: str = "all"

    def __str__(self) -> str:
        by = f" by {self.by:+d}" if self.by else ""
        when = "" if self.when == "all" else f", {self.when} time"
        return f"{self.how}{by} {self.site}{when}{'' if self.warps == 'all' else f', {self.warps} warp'}"


@functools.cache
def _file(path: str) -> tuple[str, bool]:
    """A source file's name, and whether it is the library's."""
    return os.path.basename(path), path.startswith(_LIBRARY)


class SiteIsa(Carried):
    """An instruction set that knows where it is called from. `reached` sees every operation: (site, method, arguments).

    watched: the operations whose sites are looked for; for others `reached` is told None."""

    def __init__(self, isa: Any, watched: Collection[str] = OPERATIONS):
        self.isa, self.watched = isa, watched
        self.roles = dict.fromkeys(range(isa.plan.warps), "idle")
        self.roles |= {w: r.name for r in isa.plan.roles for w in range(r.first_warp, r.first_warp + r.warps)}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        found = getattr(self.isa, name)
        if name not in OPERATIONS:
            return found

        def call(*args: Any, **options: Any) -> Any:
            site = self._site(name, args) if name in self.watched else None
            return self.reached(site, found, args, options)

        return call

    def reached(
        self, site: Site | None, method: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]
    ) -> Any:
        """Called instead of the operation."""
        return method(*args, **options)

    def _site(self, method: str, args: tuple[Any, ...]) -> Site:
        path: list[str] = []
        in_branch = in_role = tail = False
        frame = sys._getframe(2)
        while frame is not None and frame.f_code.co_name not in _OUTERMOST:
            name = frame.f_code.co_name
            in_branch = in_branch or name == "_run_branch"
            in_role = in_role or name == "_run_role"
            tail = tail or name == "finish"
            file, ours = _file(frame.f_code.co_filename)
            if ours or not path:
                path.append(f"{file}:{frame.f_lineno}")
            frame = frame.f_back  # type: ignore[assignment]
        operand = args[0] if args else ""
        on: str = getattr(operand, "name", None) or getattr(getattr(operand, "buffer", None), "name", "")  # type: ignore[assignment]
        warp: int = self.isa.warp if in_role else self.isa.warp // 4 * 4
        role = self.roles[warp] if in_branch else "set-up"
        return Site(role, method, on, tuple(path), tail)


class ChangedIsa(SiteIsa):
    """An instruction set with one change. executions: how often each warp comes to the site in the unchanged kernel."""

    def __init__(self, isa: Any, change: Change, how: Callable[..., Any], executions: dict[tuple[int, int], int]):
        super().__init__(isa, {change.site.method})
        self.change, self.how = change, how
        self.last = executions.get((isa.cta_rank, isa.warp), 0) - 1
        self.count = -1
        self.held: Callable[[], Any] | None = None  # a call that is to come after the next one

    def reached(
        self, site: Site | None, method: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]
    ) -> Any:
        held, self.held = self.held, None
        if site == self.change.site and self._now():
            result = self.how(self, method, self.change.by, args, options)
        else:
            result = method(*args, **options)
        if held is not None:
            held()
        return NO_DATA if result is None else result

    def finish(self) -> None:
        """At the end of the warp's program."""
        if self.held is not None:
            self.held()

    def _now(self) -> bool:
        self.count += 1
        if self.change.warps != "all" and not self._is_the_one():
            return False
        when = self.change.when
        return when == "all" or self.count == (0 if when == "first" else self.last)

    def _is_the_one(self) -> bool:
        role = self.change.site.role
        warps = [w for w, name in self.roles.items() if role in ("set-up", name)]
        if self.change.warps == "last":
            return (self.isa.cta_rank, self.isa.warp) == (0, max(warps))
        return (self.isa.cta_rank, self.isa.warp) == (self.isa.plan.cluster_size - 1, min(warps))


def play(isa: SiteIsa, schedule: Any) -> None:
    """The kernel of *schedule* on *isa*."""
    kernel_main(isa, schedule)
