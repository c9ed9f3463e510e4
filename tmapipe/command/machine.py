"""The verbs about this machine: doctor, demo, cache, bench and tune; and the checks of `tmapipe doctor`."""

from __future__ import annotations

import ctypes
import importlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import attrs
import numpy as np
import typer
from rich.table import Table

import tmapipe
from tmapipe import schedules
from tmapipe.base.arithmetic import bf16
from tmapipe.base.disk import cache_folder
from tmapipe.command.named import WRONG, Answer, answering, extents, filled, off, product, within, working
from tmapipe.errors import InputError, require
from tmapipe.tuning.compiling import export_tuned, import_tuned
from tmapipe.tuning.problem import Problem
from tmapipe.tuning.tuner import ranked

# ---- examined --------------------------------------------------------------------------------------------------------
#
# What `tmapipe doctor` looks at: versions, the driver, the GPU, tools, caches, and what of these does not go together.


OK, NONE, NOTE, BAD = "ok", "none", "note", "bad"
DSL = "nvidia-cutlass-dsl"
DSL_VERSION = (4, 8)  # as pyproject.toml has it
TORCH = (2, 6)
#: What else a kernel needs on its way to the GPU: the module, the packages that may bring it, and the oldest version.
PACKAGES: tuple[tuple[str, tuple[str, ...], tuple[int, ...]], ...] = (
    ("tvm_ffi", ("apache-tvm-ffi",), (0, 1, 10)),
    ("cuda.bindings", ("cuda-python", "cuda-bindings"), (12, 8)),
    ("filelock", ("filelock",), (3, 20)),
    ("greenlet", ("greenlet",), (3, 1)),
)
#: What only some verbs need, and what for.
OPTIONAL = {"cloudpickle": "tune", "tqdm": "tune"}
NVDISASM = (13, 4)  # older ones do not know what the DSL's compiler emits
_CAPABILITY = (75, 76)  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR
CUDA = 12_000  # of the driver, as cuDriverGetVersion says it: that of the compiler which the DSL brings


@attrs.frozen
class Item:
    """One thing that was looked at.

    Args:
        name: What it is.
        value: What was found.
        state: "ok"; "none": it is not here, and need not be; "note": it works, in part; "bad": it does not work.
        fix: What to do about it.
    """

    name: str
    value: str
    state: str = OK
    fix: str = ""

    def facts(self) -> dict[str, str]:
        """For JSON."""
        return attrs.asdict(self)


def examine() -> tuple[list[Item], bool]:
    """(what was looked at, whether there is a GPU)."""
    version = platform.python_version()
    fix = "" if sys.version_info >= (3, 10) else "install Python 3.10 or newer"
    installed = _installed()
    versions = {name: version for name, (version, _) in installed.items()}
    _, folder = installed.get(DSL, ("", None))  # parts in other folders are not those that are imported
    dsl = {name: each for name, (each, where) in installed.items() if name.startswith(DSL) and where == folder}
    items = [Item("Python", version, BAD if fix else OK, fix), *dsl_items(dsl)]
    items += [package_item(module, names, least, versions) for module, names, least in PACKAGES]
    items += [_optional(module, verb) for module, verb in OPTIONAL.items()]
    driver, gpus = driver_and_gpus()
    items += [torch_item(*_torch(), bool(gpus)), *gpu_items(driver, gpus), _nvdisasm(), cache_item(cache_folder())]
    changed = (("CHECK", "0", "schedules are launched unchecked"), ("WATCHDOG", None, "calls are waited for"))
    for name, value, what in changed:
        variable = os.environ.get(f"TMAPIPE_{name}")
        if variable and value in (None, variable):
            items.append(Item(f"TMAPIPE_{name}", f"{variable}: {what}", NOTE, f"unset TMAPIPE_{name}"))
    return items, bool(gpus)


def _installed() -> dict[str, tuple[str, str]]:
    """(version, folder) of each package that has metadata, by its name; if a package is installed twice, the one that is
    imported."""
    installed: dict[str, tuple[str, str]] = {}
    for each in importlib.metadata.distributions():
        try:
            name, version = each.metadata["Name"], each.version
        except Exception:  # of a package that is half removed, as the reader of its files raises it
            continue
        if name and version:
            place = str(each.locate_file(""))
            installed.setdefault(re.sub(r"[-_.]+", "-", name).lower(), (version, place))
    return dict(sorted(installed.items()))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version.partition("+")[0])))


def _has(module: str) -> bool:
    """Whether a module can be found. Imports the packages that it lies in."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _says(module: str) -> str | None:
    """The version that a module says it has; None if it says none, or cannot be imported."""
    try:
        version = getattr(importlib.import_module(module), "__version__", None)
    except Exception:  # whatever its own code raises
        return None
    return version if isinstance(version, str) else None


def package_item(module: str, names: tuple[str, ...], least: tuple[int, ...], versions: dict[str, str]) -> Item:
    """The state of a package that a kernel needs on its way to the GPU.

    Args:
        module: The module that is imported.
        names: The packages that may bring the module.
        least: The oldest version that works.
        versions: The versions of packages that have metadata.
    """
    fix = f"pip install '{names[0]}>={'.'.join(map(str, least))}'"
    if not _has(module):
        return Item(names[0], f"is not installed: no module {module}", BAD, fix)
    version = next((versions[name] for name in names if name in versions), None)
    said = version or _says(module)
    if said is None:
        return Item(names[0], f"of an unknown version: module {module} has no metadata", NOTE, fix)
    if _numbers(said) < least:
        return Item(names[0], f"{said} is too old", BAD, fix)
    return Item(names[0], said) if version else Item(names[0], f"{said}, without metadata", NOTE, fix)


def _optional(module: str, verb: str) -> Item:
    if _has(module):
        return Item(module, "is installed")
    return Item(module, f"is not installed: tmapipe {verb} needs it", NOTE, f"pip install {module}")


def dsl_items(versions: dict[str, str]) -> list[Item]:
    """CuTe DSL and its parts, by their versions."""
    wanted = "{}.{}".format(*DSL_VERSION)
    fix = f"pip install 'nvidia-cutlass-dsl>={wanted},<{DSL_VERSION[0]}.{DSL_VERSION[1] + 1}'"
    found, whole = _has("cutlass"), versions.get(DSL)
    if whole is None and not found:
        return [Item(DSL, "is not installed: schedules can be checked and simulated, not compiled", BAD, fix)]
    if not found:
        repair = f"pip install --force-reinstall '{DSL}=={whole}'"
        return [Item(DSL, f"{whole}, whose module cutlass is not found", BAD, repair)]
    said = whole or _says("cutlass")
    if said is None:
        items = [Item(DSL, "of an unknown version: module cutlass has no metadata", NOTE, fix)]
    elif _numbers(said)[:2] != DSL_VERSION:
        items = [Item(DSL, f"{said}: the library works below the DSL's stable surface, of {wanted}", BAD, fix)]
    else:
        items = [Item(DSL, whole) if whole else Item(DSL, f"{said}, without metadata", NOTE, fix)]
    for name, version in versions.items():
        if name != DSL:
            other = f"{version}, beside {said} of {DSL}: parts of one version go together"
            repair = f"pip install --force-reinstall '{DSL}=={said or wanted + '.*'}'"
            items.append(Item(name, version) if said in (None, version) else Item(name, other, BAD, repair))
    return items


def _torch() -> tuple[str | None, str | None, bool]:
    """(version, CUDA version that it was built for, whether it can use a GPU)."""
    try:
        import torch
    except ImportError:
        return None, None, False
    return torch.__version__, torch.version.cuda, torch.cuda.is_available()


def torch_item(version: str | None, built_for: str | None, usable: bool, gpu: bool) -> Item:
    """PyTorch, on a machine with or without a GPU."""
    wanted = ".".join(map(str, TORCH))
    if version is None or _numbers(version) < TORCH:
        said = f"{version} is too old" if version else "is not installed"
        return Item("torch", said, BAD, f"pip install 'torch>={wanted}'")
    built = f"{version}, for CUDA {built_for}" if built_for else f"{version}, for the CPU alone"
    if not gpu or usable:
        return Item("torch", built)
    if built_for is None:
        return Item(
            "torch", f"{built}, and there is a GPU", BAD, "install torch's build for CUDA (https://pytorch.org)"
        )
    fix = f"install torch for an older CUDA, or a driver for CUDA {built_for}"
    return Item("torch", f"{built}, does not reach the GPU", BAD, fix)


def driver_and_gpus() -> tuple[int | None, list[tuple[str, int, int]]]:
    """(CUDA version of the driver, None without one; (name, capability as 90, bytes of memory) of each GPU). It asks the
    driver's library, so it needs no package."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None, []

    def asked(function: str, *arguments: Any) -> int | None:
        """The number that a function of the driver's gives; None if it fails."""
        number = ctypes.c_int(0)
        return None if getattr(driver, function)(ctypes.byref(number), *arguments) else number.value

    version = asked("cuDriverGetVersion")
    if version is None or driver.cuInit(0):
        return version, []
    return version, [_gpu(driver, asked, i) for i in range(asked("cuDeviceGetCount") or 0)]


def _gpu(driver: Any, asked: Any, index: int) -> tuple[str, int, int]:
    device = asked("cuDeviceGet", index)
    name, memory = ctypes.create_string_buffer(96), ctypes.c_size_t(0)
    driver.cuDeviceGetName(name, len(name), device)
    driver.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
    major, minor = (asked("cuDeviceGetAttribute", attribute, device) or 0 for attribute in _CAPABILITY)
    return name.value.decode(errors="replace"), 10 * major + minor, memory.value


def gpu_items(driver: int | None, gpus: list[tuple[str, int, int]]) -> list[Item]:
    """The driver and the GPUs. driver: as cuDriverGetVersion says it."""
    if driver is None:
        return [Item("driver", "none", NONE), Item("GPU", "none: CPU tensors run on the model", NONE)]
    version = f"for CUDA {driver // 1000}.{driver % 1000 // 10}"
    release = Path("/proc/driver/nvidia/version")
    number = re.search(r"\b\d{3}\.\d+(\.\d+)?\b", release.read_text()) if release.is_file() else None
    said = f"{number[0]}, {version}" if number else version
    items = [
        Item("driver", said) if driver >= CUDA else Item("driver", f"{said}, is too old", BAD, "install R525 or newer")
    ]
    for name, capability, memory in gpus:
        value = f"{name}, sm_{capability}, {memory / 2**30:.0f} GiB"
        if capability == 90:
            items.append(Item("GPU", value))
        elif capability in (80, 86, 87, 89):
            fix = 'use schedules of CpAsyncLoadStage with arch = "sm_80" (docs/stages.md), or an H100 or H200'
            items.append(Item("GPU", f"{value}: it has no TMA", BAD, fix))
        else:
            items.append(Item("GPU", f"{value}: code for sm_90a runs on sm_90 alone", BAD, "use an H100 or H200"))
    return items if gpus else [*items, Item("GPU", "none: CPU tensors run on the model", NONE)]


def _nvdisasm() -> Item:
    """The disassembler, which the DSL and the benchmarks use: on PATH, or among NVIDIA's packages."""
    places = [Path(each, "nvidia") for each in sys.path]
    packaged = sorted((path for place in places for path in place.glob("*/bin/nvdisasm")), reverse=True)
    path = shutil.which("nvdisasm") or next(map(str, packaged), None)
    fix = f"pip install 'nvidia-cuda-nvdisasm>={'.'.join(map(str, NVDISASM))}'"
    if path is None:
        return Item("nvdisasm", "none: SASS cannot be shown", NONE, fix)
    try:
        text = subprocess.run([path, "--version"], capture_output=True, text=True, check=False, timeout=20).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        return Item("nvdisasm", f"{path}: {error}", NOTE, fix)
    release = re.search(r"release (\d+)\.(\d+)", text)
    version = f"{release[1]}.{release[2]}" if release else "of an unknown version"
    old = release is None or (int(release[1]), int(release[2])) < NVDISASM
    return Item("nvdisasm", f"{version}, {path}", NOTE if old else OK, fix if old else "")


def cache_item(folder: Path) -> Item:
    """The state of the folder in which the library keeps files."""
    fix = "make it yours alone (chmod go-w), or set TMAPIPE_CACHE_DIR to another folder"
    if not folder.exists():
        above = next(each for each in folder.parents if each.exists())
        if os.access(above, os.W_OK | os.X_OK):
            return Item("cache", f"{folder}, empty")
        return Item("cache", f"{folder} cannot be made", BAD, fix)
    about = folder.stat()
    if not stat.S_ISDIR(about.st_mode) or not os.access(folder, os.W_OK | os.X_OK):
        return Item("cache", f"{folder} is no folder that can be written to", BAD, fix)
    if about.st_uid != os.getuid() or about.st_mode & 0o002:
        return Item("cache", f"{folder} can be written by other users, who could change what runs", BAD, fix)
    files = [path for path in folder.rglob("*") if path.is_file()]
    return Item("cache", f"{folder}, {len(files)} files, {sum(path.stat().st_size for path in files)} bytes")


# ---- machine ---------------------------------------------------------------------------------------------------------
#
# The verbs that are about this machine: doctor, demo, cache, bench and tune.


Json = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]
_ON_MODEL = {"m": 160, "n": 200, "k": 136}  # no whole numbers of tiles
_ON_GPU = {"m": 4000, "n": 4104, "k": 4072}


def _compare(on_gpu: bool) -> list[dict[str, Any]]:
    """A copy and a GEMM, on the GPU or on the CPU model: how far they are from what NumPy computes, and how long they took."""
    generator = np.random.default_rng(0)
    m, n, k = (_ON_GPU if on_gpu else _ON_MODEL).values()
    a, b = filled(generator, (m, k), bf16), filled(generator, (n, k), bf16)
    gemm = schedules.Gemm() if on_gpu else schedules.Gemm((128, 128, 64), (1, 1))
    right = product(a.astype(np.float32), b.astype(np.float32))
    rows = []
    for name, schedule, inputs, expected in (("Copy", schedules.Copy(), (a,), a), ("Gemm", gemm, (a, b), right)):
        run: dict[str, Any] = {"name": f"{name} {'x'.join(map(str, (m, k) if name == 'Copy' else (m, n, k)))} bf16"}
        rows.append(run | {"error": None, "ok": False})
        began = time.perf_counter()
        try:
            result = _on_gpu(schedule, inputs) if on_gpu else schedule(*inputs)
        except Exception as error:  # on a machine that is not set up: to be said with the rest
            rows[-1] |= {"failed": f"{type(error).__name__}: {error}"}
        else:
            apart = off(result, expected)
            right_enough = apart <= (0.0 if name == "Copy" else within(result))
            rows[-1] |= {"error": apart if np.isfinite(apart) else None, "ok": right_enough}
        rows[-1]["seconds"] = time.perf_counter() - began
    return rows


def _on_gpu(schedule: Any, inputs: tuple[np.ndarray, ...]) -> np.ndarray:
    """A call of bf16 arrays on the GPU. Compilation is part of it."""
    import torch

    tensors = [torch.from_numpy(x.view(np.int16)).view(torch.bfloat16).cuda() for x in inputs]
    result = schedule(*tensors)
    torch.cuda.synchronize()
    return np.asarray(result.cpu().view(torch.int16).numpy()).view(bf16.numpy)


def doctor(json_: Json = False) -> None:
    """Says what this machine has, what does not go together, and how to repair it. On a GPU, runs a copy and a GEMM. Exit
    code 1: something is wrong."""
    with answering("doctor", json_) as answer:
        with working("looking at this machine"):
            items, gpu = examine()
        runs: list[dict[str, Any]] = []
        if gpu and all(item.state != BAD for item in items):
            with working("a copy and a GEMM on the GPU"):
                runs = _compare(on_gpu=True)
        elif gpu:
            items.append(Item("runs on the GPU", "none, before what is wrong is repaired", NONE))
        else:
            items.append(Item("runs on the GPU", "none: this machine has no GPU. Nothing was compiled", NONE))
        for run in runs:
            why = "the kernel did not run" if "failed" in run else "the kernel computes wrong numbers"
            fix = "" if run["ok"] else f"{why} here: please report it with this output"
            items.append(Item(run["name"], _said(run), "ok" if run["ok"] else BAD, fix))
        table = Table(box=None, show_header=False, padding=(0, 1))
        for _ in range(3):
            table.add_column(overflow="fold")
        for item in items:
            table.add_row(item.state, item.name, item.value + (f"\nFix: {item.fix}." if item.fix else ""))
        wrong = any(item.state == BAD for item in items)
        answer.facts = {"gpu": gpu, "items": [item.facts() for item in items], "runs": runs}
        answer.text, answer.code = [table], WRONG if wrong else 0


def _said(run: dict[str, Any]) -> str:
    if "failed" in run:
        return f"{run['failed']} (FAILED)"
    error = "not finite" if run["error"] is None else f"{run['error']:.1e}"
    return f"differs from NumPy's by {error}, {run['seconds']:.1f} s{'' if run['ok'] else ' (WRONG)'}"


def demo(json_: Json = False) -> None:
    """Runs a copy and a GEMM, on the GPU if there is one, else on the CPU model, and compares them with NumPy's."""
    with answering("demo", json_) as answer:
        with working("looking for a GPU"):
            gpu = _has_gpu()
        with working(f"a copy and a GEMM on {'the GPU' if gpu else 'the CPU model'}"):
            runs = _compare(gpu)
        where = "the GPU" if gpu else "the CPU model of the hardware (there is no GPU here)"
        answer.facts = {"device": "gpu" if gpu else "model", "runs": runs}
        answer.text = [f"on {where}", *(f"  {run['name']}: {_said(run)}" for run in runs)]
        answer.code = 0 if all(run["ok"] for run in runs) else WRONG


def _has_gpu() -> bool:
    _, _, usable = _torch()
    return usable


def cache(
    clear: Annotated[
        bool, typer.Option("--clear", help="Remove what is kept: it is made anew when it is needed.")
    ] = False,
    export: Annotated[
        Path | None, typer.Option("--export", metavar="FILE", help="Write what tuning has found to a file.")
    ] = None,
    import_: Annotated[
        Path | None, typer.Option("--import", metavar="FILE", help="Keep what is in such a file.")
    ] = None,
    json_: Json = False,
) -> None:
    """Says what the library keeps on disk, and where; takes what tuning has found to other machines."""
    with answering("cache", json_) as answer:
        moved = {
            **({} if import_ is None else {"imported": import_tuned(import_)}),
            **({} if export is None else {"exported": export_tuned(export)}),
        }
        folder = cache_folder()
        kinds: dict[str, list[Path]] = {}
        for path in sorted(folder.rglob("*")) if folder.is_dir() else ():
            if path.is_file() and not path.is_symlink():
                parts = path.relative_to(folder).parts
                kinds.setdefault(parts[0] if len(parts) > 1 else parts[0].partition("-")[0], []).append(path)
        rows = [{"kind": k, "files": len(of), "bytes": sum(p.stat().st_size for p in of)} for k, of in kinds.items()]
        removed = 0
        for path in (path for kind, of in kinds.items() if kind != "locks" for path in of) if clear else ():
            try:
                path.unlink()
            except OSError as error:
                rule = f"cannot be removed: {error.strerror}"
                raise InputError("--clear", str(path), rule, "make it yours, or set TMAPIPE_CACHE_DIR") from None
            removed += 1
        answer.facts = {"folder": str(folder), "kinds": rows, "removed": removed, **moved}
        lines = [f"  {row['kind']}: {row['files']} files, {row['bytes']} bytes" for row in rows] or ["  nothing"]
        lines += [f"{what} {count} entries" for what, count in moved.items()]
        answer.text = [str(folder), *lines, *([f"removed {removed} files"] if clear else [])]


def bench(
    context: typer.Context,
    suite: Annotated[str | None, typer.Argument(help="A suite; without: which there are.")] = None,
    json_: Json = False,
) -> None:
    """Runs a benchmark suite of a checkout, with the options that follow: tmapipe bench gemm --help."""
    with answering("bench", json_) as answer:
        root = Path(tmapipe.__file__).resolve().parents[1]
        folder = root / "benchmarks"
        if not (folder / "__init__.py").is_file():
            rule = "is part of a checkout of the repository, and the package is installed without one"
            fix = "clone the repository, and run pip install -e '.[bench]' in it"
            raise InputError("benchmarks", str(folder), rule, fix)
        suites = sorted(p.stem for p in folder.glob("*.py") if 'if __name__ == "__main__"' in p.read_text())
        if suite is None:
            answer.facts, answer.text = {"suites": suites}, suites
            return
        require(suite in suites, "SUITE", suite, f"is one of {', '.join(suites)}", "name one of them")
        command = [sys.executable, "-m", f"benchmarks.{suite}", *context.args]
        ended = subprocess.run(command, cwd=root, stdout=sys.stderr if json_ else None, check=False)
        answer.facts, answer.code = {"suite": suite, "arguments": context.args}, ended.returncode


def tune(
    problem: Annotated[str, typer.Argument(metavar="MxNxK", help="Extents of the GEMM d[m, n] = a[m, k] b[n, k]^T.")],
    dtype: Annotated[str, typer.Option(help="Element type of a and b.")] = "bf16",
    out: Annotated[str | None, typer.Option(help="Element type of d; by default that of a.")] = None,
    most: Annotated[int, typer.Option(min=1, help="Candidates to try.")] = 12,
    again: Annotated[bool, typer.Option("--again", help="Measure even if the result is on disk.")] = False,
    estimate: Annotated[
        bool, typer.Option("--estimate", help="Rank candidates for an H200 by estimate: needs no GPU.")
    ] = False,
    json_: Json = False,
) -> None:
    """Measures which schedule of a GEMM is the fastest on this GPU, and remembers it."""
    with answering("tune", json_) as answer:
        if not re.fullmatch(r"\d+x\d+x\d+", problem):
            raise InputError("MxNxK", problem, "is three extents with an x between them", "e.g. 4096x4096x1024")
        m, n, k = extents("MxNxK", problem)
        wanted = Problem(m, n, k, dtype, out or ("int32" if dtype == "int8" else dtype))
        if estimate:
            with working("estimating"):
                rows = [{"candidate": str(c), "us": us, "measured": False} for c, us in ranked(wanted, most=most)]
            answer.facts = {"problem": str(wanted), "candidates": rows, "refused": []}
        else:
            from tmapipe.tuning.tuner import tune as measure

            tuned = measure(wanted, most=most, again=again, progress=sys.stderr.isatty())
            timed = [(str(c), t.us) for c, t in tuned.timings] or [(str(tuned.candidate), tuned.us)]
            rows = [{"candidate": name, "us": us, "measured": True} for name, us in timed]
            refused = [{"candidate": str(c), "reason": why} for c, why in tuned.refused]
            answer.facts = {"problem": str(wanted), "candidates": rows, "refused": refused}
        _say(answer, rows)


def _say(answer: Answer, rows: list[dict[str, Any]]) -> None:
    table = Table("us", "candidate", box=None, title=f"{answer.facts['problem']}", title_justify="left")
    for row in rows:
        table.add_row(f"{row['us']:.1f}", row["candidate"])
    answer.text = [table]
