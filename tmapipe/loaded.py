"""`load`: exported kernels, called from Python with tensors of any library that knows DLPack. Neither a compiler nor torch is
needed.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from tmapipe.errors import InputError, MissingGpuError

FORMAT = 1  # of the facts in a library
CUDA = 2  # of DLPack, a device
NAMES = {"float32": "fp32", "float64": "fp64", "float16": "fp16", "bfloat16": "bf16"}
NAMES |= {"float8_e4m3fn": "fp8_e4m3", "float8_e5m2": "fp8_e5m2"}
KINDS = {(2, 64): "fp64", (2, 32): "fp32", (2, 16): "fp16", (4, 16): "bf16", (10, 8): "fp8_e4m3", (12, 8): "fp8_e5m2"}
KINDS |= {(0, bits): f"int{bits}" for bits in (8, 16, 32, 64)}


def load(path: str | os.PathLike[str]) -> Bundle:
    """Opens a library that `Schedule.export` or `tmapipe.export` has written. Opening it runs code, so open only libraries
    that you trust.

    Args:
        path: The library's path.

    Raises:
        InputError: There is no file, or the file is no such library.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise InputError("path", path, "is the path of an exported library", 'e.g. "gemm.so"')
    place = Path(path).absolute()
    if not place.is_file():
        raise InputError("path", str(path), "is no file", "export a schedule to it")
    try:
        library = ctypes.CDLL(str(place))
        library.tmapipe_facts.restype = library.tmapipe_error.restype = ctypes.c_char_p
        facts = json.loads(library.tmapipe_facts())
        if facts["format"] != FORMAT:
            raise ValueError(f"of format {facts['format']}, where this version knows {FORMAT}")
        return Bundle(place, library, facts)
    except (OSError, AttributeError, ValueError, KeyError) as error:
        rule = f"is no library that tmapipe has exported ({error})"
        raise InputError("path", str(path), rule, "export it with this version") from None


class Bundle(Mapping[str, "Kernel"]):
    """The kernels of an exported library, by name: ``bundle["gemm"](a, b)``.

    Attributes: path: The library's path. arch: The target for which it was compiled.
    """

    def __init__(self, path: Path, library: ctypes.CDLL, facts: Mapping[str, Any]):
        self.path, self.arch = path, str(facts["arch"])
        self._kernels = {name: Kernel(name, library, about) for name, about in facts["kernels"].items()}

    def __getitem__(self, name: str) -> Kernel:
        kernel = self._kernels.get(name)
        if kernel is None:
            rule = f"names no kernel of {self.path.name}; the kernels are {', '.join(self._kernels)}"
            raise InputError("name", name, rule, "rename it")
        return kernel

    def __contains__(self, name: object) -> bool:
        return name in self._kernels

    def __iter__(self) -> Iterator[str]:
        return iter(self._kernels)

    def __len__(self) -> int:
        return len(self._kernels)

    def __repr__(self) -> str:
        return f"Bundle({str(self.path)!r}, {self.arch}: {', '.join(self._kernels)})"


@attrs.frozen
class _Wanted:
    """A tensor that a kernel takes, as the library says."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    output: bool
    added_to: bool


@attrs.frozen
class _Given:
    """A tensor of any library. owner: keeps the memory."""

    address: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    device: tuple[int, int]
    owner: Any


class Kernel:
    """An exported kernel. Call it with its tensors in their order."""

    def __init__(self, name: str, library: ctypes.CDLL, facts: Mapping[str, Any]):
        self.name, self._library, self._launch = name, library, getattr(library, name)
        shaped = (
            {**each, "shape": tuple(each["shape"]), "strides": tuple(each["strides"])} for each in facts["tensors"]
        )
        self._wanted = tuple(_Wanted(**each) for each in shaped)
        self._inputs = sum(not each.output for each in self._wanted)
        self._bytes = int(facts["workspace"])
        self._workspaces: dict[tuple[int, int], ctypes.c_void_p] = {}

    def __repr__(self) -> str:
        tensors = ", ".join(f"{each.name}: {each.dtype} {list(each.shape)}" for each in self._wanted)
        return f"Kernel({self.name}, {tensors})"

    def __call__(self, *tensors: Any, out: Any = None, stream: int | None = None) -> Any:
        """Launches the kernel, and waits for nothing.

        Args:
            tensors: On one CUDA device, as they were exported: types, shapes, strides. Outputs come last. Those that are left
                out are made, if the others are torch's.
            out: The first output.
            stream: A CUDA stream's handle; None: torch's current one for its tensors, else the default stream.

        Raises:
            InputError: A tensor is another one than was exported.
            MissingGpuError: There is no CUDA device.

        Returns:
            The output, or a tuple of the outputs.
        """
        given = [*tensors] if out is None else [*tensors, out]
        torch = next((x for x in given if str(type(x).__module__).partition(".")[0] == "torch"), None)
        if out is not None and len(given) != self._inputs + 1:
            raise InputError("out", out, f"follows the {self._inputs} inputs of {self.name}", "pass each tensor once")
        if len(given) < len(self._wanted) and len(given) >= self._inputs and torch is not None:
            given += [_made(each, torch) for each in self._wanted[len(given) :]]
        if len(given) != len(self._wanted):
            rule = f"are {', '.join(each.name for each in self._wanted)}"
            raise InputError(f"{self.name}(tensors)", f"{len(given)} tensors", rule, "pass all of them")
        stream = _current_stream(torch) if stream is None else stream
        read = [_read(each.name, x, stream) for each, x in zip(self._wanted, given, strict=True)]
        for each, have in zip(self._wanted, read, strict=True):
            _check(each, have)
        device = self._device(read)
        for i in range(self._inputs, len(read)):
            _check_apart(self._wanted, read, i)
        pointers = [ctypes.c_void_p(have.address) for have in read]
        workspace = self._workspace(device, stream)
        self._checked(self._launch(*pointers, workspace, ctypes.c_void_p(stream)))
        if torch is not None:
            _note_written([x for x in given[self._inputs :] if str(type(x).__module__).partition(".")[0] == "torch"])
        results = given[self._inputs :]
        return results[0] if len(results) == 1 else tuple(results)

    def warm_up(self, stream: int = 0) -> None:
        """Makes the memory that launches on a stream work in, which a first call does otherwise: call it before a capture.

        Args:
            stream: The stream's handle.

        Raises:
            MissingGpuError: There is no CUDA device.
        """
        self._workspace(self._current(), stream)

    def _current(self) -> int:
        device = int(self._library.tmapipe_device())
        if device < 0:
            raise MissingGpuError(f"{self._library.tmapipe_error().decode()}")
        return device

    def _device(self, read: Sequence[_Given]) -> int:
        current = self._current()
        for each, have in zip(self._wanted, read, strict=True):
            if have.device[1] != current:
                rule = f"lies on the current device, which is {current}"
                raise InputError(f"{each.name}.device", have.device[1], rule, "make its device the current one")
        return current

    def _workspace(self, device: int, stream: int) -> ctypes.c_void_p:
        if not self._bytes:
            return ctypes.c_void_p()
        workspace = self._workspaces.get((device, stream))
        if workspace is None:  # for ever: a graph may use it
            workspace = ctypes.c_void_p()
            self._checked(self._library.tmapipe_memory(ctypes.c_size_t(self._bytes), ctypes.byref(workspace)))
            self._workspaces[device, stream] = workspace
        return workspace

    def _checked(self, code: int) -> None:
        if code:
            raise RuntimeError(f"{self.name}: {self._library.tmapipe_error().decode()}")


def _check(wanted: _Wanted, have: _Given) -> None:
    """Raises `InputError` for another tensor than the kernel was exported for."""
    if have.device[0] != CUDA:
        raise MissingGpuError(f"{wanted.name} lies on no CUDA device; exported kernels run on a GPU alone.")
    for what in ("dtype", "shape", "strides"):
        value, rule = getattr(have, what), getattr(wanted, what)
        if value != rule and not (what == "strides" and _same_places(wanted.shape, value, rule)):
            raise InputError(
                f"{wanted.name}.{what}", value, f"is {rule}, as it was exported", "export it for this one too"
            )
    if have.address % 16:
        raise InputError(
            f"{wanted.name}.data_ptr()", hex(have.address), "is a multiple of 16", "pass a tensor that begins so"
        )


def _same_places(shape: Sequence[int], one: Sequence[int], other: Sequence[int]) -> bool:
    """Whether strides differ in dimensions of one element alone."""
    return all(n == 1 or a == b for n, a, b in zip(shape, one, other, strict=True))


def _check_apart(wanted: Sequence[_Wanted], read: Sequence[_Given], output: int) -> None:
    """Raises `InputError` if an output's span of memory meets another tensor's."""
    begin, end = _span(wanted[output], read[output])
    for i, have in enumerate(read):
        first, last = _span(wanted[i], have)
        if i != output and begin < last and first < end:
            rule = f"must not overlap that of {wanted[i].name}, which is read or written at the same time"
            raise InputError(wanted[output].name, f"memory at {hex(begin)}", rule, "pass a tensor of its own")


def _span(wanted: _Wanted, have: _Given) -> tuple[int, int]:
    size = {"fp8_e4m3": 1, "fp8_e5m2": 1}.get(wanted.dtype) or int(
        wanted.dtype.lstrip("abcdefghijklmnopqrstuvwxyz")
    ) // 8
    return have.address, have.address + size * (
        1 + sum((n - 1) * s for n, s in zip(have.shape, have.strides, strict=True))
    )


# ---- tensors ----------------------------------------------------------------------------------------------------------


def _read(name: str, tensor: Any, stream: int) -> _Given:
    """The address, type, extents, strides and device of a tensor."""
    if str(type(tensor).__module__).partition(".")[0] == "torch":
        with contextlib.suppress(AttributeError, RuntimeError):  # what has no memory
            kind = str(tensor.dtype).removeprefix("torch.")
            if not (tensor.is_neg() or tensor.is_conj() or (tensor.requires_grad and _torch().is_grad_enabled())):
                device = (CUDA if tensor.is_cuda else 1, tensor.get_device())
                layout = tuple(tensor.shape), tensor.stride()
                return _Given(tensor.data_ptr(), NAMES.get(kind, kind), *layout, device, tensor)
        rule = "has its values in memory, and takes no part in automatic differentiation"
        raise InputError(name, type(tensor).__name__, rule, "pass x.detach().resolve_conj().resolve_neg()")
    if not hasattr(tensor, "__dlpack__"):
        raise InputError(name, type(tensor).__name__, "is a tensor that knows DLPack", "convert it")
    kind_of_device, number = map(int, tensor.__dlpack_device__())
    if kind_of_device != CUDA:
        return _Given(0, "", (), (), (kind_of_device, number), tensor)
    capsule = tensor.__dlpack__(stream=stream or 1)  # 1: the default stream
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    given = ctypes.cast(pointer(capsule, b"dltensor"), ctypes.POINTER(_DlTensor)).contents
    shape = tuple(given.shape[: given.ndim])
    strides = tuple(given.strides[: given.ndim]) if given.strides else _dense(shape)
    dtype = KINDS.get((given.code, given.bits), "") if given.lanes == 1 else ""
    return _Given(
        (given.data or 0) + given.byte_offset, dtype, shape, strides, (CUDA, given.device_id), (tensor, capsule)
    )


class _DlTensor(ctypes.Structure):
    """DLPack's DLTensor."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


def _dense(shape: Sequence[int]) -> tuple[int, ...]:
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))


def _torch() -> Any:
    import torch  # of whose tensors one was passed

    return torch


def _current_stream(tensor: Any) -> int:
    if tensor is None or not tensor.is_cuda:
        return 0
    return int(_torch().cuda.current_stream(tensor.device).cuda_stream)


def _note_written(tensors: Sequence[Any]) -> None:
    if tensors:
        _torch().autograd.graph.increment_version(tensors)


def _made(wanted: _Wanted, like: Any) -> Any:
    """A new output beside a torch tensor; 0 if results are added to it."""
    torch = _torch()
    kind = getattr(torch, next((long for long, short in NAMES.items() if short == wanted.dtype), wanted.dtype))
    made = torch.empty_strided(wanted.shape, wanted.strides, dtype=kind, device=like.device)
    return made.zero_() if wanted.added_to else made
