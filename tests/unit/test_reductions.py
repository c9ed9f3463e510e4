"""Row and column sums as outputs: what is refused, what each warpgroup adds up, and when a buffer is written again."""

import itertools

import numpy as np
import pytest

import tmapipe as tp
from tests.unit.errors import refused
from tests.unit.fake_isa import record
from tmapipe.epilogue import columns_of
from tmapipe.plan.thread_layout import VectorLayout, compared
from tmapipe.plan.transfers import pieces

S, E = tp.schedules, tp.epilogue
BOTH = {"rows": E.RowSum(), "columns": E.ColumnSum()}


def both(acc):
    return {"d": acc, **dict.fromkeys(BOTH, acc)}


@pytest.mark.parametrize(
    "name,outputs",
    [
        ("outputs['rows']", {"rows": E.RowSum}),
        ("outputs['rows']", {"rows": E.ColumnSum}),
        ("outputs['d']", {"d": E.RowSum()}),
        ("outputs['ring']", {"ring": E.ColumnSum()}),
        ("dtype", {"rows": E.Output("rows")}),
        ("outputs['rows']", {"rows": "fp32"}),
    ],
)
def test_declarations_refused(name, outputs):
    refused(lambda: S.Gemm(epilogue=E.Epilogue(both, outputs=outputs)), argument=name, rule="")


A, B = np.zeros((72, 64), np.float16), np.zeros((128, 64), np.float16)


@pytest.mark.parametrize(
    "argument,value",
    [
        ("rows.shape", np.zeros(128, np.float32)),
        ("rows.shape", np.zeros((1, 72), np.float32)),
        ("columns.shape", np.zeros(72, np.float32)),
        ("columns", np.zeros(128, np.float16)),
        ("columns", [0.0] * 128),
        ("other", np.zeros(64, np.float32)),
    ],
)
def test_tensors_refused(argument, value):
    gemm = S.Gemm((64, 128, 64), (1, 1), epilogue=E.Epilogue(both, outputs=BOTH))
    refused(gemm, A, B, argument=argument, rule="", **{argument.partition(".")[0]: value})


def test_tensors_of_another_kind_given_twice_or_too_many_refused():
    torch = pytest.importorskip("torch")
    gemm = S.Gemm((64, 128, 64), (1, 1), epilogue=E.Epilogue(both, outputs=BOTH))
    refused(gemm, A, B, rows=torch.zeros(72), argument="rows", rule="kind and device")
    d, rows, columns = np.zeros((72, 128), np.float16), np.zeros(72, np.float32), np.zeros(128, np.float32)
    refused(gemm, A, B, d, rows, rows=rows, argument="rows", rule="given twice")
    refused(gemm, A, B, d, rows, columns, columns, argument="tensors", rule="at most 5")
    refused(gemm, A, rows=rows, argument="b", rule="tensor")


def test_sums_that_cannot_be_written_refused():
    torch = pytest.importorskip("torch")
    gemm = S.Gemm((64, 128, 64), (1, 1), epilogue=E.Epilogue(both, outputs=BOTH))
    rows = np.zeros(72, np.float32)
    rows.flags.writeable = False
    refused(gemm, A, B, rows=rows, argument="rows.flags.writeable", value=False, rule="is written to")
    a, b = torch.zeros(72, 64).half(), torch.zeros(128, 64).half()
    rows = torch.zeros(72, requires_grad=True)
    refused(gemm, a, b, rows=rows, argument="rows.requires_grad", value=True, rule="automatic differentiation")
    refused(gemm, a, b, rows=torch.zeros(72, device="meta"), argument="rows.device", rule="CUDA device")


def test_outputs_that_overlap_refused():
    gemm = S.Gemm((64, 128, 64), (1, 1), epilogue=E.Epilogue(both, outputs=BOTH))
    memory = np.zeros(200, np.float32)
    refused(gemm, A, B, rows=memory[:72], columns=memory[71:199], argument="rows", rule="overlap")
    d = np.zeros((72, 128), np.float32)
    refused(gemm, A, B, d, columns=d[5], argument="columns", rule="overlap")
    refused(gemm, A, B, out=d, columns=d[5], argument="columns", rule="overlap")


def test_an_epilogue_of_no_dictionary():
    gemm = S.Gemm((64, 128, 64), (1, 1), epilogue=E.Epilogue(lambda acc: acc, outputs=BOTH))
    for k in (64, 0):
        with pytest.raises(tp.errors.ScopeError, match="Return a dictionary"):
            gemm(A[:, :k], B[:, :k])


# ---- what the kernel does ---------------------------------------------------------------------------------------------

TILES = [
    (S.Gemm, (128, 128, 64)),
    (S.Gemm, (64, 72, 64)),
    (S.Gemm, (256, 136, 64)),
    (S.PingPong, (128, 64, 64)),
    (S.PingPong, (64, 40, 64)),
]


def along_n(tile, cluster, stages, epilogue):
    return S.Gemm(tile, cluster, stages, epilogue=epilogue, mainloop=tp.mainloop.Cooperative(along="n"))


ALONG_N = [(along_n, (136, 256, 64)), (along_n, (40, 64, 64))]


def events_of(kind, tile, shape, each=4, **options):
    """(matmul, warp, what it does) for the first warp of each *each* (of each warpgroup), for an output of *shape*."""
    gemm = kind(tile, (1, 1), 2, epilogue=E.Epilogue(both, outputs=BOTH, **options))
    plan = gemm.plan()
    sizes = {"l": shape[0], "m": shape[1], "n": shape[2], "k": 64}
    for store in gemm.declared.stores.values():
        sizes |= store.derive(sizes)
    extents = {part.argument: tuple(sizes[dim] for dim in part.dims) for part in plan.transfers}
    math = plan.role("math")
    for warp in range(math.first_warp, math.first_warp + math.warps, each):
        yield plan.matmuls[0], warp, record(gemm, plan, warp, extents)


@pytest.mark.parametrize("kind,tile", [*TILES, *ALONG_N])
def test_every_element_is_counted_once(kind, tile):
    """The parts of all tiles together: of sums along rows of the accumulators each column in one part, of others each row."""
    transposed = kind is along_n
    width, height = (tile[0], tile[1]) if transposed else (tile[1], tile[0])
    shape = (2, 2 * height - 40, 3 * width - 12)
    names = [*BOTH][::-1] if transposed else [*BOTH]
    rows, columns = {}, {}
    for matmul, warp, events in events_of(kind, tile, (2, *shape[:0:-1]) if transposed else shape, each=1):
        firsts = [first for _, first in pieces(height, width, matmul.warpgroups, columns_of(width, transposed))]
        joined = [event[1] for event in events if event[0] == "join_row_sums"]
        stored = [event[2:4] for event in events if event[:2] == ("store_values", names[0])]
        for sums, ((batch, part, m), layout) in zip(joined, stored, strict=True):
            for (_, _, first, piece), seen, inside in sums if warp % 4 == 0 else ():  # of all rows of the warpgroup
                assert inside == shape[2] - part * width - first
                for column in range(first + seen, first + max(seen, min(piece, inside))):
                    place = batch, m + 64 * layout.group(warp), part * width + column
                    rows[place] = rows.get(place, 0) + 1
        of_columns = [e for e in events if e[0] == "write_column_sums" or e[:2] == ("store_values", names[1])]
        for event, after in itertools.pairwise(of_columns):
            if (event[0], after[0]) == ("write_column_sums", "store_values"):  # by the warp that adds sums of all four
                batch, part, n = after[2]
                for i in range(max(0, min(64, event[3][-1]))):
                    place = batch, 64 * part + i, n
                    columns[place] = columns.get(place, 0) + 1
    starts = range(0, 2 * height, 64)
    assert rows == dict.fromkeys(itertools.product(range(2), starts, range(shape[2])), 1)
    firsts = {t * width + first for t in range(3) for first in firsts}
    assert columns == dict.fromkeys(itertools.product(range(2), range(shape[1]), firsts), 1)


@pytest.mark.parametrize("kind,tile", TILES)
@pytest.mark.parametrize("store_stages", [1, 2, 3])
def test_a_buffer_is_written_when_its_last_store_has_been_read(kind, tile, store_stages):
    """The issuer counts the bulk groups of its stores, and waits for at most one more."""
    for _, _, events in events_of(kind, tile, (1, 300, 520), stages=store_stages):
        issued, read, waited = [], 0, None
        for event in events:
            if event[0] == "store":
                issued.append(event[1:3])
            elif event[0] == "wait_group":
                waited = len(issued) - event[1]
                read = max(read, waited)
            elif event[0] == "write_columns":
                assert event[1:3] not in issued[read:], "a buffer is written while a store of it may still read"
                if waited == read > 0:  # and not more when the other team's turn came
                    after = issued[:waited][::-1].index(event[1:3])  # younger stores that were waited for too
                    assert after <= 1
        assert {name for name, _ in issued} == {"d"}


@pytest.mark.parametrize("kind,tile", TILES)
def test_sums_of_columns_are_written_and_read_between_the_barriers_of_a_piece(kind, tile):
    """Its threads meet before they leave the sums, after that, and before the next ones, when one warp has read them."""
    stored = {}
    for _, warp, events in events_of(kind, tile, (1, 300, 520), each=1):
        kinds = []
        for event in events:
            if event[0] == "named_sync":
                kinds.append("sync")
            elif event[0] == "write_column_sums" or (event[0] == "store_values" and event[1] == "columns"):
                kinds.append(event[0])
        found = [place for place, kind_of in enumerate(kinds) if kind_of == "write_column_sums"]
        assert found
        for i, place in enumerate(found):
            assert kinds[place - 1 : place + 2] == ["sync", "write_column_sums", "sync"]
            stores = kinds[place + 2 : place + 3] == ["store_values"]
            assert kinds[place + 2 + stores : place + 3 + stores] in (["sync"], [])
            stored.setdefault((warp // 4, i), []).extend([warp % 4] * stores)
    assert all(len(warps) == 1 and warps != [0] for warps in stored.values())


def test_a_small_buffer_takes_no_slot_of_the_ring():
    """The default tile with both sums has as many stages as with none: sums of columns lie beside the barriers."""
    gemm = S.Gemm(epilogue=E.Epilogue(both, outputs=BOTH))
    plan = gemm.plan()
    assert plan.ring("ring").stages == S.Gemm().plan().ring("ring").stages == 4
    ends = sorted((b.offset, b.offset + b.stages * b.slot_bytes) for b in plan.buffers)
    ends = [(b.offset, b.offset + 8 * b.stages) for b in plan.barriers] + ends
    assert (
        all(end <= start for (_, end), (start, _) in itertools.pairwise(sorted(ends)))
        and ends[-1][1] <= plan.smem_bytes
    )


@pytest.mark.parametrize("surely", [(0, 0), (7, 7), (7, 40), (0, 100)])
@pytest.mark.parametrize("width, warps", [(8, 1), (4, 2), (1, 4)])
def test_the_gpu_compares_what_may_lie_outside(width, warps, surely):
    """The columns of a tile of 128, of which those from *first* on and before *end* count, wherever these lie."""
    layout = VectorLayout((1, 128), width, warps, 1)
    for first, end in itertools.product((0, 3, 7), (40, 41, 100, 128)):
        if surely[0] < surely[1] and not (first <= surely[0] and surely[1] <= end):
            continue
        for slot in {layout.column_slot(i) for i in range(layout.values)}:
            least, beyond = layout.column_range(slot)
            for start in (Ellipsis, first):  # which only the kernel knows, or known here
                after_first, before_end = compared(layout, slot, True, start, ..., surely)
                kept = [
                    c for c in range(least, beyond) if (not after_first or c >= first) and (not before_end or c < end)
                ]
                assert kept == [c for c in range(least, beyond) if first <= c < end]


def test_what_is_known_is_not_compared():
    layout = VectorLayout((1, 128), 8, 1, 1)
    slots = {layout.column_slot(i) for i in range(layout.values)}
    assert not any(any(compared(layout, slot, True, None, 128, (0, 0))) for slot in slots)
    assert not any(any(compared(layout, slot, True, ..., ..., (0, 128))) for slot in slots)
    assert all(compared(layout, slot, True, ..., ..., (0, 0)) == (True, True) for slot in slots)
