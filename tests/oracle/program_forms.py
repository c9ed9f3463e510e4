"""The programs of `examples/` as their mutants are judged: with their own roles, but few slots, on small problems."""

from __future__ import annotations

import copy
from collections.abc import Callable

import tmapipe as tp
from tests.oracle.registry import Registered
from tests.programs import PROGRAMS

__all__ = ["FORMS"]

#: Program -> its problems, as `Registered` has them. Left out are those that differ from these in types and extents alone.
PROBLEMS: dict[str, tuple[tuple[int, int, dict[str, int]], ...]] = {
    "softmax": ((1, 1, {}), (3, 1, {})),
    "softmax of short rows": ((1, 1, {}), (3, 1, {})),
    "rmsnorm": ((1, 1, {}), (3, 1, {})),
    "transpose": ((1, 1, {}), (3, 1, {})),
    "stencil": ((1, 1, {}), (3, 1, {})),
    "row_sums": ((1, 1, {}), (3, 1, {})),
    "histogram": ((1, 1, {}), (2, 3, {})),
    "ragged": ((1, 1, {}), (1, 6, {"g": 3})),
    "gemm_row_max": ((1, 3, {}),),
    "gemm_block_scaled": ((1, 3, {}),),
    "mlp": ((1, 2, {}),),
    "conv": ((1, 1, {}),),
    "dequant_gemm of int4": ((2, 3, {}),),
    "attention": ((1, 3, {}),),
    "attention of 64, causal": ((2, 3, {}),),
}


def small(make: Callable[[], tp.Schedule]) -> tp.Schedule:
    """What *make* makes, with two slots a ring and one buffer a store."""
    schedule = make()
    for name, part in {**schedule.declared.rings, **schedule.declared.stores}.items():
        most = 2 if isinstance(part, tp.BarrierRing) else 1
        if part.stages is None or part.stages > most:
            fewer = copy.copy(part)
            object.__setattr__(fewer, "stages", most)
            setattr(schedule, name, fewer)
    return schedule


def _registered(name: str) -> Registered:
    make = PROGRAMS[name].make
    return Registered(name, make, lambda: small(make), PROBLEMS[name])


FORMS = tuple(map(_registered, PROBLEMS))
