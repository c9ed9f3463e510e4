"""Which form of DequantGemm for which product."""

from __future__ import annotations

import functools
import itertools
from typing import Any

from tmapipe.base.arithmetic import as_dtype, ceil_div
from tmapipe.plan.declarations import launch_registers
from tmapipe.plan.rings import arch_named
from tmapipe.plan.thread_layout import LEFT
from tmapipe.schedules.dequant import PACKED, SLOTS, DequantGemm, DequantGemv
from tmapipe.tiles import SplitKTiles
from tmapipe.tiles.dynamic import GridTiles
from tmapipe.tiles.persistent import Grouped, PersistentTiles
from tmapipe.tuning.candidates import BARRIERS, MACS, UNSURE

# ---- dequantgemm -----------------------------------------------------------------------------------------------------
#
# Which form of `DequantGemm` is fastest, by clocks of a multiprocessor. For each tile of k: those of the tensor cores,
# of the schedulers, which issue what converts the weights, and of L2 and DRAM. The longest counts, or of the first two
# a part of each, if that is longer. Of few rows, warps wait for each other at each slot besides.

#: Tile, cluster, parts of k, CTAs of a multiprocessor, and slots: of several CTAs, each has one tile.
DequantForm = tuple[tuple[int, int, int], tuple[int, int], int, int, int | None]
PRODUCTS = 0.95 * MACS  # a clock of 1.755 GHz: the clock is higher, and large products reach 0.87 of all
INSTRUCTIONS = {"int8": 3.7, "fp8": 2.7, "int4": 1.7}  # a weight, from SASS (benchmarks.sass_loops) and 47 forms
SCALED, A_STEP = {"int8": 4.0, "fp8": 3.7, "int4": 2.9}, 60  # with groups or zeros; and a tile of k, of a warp
ISSUED = 0.7  # instructions a clock and scheduler, of one to four warps: 9 x 6016 x 13312, 4 x 10112 x 11904, H200
DRAM, L2 = 2280.0, 32.0  # bytes a clock: 4.0 TB/s at 1.755 GHz; and of one multiprocessor
LAUNCH, EPILOGUE, ADDING = 5000, 3000, 4500  # clocks of a kernel, of a tile besides its loop, and of adding parts
SMALL_M, MOST_PARTS = 128, 20
#: Of more rows, slots of twice as many elements along k, of which four fit (three gain nothing); clocks less of a slot.
LONG_SPANS, LEAST_LONG, SAVED = ((64, 128), (128, 128)), 4, 20
#: Of two warpgroups that read weights ahead: clocks of a slot besides its products, or besides a share of them.
READ_AHEAD, LEAST_AHEAD = 48, (560, 0.3)
#: Of few rows, fitted to 160 forms of 17 problems (2 % off the best): clocks of a slot, of a weight, of CTAs in turn.
FEW_STEP, FEW_EACH = 215, {"int8": 3.7, "fp8": 3.6, "int4": 2.3}
FEW_SCALED, SHARED_EACH = {"int8": 4.3, "fp8": 4.0, "int4": 2.9}, 0.84
FEW_SPANS = (64, 64), (64, 128), (64, 256), (128, 64), (128, 128), (128, 256), (192, 128)
SHARED_SPANS, LONG_M, LONG = ((64, 128), (64, 256)), 16, 1 << 17  # of CTAs that share one; rows and bits of long slots
#: The last ones: of scaling what is added, and bytes of each sum of a part.
FEW_LAUNCH, FEW_EPILOGUE, FEW_ADDING, FEW_SCALING, ADDED = 7600, 1050, 8470, 5300, 2.5
#: Of `DequantGemv`, fitted to 83 forms (6 % off): most rows; clocks of a kernel, a slot, a weight by its bits, a part's sum.
GEMV_ROWS, GEMV_LAUNCH, GEMV_STEP, GEMV_EACH, GEMV_SUM = 24, 9920, 118, {8: 0.043, 4: 0.048}, 8.6
GEMV_MORE, GEMV_DRAM = 0.14, 1905.0  # of a weight's clocks for each 8 rows more; bytes a clock
GEMV_HELD = {8: 56, 4: 72}  # registers
MOST_SHARING, LEAST_SHARED, FEW_LEFT = 4, 4, 12  # CTAs of a multiprocessor, slots, and registers of 4 bits left to four


def ranked_dequant(
    shape: tuple[int, int, int], weights: str, group: int | None = None, zeros: bool = False, multiprocessors: int = 132
) -> list[DequantForm]:
    """Forms of `DequantGemm` for a product of *shape* (m, n, k), the form that the model finds fastest first. The arguments
    are those of `choose_dequant`."""
    (m, n, k), bits = shape, 4 if weights.endswith("int4") else 8
    spans, shared = [(128, 64), (64, 64)], list[tuple[int, int]]()
    rows = list(range(min(256, ceil_div(m, 8) * 8), 56, -8))
    if m <= SMALL_M // 2:
        rows, shared = [ceil_div(m, 8) * 8], list(SHARED_SPANS)
        spans = [span for span in FEW_SPANS if max(span) < 192 or (m <= LONG_M and span[0] * span[1] * bits <= LONG)]
    elif m <= SMALL_M:  # tiles of fewer rows convert weights again, and leave no multiprocessor idle
        rows, spans = [ceil_div(m, 8 * i) * 8 for i in (3, 2, 1)], [(64, 128), *spans]
    if group and group % 64 and 64 % group:  # slots of a divisor of it
        spans, shared = [(128, PACKED), (64, PACKED)], []
    elif m > SMALL_M:
        spans += LONG_SPANS
    found: list[DequantForm] = []
    sizes = [*((each, 1) for each in spans), *itertools.product(shared, range(2, MOST_SHARING + 1))]
    for tm, ((tn, tk), share), parts in itertools.product(rows, sizes, range(1, MOST_PARTS + 1)):
        fits = not group or group % tk == 0 or (tk % group == 0 and group % PACKED == 0)
        tile, tiles, slots = (tm, tn, tk), ceil_div(m, tm) * ceil_div(n, tn) * parts, None
        if m > SMALL_M and tk > 64:
            stored = 8 if parts > 1 else ceil_div(ceil_div(tm, ceil_div(tm, 64)), 8)  # eights of rows of a buffer of d
            room = arch_named("sm_90a").smem - BARRIERS - 32 * tn * stored
            slots = min(SLOTS, room // (2 * tm * tk + tn * tk * bits // 8 + 8 * tn * ceil_div(tk, group or tk)))
            fits = fits and slots >= LEAST_LONG
        if share > 1:  # all at once, as many on some
            slots = _slots_of_each(tile, share, parts, bits, group)
            fits = fits and (share - 1) * multiprocessors < tiles <= share * multiprocessors and slots >= LEAST_SHARED
        if fits and (parts == 1 or k // tk // parts >= 2):
            found.append((tile, (1, 2) if m > SMALL_M and n > tn else (1, 1), parts, share, slots))
    gemv = itertools.product((4, 8, 16), (16, 32), (1024 // bits, 512 // bits))
    for warps, tn, tk in gemv if m <= GEMV_ROWS and (group or not zeros) else ():
        parts = 16 * warps // tn
        tm = next(tm for tm in range(m, m + 32) if tm * parts % 8 == tm * tn % 32 == 0)
        share, turns = ceil_div(ceil_div(n, tn), multiprocessors), ceil_div(k, tk * parts)
        if k % tk == 0 and not (group and (tk % group or group * bits < 128)) and share <= MOST_SHARING:
            slots = _slots_of_gemv((tm, tn, tk), share, parts, bits, group)
            if slots >= min(3, turns):
                found.append(((tm, tn, tk), (1, 1), parts, share, min(slots, turns)))
    return sorted(found, key=lambda form: dequant_clocks(shape, form, weights, bool(group) or zeros, multiprocessors))


def _slots_of_each(tile: tuple[int, int, int], share: int, parts: int, bits: int, group: int | None) -> int:
    """For how many slots *share* CTAs of a tile have room on one multiprocessor; 0 if not enough registers."""
    tm, tn, tk = tile
    slot = 2 * tm * tk + tn * tk * bits // 8 + 8 * tn * ceil_div(tk, group or tk)
    room = (GridTiles(ctas=share).room("sm_90a") or 0) - 4 * tn * tm * (2 if parts > 1 else 1) - 2 * BARRIERS
    left = LEFT if bits == 8 or share < 4 else FEW_LEFT
    held = (tm + tk) // 2 + left  # sums, two sets of weights, and others
    fits = held <= launch_registers(tn // 16 + 2, arch_named("sm_90a"), share)
    return min(SLOTS, room // slot) if fits else 0


def _slots_of_gemv(tile: tuple[int, int, int], share: int, parts: int, bits: int, group: int | None) -> int:
    """As `_slots_of_each`, of a `DequantGemv` whose slots have *parts* parts."""
    tm, tn, tk = tile
    slot = parts * (2 * tm * tk + tn * tk * bits // 8 + 8 * tn * ceil_div(tk, group or tk))
    room = (GridTiles(ctas=share).room("sm_90a") or 0) - 4 * tn * parts * ceil_div(tm, 8) * 8 - 2 * BARRIERS
    held = GEMV_HELD[bits] + (8 if bits == 8 else 24) * (ceil_div(tm, 8) - 1)
    fits = launch_registers(tn * parts // 16 + 5, arch_named("sm_90a"), share) >= held
    return min(2 * SLOTS, room // slot) if fits else 0


def dequant_clocks(
    shape: tuple[int, int, int], form: DequantForm, weights: str, scaled: bool, multiprocessors: int = 132
) -> float:
    """How many clocks *form* takes, by the model. scaled: whether weights have groups or zeros. The other arguments are those
    of `ranked_dequant`."""
    (m, n, k), ((tm, tn, tk), (_, across), parts, share, _) = shape, form
    bits = 4 if weights.endswith("int4") else 8
    kind = "int4" if bits == 4 else weights.split("_")[0]
    each = (SCALED if scaled else INSTRUCTIONS)[kind]
    if tn % 64:
        few, turns = tn * k * bits / 8, ceil_div(k, tk * parts)
        more = 1 + GEMV_MORE * (ceil_div(m, 8) - 1)
        step = GEMV_STEP + GEMV_EACH[bits] * tn * tk * parts * share * more
        memory = few * ceil_div(n, tn) / GEMV_DRAM
        return GEMV_LAUNCH + max(memory + step, turns * step) + GEMV_SUM * parts * ceil_div(tm * tn, 128)
    down, right = ceil_div(m, tm), ceil_div(ceil_div(n, tn), across) * across
    tiles = down * right * parts
    waves, busy = ceil_div(tiles, share * multiprocessors), min(tiles, share * multiprocessors)
    at_once = min(share, ceil_div(tiles, multiprocessors))
    tensor = tm * tn * tk / PRODUCTS
    issue = tn / 64 * (each * tk / 2 + A_STEP) / ISSUED
    launch, epilogue, adding, added = LAUNCH, EPILOGUE, ADDING, 8.0
    if m <= SMALL_M:
        converted = tn / 64 * tk * (FEW_SCALED if scaled else FEW_EACH)[kind]
        issue = FEW_STEP + converted * max(1, SHARED_EACH * at_once)
        launch, epilogue, added = FEW_LAUNCH, FEW_EPILOGUE, ADDED
        adding = FEW_ADDING + FEW_SCALING * (not scaled)
    few, of_a = tn * tk * bits / 8, 2 * tm * tk / across
    memory = max(at_once * (few + of_a) / L2, few * busy / down / DRAM)
    step = max(tensor * at_once, issue, memory) + min(tensor, issue) / 4
    if m > SMALL_M:
        issue -= SAVED * (tk > 64)
        step = max(tensor, issue, memory, 0.75 * tensor + issue * (1 if tn == 64 else 0.66))
        if tn == 128 and tk == 64:
            step = max(tensor + READ_AHEAD, memory, LEAST_AHEAD[0] + LEAST_AHEAD[1] * tensor)
    whole = launch + waves * (ceil_div(ceil_div(k, tk), parts) * step + epilogue)
    return whole if parts == 1 else whole + adding + added * parts * m * n / DRAM


def different_dequant(
    shape: tuple[int, int, int], forms: list[DequantForm], weights: str, scaled: bool, multiprocessors: int = 132
) -> list[DequantForm]:
    """The first of each kind of *forms*, of those that the model finds nearly as fast as the very first. Kinds are tiles of
    weights where there are few rows, and the parts of a slot, else numbers of tiles along m. Arguments as of
    `dequant_clocks`."""
    m, kinds = shape[0], dict[Any, DequantForm]()
    least = dequant_clocks(shape, forms[0], weights, scaled, multiprocessors)
    for form in forms:
        (tm, *tile), _, parts, share, _ = form
        if dequant_clocks(shape, form, weights, scaled, multiprocessors) > UNSURE * least:
            break
        of_few = (*tile, share, parts * (tile[0] % 64 > 0))
        kinds.setdefault(of_few if m <= SMALL_M // 2 else (ceil_div(m, tm), *tile), form)
    return [*kinds.values()]


def built_dequant(form: DequantForm, made: functools.partial[DequantGemm]) -> DequantGemm:
    """A *form* of the `DequantGemm` that *made* makes of a tile, a cluster, slots and tiles, or of its `DequantGemv`."""
    tile, cluster, parts, share, slots = form
    if tile[1] % 64:
        return DequantGemv(made.args[0], tile, parts, share, slots or SLOTS, **made.keywords)
    order = PersistentTiles() if share == 1 else GridTiles(Grouped(1), share)
    return made(tile, cluster, slots, tiles=order if parts == 1 else SplitKTiles(parts, order))


def random_weights(
    shape: tuple[int, int, int], weights: str, group: int | None, zeros: bool, *, device: str
) -> dict[str, Any]:
    """Random tensors of a product with such weights."""
    import torch

    (m, n, k), options = shape, {"generator": torch.Generator(device).manual_seed(0), "device": device}
    a = torch.randn(m, k, **options).bfloat16()
    if weights.startswith("fp8"):
        b = torch.randn(n, k, **options).to(getattr(torch, as_dtype(weights).torch))
    else:
        b = torch.randint(-128, 128, (n, k // (2 if weights.endswith("int4") else 1)), dtype=torch.int8, **options)
    numbers = torch.rand(2, *((k // group, n) if group else (n,)), **options)
    return {"a": a, "b": b, "scale": numbers[0], **({"zero": numbers[1]} if zeros else {})}
