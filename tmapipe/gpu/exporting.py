"""Ahead of time: kernels in a shared library that needs the CUDA driver and nothing else, with a C header."""

from __future__ import annotations

import ctypes
import functools
import json
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
from cutlass.cute.runtime import find_runtime_libraries

from tmapipe.base.arithmetic import DType
from tmapipe.bind import Bound
from tmapipe.bind.tensors import strides_of
from tmapipe.errors import InputError, MissingPackageError, require
from tmapipe.gpu import WORDS, encoded_words
from tmapipe.gpu.kernels import kernel_for
from tmapipe.plan.model import Plan
from tmapipe.tiles.dynamic import COUNTERS

if TYPE_CHECKING:
    from tmapipe.schedule import Schedule


# ---- packed ----------------------------------------------------------------------------------------------------------
#
# The arguments of a launch in memory, as the C convention of Apache TVM FFI has them. A launch writes addresses and a
# stream there and calls the kernel's host code: no tensor is converted.


INT, POINTER, TENSOR, ARRAY = 1, 4, 7, 71  # of TVM FFI, kinds of values
CUDA = 2  # of DLPack
CODES = {"bf": 4, "fp": 2, "in": 0}  # of DLPack
LOW = (1 << 64) - 1
REFERENCES = (1 << 32) + (1 << 20)  # nobody frees what is not counted down to 0

#: The words of one launch, where the arguments begin among them, and where the result is written.
Memory = tuple[Any, Any, Any]


class Packed:
    """A kernel's host code, with all its arguments except addresses and the stream.

    Args:
        function: The function, as in `Code.function`.
        tensors: (type code, bits, extents, strides) of each tensor, as DLPack has them.
        numbers: The launch's numbers.
        device: The device on which the tensors lie.
    """

    def __init__(
        self,
        function: Any,
        tensors: Sequence[tuple[int, int, Sequence[int], Sequence[int]]],
        numbers: Sequence[int],
        device: int,
    ):
        self.function = function
        self.words: list[int] = []
        self.inner: list[tuple[int, int]] = []  # words that are addresses of other words
        self.places: list[int] = []  # of the tensors' addresses
        words = self.words
        words += [0, 0, ARRAY, 0, ARRAY, 0, POINTER, 0]  # the result, then three arguments
        self.stream = 7
        self._array(3, [self._tensor(*tensor, device) for tensor in tensors])
        self._array(5, [(INT, number & LOW, None) for number in numbers])
        import tvm_ffi

        library = ctypes.PyDLL(tvm_ffi.libinfo.find_libtvm_ffi())  # which keeps the GIL: nobody else writes meanwhile
        self.call = library.TVMFFIFunctionCall
        self.call.restype = ctypes.c_int
        self.handle, self.count = ctypes.c_void_p(function.__chandle__()), ctypes.c_int(3)
        self.free: list[Memory] = []  # each is one thread's while it launches

    def _point(self, word: int, at: int) -> None:
        self.inner.append((word, at))

    def _tensor(
        self, code: int, bits: int, shape: Sequence[int], strides: Sequence[int], device: int
    ) -> tuple[int, int, int]:
        """A DLTensor; the value that points to it."""
        words, first = self.words, len(self.words)
        words += [0, CUDA | device << 32, len(shape) | code << 32 | bits << 40 | 1 << 48, 0, 0, 0]
        for word, values in ((first + 3, shape), (first + 4, strides)):
            self._point(word, len(words))
            words += [int(value) & LOW for value in values] or [0]
        self.places.append(first)
        return TENSOR, 0, first

    def _array(self, argument: int, values: Sequence[tuple[int, int, int | None]]) -> None:
        """An Array of values; *argument*: the word that points to it."""
        words = self.words
        first = len(words)
        self._point(argument, first)
        words += [REFERENCES, ARRAY, 0, 0, len(values), len(values), 0]
        self._point(first + 3, len(words))
        for kind, value, to in values:
            if to is not None:
                self._point(len(words) + 1, to)
            words += [kind, value]

    def make(self, addresses: Sequence[int] = ()) -> Memory:
        """New memory of a launch, with the tensors' addresses if they are known."""
        buffer = (ctypes.c_uint64 * len(self.words))(*self.words)
        base = ctypes.addressof(buffer)
        for word, at in self.inner:
            buffer[word] = base + 8 * at
        for place, address in zip(self.places, addresses, strict=False):
            buffer[place] = address
        return memoryview(buffer).cast("B").cast("Q"), ctypes.c_void_p(base + 16), ctypes.c_void_p(base)

    def launch(self, addresses: Sequence[int], stream: int) -> bool:
        """Launches with tensors at these addresses; whether that could be done."""
        memory = self.take()
        words, arguments, result = memory
        for place, address in zip(self.places, addresses, strict=True):
            words[place] = address
        words[self.stream] = stream
        failed = self.call(self.handle, arguments, self.count, result)
        self.free.append(memory)
        return not failed

    def take(self) -> Memory:
        """Memory of a launch, which is put back into `free` after it."""
        try:
            return self.free.pop()
        except IndexError:
            return self.make()


def type_of(dtype: DType) -> tuple[int, int]:
    """(code, bits) of an element type in DLPack."""
    eight = {"fp8_e4m3": 10, "fp8_e5m2": 12}
    return eight.get(dtype.name, CODES.get(dtype.name[:2], 2)), 8 * dtype.bytes


# ---- exporting -------------------------------------------------------------------------------------------------------
#
# Ahead of time: kernels in a shared library that needs the CUDA driver and nothing else, with a C header.
#
# Each kernel's object file, which has its host code, is linked with `bundle.c`, which stands in for CUDA's runtime
# and for Apache TVM FFI. `tmapipe.loaded` calls such a library from Python.


MOST_CLUSTERS = 1024  # on a device at once, by which the workspace is sized
ANY = 1 << 30  # clusters that no device holds
RUNTIME = Path(__file__).parent.parent / "bundle.c"
ARCHIVE = "libcuda_dialect_runtime_static.a"  # what the DSL's object files are linked with, as NVIDIA documents
WORDS_OF_C = [
    "auto", "break", "case", "char", "const", "continue", "default", "do", "double", "else", "enum", "extern", "float",
    "for", "goto", "if", "inline", "int", "long", "register", "restrict", "return", "short", "signed", "sizeof",
    "static", "struct", "switch", "typedef", "union", "unsigned", "void", "volatile", "while", "main", "malloc", "free",
    "abort", "workspace", "stream", "pointers", "Any", "Array", "Kernel", "Tensor", "LaunchConfig", "checked", "cuda",
    "current_stream", "enter", "fail", "launch", "message", "nothing", "resident", "said", "seek", "sought",
]  # fmt: skip
Prove = Callable[[Any, Mapping[str, Any], Any, "str | None"], object]


@attrs.frozen
class Exported:
    """One kernel of a bundle.

    Args:
        schedule: What it computes.
        given: The tensors as they are passed, by name, outputs included: arrays on the CPU.
        bound: The same as the kernel has them.
    """

    schedule: Schedule
    given: dict[str, Any]
    bound: Bound


def export(path: Path, kernels: Mapping[str, Exported], prove: Prove, arch: str | None = None) -> Path:
    """Writes the library *path* and, beside it, the header. Returns the header's path. It needs no GPU.

    Args:
        path: The library's path, with the ending .so.
        kernels: The kernels, by the names of their functions.
        prove: Called with a schedule, types, the traced program and its identity. It raises an error for a kernel that must
            not be exported.
        arch: As in `Schedule.plan`.

    Raises:
        InputError: A kernel cannot be exported.
        MissingPackageError: There is no C compiler.
        UnsafeError: A schedule is not safe.
    """
    plans = {name: each.schedule.plan(each.bound.dtypes, arch=arch) for name, each in kernels.items()}
    built = {name: _compiled(each, plans[name], prove) for name, each in kernels.items()}
    targets = {plan.arch for plan in plans.values()}
    require(len(targets) <= 1, "arch", sorted(targets), "is one for all kernels of a bundle", "pass arch=")
    facts = {"format": 1, "arch": targets.pop(), "kernels": {n: _facts(e, plans[n]) for n, e in kernels.items()}}
    source = [RUNTIME.read_text(), *(_source(name, each, plans[name]) for name, each in kernels.items())]
    source.append(f"PUBLIC const char *tmapipe_facts(void) {{ return {_quoted(json.dumps(facts))}; }}\n")
    stem = re.sub("[^A-Za-z0-9]", "_", path.stem)
    source.append(f"PUBLIC const char *{stem}_error(void) {{ return tmapipe_error(); }}")
    source.append(f"PUBLIC int {stem}_memory(size_t bytes, void **made) {{ return tmapipe_memory(bytes, made); }}\n")
    public = [
        *kernels,
        f"{stem}_error",
        f"{stem}_memory",
        *("tmapipe_" + name for name in ("facts", "error", "memory", "device")),
    ]
    header = path.with_suffix(".h")
    with tempfile.TemporaryDirectory(prefix="tmapipe-") as name:
        folder = Path(name)
        (folder / "bundle.c").write_text("\n".join(source))
        for kernel, content in built.items():
            (folder / f"{kernel}.o").write_bytes(content)
        (folder / "public").write_text(f"{{ global: {' '.join(f'{each};' for each in public)} local: *; }};\n")
        library = _linked(folder, list(kernels))
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(library, path)
            header.write_text(_header(stem, facts))
        except OSError as error:
            raise InputError("path", str(path), f"cannot be written: {error.strerror}", "name another one") from None
    return header


def _compiled(each: Exported, plan: Plan, prove: Prove) -> bytes:
    """The object file, of a kernel that is proved."""
    ranks = {name: tensor.ndim for name, tensor in each.bound.tensors.items()}
    gate = functools.partial(prove, each.schedule, each.bound.dtypes)
    return kernel_for(each.schedule, plan, ranks, gate).code.object


def in_c(name: str) -> str:
    """A name that C and the library have no other use for."""
    taken = name in WORDS_OF_C or name.startswith(("_", "tmapipe", "cuda", "cu", "TVMFFI", "str", "mem"))
    return f"{name}_" if taken or not name.isascii() else name


# ---- the source -------------------------------------------------------------------------------------------------------


def _clusters(each: Exported, plan: Plan) -> tuple[int, int]:
    """(how many clusters are launched, CTAs of each if no more than the device holds; 0 if all)."""

    def unknown() -> Any:
        rule = "depends on the multiprocessors of the device, which an exported kernel cannot know"
        raise InputError("tiles", each.schedule.tiles, rule, "export it with PersistentTiles() or DynamicTiles()")

    tiles = each.schedule.cluster_count(each.bound.shapes)
    of = functools.partial(each.schedule.tiles.launch_numbers, tiles, cluster_size=plan.cluster_size, gpcs=unknown)
    most, least = of(ANY), of(1)
    return most[0], 0 if most == least else plan.cluster_size


def _workspace(each: Exported, plan: Plan) -> tuple[list[tuple[int, int, int]], int]:
    """((bits, elements, place in bytes) of each tensor that the kernel works in, bytes of all)."""
    clusters, counters, place = min(_clusters(each, plan)[0], MOST_CLUSTERS), [], 0
    made = sum(buffer.stages for buffer in plan.made) * plan.cluster_size * clusters
    for bits, count in ((32, COUNTERS if plan.queue is not None else 0), (64, WORDS * made)):
        if count:
            counters.append((bits, count, place))
            place += -(-count * bits // 8 // 128) * 128
    return counters, place


def _facts(each: Exported, plan: Plan) -> dict[str, Any]:
    tensors = []
    for name, tensor in each.given.items():
        strides = strides_of(tensor)
        tensors.append(
            {
                "name": name,
                "dtype": each.bound.dtypes[name].name,
                "shape": list(map(int, tensor.shape)),
                "strides": list(strides),
                "output": name in each.bound.stores,
                "added_to": name in each.bound.added_to,
            }
        )
    return {"schedule": plan.name, "workspace": _workspace(each, plan)[1], "tensors": tensors}


def _source(name: str, each: Exported, plan: Plan) -> str:
    """The source of the C function of one kernel, with the data that it passes on."""
    scratch, nbytes = _workspace(each, plan)
    clusters, per_cluster = _clusters(each, plan)
    words = [word for load in plan.encoded for word in encoded_words(load, each.bound.tensors[load.argument])]
    layouts = [
        (type_of(each.bound.dtypes[a]), each.bound.tensors[a].shape, strides_of(each.bound.tensors[a]))
        for a in plan.arguments
    ]
    layouts += [((0, bits), (count,), (1,)) for bits, count, _ in scratch]
    lines, made = [], []
    for i, ((code, bits), shape, strides) in enumerate(layouts):
        lines.append(f"static const int64_t {name}_shape_{i}[] = {{{_listed(shape)}}};")
        lines.append(f"static const int64_t {name}_strides_{i}[] = {{{_listed(strides)}}};")
        made.append(f"{{0, 0, 0, {len(shape)}, {{{code}, {bits}, 1}}, {name}_shape_{i}, {name}_strides_{i}, 0}}")
    lines += [
        f"static const Tensor {name}_tensors[] = {{{', '.join(made)}}};",
        f"static const int64_t {name}_places[] = {{{_listed([place for _, _, place in scratch])}}};",
        f"static const int64_t {name}_words[] = {{{_listed([f'{w & (1 << 64) - 1}ULL' for w in words])}}};",
        f"extern int tmapipe_kernel_{name}(void *, const Any *, int32_t, Any *);",
        f"static const Kernel {name}_kernel = {{tmapipe_kernel_{name}, {name}_tensors, {len(layouts)}, "
        f"{len(plan.arguments)}, {name}_places, {clusters}, {per_cluster}, {name}_words, {len(words)}, "
        f"{re.sub('[^0-9]', '', plan.arch)}, {nbytes}}};",
        f"PUBLIC int {name}({_parameters(each.given, each.bound.stores)}) {{",
        f"    const void *pointers[] = {{{', '.join(map(in_c, plan.arguments))}}};",
        f"    return launch(&{name}_kernel, (void *const *)pointers, workspace, stream);",
        "}",
    ]
    return "\n".join(lines)


def _parameters(names: Mapping[str, Any], outputs: Sequence[str]) -> str:
    tensors = [f"{'void' if name in outputs else 'const void'} *{in_c(name)}" for name in names]
    return ", ".join([*tensors, "void *workspace", "void *stream"])


def _header(name: str, facts: Mapping[str, Any]) -> str:
    guard = f"{name}_H".upper()
    lines = [
        f"/* Kernels for {facts['arch']}, written by tmapipe. They need the CUDA driver alone, and only when they are called.",
        " *",
        " * Tensors are addresses on the device, at multiples of 16 bytes, laid out as the comments say (elements).",
        " * A workspace is memory of so many bytes at a multiple of 128, which is 0 before its first use; calls that",
        " * may run at once need one each. The stream is a CUstream or cudaStream_t. A call launches and waits for",
        f" * nothing. It returns 0, or an error, which {name}_error() words.",
        " */",
        f"#ifndef {guard}",
        f"#define {guard}",
        "#include <stddef.h>",
        "#ifdef __cplusplus",
        'extern "C" {',
        "#endif",
        "",
    ]
    for kernel, about in facts["kernels"].items():
        lines.append(f"/* {about['schedule']}:")
        for tensor in about["tensors"]:
            what = (", which is added to" if tensor["added_to"] else ", the output") if tensor["output"] else ""
            shape, strides = _listed(tensor["shape"]), _listed(tensor["strides"])
            lines.append(f" *   {tensor['name']}: {tensor['dtype']} [{shape}], strides {strides}{what}")
        outputs = [tensor["name"] for tensor in about["tensors"] if tensor["output"]]
        names = {tensor["name"]: None for tensor in about["tensors"]}
        lines += [
            " */",
            f"#define {kernel.upper()}_WORKSPACE {about['workspace']}",
            f"int {kernel}({_parameters(names, outputs)});",
            "",
        ]
    lines += [
        f"const char *{name}_error(void); /* of this thread's last call */",
        f"int {name}_memory(size_t bytes, void **made); /* new memory on the device that is 0 */",
        "",
        "#ifdef __cplusplus",
        "}",
        "#endif",
        "#endif",
    ]
    return "\n".join(lines) + "\n"


def _listed(values: Sequence[Any]) -> str:
    return ", ".join(map(str, values)) or "0"


def _quoted(text: str) -> str:
    """A C string."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


# ---- linking ----------------------------------------------------------------------------------------------------------


def _linked(folder: Path, names: Sequence[str]) -> Path:
    """The library, of bundle.c and each kernel's object file in *folder*."""
    compiler = shlex.split(os.environ.get("CC", "cc"))
    archive = Path(find_runtime_libraries(enable_tvm_ffi=True)[0]).with_name(ARCHIVE)
    for name in names:  # all object files define the same names
        kept = f"tmapipe_kernel_{name}"
        renamed = f"--redefine-sym=__tvm_ffi_tmapipe_kernel={kept}"
        _run(["objcopy", renamed, f"--keep-global-symbol={kept}", f"{name}.o"], folder)
    flags = ["-O2", "-fPIC", "-fvisibility=hidden", "-c", "bundle.c", "-o", "bundle.o"]
    _run([*compiler, *flags], folder)
    missing = sorted(
        _symbols(archive, "--undefined-only", "cuda") - _symbols(folder / "bundle.o", "--defined-only", "cuda")
    )
    stubs = [f"-Wl,--defsym={name}=tmapipe_missing" for name in missing]
    objects = ["bundle.o", *(f"{name}.o" for name in names), str(archive)]
    last = ["-Wl,-Bsymbolic", "-Wl,--version-script=public", "-Wl,--no-undefined", "-ldl", "-lpthread"]
    _run([*compiler, "-shared", "-o", "bundle.so", *objects, *stubs, *last], folder)
    return folder / "bundle.so"


def _symbols(file: Path, which: str, start: str) -> set[str]:
    lines = _run(["nm", which, str(file)], file.parent).splitlines()
    return {words[-1] for line in lines if len(words := line.split()) > 1 and words[-1].startswith(start)}


def _run(command: Sequence[str], folder: Path) -> str:
    """The output of a tool. Raises `MissingPackageError` if the tool is not installed."""
    if shutil.which(command[0]) is None:
        text = "is not installed, which links exported kernels. Fix: install gcc and binutils."
        raise MissingPackageError(f"{command[0]} {text}")
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed: {done.stderr.strip()[-2000:]}")
    return done.stdout
