"""Schedule, the base class of all kernels: it collects the declared parts, and plans, checks, compiles, draws and runs.

A schedule is a value. Declare its parts as class attributes (or set them in ``__init__``), write one body for each role, and
call it with tensors. CUDA tensors run the compiled kernel. CPU tensors and NumPy arrays run the same program on the machine
model. Subclass it to replace a body or a part.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from tmapipe.barrier import Role
from tmapipe.base.arithmetic import Dim, DType, as_dtype
from tmapipe.bind import Bound, note_written
from tmapipe.bind import tensors as tensors_
from tmapipe.calling import Calls, as_declared, check_clusters, check_one_kernel, on_model
from tmapipe.errors import InputError, check_bool, needed, require
from tmapipe.plan import make_plan
from tmapipe.plan.declarations import PARTS, Declarations, check_roles, declare, key_of, same
from tmapipe.plan.model import Plan
from tmapipe.plan.rings import arch_named
from tmapipe.protocol.tile import Tile
from tmapipe.tiles.order import (
    MOST_TILES,
    Axis,
    TileOrder,
    axes_of,
    check_axes,
    check_relations,
    check_rows,
    with_order,
)
from tmapipe.tiles.persistent import PersistentTiles

if TYPE_CHECKING:
    from tmapipe.check import Report
    from tmapipe.gpu.build import Compiled
    from tmapipe.kernel import KernelContext
    from tmapipe.model.run import Run
    from tmapipe.timeline.trace import Trace


_ON_THE_HOST = ("checked",)  # attributes on which no plan and no kernel depends
# Attributes in which a schedule keeps what it has derived from the others.
_MADE = ("_declared", "_plans", "_compiled", "_launchers", "_callers", "_again", "_partly", "_reads")


class Schedule(Calls):
    """Base of all schedules.

    Parts are attributes, of a class or of an instance, and have the attributes' names. A subclass or an instance replaces a
    part by assigning another one to its name, and removes it by assigning None. When an attribute is assigned to, plans and
    kernels are made anew. So they are by the next call after something has changed that bodies refer to: a captured number,
    a global, an item of a dictionary, an attribute of an object. Two schedules are equal if their types, declarations and
    attributes are equal.

    Attributes:
        cluster: How many CTAs a cluster has along dimensions of the output's tile grid, the first varying fastest:
            ``{"m": 2, "n": 1}``. Empty: no clusters.
        tiles: The tile scheduler, such as ``DynamicTiles(Snake(8))``.
        arch: The target to plan for, such as "sm_90a" or "sm_80".
        checked: Whether `check` must pass before the schedule is first compiled for a launch.
        watchdog: Seconds after which a wait on the GPU ends with a `DeadlockError` (docs/howto.md); None or 0: never.
        over: Dimensions of the grid of output tiles, such as "m n"; None: the dimensions of the first store.
        relations: A `Dim` for each dimension whose extent is fixed or follows from another dimension.
        transposed: Names of stages whose tensors are passed with the last two dimensions in the other order than the stage
            declares them. For example, a is passed as [m, k], and stage "k m" loads tiles that are contiguous along m.
        optional_roles: Roles by name that only some instances have. The body of a role that an instance lacks is left out.
    """

    cluster: Mapping[str, int] = MappingProxyType({})
    tiles: TileOrder = PersistentTiles()
    arch = "sm_90a"
    checked = True
    watchdog: float | None = None
    over: str | None = None
    relations: tuple[Dim, ...] = ()
    transposed: tuple[str, ...] = ()
    optional_roles: Mapping[str, Role] = MappingProxyType({})
    one_kernel = True  # whether a call launches one kernel, with the call's own tensors

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name, value in vars(cls).items():
            _check_free(name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        _check_free(name, value)
        self._forget(name)
        object.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        self._forget(name)
        object.__delattr__(self, name)

    def _forget(self, name: str) -> None:
        """Drops what was derived from the attribute called *name*, which changes: plans and kernels, since bodies read
        attributes. Keeps the name of a part that is replaced, since other parts may refer to it."""
        before = self.__dict__.get(name)
        if isinstance(before, PARTS):
            self.__dict__["_earlier"] = (*self.__dict__.get("_earlier", ()), (name, before))
        if name not in _ON_THE_HOST:
            for made in _MADE:
                self.__dict__.pop(made, None)

    def _refresh(self) -> None:
        """Drops the same if what bodies refer to has changed: a captured value, a global, an item of a dictionary."""
        reads = self.__dict__.get("_reads")
        if reads is not None and reads.changed():
            self._forget("_reads")

    def __eq__(self, other: object) -> bool:
        """Whether both have one type, the same declarations and the same attributes but for `checked`: then their kernels are
        the same. `tmapipe.plan.declarations` says when parts are the same."""
        if not isinstance(other, Schedule) or type(self) is not type(other):
            return NotImplemented
        names = sorted({*vars(self), *vars(other)} - {*_MADE, *_ON_THE_HOST, "_earlier"})
        of_self, of_other = ({n: getattr(of, n, None) for n in names} for of in (self, other))
        return same(self.declared, other.declared, of_self, of_other)

    def __hash__(self) -> int:
        """The hash of the declarations. A schedule that is the key of a dictionary must not be changed."""
        return hash(key_of(self.declared))

    def __repr__(self) -> str:
        """The schedule's type, with each part and its type; if the parts do not go together, "..." in their place."""
        try:
            parts = ", ".join(f"{name}: {type(part).__name__}" for name, part in self.declared.parts.items())
        except InputError:
            parts = "..."
        return f"{type(self).__name__}({parts})"

    def __getstate__(self) -> dict[str, Any]:
        """The attributes that copies and pickles get: no plans and no kernels. The names of all parts go with them, since the
        copy of a part has another identity than the part."""
        state = {name: value for name, value in vars(self).items() if name not in _MADE}
        return {**state, "_earlier": tuple((name, part) for part, name in self.declared.names.items())}

    # ---- declarations and plan ------------------------------------------------------------------------------------

    @property
    def declared(self) -> Declarations:
        """The declared parts by kind, in the order of declaration; parts of base classes come first."""
        declarations = self.__dict__.get("_declared")
        if declarations is None:
            check_roles("Schedule.optional_roles", self.optional_roles)
            earlier = (*self.optional_roles.items(), *self.__dict__.get("_earlier", ()))
            declarations = with_order(self, declare(self, self.cluster, earlier))
            object.__setattr__(self, "_declared", declarations)
        return declarations

    def plan(self, dtypes: Mapping[str, DType | str] | None = None, *, arch: str | None = None) -> Plan:
        """Every derived number.

        Args:
            dtypes: Element types of the tensors by stage name; bf16 where neither this nor the stage says.
            arch: The target; by default the schedule's.

        Raises:
            InputError: For declarations that no correct kernel could be built for.
        """
        types = {name: as_dtype(dtype) for name, dtype in self._named({} if dtypes is None else dtypes).items()}
        plans: dict[Any, Plan] = self.__dict__.setdefault("_plans", {})
        target = arch_named(self.arch if arch is None else arch).name
        key = (target, *sorted((name, dtype.name) for name, dtype in types.items()))
        if key not in plans:
            check_axes(self.declared, self.over)
            check_relations(self.declared)
            made = make_plan(self.declared, types, target, self.tiles.room(target), self.tiles.least_ctas())
            self.tiles.check(self.declared, axes_of(self.declared, self.over))
            self.tiles.check_plan(made)
            self.check_plan(made)
            plans[key] = made
        return plans[key]

    def check_plan(self, plan: Plan) -> None:
        """Raises `InputError` for a new plan that no kernel should be built from. For subclasses that have rules of their
        own."""

    def _named(self, dtypes: Mapping[str, Any]) -> Mapping[str, Any]:
        """*dtypes*. Raises `InputError` for a name that no tensor of a call has."""
        known = {**self.declared.stages, **self.declared.stores, **self.declared.tables}
        if not isinstance(dtypes, Mapping):
            raise InputError("dtypes", dtypes, "is a dictionary of element types by stage name", 'e.g. {"a": "bf16"}')
        for name in dtypes:
            rule = f"names no stage; the stages are {', '.join(known) or 'none'}"
            require(name in known, f"dtypes[{name!r}]", dtypes[name], rule, "rename it, or leave it out")
        return dtypes

    def explain(self, dtypes: Mapping[str, DType | str] | None = None, *, arch: str | None = None) -> str:
        """Every derived number with its formula, as text. The arguments are those of `plan`."""
        from tmapipe.program.explain import explain

        return explain(self, self.plan(dtypes, arch=arch))

    def program(self, dtypes: Mapping[str, DType | str] | None = None, *, arch: str | None = None) -> str:
        """The traced program as text: role by role, its loops and operations, with the lines of the bodies. The model, the
        proof and the GPU read this program. The arguments are those of `plan`.

        Raises:
            ScopeError: A body does what is not traced; names its line.
        """
        from tmapipe.program import listing, trace

        return listing(trace(self, self.plan(dtypes, arch=arch)))

    def check(
        self, dtypes: Mapping[str, DType | str] | None = None, *, arch: str | None = None, seconds: float | None = None
    ) -> Report:
        """Proves on the CPU that this schedule cannot hang, race or corrupt, or reports what can go wrong.

        The proof covers every trip count, interleaving and CTA. A finding in the report says at which line it is, and what to
        change. See docs/internals/checker.md. After 5 seconds the check says on a terminal what it is doing.

        Args:
            dtypes: As in `plan`.
            arch: As in `plan`.
            seconds: How long the proof may take, once the bodies are traced; None: as TMAPIPE_CHECK_SECONDS says, or else as
                long as it needs. What it has not decided by then is "not shown", or shown "up to n" trips.

        Raises:
            InputError: `seconds` is no positive number.
        """
        from tmapipe.prove import check_schedule

        return check_schedule(self, dtypes, arch, seconds=seconds)

    @property
    def axes(self) -> dict[str, Axis]:
        """The dimensions of the grid of output tiles, the last one varying fastest."""
        return axes_of(self.declared, self.over)

    def grid(self, extent: Callable[[str, int], Any]) -> dict[str, Any]:
        """How many output tiles there are, by dimension.

        Args:
            extent: Function of (stage, i): the extent (elements) of the stage's tensor along its i-th dimension, on the host
                or in the kernel.
        """
        return self.tiles.grid(self.axes, extent, self.cluster)

    def tile_slots(self, k: KernelContext, tile: Tile) -> Any:
        """How many slots of a ring the output tile *tile* takes. *k* is as in bodies.

        A schedule whose consumers work in teams overrides it, since each team skips the slots of the other teams' tiles.
        """
        return 1

    def ring_slots(self, k: KernelContext, ring: str, tile: Tile) -> Any:
        """How many slots of the ring called *ring* a tile takes, for schedules whose rings differ. By default as many as
        `tile_slots` says. The arguments are those of `tile_slots`: *k*, *tile*."""
        return k.isa.evaluate(self.tile_slots, k, tile)

    def empty_value(self, bound: Bound) -> Any:
        """The value of the output if an input has no elements, such as a sum over no k: no kernel runs then. *bound* has the
        tensors. By default 0, if no other input has elements either.

        A number, an array that broadcasts to the output, or a dictionary of numbers and arrays by output.

        Raises:
            InputError: Another input has elements, and the schedule does not say here what they come to.
        """
        whole = [name for name, shape in bound.shapes.items() if 0 not in shape]
        stored = [name for name in bound.stores if name in whole and name not in bound.added_to]
        others = [name for name in self.declared.inputs if name in whole]
        if stored and others:
            name = next(name for name, shape in bound.shapes.items() if 0 in shape)
            rule = f"has no elements, but {others[0]} has, on which {stored[0]} may depend"
            fix = "define empty_value(self, bound) in the schedule, e.g. return 0.0 for a sum of nothing"
            raise InputError(f"{name}.shape", bound.shapes[name], rule, fix)
        return 0.0

    # ---- running --------------------------------------------------------------------------------------------------

    def simulate(
        self,
        *tensors: Any,
        out: Any = None,
        clusters: int | None = None,
        seed: int = 0,
        trace: bool = False,
        **named: Any,
    ) -> Run:
        """Runs CPU tensors or NumPy arrays on the machine model. Returns a `Run`, which has counts of what happened.

        Args:
            tensors: As in a call.
            out: As in a call.
            clusters: How many clusters the grid has, 1 to 1024; by default up to 2, so that persistent CTAs get more than one
                tile. Leave it out with `GridTiles`, which says how many there are.
            seed: Chooses the order in which the model's agents take their steps.
            trace: Whether to keep every step with its source line, for `Run.timeline`. (`Schedule.trace` has times too.)
            named: As in a call.

        Raises:
            InputError: For tensors that do not fit.
            DeadlockError: If no warp can go on.
            HazardError: For an access that the hardware would not order.
        """
        check_clusters(clusters)
        require(not isinstance(seed, bool) and isinstance(seed, int), "seed", seed, "is a whole number", "e.g. 3")
        check_bool("trace", trace)
        bound = self.bind(*tensors, out=out, **named)
        run = self._simulate(bound, clusters, seed, trace)
        note_written(bound.outputs)
        return run

    def bind(self, *tensors: Any, out: Any = None, **named: Any) -> Bound:
        """The tensors of a call by stage. The arguments are those of `__call__`. Nothing runs. Raises `InputError`
        for tensors that a call would refuse."""
        self._refresh()
        tensors, named = as_declared(self, tensors, named)
        bound = tensors_.bind(self, tensors, named, out)
        check_rows(self.declared, self.axes, bound.shapes)
        return bound

    def trace(self, *tensors: Any, out: Any = None, clusters: int | None = None, **named: Any) -> Trace:
        """A timeline: when each operation runs, and for which operation each wait waits.
        ``trace(...).write_timeline("page.html")`` draws it.

        For CUDA tensors, another kernel runs, whose roles stamp the clock (docs/timeline.md). CPU tensors and NumPy arrays run
        on the machine model, with a cost model of an H200. The findings of the check are drawn in too. If the schedule hangs,
        the timeline ends where it hangs.

        Args:
            tensors, out, named: As in `simulate`.
            clusters: On the model as in `simulate`; at most the first two clusters are drawn. On the GPU, how many clusters
                are drawn, by default two; of tiles that are shared out in advance, the first third.

        Raises:
            InputError: For tensors that do not fit.
        """
        from tmapipe.timeline.trace import trace

        check_one_kernel(self, "trace")
        check_clusters(clusters)
        bound = self.bind(*tensors, out=out, **named)
        traced = trace(self, bound, clusters)
        note_written(bound.outputs)
        return traced

    def _simulate(self, bound: Bound, clusters: int | None = None, seed: int = 0, trace: bool = False) -> Run:
        from tmapipe.model import Machine
        from tmapipe.model.layout import Layout
        from tmapipe.model.run import Run

        if bound.empty:
            bound.fill_outputs(self.empty_value(bound))
            return Run(Layout(self.plan(bound.dtypes)), trace)
        return on_model(self, bound, clusters, functools.partial(Machine, seed=seed, trace=trace))

    def cluster_count(self, shapes: dict[str, tuple[int, ...]]) -> int:
        """How many clusters can work at once on the output's tile grid, for tensors of these *shapes*.

        Raises:
            InputError: There are more tiles than a kernel can number.
        """
        clusters = self.tiles.clusters(self.grid(lambda name, i: shapes[name][i]), self.declared.cluster)
        tiles = clusters * math.prod(self.declared.cluster.values())
        rule = f"are too many: numbers of a kernel have 32 bits, so there are at most {MOST_TILES}"
        require(tiles <= MOST_TILES, "tiles of the output", tiles, rule, "declare larger tiles")
        return clusters

    def spans(self, shapes: dict[str, tuple[int, ...]]) -> int | None:
        """How many clusters a launch must have, for tensors of these *shapes*; None: any number of clusters share the
        tiles."""
        return self.tiles.spans(self.cluster_count(shapes))

    def compile(
        self, dtypes: Mapping[str, DType | str] | None = None, *, arch: str | None = None, unroll: bool = True
    ) -> Compiled:
        """Compiles the schedule. Nothing runs, and no GPU is needed.

        Args:
            dtypes: As in `plan`.
            arch: As in `plan`.
            unroll: False: no run-time loop is unrolled, so that the kernel is easy to read.

        Raises:
            InputError: As in `plan`, or *unroll* is neither True nor False.
            MissingPackageError: CuTe DSL is not installed.

        Returns:
            The kernel with its PTX, cubin and resource usage.
        """
        check_bool("unroll", unroll)
        plan = self.plan(dtypes, arch=arch)
        with needed("cutlass", "nvidia-cutlass-dsl", "to compile a kernel"):
            from tmapipe.gpu.build import build
        return build(self, plan, keep=True, unroll=unroll, instrument="watch" if self.watchdog else "")


def _check_free(name: str, value: Any) -> None:
    """Raises `InputError` for a part that has the name of an attribute or a method of every schedule."""
    if isinstance(value, PARTS) and hasattr(Schedule, name):
        raise InputError(name, value, "is the name of something that every Schedule has", "rename the part")
