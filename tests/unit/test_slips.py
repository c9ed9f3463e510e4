"""Slips of a first pipeline: what Python would say from inside is said with the line and what to do."""

import numpy as np
import pytest

import tmapipe as tp
from examples.ragged import RaggedSums
from tests.unit.errors import refused


def test_bodies_take_what_they_are_called_with():
    role = tp.Role(warps=1)
    for body, takes in ((lambda self, k: 0, "self, k, tile"), (lambda self, tile: 0, "self, k, tile")):
        refused(role.jit, body, argument="<lambda>", rule=f"is called with {takes}")
    refused(role.jit, lambda self, k, tile, n: 0, argument="<lambda>", rule="self, k, tile")
    refused(role.before.jit, lambda self, k, tile: 0, argument="<lambda>", rule="self, k once a CTA")
    role.jit(lambda self, k, tile, n=1: 0)
    role.before.jit(lambda *given: 0)


def test_a_cluster_is_a_mapping_at_a_call_too():
    class Wrong(RaggedSums):
        cluster = (2, 1)

    x, begins = np.zeros((4, 512), np.float32), np.zeros(3, np.int32)
    for call in (lambda: Wrong()(x, begins), Wrong().check, Wrong().plan):
        refused(call, argument="cluster", value=(2, 1), rule="maps dimensions")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("k.begins.entry(tile.g + 1)", "k.begins[tile.g + 1]", r"k.begins\[...\] of a table.* Use k.begins.entry\(i\)"),
        ("k.begins.entry(tile.g + 1)", "len(k.begins)", r"len\(\) of table k.begins.* Use k.extent"),
        ("k.begins.entry(tile.g + 1)", "sum(k.begins)", r"k.begins\[...\] of a table"),
        (
            "in range(end - first):",
            "in sorted(range(end - first)):",
            r"which only the kernel knows, outside of a `for`",
        ),
        (
            "k.begins.entry(tile.g)",
            "k.starts.entry(tile.g)",
            r"k.starts in role 'load', which has ring, begins. Declare starts for it",
        ),
        (
            "slot.x.load",
            "slot.y.load",
            r"no stage 'y'; its stages are x. Use one of those, or declare y with this ring",
        ),
    ],
)
def test_slips_in_a_body(old, new, message, tmp_path):
    text = """
import tmapipe as tp
from examples.ragged import RaggedSums

class Mine(RaggedSums):
    @RaggedSums.load.jit
    def fill(self, k, tile):
        first, end = k.begins.entry(tile.g), k.begins.entry(tile.g + 1)
        for i in range(end - first):
            with k.ring.produce() as slot:
                slot.x.load(tile, m=first + i)
"""
    assert text.count(old) == 1
    path = tmp_path / "mine.py"
    path.write_text(text.replace(old, new))
    namespace = {"__name__": "mine"}
    exec(compile(path.read_text(), str(path), "exec"), namespace)
    x, begins = np.zeros((4, 512), np.float32), np.array([0, 2, 4], np.int32)
    calls = (lambda: namespace["Mine"]()(x, begins), namespace["Mine"]().check)
    for call in calls[1:] if "sorted" in new else calls[:1]:  # on the model they are Python's numbers; loops of 0 turns
        with pytest.raises(tp.errors.ScopeError, match=message) as info:
            call()
        assert f"At {path}:" in str(info.value)


@pytest.mark.parametrize(("length", "lines"), [(256, "columns"), (32, "rows")])
def test_a_vector_beside_a_tile_is_read_as_numbers_of_its_columns_or_rows(length, lines):
    class Weighted(tp.Schedule):
        load, work = tp.Role(warps=1), tp.Role(warps=1)
        ring = tp.BarrierRing(2, producer=load, consumer=work)
        x = tp.TmaLoadStage("m n", tile=(32, 256), ring=ring)
        w = tp.TmaLoadStage("n", tile=(length,), ring=ring)
        y = tp.TmaStoreStage("m n", tile=(32, 256), role=work)

        @load.jit
        def fill(self, k, tile):
            with k.ring.produce() as slot:
                slot.x.load(tile)
                slot.w.load(tile)

        @work.jit
        def weigh(self, k, tile):
            with k.ring.consume() as slot:
                k.y.store(tile, slot.x.read() * slot.w.read())

    with pytest.raises(tp.errors.ScopeError, match=rf"numbers of the {lines} of the tile v: .*{lines}_of=v"):
        Weighted().program({"x": "fp32", "w": "fp32"})


def test_a_tile_that_begins_off_16_bytes_is_named_with_its_type():
    class Left(tp.Schedule):
        load, store = tp.Role(warps=1), tp.Role(warps=1)
        ring = tp.BarrierRing(2, producer=load, consumer=store)
        x = tp.TmaLoadStage("m n", tile=(4, 256), ring=ring)
        y = tp.TmaStoreStage(source=x)

        @load.jit
        def fill(self, k, tile):
            with k.ring.produce() as slot:
                slot.x.load_from(tile.m * 4, tile.n * 256 - 4)

        @store.jit
        def drain(self, k, tile):
            with k.ring.consume() as slot:
                slot.y.store(tile)

    finding = Left().check().findings[0]
    assert "-8 bytes along the last dimension, of bf16" in finding.message and 'check({name: "fp32"})' in finding.fix
    assert Left().check({"x": "fp32"}).ok


def test_a_wgmma_of_too_few_rows_says_how_many():
    gemm = tp.schedules.Gemm((128, 128, 64))
    gemm.math = tp.Role(warpgroups=3)
    assert refused(gemm.plan, argument="a.tile[0]", value=128, rule="64 x 3 warpgroups").fix == "e.g. 192"


def test_tensors_of_two_kinds_are_named():
    torch = pytest.importorskip("torch")
    x, begins = torch.zeros(4, 512), np.zeros(3, np.int32)
    refused(
        RaggedSums(),
        x,
        begins,
        argument="tensors",
        value={"x": "torch", "begins": "numpy", "y": "torch"},
        rule="either",
    )
    refused(RaggedSums(), x[0, 0], begins, argument="x.shape", rule="has the dimensions m n")


def test_what_a_gemm_is_called_with():
    """Each error names what was passed, and what to pass."""
    torch, S = pytest.importorskip("torch"), tp.schedules
    a, b = torch.ones(64, 32).bfloat16(), torch.ones(128, 32).bfloat16()
    refused(S.Gemm(), a.double(), b.double(), argument="a", value="fp64", rule="at most 32 bits")
    assert refused(S.Gemm(), a, b.T.contiguous(), argument="b.shape", rule="k = 128").fix.startswith("transpose it")
    assert "of 2 without the first one" in refused(S.Gemm(), a[0], b, argument="a.shape", rule="l m k").fix
    assert (
        refused(S.Gemm, tiles=tp.tiles.Snake(8), argument="tiles", rule="TileOrder").fix
        == "e.g. PersistentTiles(Snake(8))"
    )
    refused(S.Gemm, epilogue=tp.epilogue.Epilogue, argument="epilogue", rule="function of the sums")
    conv = S.Conv(tp.Windows((3, 3), padding=1))
    x, f = torch.ones(1, 8, 8, 64).bfloat16(), torch.ones(64, 1, 3, 64).bfloat16()
    assert refused(conv, x, f, argument="along r", value=1, rule="is 3 by its Dim").fix == "pass 3 elements along r"


def test_long_values_are_cut_short():
    assert str(tp.InputError("x", np.zeros(1000), "is small", "use less")).startswith(
        "x = ndarray of shape (1000,): is small."
    )
    assert len(str(tp.InputError("x", list(range(1000)), "is small", "use less"))) < 450


def test_parts_that_there_are_not_are_named():
    def body(wrong):
        class Mine(RaggedSums):
            @RaggedSums.work.jit
            def add(self, k, tile):
                with k.ring.consume() as slot:
                    values = slot.x.read()
                wrong(self, k, tile, slot, values)
                k.y.store(tile, values)

        return Mine

    x, begins = np.zeros((4, 512), np.float32), np.array([0, 1, 2], np.int32)
    for wrong, error, message in (
        (
            lambda s, k, t, slot, v: k.ring.produces(),
            tp.errors.MissingPartError,
            r"`\.produces` does not exist here: this object has only .*consume",
        ),
        (
            lambda s, k, t, slot, v: k.y.put_all(t, v),
            tp.errors.MissingPartError,
            r"`\.put_all` does not exist here: this object has only .*store_from",
        ),
        (lambda s, k, t, slot, v: k.y.store(t, ()), tp.InputError, r"y\.store = \(\): must have at least one"),
        (
            lambda s, k, t, slot, v: k.y.store(k.ring, v),
            tp.InputError,
            "must be the tile that the body was called with",
        ),
        (
            lambda s, k, t, slot, v: k.y.store(t.also(n=s), v),
            tp.InputError,
            r"tile\.also\(n\) = .*whole number of tiles",
        ),
    ):
        with pytest.raises(error, match=message) as info:
            body(wrong)()(x, begins)
        assert "At " in str(info.value) and "test_slips.py" in str(info.value)


def test_a_schedule_without_stages_is_no_kernel():
    refused(tp.Schedule(), argument="Schedule", rule="no load and no store stage")
