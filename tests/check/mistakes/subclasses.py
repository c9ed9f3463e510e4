"""Subclasses of shipped schedules: the lines are those of the subclass, though the shipped bodies do what goes wrong."""

from tests.check.mistakes.form import Mistake
from tmapipe.check import Kind

STORED = "        k.d.store(tile, sums.accumulators, lambda acc: tp.math.maximum(acc, 0.0) / 2)\n"
AGREE = "enter as many slots of ring for each tile, in loops of the same count"

MISTAKES = (
    Mistake(
        "a replaced body begins at 1",
        "own_gemm",
        {
            "    def fill(self, k, tile):": "    def fill(self, k, tile):  # <- here",
            "for step in range(steps):": "for step in range(1, steps):",
        },
        Kind.TRIP_COUNTS,
        f"let load and math {AGREE}",
    ),
    Mistake(
        "a replaced body loads one operand",
        "own_gemm",
        {
            "with k.ring.produce() as slot:": "with k.ring.produce() as slot:  # <- here",
            "                slot.b.load(tile, k=steps - 1 - step)\n": "",
        },
        Kind.DEADLOCK,
        "start the load of b in each slot",
    ),
    Mistake(
        "calls the shipped body twice",
        "own_gemm",
        {
            "        super().multiply(k, tile)\n": "        super().multiply(k, tile)  # <- here\n"
            "        super().multiply(k, tile)  # <- here\n"
        },
        Kind.TRIP_COUNTS,
        f"let load and math {AGREE}",
    ),
    Mistake(
        "takes a slot before the shipped body",
        "own_gemm",
        {
            "        super().multiply(k, tile)\n": "        with k.ring.consume():  # <- here\n            pass\n"
            "        super().multiply(k, tile)  # <- here\n"
        },
        Kind.TRIP_COUNTS,
        f"let load and math {AGREE}",
    ),
    Mistake(
        "stores a tile with two epilogues",
        "own_gemm",
        {STORED: STORED.replace("\n", "  # <- here\n") + "        k.d.store(tile, sums.accumulators)  # <- here\n"},
        Kind.OUTPUT_RACE,
        "store each place",
    ),
    Mistake(
        "stores before the shipped epilogue",
        "own_gemm",
        {
            STORED: "        k.d.store(tile, sums.accumulators, lambda acc: acc / 2)  # <- here\n"
            "        super().store(k, tile, sums)  # <- here\n"
        },
        Kind.OUTPUT_RACE,
        "store each place",
    ),
    Mistake(
        "an epilogue that needs the whole row",
        "own_gemm",
        {STORED: "        k.d.store(tile, sums.accumulators, lambda acc: acc / tp.math.row_sum(acc))  # <- here\n"},
        None,
        r"Use acc\.values\(\)",
    ),
    Mistake(
        "an epilogue of two arguments",
        "own_gemm",
        {STORED: "        k.d.store(tile, sums.accumulators, lambda acc, bias: acc + bias)  # <- here\n"},
        None,
        "bias",
    ),
    Mistake(
        "a slot of the shipped ring after its block",
        "own_copy",
        {
            "        super().fill(k, tile)\n": "        with k.ring.produce() as slot:\n            pass\n"
            "        slot.x.load(tile)  # <- here\n"
        },
        None,
        "Move the use into the block",
    ),
    Mistake(
        "a replaced body that does nothing",
        "own_copy",
        {
            "    def drain(self, k, tile):\n        super().drain(k, tile)": "    def drain(self, k, tile):  # <- here\n"
            "        pass"
        },
        Kind.TRIP_COUNTS,
        f"let load and store {AGREE}",
    ),
    Mistake(
        "calls the shipped body for some tiles",
        "own_copy",
        {
            "    def fill(self, k, tile):\n        super().fill(k, tile)": "    def fill(self, k, tile):  # <- here\n"
            "        if tile.m > 0:\n            super().fill(k, tile)"
        },
        Kind.TRIP_COUNTS,
        f"let load and store {AGREE}",
    ),
    Mistake(
        "leaves out the turns of epilogues",
        "own_turns",
        {
            "    def epilogue_turn(self, k):\n        return super().epilogue_turn(k)": "    def epilogue_turn(self, k):  "
            "# <- here\n        return contextlib.nullcontext()"
        },
        Kind.RACE,
        "in turns",
    ),
)
