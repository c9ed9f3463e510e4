"""Raw CuTe DSL in a role compiles into the kernel, between the fences that the ring derives."""

import inspect

import cutlass.cute as cute
import pytest

import tmapipe as tp
from tests.raw_rows import Doubled, double_on_cpu


def test_raw_code_is_in_the_kernel():
    compiled = Doubled().compile({"x": "bf16", "y": "bf16"})
    assert "ld.shared" in compiled.ptx and "st.shared" in compiled.ptx
    assert "fence.proxy.async.shared::cta" in compiled.ptx
    assert compiled.resources.spill_bytes == 0


def rejected(rows):
    cute.composition(cute.make_layout((4, 6), stride=(1, 8)), cute.make_layout(5, stride=3))


class Wrong(Doubled):
    """Calls CuTe DSL with what its compiler rejects."""

    work = Doubled.work

    @work.jit
    def double(self, k, tile):
        with k.ring.consume() as slot:
            k.raw(rejected, double_on_cpu, updates=(slot.x,))


def test_what_the_dsl_rejects_is_named_by_its_line():
    line = inspect.getsourcelines(rejected)[1] + 1
    with pytest.raises(
        tp.ScopeError, match=rf"(?s)test_raw\.py:{line}: rejected\(\) of k\.raw raised MLIRError: .*composition"
    ):
        Wrong().compile({"x": "bf16", "y": "bf16"})
