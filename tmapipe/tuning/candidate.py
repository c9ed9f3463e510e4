"""A schedule as plain data that can be counted, compared, stored and built."""

from __future__ import annotations

import warnings
from typing import Any

import attrs

from tmapipe.dtypes import tf32
from tmapipe.epilogue.epilogue import Epilogue
from tmapipe.epilogue.operands import Matrix
from tmapipe.errors import InputError
from tmapipe.fields import is_count, must
from tmapipe.integers import ceil_div
from tmapipe.schedules.gemm import Gemm
from tmapipe.schedules.mainloop import Cooperative
from tmapipe.schedules.operand import Operand
from tmapipe.tiles.gpc import GpcTiles
from tmapipe.tiles.persistent import PersistentTiles
from tmapipe.tiles.raster import Grouped, Hilbert, Snake
from tmapipe.tiles.splitk import SplitKTiles
from tmapipe.tuning import epilogues
from tmapipe.tuning.epilogues import PLAIN
from tmapipe.tuning.problem import Problem

__all__ = ["SWIZZLE_SPAN", "Candidate", "order_of", "own_buffers", "slots_of"]

SWIZZLE_SPAN = 128  # bytes along k of one slot
BUFFER = 64 * 128  # bytes of an output buffer
NARROW = 32  # columns of a piece where a matrix takes a slot of a and b, and one output buffer saves none


_pair = must(
    lambda pair: isinstance(pair, tuple) and len(pair) == 2 and all(map(is_count, pair)),
    "is two positive numbers, along m and n",
    "e.g. (128, 128)",
)


def _named(options: Any) -> bool:
    pairs = isinstance(options, tuple) and all(isinstance(pair, tuple) and len(pair) == 2 for pair in options)
    return pairs and all(isinstance(name, str) for name, _ in options)


@attrs.frozen
class Candidate:
    """A schedule as data.

    Args:
        schedule: Name of a class in `tmapipe.schedules`.
        tile: (m, n) elements of a CTA's output tile.
        cluster: CTAs along (m, n), without those that share k.
        options: (name, value) of what else it is built with: "stages" of operands; "store_stages", buffers of a warpgroup;
            "order", a tile scheduler as ("Snake", 8), by GPC as ("Snake", 8, "gpc"); "l2_hints" and "outside", of (a, b);
            "store_hint", the L2 hint of whole outputs;
            "promote"; "in_turn" and "along", of the mainloop; "parts", of a split k, or CTAs of a cluster that share k, and
            then "clusters" of a tile; "spans", of 128 bytes of k in a slot.
            These names are kept on disk.
    """

    schedule: str
    tile: tuple[int, int] = attrs.field(validator=_pair)
    cluster: tuple[int, int] = attrs.field(validator=_pair)
    options: tuple[tuple[str, Any], ...] = attrs.field(
        default=(), validator=must(_named, "is pairs of a name and a value", 'e.g. (("spans", 2),)')
    )

    @property
    def parts(self) -> int:
        """Number of parts of k that a second kernel adds up."""
        return int(dict(self.options).get("clusters" if self.schedule == "ClusterSplitK" else "parts", 1))

    @property
    def sharing(self) -> int:
        """CTAs of a cluster that share the k of an output tile."""
        return int(dict(self.options)["parts"]) if self.schedule == "ClusterSplitK" else 1

    @property
    def ctas(self) -> int:
        """CTAs of a cluster."""
        return self.cluster[0] * self.cluster[1] * self.sharing

    @property
    def in_parts(self) -> bool:
        """Whether a second kernel adds up parts of k."""
        return self.schedule == "SplitK" or self.parts > 1

    @property
    def spans(self) -> int:
        """Spans of 128 bytes of k in a slot."""
        return int(dict(self.options).get("spans", 1))

    @property
    def slots(self) -> int:
        """Slots of the ring, at least one: what fits beside the output buffers."""
        chosen = dict(self.options)
        buffers = own_buffers(self.schedule, self.accumulators[0], chosen.get("in_turn", True)) * chosen.get(
            "store_stages", 2
        )
        if self.sharing > 1:
            buffers += ceil_div(4 * self.tile[0] * self.tile[1], BUFFER)  # sums of the other CTAs
        return min(chosen.get("stages", 99), max(1, slots_of(self.tile, buffers) // self.spans))

    @property
    def accumulators(self) -> tuple[int, int]:
        """Rows, which warpgroups share, and columns of the tile's accumulators."""
        return self.tile[::-1] if dict(self.options).get("along") == "n" else self.tile

    @property
    def by_gpc(self) -> bool:
        """Whether clusters of one GPC take tiles with consecutive numbers."""
        return "gpc" in dict(self.options).get("order", ())

    def build(self, problem: Problem, epilogue: Epilogue = PLAIN) -> Gemm:
        """The schedule.

        Raises:
            InputError: It cannot be planned for the problem's types, or not with the epilogue.
        """
        from tmapipe import schedules

        kind = getattr(schedules, self.schedule, None) if isinstance(self.schedule, str) else None
        if not (isinstance(kind, type) and issubclass(kind, Gemm)):
            raise InputError("Candidate(schedule)", self.schedule, "names a GEMM of tmapipe.schedules", 'e.g. "Gemm"')
        if self.in_parts and problem.batch > 1 and (epilogue.operands or epilogue.outputs):
            rule = "has no operands and one output, where parts of k of a batch are added"
            raise InputError("epilogue", epilogue.function, rule, "compute the rest apart")
        chosen = dict(self.options)
        stages, hint = chosen.pop("store_stages", epilogue.stages), chosen.pop("store_hint", epilogue.l2_hint)
        stored = attrs.evolve(epilogue, stages=stages, l2_hint=hint, dtype=problem.out)
        options: dict[str, Any] = self._operands(problem, chosen)
        if "order" in chosen:
            options["tiles"] = order_of(*chosen.pop("order"))
        if "clusters" in chosen:
            options["tiles"] = SplitKTiles(chosen.pop("clusters"))
        form: dict[str, Any] = {"cluster": self.cluster}
        if self.sharing > 1:
            form = {"along_m": self.cluster[0]}
        elif self.schedule != "PingPong":
            mainloop = {name: chosen.pop(name) for name in ("promote", "along") if name in chosen}
            options["mainloop"] = Cooperative(**mainloop)
        if epilogue.operands:  # a ping-pong with operands needs its epilogues in turn
            chosen.pop("in_turn", None)
        tile = *self.tile, chosen.pop("spans", 1) * SWIZZLE_SPAN // problem.dtype.bytes
        shape = form | chosen | {"tile": tile}

        def make(stored: Epilogue) -> tuple[int, Gemm]:
            made = kind(**shape, **(options | {"epilogue": stored}))
            with warnings.catch_warnings():  # of spills, which show when it is measured
                warnings.simplefilter("ignore")
                return made.plan(self.dtypes(problem, epilogue)).ring("ring").stages, made

        slots, made = make(stored)
        if not self.in_parts and any(isinstance(kind, Matrix) for kind in epilogue.operands.values()):
            for buffers, columns in ((1, None), (stages, NARROW), (1, NARROW)):
                more, other = make(attrs.evolve(stored, stages=buffers, columns=columns))
                if more > slots:
                    slots, made = more, other
        return made

    def _operands(self, problem: Problem, chosen: dict[str, Any]) -> dict[str, Operand]:
        """How a and b are loaded, by what is *chosen* for them."""
        dtype = "tf32" if problem.dtype == tf32 else None
        hints, outside = chosen.pop("l2_hints", (None, None)), chosen.pop("outside", ("zeros", "zeros"))
        each = zip("ab", problem.majors, hints, outside, strict=True)
        return {side: Operand(major, dtype=dtype, l2_hint=hint, outside=rest) for side, major, hint, rest in each}

    def dtypes(self, problem: Problem, epilogue: Epilogue = PLAIN) -> dict[str, Any]:
        """Element types by stage name, as the schedule's `plan` takes them, of *problem* with *epilogue*; of the first of two
        kernels."""
        found = {"a": problem.dtype, "b": problem.dtype}
        return found if self.in_parts else {**found, "d": problem.out, **epilogues.dtypes(problem, epilogue)}

    def ranks(self, problem: Problem, epilogue: Epilogue = PLAIN) -> dict[str, int]:
        """Number of dimensions of each tensor of *problem* with *epilogue*, by stage name: two, or three with a batch; of the
        first of two kernels."""
        several = 3 if problem.batch > 1 else 2
        if self.in_parts:
            return {"a": several, "b": several, "d": 3}
        return {"a": several, "b": several, "d": several, **epilogues.ranks(problem, epilogue)}

    def can_be_built(self, problem: Problem, epilogue: Epilogue = PLAIN) -> bool:
        """Whether `build` succeeds for *problem* with *epilogue*."""
        try:
            self.build(problem, epilogue)
        except InputError:
            return False
        return True

    def __str__(self) -> str:
        options = " ".join(f"{name} {value}" for name, value in self.options)
        return f"{self.schedule} {self.tile[0]}x{self.tile[1]} {self.cluster[0]}x{self.cluster[1]} {options}".strip()


def own_buffers(schedule: str, rows: int, in_turn: bool = True) -> int:
    """How many warpgroups have output buffers of their own, for accumulators of *rows* rows."""
    if schedule == "PingPong":
        return 1 if in_turn else 2
    return 2 if rows in (128, 256) else rows // 64


def slots_of(tile: tuple[int, int], buffers: int) -> int:
    """Slots of one span of k beside *buffers* output buffers of 64 rows by 128 bytes, in 227 KiB less the barriers."""
    return (226 * 1024 - buffers * BUFFER) // (sum(tile) * SWIZZLE_SPAN)


def order_of(raster: str, rows: int, near: str = "") -> PersistentTiles:
    """The tile scheduler that a candidate's "order" means."""
    kind = GpcTiles if near == "gpc" else PersistentTiles
    return kind({"Grouped": Grouped, "Snake": Snake, "Hilbert": Hilbert}[raster](rows))
