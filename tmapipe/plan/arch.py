"""What differs between GPU architectures and matters to a plan."""

from __future__ import annotations

import attrs

from tmapipe.errors import InputError

__all__ = ["SM_RESERVED", "Arch", "arch_named"]

SM_RESERVED = 1024  #: bytes of shared memory that the system takes for each CTA


@attrs.frozen
class Arch:
    """What the planner needs to know of an architecture (CUDA programming guide, table of compute capabilities).

    Args:
        name: As the compiler spells it.
        smem: Shared memory that a CTA can have (bytes), without the 1 KB of the SM's own.
        wgmma: Whether there are warpgroup matmuls.
        max_cluster: CTAs of the largest cluster.
        tma: Whether there are engines that copy, and with them byte counts of mbarriers, clusters, proxy fences, setmaxnreg
            and dependent launches: all that came with sm_90.
        gather4: Whether the engine loads four rows of a matrix at once by their numbers.
        scatter4: Whether it stores them so.
        fp8: Whether threads convert 8-bit floats.
        registers: Of an SM, of 32 bits each.
    """

    name: str
    smem: int
    wgmma: bool
    max_cluster: int
    tma: bool = True
    gather4: bool = False
    scatter4: bool = False
    fp8: bool = True
    registers: int = 65536


_ARCHS = {
    "sm_80": Arch("sm_80", 163 * 1024, wgmma=False, max_cluster=1, tma=False, fp8=False),
    "sm_86": Arch("sm_86", 99 * 1024, wgmma=False, max_cluster=1, tma=False, fp8=False),
    "sm_89": Arch("sm_89", 99 * 1024, wgmma=False, max_cluster=1, tma=False),
    "sm_90a": Arch("sm_90a", 227 * 1024, wgmma=True, max_cluster=16),
    "sm_100a": Arch("sm_100a", 227 * 1024, wgmma=False, max_cluster=16, gather4=True, scatter4=True),
    "sm_103a": Arch("sm_103a", 227 * 1024, wgmma=False, max_cluster=16, gather4=True, scatter4=True),
    "sm_120a": Arch("sm_120a", 99 * 1024, wgmma=False, max_cluster=8, gather4=True),
}


def arch_named(name: str) -> Arch:
    """The architecture called *name*. Raises `InputError` for one unknown to the library."""
    if not isinstance(name, str) or name not in _ARCHS:
        raise InputError("arch", name, "is one of " + ", ".join(_ARCHS), "use sm_90a for an H100 or H200")
    return _ARCHS[name]
