"""The kernel: what every warp of every CTA does, and `KernelContext`, which bodies get as k.

    initialize the barriers -> fence -> by role: setmaxnreg, CTA or cluster sync, the body once per tile, the tails

The set-up may run before the previous kernel of the stream has ended (programmatic dependent launch). It delays the first
load, so it is kept short. One warp initializes the barriers, if possible a warp without a role. Meanwhile the other warps
compute where the CTA's first tile is. All warps synchronize in the code of their roles: by then its instructions have been
fetched.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import pkgutil
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tmapipe import protocol
from tmapipe.base import along
from tmapipe.base.arithmetic import ceil_div
from tmapipe.errors import InputError, MissingPartError, ScopeError, require
from tmapipe.isa.fragment import Carried, Fragment, is_index
from tmapipe.isa.ops import Isa
from tmapipe.plan.declarations import Declarations, Part, branches_of, without_role
from tmapipe.plan.model import WIDTHS, RoleWarps
from tmapipe.plan.rings import Distributed, Ring
from tmapipe.plan.thread_layout import AccumulatorLayout, ThreadLayout, vectors_of
from tmapipe.protocol import raw, sync
from tmapipe.protocol.ring import Groups, HeldEnd, RingEnd
from tmapipe.protocol.slots import SlotPart
from tmapipe.protocol.stores import StoreOfSlot
from tmapipe.protocol.tile import bound_by, share_index
from tmapipe.store_pipeline import StoreStage
from tmapipe.tiles.order import SCHEDULER

if TYPE_CHECKING:
    from tmapipe.schedule import Schedule


for module in pkgutil.iter_modules(protocol.__path__, f"{protocol.__name__}."):
    importlib.import_module(module.name)  # its classes register themselves for the parts that they stand for


def kernel_main(isa: Isa, schedule: Schedule) -> None:
    """The program of one warp. *schedule* is the one that `isa.plan` was made from."""
    if isa.plan.overlaps and not any(role.dependents for role in isa.plan.roles):
        isa.griddepcontrol_launch_dependents()
    _init_barriers(isa)
    for first, count, registers, roles in branches_of(isa.plan):
        _in_warps(isa, first, count, functools.partial(_run_branch, isa, schedule, first, count, registers, roles))
    for first, count in without_role(isa.plan):
        _in_warps(isa, first, count, functools.partial(_meet, isa))


def _init_barriers(isa: Isa) -> None:
    """One warp initializes the barriers; `_meet` waits for that."""
    plan = isa.plan
    if not (plan.barriers or plan.described or plan.cluster_size > 1):
        return

    def init() -> None:
        for part in plan.described:
            isa.prefetch_descriptor(part)
        for barrier in plan.barriers:
            isa.mbarrier_init(barrier, barrier.count)
        if plan.target.tma:  # else there are neither peers nor engines to see them
            isa.fence_mbarrier_init()

    free = [first + count - 1 for first, count in without_role(plan)]
    isa.when(isa.warp == (free or [plan.warps - 1])[-1], init)
    if plan.cluster_size > 1:
        isa.cluster_arrive("relaxed")  # the inits have been released by their fence


def _meet(isa: Isa, meanwhile: Callable[[], None] = lambda: None, early: bool = False) -> None:
    """Waits, once per warp, until the previous kernel has ended and the barriers of the cluster are initialized.

    Args:
        meanwhile: Called as soon as the previous kernel has ended.
        early: Whether the body waits for the previous kernel by itself.
    """
    if isa.plan.overlaps and not early:
        isa.griddepcontrol_wait()
    meanwhile()
    if isa.plan.cluster_size > 1:
        isa.cluster_wait()
    elif isa.plan.barriers:
        isa.cta_sync()


def _run_branch(
    isa: Isa, schedule: Schedule, first: int, count: int, registers: int | None, roles: list[RoleWarps]
) -> None:
    """The program of *count* warps from number *first* on, some of which may have no role."""
    if registers is not None:
        isa.setmaxnreg(registers, increase=registers > isa.plan.launch_registers)
    for role in roles:
        if role.first_warp <= first and role.first_warp + role.warps >= first + count:
            _run_role(isa, schedule, role)
        else:
            _in_warps(isa, role.first_warp, role.warps, functools.partial(_run_role, isa, schedule, role))


def _run_role(isa: Isa, schedule: Schedule, role: RoleWarps) -> None:
    body = schedule.declared.bodies.get(role.name)
    if body is None and role.name != SCHEDULER:
        raise ScopeError(f"role {role.name!r} has no body. Decorate a method of the schedule with @{role.name}.jit.")
    k = KernelContext(isa, schedule, role)
    if body is None:
        _meet(isa, k.tiles.begin)
        k.tiles.each(lambda tile: None)
        return k.finish()
    _meet(isa, early=bool(role.early))
    k.begin(schedule)

    def run(tile: Any) -> None:
        isa.call(body, schedule, k, tile)
        k.end_tile()

    def skip(tile: Any) -> None:
        """Skips the slots of a tile that another team takes."""
        for name, end in k.ends.items():
            end.skip(isa.evaluate(schedule.ring_slots, k, name, tile))

    if role.teams == 1:
        k.tiles.each(run)
    else:
        k.tiles.each_in_turn(role.team(isa.warp), role.teams, run, skip)
    k.finish()
    if role.early:  # the role may have had no tile, and the next kernel waits only for the end of this one
        isa.griddepcontrol_wait()


def _in_warps(isa: Isa, first: int, count: int, run: Callable[[], None]) -> None:
    """Calls *run* in *count* warps from number *first* on."""
    warp: Any = isa.warp
    if count == 1:
        mine = warp == first
    elif first == 0:
        mine = warp < count
    elif first + count == isa.plan.warps:
        mine = warp >= first
    else:
        mine = (warp >= first) & (warp < first + count)
    isa.when(mine, run)


class KernelContext(Carried):
    """What a body gets as `k`. Its attributes are the role's ends of the rings, its stores, its matmuls and other parts, by
    their declared names.

    Besides, `k.isa` is the instruction set, `k.plan` has the numbers, and `k.tiles` the CTA's tiles.
    """

    raw, sync = raw, sync  # methods, which `tmapipe.protocol` has

    def __init__(self, isa: Isa, schedule: Schedule, role: RoleWarps):
        self.isa, self.plan, self.role = isa, isa.plan, role
        self.tiles: Any = schedule.tiles.bind(isa, schedule.grid(isa.extent), role)
        self.ends: dict[str, RingEnd] = {}
        self._parts: dict[str, Any] = {}
        self._finishers: list[Any] = []
        self._declared = schedule.declared
        self._groups = Groups(isa)
        declared = schedule.declared
        for name, store in declared.stores.items():
            if store.slot is None and self._fills(store):
                self._parts[name] = bound_by(store)(self, name, store)
                self._finishers.append(self._parts[name])
        for ring in self.plan.rings:
            if ring.phase_of(role.name) is not None:
                self._add_ring(declared, ring)
        others = declared.matmuls, declared.scratches, declared.register_tiles, declared.tables, declared.turnstiles
        for name, part in itertools.chain(*(each.items() for each in others)):
            whose = getattr(part, "role", None)
            bound = bound_by(part)(self, name, part) if whose is None or self.name_of(whose) == role.name else None
            if bound is not None:
                self._parts[name] = bound
                if hasattr(bound, "finish"):
                    self._finishers.append(bound)

    def name_of(self, part: Part) -> str:
        """The name of *part* in the schedule: ``getattr(k, k.name_of(ring))`` is this role's end of the ring."""
        return self._declared.name_of(part)

    def steps(self, stage: str, dim: str) -> Any:
        """How many tiles there are along dimension *dim* of the tensor of the load or store stage called *stage*. A Python
        number if the extent is fixed. Raises `InputError` if there is no such stage, or it has no such dimension."""
        stages = {part.name: part for part in self.plan.transfers}
        part = stages.get(stage) if isinstance(stage, str) else None
        if part is None or dim not in part.dims:
            known = "; ".join(f"{name}: {', '.join(each.dims)}" for name, each in stages.items())
            rule = f"names a stage and one of its dimensions ({known})"
            raise InputError("k.steps", (stage, dim), rule, "name one of them")
        where = part.dims.index(dim)
        return ceil_div(self.isa.extent(part.argument, where), part.span[where])

    def dependency_wait(self) -> None:
        """In a role that starts early: waits until the earlier kernels of the stream have ended, and their writes are visible.
        A second call costs some cycles and does nothing."""
        self.isa.griddepcontrol_wait()

    def launch_dependents(self) -> None:
        """In a role with ``dependents=True``: lets CTAs of the next kernel of the stream start where there is room for them,
        once all CTAs of this kernel have called it or ended. They wait for the end of this kernel by themselves. So they see
        all that this kernel writes, also after the call. A second call does nothing.

        Raises:
            ScopeError: In another role.
        """
        if not self.role.dependents:
            raise ScopeError(f"k.launch_dependents() in {self.role.name}. Declare it as Role(..., dependents=True).")
        if self.plan.overlaps:
            self.isa.griddepcontrol_launch_dependents()

    def rank(self, *axes: str) -> Any:
        """The CTA's index among the CTAs of its cluster that differ only along these axes; 0 if there is no other CTA."""
        return share_index(self.isa, along(self.plan.cluster, axes))

    def extent(self, dim: str) -> Any:
        """Elements along dimension *dim* of the tensors; a Python number if the extent is fixed. Raises `InputError` if no
        tensor has this dimension."""
        return self.isa.extent_along("k.extent", dim)

    def windows(self, stage: str, number: Any) -> tuple[Any, ...]:
        """Where window *number* begins, for ``slot.x.load_windows()``: (image, then the first element along each dimension of
        the image). With multicast, where the calling CTA's share of the tile begins. It takes divisions: call it once a tile.

        Args:
            stage: The name of an `Im2colLoadStage`.
            number: The number of the tile's first window: the first row of the output tile.

        Raises:
            InputError: *stage* is no `Im2colLoadStage`, or *number* no whole number.
        """
        load = {load.name: load for load in self.plan.loads if load.windows is not None}.get(stage)
        if load is None or not is_index(number):
            raise InputError("k.windows", (stage, number), "names an Im2colLoadStage, and a window by number", "e.g. 0")
        own = share_index(self.isa, load.axes) * (load.buffer.tile[0] // load.peers) if load.peers > 1 else 0
        return self.isa.window_start(load, number + own)

    def full(self, part: str, value: float, along: str = "tile", width: int = 8) -> Fragment:
        """A fragment of equal numbers, such as the zeros with which a sum begins.

        Args:
            part: The name of a stage, whose tile the role's threads share, or of a matmul or a `RegisterTile` of this role:
                the fragment is distributed as the tile, or the accumulators, are.
            value: The number. A float gives fp32, an int gives int32.
            along: "tile", or "rows" or "columns" for one number a row or column.
            width: Of a stage, elements that a thread has side by side, at most: 8, 4, 2 or 1, as `read` takes it.

        Raises:
            InputError: For another part, *along* or *width*.
        """
        buffers = {store.name: store.buffer for store in self.plan.stores if store.vector}  # without memory
        buffers |= {buffer.name: buffer for buffer in self.plan.buffers}
        matmuls: dict[str, Distributed] = {each.name: each for each in (*self.plan.matmuls, *self.plan.held)}
        if along not in ("tile", "rows", "columns"):
            raise InputError("k.full(along)", along, 'is "tile", "rows" or "columns"', "leave it out for a whole tile")
        rule = f"names a stage or a matmul ({', '.join((*buffers, *matmuls))})"
        require(part in buffers or part in matmuls, "k.full", part, rule, "name one of them")
        if width not in WIDTHS or type(width) is not int:
            raise InputError("k.full(width)", width, "is 8, 4, 2 or 1 elements", "leave it out for the most that fit")
        of = matmuls.get(part)
        layout: ThreadLayout = (
            AccumulatorLayout.of(of) if of else vectors_of(part, buffers[part].tile, self.role, width)
        )
        if along != "tile":
            layout.check_rows()
        return self.isa.fragments.full(layout, along, value)

    def begin(self, schedule: Schedule) -> None:
        """Before the first tile: waits for slots that are held, and runs the role's method `@role.before.jit` of
        *schedule*."""
        held = [end for end in self.ends.values() if isinstance(end, HeldEnd)]
        for end in held:
            end.begin()
        before = schedule.declared.befores.get(self.role.name)
        if before is not None:
            self.isa.call(before, schedule, self)
        for end in held:
            end.begun()

    def end_tile(self) -> None:
        """Called after the body, for each tile. Raises `ScopeError` if the body has started a matmul without awaiting it."""
        self._groups.check_awaited()

    def finish(self) -> None:
        """Called after the last tile: the tails of rings, stores and the tile scheduler."""
        for part in self._finishers:
            part.finish()
        self.tiles.finish()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return self._parts[name]
        except KeyError:
            text = f"k.{name} in role {self.role.name!r}, which has {', '.join(self._parts) or 'nothing'}."
            raise MissingPartError(f"{text} Declare {name} for it.") from None

    def _add_ring(self, declared: Declarations, ring: Ring) -> None:
        """Adds the role's end of *ring*, with what an open slot has by the names of stages and stores."""
        parts: dict[str, Any] = {}
        for name, store in declared.stores.items():
            if store.slot is not None and self.name_of(store.slot.ring) == ring.name:
                assert store.storing is not None
                planned = self.plan.store(name)
                parts[name] = functools.partial(StoreOfSlot, self.isa, planned, self.name_of(store.storing))
        loads = {load.name: load for load in self.plan.loads}
        for name, stage in declared.stages_of(ring.name).items():
            part = SlotPart(self.isa, self.role.name, self.plan.buffer(name), loads.get(name))
            parts[name] = functools.partial(bound_by(stage), part)
        for name, token in declared.tokens.items():
            if self.name_of(token.ring) == ring.name:
                parts[name] = bound_by(token)(self, name, token)
        end = (HeldEnd if ring.held else RingEnd)(self.isa, ring, self.role.name, parts, self._groups)
        self._parts[ring.name] = self.ends[ring.name] = end
        self._finishers.insert(0, end)

    def _fills(self, store: StoreStage) -> bool:
        """Whether this role runs a store of values that its threads have in registers."""
        if store.sums is not None:
            return self.plan.distributed(self.name_of(store.sums)).first_warp == self.role.first_warp
        return store.role is not None and self.name_of(store.role) == self.role.name
