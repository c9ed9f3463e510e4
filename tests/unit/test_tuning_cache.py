"""What tuning has found is kept on disk, for each problem, epilogue and GPU; and how the fastest is picked."""

import functools
import json
import os
import sys
from concurrent.futures import ProcessPoolExecutor

import pytest

import tmapipe as tp
from tmapipe import schedules
from tmapipe.base import disk
from tmapipe.base.arithmetic import as_dtype
from tmapipe.epilogue import Epilogue, Matrix, Output, PerColumn
from tmapipe.errors import InputError, UnsafeError
from tmapipe.math import gelu, relu
from tmapipe.tiles import GpcTiles
from tmapipe.tuning import Candidate, Problem, ranked, tuner
from tmapipe.tuning import compiling as cache
from tmapipe.tuning import problem as epilogues
from tmapipe.tuning.compiling import beside, compile_each
from tmapipe.tuning.cost import Method, fastest

FUSED = Epilogue(lambda acc, bias: gelu(acc + bias), operands={"bias": PerColumn()})


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TMAPIPE_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_what_is_stored_is_loaded(folder):
    problem, other = Problem(128, 8192, 8192), Problem(128, 8192, 8192, out="float32")
    (candidate, _), *_ = ranked(problem, most=1)
    assert dict(candidate.options)["l2_hints"] == ("evict_last", "evict_first")
    entry = cache.Entry(candidate, 42.5, 12)
    cache.store(problem, "Some GPU", entry)
    assert cache.load_entry(problem, "Some GPU") == entry
    assert cache.load_entry(other, "Some GPU") is None and cache.load_entry(problem, "Another") is None
    cache.store(other, "Some GPU", entry)
    assert cache.load_entry(problem, "Some GPU") == cache.load_entry(other, "Some GPU") == entry
    assert [len(list(path.iterdir())) for path in folder.iterdir()] == [2]  # nothing half-written is left


#: As files of before the rebuild have it, when these words were keywords of the constructors.
KEPT = """{
 "128x8192x8192 bf16 to bf16": {"cluster": [1, 2], "options": [["order", ["Snake", 8, "gpc"]], ["store_stages", 1],
  ["l2_hints", ["evict_last", "evict_first"]], ["outside", ["anything", "zeros"]]], "schedule": "Gemm", "tile": [128, 256],
  "tried": 12, "us": 40.5},
 "512x512x65536 bf16 to bf16": {"cluster": [2, 1], "options": [["parts", 8], ["l2_hints", ["evict_first", "evict_first"]],
  ["order", ["Grouped", 8, "gpc"]]], "schedule": "SplitK", "tile": [128, 128], "tried": 12, "us": 54.5},
 "8192x8192x256 bf16 to bf16": {"cluster": [2, 1], "options": [["in_turn", false], ["store_stages", 1]],
  "schedule": "PingPong", "tile": [128, 128], "tried": 12, "us": 60.0}
}"""


def test_what_was_kept_before_the_rebuild_means_the_same(folder):
    problems = Problem(128, 8192, 8192), Problem(512, 512, 65536), Problem(8192, 8192, 256)
    for name, found in json.loads(KEPT).items():
        cache.keep(name, "GPU", found)
    gemm, split, ping = (tuner.recall(problem, "GPU", Epilogue()).schedule for problem in problems)
    assert (gemm.a.l2_hint, gemm.b.l2_hint) == ("evict_last", "evict_first") and gemm.a.outside == "anything"
    assert isinstance(gemm.tiles, GpcTiles) and gemm.d.stages == 1
    assert split.tiles.parts == 8 and isinstance(split.tiles.tiles, GpcTiles)
    assert ping.mainloop.in_turn is False and ping.d.stages == 1


def test_what_was_found_among_fewer_candidates_is_no_answer(folder):
    problem = Problem(8, 8, 8)
    cache.store(problem, "GPU", cache.Entry(Candidate("Gemm", (64, 64), (1, 1)), 1.0, 2))
    found = [tuner.recall(problem, "GPU", Epilogue(), tried) for tried in (1, 2, 3)]
    assert [each is not None for each in found] == [True, True, False]


def test_another_epilogue_is_another_entry(folder):
    problem, entry = Problem(8, 8, 8), cache.Entry(Candidate("Gemm", (64, 64), (1, 1)), 1.0, 1)
    cache.store(problem, "GPU", entry, FUSED)
    assert cache.load_entry(problem, "GPU", FUSED) == entry
    assert (
        cache.load_entry(problem, "GPU") is None
        and cache.load_entry(problem, "GPU", Epilogue(relu, operands=FUSED.operands)) is None
    )


def test_epilogues_are_told_apart_by_what_they_do():
    def scaled(by):
        return lambda acc, bias: gelu(acc * by + bias)

    def of(epilogue, **others):
        return epilogues.fingerprint(Epilogue(epilogue, **{"operands": FUSED.operands, **others}))

    assert epilogues.fingerprint(Epilogue()) == "" and of(scaled(2.0)) == of(scaled(3.0))
    assert of(functools.partial(scaled(2.0), bias=1)) == of(scaled(2.0))
    different = [
        of(scaled(2.0)),
        of(lambda acc, bias: gelu(acc + bias)),
        of(lambda acc, bias: relu(acc + bias)),
        of(lambda acc, bias: relu(acc + 2.0 * bias)),
        of(scaled(2.0), operands={"bias": Matrix()}),
        of(scaled(2.0), operands={"bias": PerColumn("fp32")}),
        of(scaled(2.0), outputs={"aux": Output()}),
        of(abs),
    ]
    assert len(set(different)) == len(different)


@pytest.mark.parametrize("found", [{}, {"schedule": "Gemm"}, {"schedule": "Gemm", "options": 3}])
def test_an_entry_that_lacks_something_is_none(folder, found):
    cache.keep(str(Problem(8, 8, 8)), "GPU", found)
    assert cache.load_entry(Problem(8, 8, 8), "GPU") is None


def test_a_broken_file_is_ignored(folder):
    problem = Problem(8, 8, 8)
    cache.store(problem, "GPU", cache.Entry(Candidate("Gemm", (64, 64), (1, 1)), 1.0, 1)).write_text("{}")
    with pytest.warns(RuntimeWarning, match="no entry of tmapipe's"):
        assert cache.load_entry(problem, "GPU") is None


def test_what_is_exported_is_imported_elsewhere(folder, monkeypatch, tmp_path):
    problems = [Problem(m, 8, 8) for m in (8, 16)]
    for problem in problems:
        cache.store(problem, "GPU", cache.Entry(Candidate("Gemm", (64, 64), (1, 1)), float(problem.m), 1))
    assert tp.tuning.export_tuned(tmp_path / "tuned.json") == 2
    monkeypatch.setenv("TMAPIPE_CACHE_DIR", str(tmp_path / "other"))
    assert cache.load_entry(problems[0], "GPU") is None and tp.tuning.import_tuned(tmp_path / "tuned.json") == 2
    assert [cache.load_entry(problem, "GPU").us for problem in problems] == [8.0, 16.0]
    monkeypatch.setattr(tp, "__version__", "9.0")  # what was found outlives an upgrade
    assert cache.load_entry(problems[0], "GPU").us == 8.0
    for text in (
        "",
        "[]",
        "{}",
        '{"format": "tmapipe tuned 1"}',
        '{"format": "tmapipe tuned 1", "entries": [3]}',
        "[" * 9999,
    ):
        (tmp_path / "wrong.json").write_text(text)
        with pytest.raises(tp.InputError, match="export_tuned has written"):
            tp.tuning.import_tuned(tmp_path / "wrong.json")
    for call in (tp.tuning.import_tuned, tp.tuning.export_tuned):
        for path in (tmp_path / "none" / "x.json", 3):
            with pytest.raises(tp.InputError, match=r"_tuned\(path\)"):
                call(path)


def test_compiling_processes_import_nothing_from_where_they_run(tmp_path, monkeypatch):
    for name in ("cloudpickle", "attrs", "numpy", "pickle", "json"):
        (tmp_path / f"{name}.py").write_text("open('executed', 'w').close()\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    errors = compile_each([functools.partial(int, f"no number {i}") for i in range(3)], tmp_path, 2)
    assert all(f"invalid literal for int() with base 10: 'no number {i}'" in errors[i] for i in range(3))
    assert not (tmp_path / "executed").exists()


def store_many(first):
    for m in range(first, first + 20):
        cache.store(Problem(m, 8, 8), "GPU", cache.Entry(Candidate("Gemm", (64, 64), (1, 1)), float(m), 1))


def test_writers_do_not_lose_each_others_entries(folder):
    with ProcessPoolExecutor(2) as pool:
        list(pool.map(store_many, (1, 21)))
    assert [cache.load_entry(Problem(m, 8, 8), "GPU").us for m in range(1, 41)] == list(range(1, 41))


@pytest.mark.parametrize(
    "candidate",
    [
        Candidate("Gemmm", (64, 64), (1, 1)),
        Candidate("Gemm", (64, 64), (1, 1), (("colour", "red"),)),
        Candidate("Gemm", (64, 64), (1, 1), (("order", ("Spiral", 8)),)),
        Candidate("Gemm", (100, 64), (1, 1)),
    ],
)
def test_an_entry_that_means_nothing_today_is_none(folder, candidate):
    problem = Problem(8, 8, 8)
    cache.store(problem, "GPU", cache.Entry(candidate, 1.0, 1))
    assert cache.load_entry(problem, "GPU") is not None and tuner.recall(problem, "GPU", Epilogue()) is None
    good = Candidate("Gemm", (64, 64), (1, 1))
    cache.store(problem, "GPU", cache.Entry(good, 2.0, 1))
    found = tuner.recall(problem, "GPU", Epilogue())
    assert (found.candidate, found.us) == (good, 2.0) and isinstance(found.schedule, schedules.Gemm)


def test_an_entry_with_a_tile_of_three_extents_is_none(folder):
    problem, good = Problem(8, 8, 8), cache.Entry(Candidate("Gemm", (64, 64), (1, 1)), 1.0, 1)
    cache.store(problem, "GPU", good)
    assert cache.load_entry(problem, "GPU") == good
    cache.keep(str(problem), "GPU", {**cache.recall_entry(str(problem), "GPU"), "tile": [64, 64, 64]})
    assert cache.load_entry(problem, "GPU") is None


def test_a_result_outlives_a_folder_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("TMAPIPE_CACHE_DIR", str(tmp_path / "file" / "below"))
    with pytest.warns(UserWarning, match="cannot keep its result"):
        tuner.remember(Problem(8, 8, 8), "GPU", cache.Entry(Candidate("Gemm", (64, 64), (1, 1)), 1.0, 1), Epilogue())
    assert cache.load_entry(Problem(8, 8, 8), "GPU") is None


def test_where_the_cache_lies(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TMAPIPE_CACHE_DIR", "~/mine")
    assert disk.cache_folder() == tmp_path / "mine"
    monkeypatch.delenv("TMAPIPE_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", "~/xdg")
    assert disk.cache_folder() == tmp_path / "xdg" / "tmapipe"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert disk.cache_folder() == tmp_path / ".cache" / "tmapipe"
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", lambda uid: {}[uid])  # a container's user without an entry
    assert disk.cache_folder().is_absolute() and "~" not in str(disk.cache_folder())


# ---- picking ------------------------------------------------------------------------------------------------------------


class Clock:
    """A clock on which each run takes what it returns."""

    def rest(self, seconds):
        pass

    def batch(self, run, launches):
        return [run()] * launches


def test_the_fastest_is_picked():
    few = [Candidate("Gemm", (64, 64 * i), (1, 1)) for i in range(1, 8)]
    runs = {candidate: functools.partial(abs, i - 4.2) for i, candidate in enumerate(few)}
    timed = fastest(runs, Clock(), Method(rounds=2, batch=1, rest=0.0))
    assert timed[0][0] == few[4] and [t.us for _, t in timed] == sorted(t.us for _, t in timed)
    assert 1 < len(timed) < len(few)


def test_a_check_beside_the_compiler_counts_however_either_ends():
    def refuse():
        raise UnsafeError("it hangs")

    with beside(lambda: None):
        pass
    with pytest.raises(KeyError), beside(lambda: None):
        raise KeyError
    with pytest.raises(UnsafeError, match="it hangs"), beside(refuse):
        raise KeyError
    with pytest.raises(UnsafeError, match="without a word"), beside(lambda: os._exit(0)):
        pass
    with pytest.raises(InputError) as found, beside(lambda: as_dtype("bf17")):
        pass
    assert found.value.value == "bf17"
