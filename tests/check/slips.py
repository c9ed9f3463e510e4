"""Kernels that store an output wrongly, each beside its right twin: one slip in a program of the examples, or of those in
which people make other mistakes."""

from __future__ import annotations

import pathlib

import attrs

from tests.check.mistakes.form import HERE, PROGRAMS
from tmapipe.check import Kind

__all__ = ["SLIPS", "Slip"]

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"
RACE, SAME, LEFT = Kind.OUTPUT_RACE, Kind.SAME_OUTPUT, Kind.UNWRITTEN


@attrs.frozen
class Slip:
    """One slip.

    name: what they did; program: a file of the examples, with what makes its schedule, or a name of PROGRAMS; change: as of
    `Mistake`; kind: of a finding (None: the library refuses it); on_model: whether the model, with random data, says so too.
    """

    name: str
    program: str
    change: dict[str, str]
    kind: Kind | None = RACE
    on_model: bool = True

    @property
    def right(self) -> str:
        """The text of the right twin, whose schedule is `Program()`."""
        if self.program in PROGRAMS:
            return PROGRAMS[self.program]
        file, _, made = self.program.partition(": ")
        return f"{(EXAMPLES / file).read_text()}\n\ndef Program():\n    return {made}\n"

    @property
    def wrong(self) -> str:
        """The text with the slip."""
        found = self.right
        for old, new in self.change.items():
            assert found.count(old) == 1, f"{self.program} has {found.count(old)} times {old!r}"
            found = found.replace(old, new)
        return found

    def lines(self) -> list[int]:
        """The numbers of the lines that a report may name first."""
        return [i for i, line in enumerate(self.wrong.splitlines(), 1) if line.endswith(HERE)]


def here(old: str, new: str = "") -> dict[str, str]:
    """A change of a store, *old*, which ends a line that a report may name; without *new*, of nothing else in it."""
    return {old: f"{new or old}  {HERE}"}


def further_in(old: str) -> dict[str, str]:
    """A store is within the loop before it."""
    return here(f"\n        {old}", f"\n            {old}")


SECOND_PASS = "k.y.store(tile.also(n=step), (h - done.mean.read(rows_of=h)) * done.scale.read(rows_of=h))"
BACK = 'for step in range(k.steps("x", "n")):\n                with k.back.'
ADDED = "when the parts of all CTAs have been added\n            "  # the line before, in one of two schedules
COUNTED = f"{ADDED}slot.y.store(tile.also(q=CTAS * tile.m + slot.sums.rank))"
AVERAGE = "k.y.store(tile, total * 0.2)"

SLIPS = (
    Slip(
        "forgets to add",
        "row_sums.py: RowSums()",
        {'role=work, reduce="add",': "role=work,", **here("k.y.store(tile, tp.math.row_sum(values))")},
    ),
    Slip(
        "each CTA of a cluster stores the sum",
        "row_sums.py: ClusterRowSums()",
        {'if k.rank("n") == 0:': "if True:", **here("k.y.store(tile, sums)")},
        SAME,
        on_model=False,
    ),
    Slip(
        "sums of parts, stored by one CTA of each cluster",
        "row_sums.py: ClusterRowSums()",
        {', group=tp.MulticastGroup("n"))': ")", **here("k.y.store(tile, sums)")},
        on_model=False,
    ),
    Slip(
        "tiles that start too close",
        "stencil.py: Stencil()",
        here(AVERAGE, "k.y.store_from(tile.m * 30, tile.n * 64, values=total * 0.2)"),
    ),
    Slip(
        "tiles that start too far apart",
        "stencil.py: Stencil()",
        here(AVERAGE, "k.y.store_from(tile.m * 34, tile.n * 64, values=total * 0.2)"),
        LEFT,
    ),
    Slip(
        "stores the interior alone",
        "stencil.py: Stencil()",
        here(AVERAGE, "k.y.store_from(tile.m * 32 + 1, tile.n * 64, values=total * 0.2)"),
        LEFT,
    ),
    Slip(
        "forgets a coordinate of the transpose",
        "transpose.py: transpose_of()",
        here("slot.y.store(tile)", "slot.y.store(tile, m=0)"),
    ),
    Slip("stores every step's counts", "histogram.py: Histogram()", further_in("k.h.store(tile, counts)")),
    Slip("stores every step's maximum", "gemm_row_max.py: GemmRowMax()", further_in("k.top.store(tile, top)")),
    Slip(
        "all steps store the first tile",
        "gemm_row_max.py: GemmRowMax()",
        here("k.d.store(tile.also(n=n), values)", "k.d.store(tile.also(n=0), values)"),
    ),
    Slip(
        "each tile of n loops over all of n",
        "gemm_row_max.py: GemmRowMax()",
        {'    over = "m"\n': "", **here("k.d.store(tile.also(n=n), values)")},
        SAME,
        on_model=False,
    ),
    Slip(
        "the second pass stores one tile",
        "two_passes.py: Normalize()",
        here(SECOND_PASS, SECOND_PASS.replace("n=step", "n=0")),
    ),
    Slip(
        "the second pass ends early",
        "two_passes.py: Normalize()",
        {
            f"{BACK}produce": f"{BACK}produce".replace('"n"))', '"n") - 1)'),
            f"{BACK}consume": f"{BACK}consume".replace('"n"))', '"n") - 1)'),
            **here(SECOND_PASS),
        },
        LEFT,
    ),
    Slip(
        "loads what another tile stores",
        "two_passes.py: Normalize()",
        here("slot.stored.load(tile, n=step)", "slot.stored.load(tile, m=tile.m + 1, n=step)"),
        None,
    ),
    Slip(
        "loads a halo of what other tiles store",
        "two_passes.py: Normalize()",
        here("slot.stored.load(tile, n=step)", "slot.stored.load_from(tile.m * 4 - 1, step * 512)"),
        None,
    ),
    Slip(
        "half a tile from one to the next",
        "double_buffer.py: DoubleBuffer()",
        here(
            "k.y.store(tile, tp.math.silu(values))",
            "k.y.store_from(tile.m * 32, tile.n * 64, values=tp.math.silu(values))",
        ),
    ),
    Slip(
        "says nothing of how many CTAs count",
        "exchange.py: Counts()",
        {'(tp.Dim("s", size=CTAS), tp.Dim("q", of="m"))': '(tp.Dim("q", of="m"),)', **here(COUNTED)},
        on_model=False,
    ),
    Slip(
        "a tile's rows are those of the next one",
        "exchange.py: Counts()",
        here(COUNTED, f"{ADDED}slot.y.store(tile.also(q=tile.m + slot.sums.rank))"),
    ),
    Slip(
        "stores the sums, and then what follows from them",
        "gemm_ws.py: Gemm((128, 64, 64), (2, 1), 3)",
        here("k.d.store(tile, acc)", "k.d.store(tile, acc)\n        k.d.store(tile, acc, lambda d: d * 2)"),
    ),
    Slip(
        "tiles of n store the first one",
        "odd_rows.py: OddGemm()",
        here("k.d.store(tile, acc)", "k.d.store(tile.also(n=0), acc)"),
    ),
    Slip(
        "boxes of an image store the first one",
        "conv.py: conv_of((1, 8, 8), 64, 1)",
        here("k.d.store(tile, acc)", "k.d.store(tile.also(h=0), acc)"),
    ),
    Slip(
        "tiles of queries store the first one",
        "attention.py: attention_of(64)",
        here("k.o.store(tile, out)", "k.o.store(tile.also(m=0), out)"),
        on_model=False,
    ),
    Slip(
        "two tiles of rows store one",
        "mlp.py: Mlp()",
        here("k.y.store(tile, acc)", "k.y.store(tile.also(m=tile.m // 2), acc)"),
        on_model=False,
    ),
    Slip("columns store the first tile", "copy", here("slot.y.store(tile)", "slot.y.store(tile, n=0)")),
    Slip("tiles overlap by half", "copy", here("slot.y.store(tile)", "slot.y.store_from(tile.m * 8, tile.n * 32)")),
    Slip(
        "stores under a condition",
        "sums",
        here("        k.y.store(tile, total)", "        if tile.n > 0:\n            k.y.store(tile, total)"),
        LEFT,
    ),
    Slip("stores within the loop", "sums", further_in("k.y.store(tile, total)")),
    Slip(
        "tiles along what is summed over",
        "sums",
        {
            "class Program(tp.Schedule):\n": 'class Program(tp.Schedule):\n    over = "s m n"\n',
            "slot.x.load(tile, s=s)": "slot.x.load(tile)",
            **here("k.y.store(tile, total)"),
        },
    ),
    Slip("pairs of rows of tiles", "doubled", here("slot.y.store(tile)", "slot.y.store(tile, m=tile.m // 2)")),
    Slip("rows of tiles in turn", "doubled", here("slot.y.store(tile)", "slot.y.store(tile, m=tile.m % 2)")),
    Slip(
        "stores what comes before the answer, too",
        "feedback",
        {
            **here("values = slot.x.read()", "values = slot.x.read()\n        k.y.store(tile, values)"),
            **here("k.y.store(tile, values + slot.b.read())"),
        },
    ),
    Slip("teams store the first tile", "teams", here("k.d.store(tile, acc)", "k.d.store(tile.also(m=0), acc)")),
    Slip("a diagonal", "causal", here("k.y.store(tile, total)", "k.y.store(tile.also(n=tile.m), total)")),
    Slip(
        "two products, stored one after the other",
        "products",
        here(
            "k.d.store(tile, (first, second), lambda x, y: x * y)",
            "k.d.store(tile, first)\n        k.d.store(tile, second)",
        ),
    ),
    Slip(
        "every other tile", "pairs", here("k.y.store(tile, total)", "k.y.store(tile.also(n=2 * tile.n), total)"), LEFT
    ),
    Slip(
        "rows in the wrong half",
        "gemm",
        here("k.d.store(tile, acc)", "k.d.store_from(tile.m * 32, tile.n * 64, values=acc)"),
    ),
)
