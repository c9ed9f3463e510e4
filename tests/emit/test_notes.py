"""What ptxas notes: matmuls that it serializes are refused, and spilled registers are warned of."""

import pytest

import tmapipe as tp
from tests.matmul_shelf import FromZero, Written
from tmapipe.gpu.notes import check_notes


class UsedInFlight(FromZero):
    """Threads use the accumulators between two wgmmas, by way of the instruction set."""

    math = FromZero.math

    @math.jit
    def multiply(self, k, tile):
        with k.ring.consume() as slot:
            product = k.mma.start(slot.a, slot.b)
            registers = product.accumulator.registers
            registers.multiply([2.0] * 32)
            k.isa.wgmma_fence()
            k.isa.wgmma(product.accumulator.matmul, registers, slot.a.ref, slot.b.ref)
            k.isa.wgmma_commit()
            product.wait()
        k.d.store(tile, product.accumulator)


def test_serialized_matmuls_are_refused():
    with pytest.raises(tp.InputError, match=r"C751\d.*UsedInFlight|UsedInFlight.*C751\d") as info:
        UsedInFlight().compile(arch="sm_90a")
    assert "after .wait()" in info.value.fix


def test_spilled_registers_are_warned_of():
    class Narrow(Written):
        """Two warps hold 64 values a thread, with 40 registers."""

        double = tp.Role(warps=2)

    with pytest.warns(
        RuntimeWarning,
        match=r"Narrow: ptxas spills \d+ .* Role double, with 40 .* holds 64 for fragments at .*matmul_shelf.py:122",
    ):
        Narrow().compile(arch="sm_90a")


@pytest.mark.parametrize(
    "note", ["(C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized", "(C7519) x"]
)
def test_notes(tmp_path, note):
    plan = FromZero().plan(arch="sm_90a")
    check_notes(plan, tmp_path / "none")
    (tmp_path / "notes").write_text(f"ptxas info : {note} in function 'kernel'\n0 bytes spill stores\n")
    with pytest.raises(tp.InputError, match=note[1:6]):
        check_notes(plan, tmp_path / "notes")
