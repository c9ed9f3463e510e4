"""The command `tmapipe`: each verb on a shipped schedule, on one of a user's, on a broken one, and with bad arguments."""

import ctypes
import functools
import json
import os
import pathlib
import re
import subprocess
import sys

import jsonschema
import numpy as np
import pytest
from typer.main import get_command
from typer.testing import CliRunner

import tmapipe as tp
from tests.unit.test_docs import ROOT, blocks, steady
from tests.user_copy import COPY
from tmapipe.command import app, machine
from tmapipe.command import machine as examined
from tmapipe.command.machine import BAD, cache_item, driver_and_gpus, dsl_items, gpu_items, package_item, torch_item
from tmapipe.tuning.compiling import keep

SCHEMA = json.loads((pathlib.Path(tp.__file__).parent / "command" / "output.schema.json").read_text())
OUTPUT = jsonschema.validators.validator_for(SCHEMA)(SCHEMA)
MINE = f"""
import tmapipe as tp


{COPY}

class Fails(Copy):
    @Copy.store.jit
    def drain(self, k, tile):
        nobody_has_this()


small = Copy(rows=16)
three = 3


def of_rows(rows):
    return Copy(rows)


def no_schedule():
    return 3


def same(x):
    return x


def other(x):
    return x + (x == x.max())
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMAPIPE_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "mine.py").write_text(MINE)
    return tmp_path


@pytest.fixture(autouse=True, scope="module")
def made_once():
    """The command is made of its verbs once for all tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("typer.testing._get_command", functools.cache(get_command))
        yield


def said(*arguments):
    """(exit code, the JSON object) of a verb."""
    result = CliRunner().invoke(app, [*map(str, arguments), "--json"], catch_exceptions=False)
    document = json.loads(result.stdout)
    OUTPUT.validate(document)
    assert document["exit"] == result.exit_code
    return result.exit_code, document


def test_the_schema_is_strict():
    document = {"verb": "demo", "version": "1", "exit": 0, "device": "model", "runs": []}
    jsonschema.validate(document, SCHEMA)
    for wrong in ({**document, "more": 1}, {**document, "verb": "check"}, {**document, "runs": [1]}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, SCHEMA)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("Copy", []),
        ("mine.py:Copy", []),
        ("mine.py:small", []),
        ("mine.py:of_rows", ["--set", "rows=32"]),
        ("mine.py:Copy", ["--set", "rows=32", "--dtype", "x=fp32"]),
        ("Softmax", ["--shape", "x=3x64", "--dtype", "x=fp32"]),
        ("tmapipe.schedules.copy:Copy", ["--set", "tile=8,64"]),
    ],
)
def test_checks_what_is_right(name, options, mine):
    code, document = said("check", name, *options)
    assert code == 0 and document["report"]["ok"] and document["report"]["holds_for"] == "every trip count"


def test_checks_what_is_wrong(mine):
    code, document = said("check", "mine.py:Broken", "--sarif", "sarif/log.json", "--timeline", "timeline.json")
    first = document["report"]["findings"][0]
    line = MINE.splitlines().index("        with k.ring.consume() as again:") + 1
    assert code == 1 and first["rule"] == "TRIP_COUNTS"
    assert first["where"][0] == {"file": str(mine / "mine.py"), "line": line}
    (run,) = json.loads((mine / "sarif" / "log.json").read_text())["runs"]
    assert run["results"][0]["locations"][0]["physicalLocation"]["region"]["startLine"] == line
    assert json.loads((mine / "timeline.json").read_text())["traceEvents"]


def test_set_reaches_the_schedule(mine):
    _, document = said("explain", "Gemm", "--set", "tile=128,64,32", "--set", "cluster=1,1", "--set", "stages=3")
    assert document["rings"] == {"ring": 3} and "128 x 32 bf16" in document["text"] and document["cluster"] == 1


def test_program_and_explain_print_what_the_library_does(mine):
    copy = tp.schedules.Copy()
    result = CliRunner().invoke(app, ["explain", "Copy"])
    assert result.exit_code == 0 and result.stdout == f"{copy.explain()}\n"
    code, document = said("program", "Copy")
    assert code == 0 and document["text"] == copy.program()


def test_simulates(mine):
    options = ["--shape", "x=20x256", "--seeds", 3, "--timeline", "run.json"]
    code, document = said("simulate", "mine.py:Copy", *options, "--reference", "mine.py:same")
    assert code == 0 and [run["seed"] for run in document["runs"]] == [0, 1, 2]
    assert document["outputs"][0]["from_reference"] == document["outputs"][0]["between_interleavings"] == 0
    assert json.loads((mine / "run.json").read_text())["traceEvents"]
    code, document = said("simulate", "mine.py:Copy", "--shape", "x=20x256", "--reference", "mine.py:other")
    assert code == 1 and not document["outputs"][0]["ok"]
    code, document = said("simulate", "mine.py:Broken", "--shape", "x=20x256")
    assert code == 1 and document["error"]["kind"] == "HazardError" and "mine.py:" in document["error"]["message"]


def test_simulates_shipped_schedules_against_what_they_compute(mine):
    small = ["--set", "tile=64,64,64", "--set", "cluster=1,1", "--shape", "a=40x72", "--shape", "b=48x72"]
    for name, options in (("Gemm", [*small, "--dtype", "d=fp32"]), ("Softmax", ["--shape", "x=2x3x64", "--seeds", 2])):
        code, document = said("simulate", name, *options)
        assert code == 0 and 0 < document["outputs"][0]["from_reference"] < 1e-2
    assert document["outputs"][0]["shape"] == [2, 3, 64] and len(document["runs"]) == 2
    code, document = said("simulate", "SplitK", *small, "--set", "parts=2")
    assert code == 0 and document["runs"][0]["launches"] == 2 and document["outputs"][0]["name"] == "d"
    code, document = said("simulate", "Copy", "--shape", "x=3x40", "--dtype", "x=bf16")
    assert code == 0 and document["outputs"][0]["dtype"] == "bfloat16"


def test_draws_timelines(mine, monkeypatch):
    for name, options in (("mine.py:Copy", ["-o", "drawn/page.html"]), ("Softmax", ["--dtype", "x=fp32"])):
        code, document = said("timeline", name, "--shape", "x=20x256", *options)
        assert code == 0 and document["cycles"] > 0 and not document["findings"] and "load" in document["roles"]
        assert pathlib.Path(document["file"]).read_text().startswith("<!doctype html>")
    code, document = said("timeline", "mine.py:Broken", "--shape", "x=20x256", "-o", "broken.json")
    assert code == 1 and "TRIP_COUNTS" in document["findings"]
    events = json.loads((mine / "broken.json").read_text())["traceEvents"]
    assert {"X", "s", "f", "C", "i"} <= {event["ph"] for event in events}
    for arguments in (
        ["Copy"],
        ["Copy", "--shape", "x=0x256"],
        ["mine.py:Copy", "--shape", "x=8x256", "-o", "mine.py/a"],
    ):
        code, document = said("timeline", *arguments)
        assert code == 2 and document["error"]["fix"]
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    code, document = said("timeline", "mine.py:Copy", "--shape", "x=8x256", "--gpu")
    assert code == 2 and document["error"]["kind"] == "MissingGpuError"


def test_the_other_verbs_on_a_broken_one(mine):
    """Its plan and program are printed, since they show what is wrong. A library is not made of it."""
    code, document = said("explain", "mine.py:Broken")
    assert code == 0 and document["rings"] and document["schedule"] == "Broken"
    code, document = said("program", "mine.py:Broken")
    assert code == 0 and "role store" in document["text"]
    code, document = said("export", "mine.py:Broken", "broken.so", "--shape", "x=64x128")
    assert code == 1 and document["error"]["kind"] == "UnsafeError" and "mine.py:" in document["error"]["message"]
    assert not (mine / "broken.so").exists()
    for verb in ("program", "compile"):
        code, document = said(verb, "mine.py:Fails")
        assert code == 2 and "nobody_has_this" in document["error"]["message"]


def test_takes_tensors_from_files(mine):
    np.save("x.npy", np.arange(512, dtype=np.float32).reshape(2, 256))
    code, document = said("simulate", "mine.py:Copy", "--tensor", "x=x.npy", "--dtype", "x=fp32")
    assert code == 0 and document["outputs"][0]["dtype"] == "float32"


def test_compiles(mine):
    code, document = said("compile", "mine.py:Copy", "--out", "made")
    assert code == 0 and document["spill_bytes"] == 0
    assert ".target sm_90a" in pathlib.Path(document["files"]["ptx"]).read_text()
    assert (mine / "made" / "Copy.cubin").read_bytes()[:4] == b"\x7fELF"


def test_takes_what_tuning_has_found_elsewhere(mine):
    keep("8x8x8", "GPU", {"us": 1.0})
    code, document = said("cache", "--export", "tuned.json")
    assert code == 0 and document["exported"] == 1
    code, document = said("cache", "--import", "tuned.json")
    assert code == 0 and document["imported"] == 1 and [each["kind"] for each in document["kinds"]] == ["tuned"]
    code, document = said("cache", "--import", "mine.py")
    assert code == 2 and document["error"]["argument"] == "import_tuned(path)"


def test_exports(mine):
    code, document = said("export", "mine.py:Copy", "made/copy.so", "--shape", "x=64x128")
    assert code == 0 and document["functions"] == ["copy"] and document["arch"] == "sm_90a"
    assert "int copy(const void *x, void *y" in pathlib.Path(document["header"]).read_text()
    code, document = said("export", "mine.py:Copy", "copy.txt", "--shape", "x=64x128")
    assert code == 2 and document["error"]["argument"] == "path"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["check", "Gemn"], "one of AddParts, "),
        (["check", "Gemm(tile=(64, 64, 64))"], "is not evaluated. Fix: pass what is in brackets by --set"),
        (["check", "mine.py"], "its schedules are Copy, Broken, Fails, small"),
        (["check", "mine.py:Nobody"], "has no 'Nobody'; its schedules are Copy"),
        (["check", "none.py:Copy"], "is a file of Python"),
        (["check", "no.such.module:Copy"], "is a module that can be imported"),
        (["check", "mine.py:tp"], "is a module, and no schedule"),
        (["check", "mine.py:no_schedule"], "makes a int, and no schedule"),
        (["check", "mine.py:of_rows"], "pass --set NAME=VALUE; mine.py:of_rows takes rows"),
        (["check", "mine.py:Copy", "--set", "tile=3"], "mine.py:Copy takes rows"),
        (["check", "mine.py:Copy", "--set", "rows"], "has the form NAME=VALUE"),
        (["check", "mine.py:Copy", "--set", "rows=1", "--set", "rows=2"], "a second time"),
        (["check", "mine.py:small", "--set", "rows=3"], "mine.py:small is an object"),
        (["check", "Gemm", "--set", "tile=__import__('os').getpid()"], "is (m, n, k)"),
        (["check", "Gemm", "--dtype", "a=bf17"], "must be one of bf16"),
        (["check", "Gemm", "--dtype", "c=bf16"], "the stages are a, b, d"),
        (["check", "Gemm", "--arch", "sm_12"], "sm_90a"),
        (["check", "Gemm", "--shape", "a=3x3"], "holds for every shape"),
        (["check", "mine.py:Fails"], "nobody_has_this"),
        (["explain", "Softmax"], "pass --shape x=..."),
        (["simulate", "Gemm"], "pass --shape a=..."),
        (["simulate", "Gemm", "--shape", "a=3by4"], "is extents in elements"),
        (["simulate", "Gemm", "--shape", "q=3x4"], "the inputs are a, b"),
        (["simulate", "Gemm", "--shape", "a=64x64", "--shape", "b=64x65"], "has k = 65"),
        (["simulate", "mine.py:Copy", "--tensor", "x=none.npy"], "that numpy.save has written"),
        (["simulate", "mine.py:Copy", "--shape", "x=8x128", "--reference", "mine.py:three"], "no function"),
        (["simulate", "mine.py:Copy", "--shape", "x=8x128", "--reference", "mine.py:no_schedule"], "fails"),
        (["check", "mine.py:Copy", "--sarif", "mine.py/log"], "cannot be written"),
        (["bench", "no_suite"], "is one of"),
        (["tune", "64x64"], "is three extents"),
        (["tune", "64x64x64", "--dtype", "bf17"], "must be one of"),
    ],
)
def test_says_what_is_wrong_with_arguments(arguments, text, mine):
    code, document = said(*arguments)
    assert code == 2 and text in document["error"]["message"], document
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2 and not result.stdout and text in result.stderr and "Traceback" not in result.stderr


@pytest.mark.parametrize("arguments", ["chekc", "check", "check Gemm --tile 3", "simulate Copy --seeds 0"])
def test_usage_errors_have_the_same_code(arguments):
    assert CliRunner().invoke(app, arguments.split()).exit_code == 2


@pytest.mark.parametrize("text", ["import nobody_has_this\n", "def f(:\n", "raise SystemExit(3)\n", "1 / 0\n"])
def test_files_that_fail_are_blamed(text, mine):
    (mine / "bad.py").write_text(f"\n{text}")
    code, document = said("check", "bad.py:Copy")
    assert code == 2 and "bad.py:2" in document["error"]["message"]


def test_faults_of_the_library_keep_their_traceback(mine, monkeypatch):
    monkeypatch.setattr(tp.Schedule, "check", eval("lambda *_, **__: [][1]", {}))  # in no file of a user's
    with pytest.raises(IndexError):
        CliRunner().invoke(app, ["check", "Copy"], catch_exceptions=False)


def test_doctor_without_a_gpu_compiles_nothing(mine, monkeypatch):
    monkeypatch.setattr("tmapipe.command.machine.driver_and_gpus", lambda: (None, []))
    monkeypatch.setattr(machine, "_compare", None)
    code, document = said("doctor")
    names = [item["name"] for item in document["items"]]
    assert {"Python", "torch", "nvidia-cutlass-dsl", "cuda-python", "driver", "GPU", "nvdisasm", "cache"} <= set(names)
    assert not document["gpu"] and not document["runs"] and names[-1] == "runs on the GPU"
    assert code == any(item["state"] == BAD for item in document["items"])
    assert all(bool(item["fix"]) for item in document["items"] if item["state"] in ("bad", "note"))


def test_doctor_knows_bad_combinations(tmp_path):
    def bad(*items):
        return [item.name for item in items if item.state == BAD and item.fix]

    dsl = "nvidia-cutlass-dsl"
    assert bad(*dsl_items({dsl: "4.9.0"})) == [dsl]
    assert bad(package_item("json", ("json",), (2, 0), {"json": "1.9"})) == ["json"]
    assert bad(package_item("no.such", ("it",), (2, 0), {"it": "2.9"})) == ["it"]
    assert not bad(package_item("json", ("a", "b"), (2, 0), {"b": "2.0"}))
    assert bad(*dsl_items({dsl: "4.8.1", f"{dsl}-libs-cu12": "4.8.0"})) == [f"{dsl}-libs-cu12"]
    assert not bad(*dsl_items({dsl: "4.8.1", f"{dsl}-libs-cu12": "4.8.1"}))
    assert bad(torch_item(None, None, False, False)) and bad(torch_item("2.5.1", None, False, False))
    assert bad(torch_item("2.9.0+cpu", None, False, True)) and bad(torch_item("2.9.0+cu130", "13.0", False, True))
    assert not bad(torch_item("2.9.0+cpu", None, False, False), torch_item("2.9.0+cu130", "13.0", True, True))
    hopper = ("NVIDIA H200", 90, 140 << 30)
    assert not bad(*gpu_items(12090, [hopper]), *gpu_items(None, []))
    assert bad(*gpu_items(11080, [hopper])) == ["driver"]
    assert bad(*gpu_items(13000, [("NVIDIA B200", 100, 180 << 30), hopper])) == ["GPU"]
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    assert bad(cache_item(open_to_all)) == ["cache"]
    open_to_all.chmod(0o700)
    assert not bad(cache_item(open_to_all), cache_item(tmp_path / "none" / "yet"))


def lacking(monkeypatch, *modules, versions):
    """A machine without these modules, on which packages of these versions alone have metadata."""
    find = examined.importlib.util.find_spec
    monkeypatch.setattr(examined.importlib.util, "find_spec", lambda name: None if name in modules else find(name))
    installed = {name: (version, "here") for name, version in versions.items()}
    monkeypatch.setattr(examined, "_installed", lambda: installed)


PARTLY = {"cuda-bindings": "13.0.3", "filelock": "3.20.0", "greenlet": "3.2.0"}
RAN = {"name": "Copy", "error": 0.0, "seconds": 0.1, "ok": True}
HOPPER = ("NVIDIA H200", 90, 140 << 30)


def test_doctor_runs_kernels_without_metadata_and_optional_tools(mine, monkeypatch):
    """A folder on PYTHONPATH has no metadata; torch brings cuda-bindings without cuda-python."""
    lacking(monkeypatch, "cloudpickle", "tqdm", versions=PARTLY)
    monkeypatch.setattr(examined, "driver_and_gpus", lambda: (13000, [HOPPER]))
    monkeypatch.setattr(examined, "_torch", lambda: ("2.11.0+cu130", "13.0", True))
    monkeypatch.setattr(machine, "_compare", lambda on_gpu: [RAN])
    code, document = said("doctor")
    assert code == 0 and document["gpu"] and document["runs"] == [RAN]
    items = {item["name"]: item for item in document["items"]}
    for name in ("nvidia-cutlass-dsl", "apache-tvm-ffi", "cloudpickle", "tqdm"):
        assert items[name]["state"] == "note" and items[name]["fix"], items[name]
    assert items["cuda-python"]["state"] == items["filelock"]["state"] == "ok"
    assert items["nvidia-cutlass-dsl"]["value"].startswith("4.8")  # what the module says


def test_doctor_notes_what_the_environment_changes(mine, monkeypatch):
    monkeypatch.setattr(machine, "driver_and_gpus", lambda: (None, []))
    monkeypatch.setenv("TMAPIPE_WATCHDOG", "5")
    monkeypatch.setenv("TMAPIPE_CHECK", "0")
    items = {item["name"]: item for item in said("doctor")[1]["items"]}
    assert items["TMAPIPE_WATCHDOG"]["state"] == items["TMAPIPE_CHECK"]["state"] == "note"
    assert items["TMAPIPE_WATCHDOG"]["value"].startswith("5: calls") and items["TMAPIPE_WATCHDOG"]["fix"]


def test_doctor_does_not_run_kernels_without_what_they_need(mine, monkeypatch):
    lacking(monkeypatch, "tvm_ffi", versions={})
    monkeypatch.setattr(examined, "driver_and_gpus", lambda: (13000, [HOPPER]))
    monkeypatch.setattr(examined, "_torch", lambda: ("2.11.0+cu130", "13.0", True))
    code, document = said("doctor")
    bad = [item["name"] for item in document["items"] if item["state"] == "bad"]
    assert code == 1 and bad == ["apache-tvm-ffi"] and not document["runs"]


def test_doctor_says_what_a_run_raises(mine, monkeypatch):
    monkeypatch.setattr(machine, "examine", lambda: ([], True))
    monkeypatch.setattr(machine, "_ON_GPU", {"m": 8, "n": 8, "k": 8})

    def fail(schedule, inputs):
        raise RuntimeError("no kernel image is available")

    monkeypatch.setattr(machine, "_on_gpu", fail)
    code, document = said("doctor")
    assert code == 1 and [run["ok"] for run in document["runs"]] == [False, False]
    assert "no kernel image" in document["runs"][0]["failed"] and "did not run" in document["items"][0]["fix"]


def set_at(place, kind, value):
    """Sets what `ctypes.byref` refers to."""
    ctypes.cast(place, ctypes.POINTER(kind)).contents.value = value


class FakeDriver:
    """What `examined.driver_and_gpus` asks of libcuda."""

    def __init__(self, starts=0):
        self.starts = starts

    def cuDriverGetVersion(self, found):
        set_at(found, ctypes.c_int, 13000)
        return 0

    def cuInit(self, flags):
        return self.starts

    def cuDeviceGetCount(self, found):
        set_at(found, ctypes.c_int, 1)
        return 0

    def cuDeviceGet(self, found, index):
        set_at(found, ctypes.c_int, 7)
        return 0

    def cuDeviceGetAttribute(self, found, attribute, device):
        set_at(found, ctypes.c_int, {75: 9, 76: 0}[attribute])
        return 0

    def cuDeviceGetName(self, name, size, device):
        name.value = b"NVIDIA H200"

    def cuDeviceTotalMem_v2(self, found, device):
        set_at(found, ctypes.c_size_t, 140 << 30)


def test_the_driver_is_asked_without_packages(monkeypatch):
    monkeypatch.setattr(examined.ctypes, "CDLL", lambda name: FakeDriver())
    assert driver_and_gpus() == (13000, [HOPPER])
    monkeypatch.setattr(examined.ctypes, "CDLL", lambda name: FakeDriver(starts=100))
    assert driver_and_gpus() == (13000, [])
    monkeypatch.setattr(examined.ctypes, "CDLL", os.listdir)  # an OSError
    assert driver_and_gpus() == (None, [])


def test_demo_and_cache(mine, monkeypatch):
    monkeypatch.setattr(machine, "_has_gpu", lambda: False)
    code, document = said("demo")
    assert code == 0 and document["device"] == "model" and [run["ok"] for run in document["runs"]] == [True, True]
    monkeypatch.setattr(machine, "product", lambda a, b: a @ b.T + 1)
    assert said("demo")[0] == 1
    for name in ("kernels/one", "kernels/two", "locks/aa.lock", "tuned-H200.json"):
        path = mine / "cache" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("1234")
    locks = {"kind": "locks", "files": 1, "bytes": 4}  # which other processes may hold
    others = [{"kind": "kernels", "files": 2, "bytes": 8}, {"kind": "tuned", "files": 1, "bytes": 4}]
    assert said("cache")[1]["kinds"] == [others[0], locks, others[1]]
    assert said("cache", "--clear")[1]["removed"] == 3 and said("cache")[1]["kinds"] == [locks]


def test_tunes_by_estimate(mine):
    code, document = said("tune", "512x512x256", "--estimate", "--most", 3)
    assert code == 0 and len(document["candidates"]) == 3


def test_bench_runs_a_suite_of_the_checkout(mine, monkeypatch):
    code, document = said("bench")
    assert code == 0 and "gemm" in document["suites"]
    asked = []

    def run(command, **_):
        asked.append(command)
        return subprocess.CompletedProcess(command, 7)

    monkeypatch.setattr(machine.subprocess, "run", run)
    result = CliRunner().invoke(app, ["bench", "gemm", "--rounds", "3"])
    assert result.exit_code == 7 and asked == [[sys.executable, "-m", "benchmarks.gemm", "--rounds", "3"]]
    monkeypatch.setattr(tp, "__file__", str(mine / "site" / "tmapipe" / "__init__.py"))
    code, document = said("bench")
    assert code == 2 and "is part of a checkout" in document["error"]["message"]


def test_python_m_runs_it(mine):
    command = [sys.executable, "-m", "tmapipe", "check", "mine.py:Copy"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=100, env={"PYTHONPATH": str(ROOT)})
    assert result.returncode == 0 and result.stdout.startswith("Copy: safe for every trip count"), result.stderr


# ---- docs/command.md ----------------------------------------------------------------------------------------------------

PAGE = "docs/command.md"


@pytest.mark.parametrize(
    "block", [pytest.param(b, id=b.text.splitlines()[0]) for b in blocks(PAGE) if b.info == "console"]
)
def test_the_page_shows_what_is_printed(block, mine, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    command, _, shown = block.text.partition("\n")
    words = command.split()
    assert words[:2] == ["$", "tmapipe"]
    result = CliRunner().invoke(app, words[2:])
    assert steady(result.output) == steady(shown)


def test_the_page_names_every_verb_and_no_other_option():
    page = (ROOT / PAGE).read_text()
    verbs = {command.name or command.callback.__name__ for command in app.registered_commands}
    assert all(f"`{verb}" in page for verb in verbs)
    helps = [CliRunner().invoke(app, [verb, "--help"], env={"COLUMNS": "200"}).output for verb in verbs]
    known = set(re.findall(r"--[a-z]+", " ".join(helps)))
    assert set(re.findall(r"--[a-z]+", page)) <= known
