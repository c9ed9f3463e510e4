"""Kernels are kept: a kernel is compiled once, in all processes, however many schedules it belongs to.

It is known by its identity (`tmapipe.program.identity`), the number of dimensions of its tensors, the library's source, and
CuTe DSL's version, which says that of ptxas. On disk it is an object file with what ptxas has noted.
"""

from __future__ import annotations

import functools
import hashlib
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import attrs
import cutlass

from tmapipe import disk
from tmapipe.errors import PipelineError
from tmapipe.gpu.build import Compiled, build
from tmapipe.gpu.notes import Resources
from tmapipe.gpu.objects import Code
from tmapipe.plan.model import Plan
from tmapipe.program.identity import identity
from tmapipe.program.trace import ONE_AT_A_TIME, Traced, trace

if TYPE_CHECKING:
    from tmapipe.schedule import Schedule

__all__ = ["kept", "kernel_for"]

MOST = 256  # kernels that the process keeps, beside those of schedules that are in use
kept: OrderedDict[str, Compiled] = OrderedDict()  #: this process's kernels, by name
_lock = threading.RLock()


def kernel_for(
    schedule: Schedule,
    plan: Plan,
    ranks: Mapping[str, int],
    gate: Callable[[Traced | None, str | None], object] = lambda program, identity: None,
) -> Compiled:
    """The compiled kernel: one of this process's, from disk, or new.

    Args:
        plan: The schedule's plan.
        ranks: Number of dimensions of each tensor.
        gate: Called with the traced program and its identity before the kernel is used. It raises an error for one that is
            not to be.
    """
    try:
        with ONE_AT_A_TIME:
            program = trace(schedule, plan)
    except PipelineError:
        gate(None, None)  # which says where it stands
        raise
    known = identity(program)
    make = functools.partial(build, schedule, plan, dict(ranks), program=program)
    if known is None:
        gate(program, None)
        return make()
    with _lock:
        name = _name(known, ranks)
        found = kept.get(name) or _on_disk(name, plan)
        if found is not None:
            gate(program, known)
        else:
            with disk.locked(disk.lock_of(name)):  # others wait, and find it on disk
                gate(program, known)
                found = _on_disk(name, plan)
                if found is None:
                    found = make()
                    disk.keep("kernels", name, {"used": found.used and attrs.asdict(found.used)}, found.code.object)
        kept[name] = found
        kept.move_to_end(name)
        while len(kept) > MOST:
            kept.popitem(last=False)
        return found


def _name(known: str, ranks: Mapping[str, int]) -> str:
    return hashlib.sha256(repr((known, sorted(ranks.items()), _versions())).encode()).hexdigest()


@functools.cache
def _versions() -> tuple[Any, ...]:
    """What compiles, beside the program."""
    options = sorted((name, value) for name, value in os.environ.items() if name.startswith("CUTE_DSL_"))
    return disk.library(), cutlass.__version__, str(cutlass.CUDA_VERSION), options


def _on_disk(name: str, plan: Plan) -> Compiled | None:
    found = disk.recall("kernels", name)
    if found is None:
        return None
    facts, content = found
    used = facts.get("used")
    fields = {field.name for field in attrs.fields(Resources)}
    sound = isinstance(used, dict) and set(used) == fields and all(type(value) is int for value in used.values())
    return Compiled(plan, Code(lambda: content), Resources(**used) if sound and used else None)
