"""Every mainloop with every epilogue and every tile scheduler, of every GEMM: right on the model, or refused by name."""

import itertools

import ml_dtypes
import numpy as np
import pytest

import tmapipe as tp
from tests.sweeps import sample

S, E, M = tp.schedules, tp.epilogue, tp.mainloop
ROWS, COLUMNS, DEPTH, BATCH = 72, 72, 48, 2
ENDS = np.array([24, ROWS], np.int32)  # of the groups' rows
WINDOWS = tp.Windows((2,), padding=1)
KINDS = {
    "Gemm": lambda **options: S.Gemm((64, 64, 16), (1, 1), 2, **options),
    "GatedGemm": lambda **options: S.GatedGemm((64, 64, 16), (1, 1), 2, **options),
    "ClusterSplitK": lambda **options: S.ClusterSplitK(2, (64, 64, 16), 1, 2, **options),
    "Conv": lambda **options: S.Conv(WINDOWS, (64, 64, 16), (1, 1), 2, **options),
}
MAINLOOPS = (
    M.Cooperative(),
    M.Cooperative(along="n"),
    M.Cooperative(promote=True),
    M.PingPong(),
    M.PingPong(in_turn=False),
    M.PingPong(along="n"),
)
TILES = (
    *(
        tp.tiles.PersistentTiles(raster)
        for raster in (tp.tiles.Grouped(8), tp.tiles.Hilbert(2), tp.tiles.Columns(2), tp.tiles.Backwards(2))
    ),
    tp.tiles.GridTiles(),
    tp.tiles.DynamicTiles(),
    tp.tiles.GpcTiles(tp.tiles.Snake(2)),
    tp.tiles.GroupedTiles(),
    tp.tiles.SplitKTiles(2),
    tp.tiles.SplitKTiles(2, tp.tiles.DynamicTiles()),
    tp.tiles.SplitKTiles(2, reduce="add"),
    tp.tiles.StreamKTiles(shares=3),
    tp.tiles.StreamKTiles(shares=3, reduce="add"),
)
#: operands; outputs after d
EPILOGUES = (
    *(({"x": kind}, {}) for kind in (E.Matrix(), E.PerColumn(), E.PerRow("fp32"), E.PerBatch("fp32"), E.Scalar())),
    *(({}, {"p": kind}) for kind in (E.Output("fp32"), E.RowSum(), E.ColumnSum())),
    ({}, {}),
    ({"x": E.Matrix(), "y": E.PerColumn()}, {"p": E.Output("fp32"), "q": E.RowSum()}),
)
CASES = [
    (kind, *parts, batch, major)
    for kind, *parts, batch, major in itertools.product(KINDS, MAINLOOPS, TILES, EPILOGUES, (False, True), "km")
    if (major == "k" or parts[-1] in EPILOGUES[-2:])
    and not (batch and isinstance(parts[1], tp.tiles.GroupedTiles))
    and not (kind == "Conv" and (batch or major == "m"))
]


def of_sums(kind, outputs):
    """The epilogue's function, of the sums and of operands x and y."""

    def combined(sums, x=0.0, y=0.0):
        d = sums[0] * (sums[1] if len(sums) > 1 else 1) * 2 + x + y
        return {"d": d, **dict.fromkeys(outputs, sums[0] + 1)} if outputs else d

    if kind == "GatedGemm":
        return lambda gate, up, **operands: combined((gate, up), **operands)
    return lambda acc, **operands: combined((acc,), **operands)


def wrong_arguments(kind, mainloop, tiles, operands, outputs, batch, major):
    """Of what does not go together, the arguments that an error may name."""
    pingpong, along_n = isinstance(mainloop, M.PingPong), mainloop.along == "n"
    grouped, streamed = isinstance(tiles, tp.tiles.GroupedTiles), isinstance(tiles, tp.tiles.StreamKTiles)
    in_parts, reduced = tiles.in_parts, getattr(tiles, "reduce", None) is not None
    whole = any(isinstance(each, E.Output) for each in outputs.values())
    found = {
        "Conv(mainloop)": kind == "Conv" and along_n,
        "Conv(tiles)": kind == "Conv" and (in_parts or grouped),
        "tiles": (kind == "GatedGemm" and in_parts) or (kind == "ClusterSplitK" and (grouped or streamed)),
        "mainloop": (kind == "ClusterSplitK" and (pingpong or along_n))
        or (pingpong and in_parts)
        or (along_n and (grouped or reduced or (whole and not in_parts))),
        "PingPong(in_turn)": pingpong and not mainloop.in_turn and operands,
        "epilogue": reduced,
        "a": in_parts and batch and (streamed or operands or outputs),
        "a.major": grouped and major == "m",
        "operands['x']": (grouped or in_parts) and isinstance(operands.get("x"), E.PerBatch),
        **{f"outputs[{n!r}]": grouped and isinstance(each, (E.RowSum, E.ColumnSum)) for n, each in outputs.items()},
    }
    return {argument for argument, holds in found.items() if holds}


def values(rng, *shape, dtype=ml_dtypes.bfloat16):
    return rng.integers(-2, 3, shape).astype(dtype)


def transposed(x):
    """The same values, contiguous along the last dimension but one."""
    return np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2)


def inputs(kind, tiles, batch, major, rng):
    """The tensors of a call, and their products in fp32."""
    if kind == "Conv":
        x, f = values(rng, 3, ROWS // 3 - 1, 16), values(rng, COLUMNS, 2, 16)
        padded = np.pad(x.astype(np.float32), ((0, 0), (1, 1), (0, 0)))
        windows = np.stack([padded[:, i : i + ROWS // 3] for i in range(2)], 2)
        return (x, f), (np.einsum("nprc,orc->npo", windows, f.astype(np.float32)),)
    grouped = isinstance(tiles, tp.tiles.GroupedTiles)
    lead = (BATCH,) if batch else ()
    a = values(rng, *(() if grouped else lead), ROWS, DEPTH)
    bs = [values(rng, *((BATCH,) if grouped else lead), COLUMNS, DEPTH) for _ in range(1 + (kind == "GatedGemm"))]
    wide = a.astype(np.float32), *(b.astype(np.float32).swapaxes(-1, -2) for b in bs)
    if grouped:
        products = [np.concatenate([wide[0][: ENDS[0]] @ b[0], wide[0][ENDS[0] :] @ b[1]]) for b in wide[1:]]
        return (a, *bs, ENDS), products
    return ((a, *bs) if major == "k" else map(transposed, (a, *bs))), [wide[0] @ b for b in wide[1:]]


def operand(kind, shape, rng):
    if isinstance(kind, E.Scalar):
        return 3.0
    *lead, rows, columns = shape
    batch = lead[0] if len(lead) == 1 else 1
    vectors = {E.PerColumn: columns, E.PerRow: rows, E.PerBatch: batch}
    if type(kind) in vectors:
        return values(rng, vectors[type(kind)], dtype=np.float32 if kind.dtype else ml_dtypes.bfloat16)
    return values(rng, *shape)


@pytest.mark.parametrize("number", sample(range(len(CASES)), 101))
def test_it_works_or_is_refused_by_name(number):
    kind, mainloop, tiles, (operands, outputs), batch, major = CASES[number]
    wrong = wrong_arguments(kind, mainloop, tiles, operands, outputs, batch, major)
    rng = np.random.default_rng(number)
    tensors, products = inputs(kind, tiles, batch, major, rng)
    of_rows = products[0].reshape(-1, COLUMNS).shape if kind == "Conv" else products[0].shape  # images as a matrix
    given = {name: operand(each, of_rows, rng) for name, each in operands.items()}
    shaped = {n: x.reshape(products[0].shape) if np.ndim(x) == 2 and kind == "Conv" else x for n, x in given.items()}
    fused = E.Epilogue(of_sums(kind, outputs), operands=operands, outputs=outputs, dtype="fp32")
    options = {} if kind == "Conv" or major == "k" else {"a": tp.Operand("m"), "b": tp.Operand("n")}
    try:
        found = KINDS[kind](mainloop=mainloop, tiles=tiles, epilogue=fused, **options)(*tensors, **shaped)
    except tp.InputError as error:
        assert error.argument in wrong, error
        return
    assert not wrong
    columns = {"PerRow": lambda x: x[:, None], "PerBatch": lambda x: x.reshape(-1, *(1,) * (len(of_rows) - 1))}
    wide = {n: np.asarray(x, np.float32) for n, x in given.items()}
    broadcast = {n: columns.get(type(operands[n]).__name__, lambda x: x)(x) for n, x in wide.items()}
    expected = of_sums(kind, outputs)(*(product.reshape(of_rows) for product in products), **broadcast)
    sums = {"RowSum": -1, "ColumnSum": -2}
    expected = expected if outputs else {"d": expected}
    for name, each in zip(expected, found if isinstance(found, tuple) else (found,), strict=True):
        axis = sums.get(type(outputs.get(name)).__name__)
        value = expected[name] if axis is None else expected[name].sum(axis)
        assert (np.asarray(each).reshape(value.shape) == value).all(), name
