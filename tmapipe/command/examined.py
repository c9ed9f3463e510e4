"""What `tmapipe doctor` looks at: versions, the driver, the GPU, tools, caches, and what of these does not go together.

Nothing is compiled here, and no kernel runs.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import attrs

from tmapipe.disk import cache_folder

__all__ = ["BAD", "NONE", "OK", "Item", "cache_item", "dsl_items", "examine", "gpu_items", "torch_item"]

OK, NONE, NOTE, BAD = "ok", "none", "note", "bad"
DSL = "nvidia-cutlass-dsl"
DSL_VERSION = (4, 8)  # as pyproject.toml has it
LEAST = {"torch": (2, 6), "apache-tvm-ffi": (0, 1, 10), "cuda-python": (12, 8)}
NVDISASM = (13, 4)  # older ones do not know what the DSL's compiler emits
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
    """(what was found, whether there is a GPU)."""
    version = platform.python_version()
    fix = "" if sys.version_info >= (3, 10) else "install Python 3.10 or newer"
    items = [Item("Python", version, BAD if fix else OK, fix), *dsl_items(_versions(DSL))]
    items += [_package(name, least) for name, least in LEAST.items() if name != "torch"]
    driver, gpus = _driver()
    items += [torch_item(*_torch(), bool(gpus)), *gpu_items(driver, gpus), _nvdisasm(), cache_item(cache_folder())]
    if os.environ.get("TMAPIPE_CHECK", "1") == "0":
        items.append(Item("TMAPIPE_CHECK", "0: schedules are launched unchecked", NOTE, "unset TMAPIPE_CHECK"))
    return items, bool(gpus)


def _versions(start: str) -> dict[str, str]:
    """Versions by the names of the packages whose names begin so."""
    found = importlib.metadata.distributions()
    names = {str(each.metadata["Name"] or "").lower(): each.version for each in found}
    return {name: version for name, version in sorted(names.items()) if name.startswith(start)}


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version.partition("+")[0])))


def _package(name: str, least: tuple[int, ...]) -> Item:
    version, wanted = _versions(name).get(name), ".".join(map(str, least))
    fix = f"pip install '{name}>={wanted}'"
    if version is None:
        return Item(name, "is not installed", BAD, fix)
    return Item(name, version) if _numbers(version) >= least else Item(name, f"{version} is too old", BAD, fix)


def dsl_items(versions: dict[str, str]) -> list[Item]:
    """CuTe DSL and its parts, by their versions."""
    wanted = "{}.{}".format(*DSL_VERSION)
    fix = f"pip install 'nvidia-cutlass-dsl>={wanted},<{DSL_VERSION[0]}.{DSL_VERSION[1] + 1}'"
    whole = versions.get(DSL)
    if whole is None:
        return [Item(DSL, "is not installed: schedules can be checked and simulated, not compiled", BAD, fix)]
    fits = _numbers(whole)[:2] == DSL_VERSION
    items = [Item(DSL, whole if fits else f"{whole}: the library works below the DSL's stable surface, of {wanted}")]
    if not fits:
        items = [attrs.evolve(items[0], state=BAD, fix=fix)]
    elif importlib.util.find_spec("cutlass") is None:
        repair = f"pip install --force-reinstall '{DSL}=={whole}'"
        items = [Item(DSL, f"{whole}, whose module cutlass is not found", BAD, repair)]
    for name, version in versions.items():
        if name != DSL:
            other = f"{version}, beside {whole} of {DSL}: parts of one version go together"
            repair = f"pip install --force-reinstall '{DSL}=={whole}'"
            items.append(Item(name, version) if version == whole else Item(name, other, BAD, repair))
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
    wanted = ".".join(map(str, LEAST["torch"]))
    if version is None or _numbers(version) < LEAST["torch"]:
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


def _driver() -> tuple[int | None, list[tuple[str, int, int]]]:
    """(CUDA version of the driver, None without one; (name, capability as 90, bytes of memory) of each GPU)."""
    try:
        from cuda.bindings import driver

        failed, version = driver.cuDriverGetVersion()
        if failed != driver.CUresult.CUDA_SUCCESS or driver.cuInit(0)[0] != driver.CUresult.CUDA_SUCCESS:
            return None if failed != driver.CUresult.CUDA_SUCCESS else int(version), []
        count = driver.cuDeviceGetCount()[1]
        return int(version), [_gpu(driver, i) for i in range(count)]
    except (ImportError, RuntimeError):  # no package, or no libcuda
        return None, []


def _gpu(driver: Any, index: int) -> tuple[str, int, int]:
    device = driver.cuDeviceGet(index)[1]
    kinds = driver.CUdevice_attribute
    major, minor = (
        driver.cuDeviceGetAttribute(getattr(kinds, f"CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_{each}"), device)[1]
        for each in ("MAJOR", "MINOR")
    )
    name = driver.cuDeviceGetName(96, device)[1].split(b"\0")[0].decode()
    return name, 10 * major + minor, int(driver.cuDeviceTotalMem(device)[1])


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
    found = re.search(r"release (\d+)\.(\d+)", text)
    version = f"{found[1]}.{found[2]}" if found else "of an unknown version"
    old = found is None or (int(found[1]), int(found[2])) < NVDISASM
    return Item("nvdisasm", f"{version}, {path}", NOTE if old else OK, fix if old else "")


def cache_item(folder: Path) -> Item:
    """The folder of what is kept on disk."""
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
