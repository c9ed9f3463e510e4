"""Calls that users get wrong: each is refused by name, before anything runs."""

import os
import subprocess
import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest

import tmapipe as tp
from tests.unit.errors import refused
from tests.user_copy import copy_of
from tmapipe import testing, tuning
from tmapipe.base import disk
from tmapipe.tuning import compiling as cache

S, E = tp.schedules, tp.epilogue
X = np.ones((64, 64), np.float16)
HUGE = 10**5000


class Relu(tp.Schedule):
    load, work = tp.Role(warps=1), tp.Role(warps=4)
    ring = tp.BarrierRing(2, producer=load, consumer=work)
    x = tp.TmaLoadStage("m n", tile=(8, 64), ring=ring)
    y = tp.TmaStoreStage("m n", tile=(8, 64), role=work)

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load(tile)

    @work.jit
    def compute(self, k, tile):
        with k.ring.consume() as slot:
            values = slot.x.read()
        k.y.store(tile, tp.math.relu(values))


def small(**options):
    return S.Gemm((64, 64, 64), (1, 1), **options)


# ---- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", [("X",), ("x", "z"), "x", ["x"], ("ring",), (1,), None])
def test_transposed_names_tensors(names):
    schedule = Relu()
    schedule.transposed = names
    for call in (lambda: schedule(X), schedule.plan, schedule.check):
        refused(call, argument="Schedule.transposed", rule="names no tensor|tuple of names")


def test_transposed_of_a_part():
    schedule = Relu()
    schedule.transposed = ("x",)
    x = np.arange(64 * 16, dtype=np.float32).reshape(16, 64)
    assert (schedule(x.T) == x).all()


# ---- several CTAs a multiprocessor --------------------------------------------------------------------------------------


def test_so_many_ctas_find_room():
    for schedule, ctas, rule in (
        (small(), 8, "share an SM leave 48"),
        (S.PingPong(), 2, "128 .* share an SM leave 96"),
        (S.PingPong(), 3, "at most 88"),
        (S.PingPong(), 16, "more than the 8 registers"),
    ):
        schedule.tiles = tp.tiles.GridTiles(ctas=ctas)
        refused(schedule.plan, argument="Wgmma(mma) tile", rule=rule)
    schedule = small()
    schedule.tiles = tp.tiles.GridTiles(ctas=4)
    assert schedule.plan().launch_registers == 96 and not schedule.plan().registers
    schedule = Relu()
    schedule.tiles = tp.tiles.GridTiles(ctas=9)
    schedule.x = tp.TmaLoadStage("m n", tile=(128, 64), ring=schedule.ring, dtype="fp32")
    refused(schedule.plan, argument="GridTiles(ctas)", rule="67[0-9]{3} bytes of shared memory", value=9)
    schedule.tiles = tp.tiles.GridTiles(ctas=3)
    assert schedule.plan().smem_bytes <= 75 * 1024
    schedule.tiles = tp.tiles.GridTiles(ctas=20)
    refused(schedule.plan, argument="GridTiles(ctas)", rule="2048 threads", value=20)


@pytest.mark.parametrize("ctas", [1, 2, 4, 8])
def test_automatic_stages_leave_room_for_the_others(ctas):
    schedule = Relu()
    schedule.x = tp.TmaLoadStage(
        "m n", tile=(64, 64), ring=(ring := tp.BarrierRing(producer=Relu.load, consumer=Relu.work))
    )
    schedule.ring, schedule.tiles = ring, tp.tiles.GridTiles(ctas=ctas)
    plan = schedule.plan()
    assert ctas * (plan.smem_bytes + 1024) <= 228 * 1024 and plan.ring("ring").stages >= 2


def test_copies_of_large_tiles_have_as_many_as_fit():
    assert S.Copy().tiles.ctas == 10 and S.Copy((64, 256)).tiles.ctas == 3
    x = np.ones((100, 256), np.float32)
    assert (S.Copy((64, 256))(x) == x).all()
    refused(S.Copy((64, 256), ctas=8).plan, argument="GridTiles(ctas)", rule="of shared memory")


# ---- epilogues --------------------------------------------------------------------------------------------------------


def test_an_epilogue_that_gives_a_number():
    for form in ({}, {"mainloop": tp.mainloop.Cooperative(along="n")}):
        gemm = small(epilogue=lambda acc: 2.5, **form)
        assert (gemm(X, X) == 2.5).all()
    rows = small(epilogue=E.Epilogue(lambda acc: {"d": 1.0, "r": acc}, outputs={"r": E.RowSum()}))
    d, r = rows(X, X)
    assert (d == 1).all() and (r == 64 * 64).all()


def test_parts_of_a_schedule_that_is_made():
    gemm = small()
    gemm.epilogue = tp.math.relu
    assert (gemm(-X, X) == 0).all()
    other = E.Epilogue(lambda acc, bias: acc + bias, operands={"bias": E.PerColumn()})
    refused(setattr, gemm, "epilogue", other, argument="Gemm.epilogue", rule="function alone")
    refused(setattr, gemm, "epilogue", 3, argument="epilogue", rule="function")
    refused(setattr, gemm, "mainloop", None, argument="Gemm.mainloop", rule="is fixed")
    for wrong in (None, tp.tiles.Snake(8)):
        refused(setattr, gemm, "tiles", wrong, argument="tiles", rule="TileOrder")
    for wrong in (tp.tiles.SplitKTiles(2), tp.tiles.GroupedTiles()):
        refused(setattr, gemm, "tiles", wrong, argument="Gemm.tiles", rule="takes the place of PersistentTiles")
    gemm.tiles = tp.tiles.DynamicTiles(tp.tiles.Snake(2))
    assert (gemm(X, X) == 64).all()
    refused(setattr, S.SplitK(2), "epilogue", tp.math.relu, argument="SplitK.epilogue", rule="function alone")
    assert (S.FinishParts(tp.math.relu)(np.full((2, 8, 64), -1, np.float32)) == 0).all()


# ---- arguments --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call, argument",
    [
        (lambda: testing.assert_safe(S.Gemm), "assert_safe(schedule)"),
        (lambda: testing.assert_safe(S.Copy(), notes="no"), "assert_safe(notes)"),
        (lambda: testing.assert_safe(S.Copy(), every_trip_count=1), "assert_safe(every_trip_count)"),
        (lambda: Relu().simulate(X, trace="no"), "trace"),
        (lambda: Relu().compile(unroll="no"), "unroll"),
        (lambda: Relu().plan(X), "dtypes"),
        (lambda: Relu().plan(0), "dtypes"),
        (lambda: Relu().plan(arch=""), "arch"),
        (lambda: Relu().plan(arch=[]), "arch"),
        (lambda: Relu().check(X), "dtypes"),
        (lambda: S.Copy()(X, zzz=X), "zzz"),
        (lambda: Relu().simulate(X, clusters=2**31), "clusters"),
        (lambda: tp.math.maximum(X, X[0, :3]), "tmapipe.math.maximum"),
        (lambda: tp.math.gelu(X, X), "gelu(approximate)"),
        (lambda: tuning.Candidate("Gemm", (64, 64), (1, 1), {1: 1}), "options"),
        (lambda: tuning.Candidate("Gemm", (64, 64, 64), (1, 1)), "tile"),
        (lambda: S.ClusterSplitK(2, tiles=tp.tiles.Snake(8)), "tiles"),
        (lambda: S.SplitK(True), "parts"),
        (lambda: S.StreamK(True, reduce="add"), "shares"),
        (lambda: tp.Im2colBox(0, 0, 64, 8), "lower"),
        (lambda: tp.RegisterTile(tp.Role(warpgroups=1), 64.0), "shape"),
        (lambda: tp.RegisterTile(tp.Role(warpgroups=1), (64, 64.0)), "shape"),
        (lambda: tp.Dim("a", of="b", plus=True), "plus"),
        (lambda: tp.tiles.Snake(2**31), "rows"),
        (lambda: tp.tiles.Columns(2**40), "rows"),
        (lambda: tp.tiles.GridTiles(each=2**31), "each"),
        (lambda: tp.BarrierRing(2**31, producer=tp.Role(warps=1), consumer=tp.Role(warps=1)), "stages"),
        (lambda: tuning.choose_conv(X, X, windows=(3, 3)), "windows"),
        (lambda: tuning.choose(tuning.Problem(64, 64, 64), None), "device"),
        *((lambda n=n: E.columns_of(n), "columns_of(n)") for n in (-1, 0, 8.0, True)),
        (lambda: tuning.choose(64), "problem"),
        (lambda: tuning.ranked(64), "problem"),
        (lambda: tuning.Problem.of(X, X, X[:1]), "out"),
        *((lambda m=m: tuning.ranked(tuning.Problem(64, 64, 64), most=m), "most") for m in ("3", -1, 2.5, 0, True)),
        (lambda: tuning.Candidate("Nope", (64, 64), (1, 1)).build(tuning.Problem(64, 64, 64)), "schedule"),
        (lambda: tuning.Candidate("Copy", (64, 64), (1, 1)).build(tuning.Problem(64, 64, 64)), "schedule"),
        *((lambda m=m: tuning.Device("X", 132, (), m), "memory") for m in (0, float("nan"), -1, float("inf"), "1", True)),
        (lambda: tuning.Device("X", 0, ()), "multiprocessors"),
        (lambda: tuning.Device("X", 132, ((1,),)), "clusters"),
        (lambda: tuning.tune(64), "problem"),
        (lambda: tuning.tune(tuning.Problem(64, 64, 64), most=0), "most"),
    ],
)  # fmt: skip
def test_arguments(call, argument):
    refused(call, argument=argument, rule="")


@pytest.mark.parametrize(
    "name, value", [("mma", "add"), ("mma", None), ("ring", 3), ("d", None), ("a", tp.Role(warps=1))]
)
def test_parts_of_a_gemm_are_replaced_by_such_parts(name, value):
    for gemm in (small(), S.SplitK(2)):
        refused(setattr, gemm, name, value, argument=f".{name}", rule="takes the place of")


@pytest.mark.parametrize("kind, name", [(S.Copy, "x"), (S.Copy, "y"), (S.AddParts, "x"), (S.AddParts, "d")])
@pytest.mark.parametrize("value", [None, "x", 3])
def test_stages_that_are_needed(kind, name, value):
    schedule = kind()
    setattr(schedule, name, value)
    refused(schedule, np.ones((2, 64), np.float32), argument=".", rule="is a stage|does not declare")


@pytest.mark.parametrize(
    "name", ["optional_roles", "transposed", "cluster", "relations", "over", "tiles", "arch", "checked"]
)
def test_attributes_of_another_kind(name):
    for value in (np.zeros(3), 1j, slice(None), object()):
        for make in (Relu, lambda: S.SplitK(2, (64, 64, 64), (1, 1))):
            schedule = make()
            with pytest.raises(tp.PipelineError):
                setattr(schedule, name, value)
                schedule(*((X,) if isinstance(schedule, Relu) else (X, X)))


def test_no_clusters_that_a_device_lacks():
    four = tuning.Device("X", 4, ((1, 4), (2, 2)))
    found = tuning.ranked(tuning.Problem(512, 512, 4096), four, most=30)
    assert found and all(candidate.ctas <= 4 for candidate, _ in found)


def test_ranked_takes_a_function():
    assert tuning.ranked(tuning.Problem(64, 64, 64), most=1, epilogue=tp.math.relu)


@pytest.mark.parametrize(
    "make",
    [lambda n: tp.Role(warps=n), lambda n: tp.Dim("a", size=n), lambda n: S.Copy(n), lambda n: S.Gemm((n, 64, 64.0))],
)
def test_integers_that_python_does_not_print(make):
    with pytest.raises(tp.InputError, match="cannot be shown") as info:
        make(-HUGE)
    assert len(str(info.value)) < 400


def test_scalars_beyond_every_float():
    gemm = small(epilogue=E.Epilogue(lambda acc, s: acc * s, operands={"s": E.Scalar()}))
    for value in (10**400, -(10**5000)):
        with pytest.raises(tp.InputError, match=r"s = .* a float can hold"):
            gemm(X, X, s=value)


def test_a_vector_for_a_reduction():
    rows = small(epilogue=E.Epilogue(lambda acc: {"d": acc, "r": acc}, outputs={"r": E.RowSum()}))
    for call in (lambda: rows(X[0], X), lambda: rows(X, X[0]), lambda: rows(X, X[0], r=np.zeros(64, np.float32))):
        refused(call, argument=".shape", rule="has the dimensions")


def test_memory_that_was_freed():
    torch = pytest.importorskip("torch")
    a = torch.ones(64, 64, dtype=torch.float16).t()
    a.untyped_storage().resize_(0)
    gemm = small(a=tp.Operand("m"))
    refused(gemm, a, torch.ones(64, 64, dtype=torch.float16), argument="a.untyped_storage", rule="holds 8192 bytes")


class Released(Relu):
    @Relu.work.jit
    def compute(self, k, tile):
        slot = k.ring.wait()
        values = slot.x.read()
        k.ring.release()
        k.y.store(tile, values)


class ReleasedTile(Relu):
    @Relu.load.jit
    def fill(self, k, tile):
        slot = k.ring.acquire()
        slot.x.load(tile)
        k.ring.commit(tile)


@pytest.mark.parametrize(
    "kind, said", [(Released, "release() .* wait() gave, not nothing"), (ReleasedTile, "not Tile")]
)
def test_slots_that_were_not_given(kind, said):
    for call in (lambda: kind()(X), lambda: kind().check()):
        with pytest.raises(tp.errors.ScopeError, match=said.replace("()", r"\(\)")):
            call()


# ---- packages that are not there ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "missing, call, package",
    [
        ("cutlass", "tp.schedules.Copy().compile()", "nvidia-cutlass-dsl"),
        ("torch", "tp.tuning.tune(tp.tuning.Problem(64, 64, 64))", "torch"),
    ],
)
def test_packages_that_are_needed(missing, call, package):
    code = f"""
import sys
sys.modules[{missing!r}] = None
import tmapipe as tp, tmapipe.tuning
try:
    {call}
except tp.errors.MissingPackageError as error:
    assert isinstance(error, ImportError) and "{package} is needed" in str(error), error
"""
    subprocess.run([sys.executable, "-c", code], check=True)


# ---- the cache without a home -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("home", ["", None, "relative"])
def test_the_cache_without_a_home_is_the_user_s_own(monkeypatch, tmp_path, home):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for name in ("XDG_CACHE_HOME", "TMAPIPE_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    if home is None:
        monkeypatch.delenv("HOME")
        monkeypatch.setattr("os.path.expanduser", lambda path: path)
    else:
        monkeypatch.setenv("HOME", home)
    folder = disk.cache_folder()
    assert folder == tmp_path / f"tmapipe-{os.getuid()}"
    problem, entry = tuning.Problem(64, 64, 64), cache.Entry(tuning.Candidate("Gemm", (64, 64), (1, 1)), 1.0, 1)
    cache.store(problem, "GPU", entry)
    assert folder.stat().st_mode & 0o777 == 0o700 and cache.load_entry(problem, "GPU") == entry
    folder.chmod(0o777)  # another user may have put files there
    assert cache.load_entry(problem, "GPU") is None
    with pytest.raises(PermissionError, match="TMAPIPE_CACHE_DIR"):
        cache.store(problem, "GPU", entry)
    folder.rename(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").chmod(0o700)
    folder.symlink_to(tmp_path / "elsewhere")
    assert cache.load_entry(problem, "GPU") is None


class Options:
    factor = 2.0


CHANGES = {
    "a captured number": lambda k: k.again(3.0),
    "a global": lambda k: globals().__setitem__("FACTOR", 3.0),
    "an item": lambda k: k.items.__setitem__("factor", 3.0),
    "an item of a list": lambda k: k.items["deep"].__setitem__(0, 3.0),
    "an attribute of an object": lambda k: setattr(k.options, "factor", 3.0),
    "an attribute of a class": lambda k: setattr(Options, "factor", 3.0),
    "an attribute of the schedule's class": lambda k: setattr(k.kind, "own", 3.0),
    "an element of an array": lambda k: k.array.__setitem__(0, 3.0),
}
FACTOR = 2.0


@pytest.mark.parametrize("name", CHANGES)
def test_kernels_are_kept_as_long_as_their_values(name, monkeypatch):
    """What a launch has kept is used as long as all values that bodies refer to are what they were."""
    captured, items, options, array = 2.0, {"factor": 2.0, "deep": [2.0]}, Options(), np.array([2.0])

    def again(number):
        nonlocal captured
        captured = number

    def body(k, tile):
        with k.ring.consume() as slot:
            values = slot.x.read()
        values = values * captured * FACTOR * items["factor"] * items["deep"][0] * options.factor * float(array[0])
        k.y.store(tile, values * type(schedule).own)

    monkeypatch.setattr(Options, "factor", 2.0)
    monkeypatch.setitem(globals(), "FACTOR", 2.0)
    schedule = copy_of(body)
    type(schedule).own = 2.0
    x = np.ones((8, 64), np.float32)
    assert (schedule(x) == 128).all()
    vars(schedule)["_callers"] = (lambda *call: "kept",)
    again(float("2"))  # another object, the same number
    assert schedule(x) == "kept"
    CHANGES[name](SimpleNamespace(again=again, items=items, options=options, array=array, kind=type(schedule)))
    assert (schedule(x) == 192).all() and "_callers" not in vars(schedule)


def test_kernels_of_an_epilogue_are_kept_as_long_as_its_values():
    """A ready-made schedule has a call of its own."""
    factor = 2.0
    gemm = S.Gemm((64, 64, 64), epilogue=lambda acc: acc * factor)
    assert (gemm(X, X) == 128).all()
    vars(gemm)["_callers"] = (lambda *call: "kept",)
    assert gemm(X, X) == "kept"
    factor = 3.0
    assert (gemm(X, X) == 192).all()


def test_clusters_are_assigned_not_changed():
    """The attribute that all schedules have is one object."""
    schedule = copy_of(lambda k, tile: None)
    with pytest.raises(TypeError, match="does not support item assignment"):
        schedule.cluster["m"] = 2
    assert not schedule.cluster
    schedule.cluster = {"m": 2}
    assert schedule.cluster == {"m": 2} and not tp.Schedule.cluster


def test_threads_trace_at_once():
    """Python 3.11 makes one syntax tree at a time."""
    found = {}

    def work(i):
        gemm = tp.schedules.Gemm((64, 64, 64), epilogue=lambda acc: acc * i)
        a = np.full((8, 64), 1, np.float16)
        found[i] = gemm(a, a)[0, 0]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert found == {i: 64 * i for i in range(8)}
