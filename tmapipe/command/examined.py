"""What `tmapipe doctor` looks at: versions, the driver, the GPU, tools, caches, and what of these does not go together.

Nothing is compiled here, and no kernel runs.
"""

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
from pathlib import Path
from typing import Any

import attrs

from tmapipe.disk import cache_folder

__all__ = [
    "BAD", "NONE", "OK", "Item", "cache_item", "driver_and_gpus", "dsl_items", "examine", "gpu_items", "package_item",
    "torch_item",
]  # fmt: skip

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
    """(what was found, whether there is a GPU)."""
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
    if os.environ.get("TMAPIPE_CHECK", "1") == "0":
        items.append(Item("TMAPIPE_CHECK", "0: schedules are launched unchecked", NOTE, "unset TMAPIPE_CHECK"))
    return items, bool(gpus)


def _installed() -> dict[str, tuple[str, str]]:
    """(version, folder) of the packages that have metadata, by their names; of several, the one that is imported."""
    found: dict[str, tuple[str, str]] = {}
    for each in importlib.metadata.distributions():
        try:
            name, version = each.metadata["Name"], each.version
        except Exception:  # of a package that is half removed, as the reader of its files raises it
            continue
        if name and version:
            place = str(each.locate_file(""))
            found.setdefault(re.sub(r"[-_.]+", "-", name).lower(), (version, place))
    return dict(sorted(found.items()))


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
    """A package that a kernel needs on its way to the GPU.

    Args:
        module: That is imported of it.
        names: Of the packages that may bring it.
        least: The oldest version.
        versions: Of the packages that have metadata.
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
    """(CUDA version of the driver, None without one; (name, capability as 90, bytes of memory) of each GPU). Asks the
    driver's library itself: no package has to be there."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None, []

    def asked(function: str, *arguments: Any) -> int | None:
        """The number that a function of the driver's gives; None if it fails."""
        found = ctypes.c_int(0)
        return None if getattr(driver, function)(ctypes.byref(found), *arguments) else found.value

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
