"""Which TMA operations `cute.copy` lets one lane issue by itself: the table `COPY_ELECTS`, read off the PTX.

Where it does, electing again nests two elections; where it does not, every lane would ask for the copy.
"""

import pytest

from tests.emit.kernels import KERNELS, build, built
from tmapipe.gpu import isa

KERNEL_OF = {
    "load": "copy swizzled 32, 3 blocks of rows",
    "store": "copy swizzled 32, 3 blocks of rows",
    "reduce": "reduce",
}


def issued(kernel, operation, lane):
    warp = 0 if operation == "load" else 1
    facts = kernel.ptx.facts(warp, lane)
    return sum({"load": facts.loads, "store": facts.stores, "reduce": facts.reduces}[operation].values())


def elections(kernel):
    return sum(instruction.is_a("elect") for instruction in kernel.ptx.instructions)


@pytest.mark.parametrize("operation", isa.COPY_ELECTS)
def test_one_lane_issues(operation):
    kernel = built(KERNEL_OF[operation])
    assert issued(kernel, operation, 0) == 1
    assert issued(kernel, operation, 5) == 0


def test_store_is_not_elected_by_the_copy(monkeypatch):
    """If this fails, a new version of the DSL elects for stores: set the table's entry to True."""
    elected = built(KERNEL_OF["store"])
    monkeypatch.setitem(isa.COPY_ELECTS, "store", True)
    bare = build(KERNELS[KERNEL_OF["store"]])
    assert issued(bare, "store", 5) == 1
    assert elections(elected) == elections(bare) + 1


def test_reduce_is_elected_by_the_copy(monkeypatch):
    """If this fails, a new version of the DSL does not elect for reductions: set the table's entry to False."""
    bare = built(KERNEL_OF["reduce"])
    monkeypatch.setitem(isa.COPY_ELECTS, "reduce", False)
    nested = build(KERNELS[KERNEL_OF["reduce"]])
    assert issued(bare, "reduce", 5) == 0
    assert elections(nested) == elections(bare) + 1


def test_load_is_elected_by_the_copy():
    """GpuIsa.tma_load elects nobody: the initialization of each array of barriers, arming and the load have one election."""
    kernel = built(KERNEL_OF["load"])
    loader = kernel.ptx.reached(0, 0)
    assert sum(i.is_a("elect") for i in loader) == len({name for name, _ in kernel.ptx.facts(0).inits}) + 1 + 1
