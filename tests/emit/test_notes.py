"""What ptxas notes: matmuls that it serializes are refused, and spilled registers are warned of."""

import pytest

import tmapipe as tp
from tests.matmul_schedules import FromZero, Written
from tmapipe.gpu.build import check_notes


class UsedInFlight(FromZero):
    """Threads use the accumulators between two wgmmas, by way of the instruction set."""

    math = FromZero.math

    @math.jit
    def multiply(self, k, tile):
        with k.ring.consume() as slot:
            product = k.mma.start(slot.a, slot.b)
            registers = product.accumulator.registers
            k.isa.fragments.accumulator_scale(product.accumulator.matmul, registers, k.full("mma", 2.0, "rows"))
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
        match=r"Narrow: ptxas spills \d+ .* Role double, with 40 .* holds 64 for fragments at .*matmul_schedules.py:151.*"
        r"Role\(registers=96\)",
    ):
        used = Narrow().compile(arch="sm_90a").resources
    assert used.registers and used.spill_bytes


@pytest.mark.parametrize(
    ("columns", "warps", "reason"),
    [
        (16384, 8, "Role load loads 64 boxes a slot, and each one's coordinates take registers. .* BulkLoadStage"),
        (4096, 8, "Role work, with 168 registers a thread, holds 16 for fragments at .*more warps"),
        (16384, 4, "Role work, with 168 registers a thread, holds 200 for fragments at .*more warps"),
    ],
)
def test_what_the_warning_says_the_registers_are_for(tmp_path, columns, warps, reason):
    """As ptxas notes them: they are fewer than the sums and fragments of any role, or there are many boxes."""

    class Row(tp.Schedule):
        load, work = tp.Role(warps=1), tp.Role(warps=warps)
        ring = tp.BarrierRing(1, producer=load, consumer=work)
        x = tp.TmaLoadStage("m n", tile=(1, columns), ring=ring)
        y = tp.TmaStoreStage("m n", tile=(1, columns), role=work, stages=1)

        @load.jit
        def fill(self, k, tile):
            with k.ring.produce() as slot:
                slot.x.load(tile)

        @work.jit
        def drain(self, k, tile):
            with k.ring.consume() as slot:
                values = slot.x.read()
            k.y.store(tile, values)

    held = {"work": (200 if warps == 4 else 16 * columns // 4096, "mine.py:3")}
    (tmp_path / "notes").write_text(
        "1600 bytes stack frame, 1548 bytes spill stores, 1544 bytes spill loads\nUsed 168 registers, used 4 barriers\n"
    )
    with pytest.warns(RuntimeWarning, match=f"Row: ptxas spills 1548 bytes .*{reason}"):
        used = check_notes(Row().plan(), tmp_path / "notes", lambda: held)
    assert used is not None and (used.registers, used.spill_bytes) == (168, 1600)


@pytest.mark.parametrize(
    "note", ["(C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized", "(C7519) x"]
)
def test_notes(tmp_path, note):
    plan = FromZero().plan(arch="sm_90a")
    assert check_notes(plan, tmp_path / "none") is None
    (tmp_path / "notes").write_text(f"ptxas info : {note} in function 'kernel'\n0 bytes spill stores\n")
    with pytest.raises(tp.InputError, match=note[1:6]):
        check_notes(plan, tmp_path / "notes")
