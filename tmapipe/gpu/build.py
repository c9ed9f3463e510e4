"""From a plan to a compiled kernel: the traced host function, what ptxas says of the result, and its object file."""

from __future__ import annotations

import functools
import inspect
import math
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import attrs
import cutlass.cute as cute
from cutlass import Int32, Int64
from cutlass._mlir import ir
from cutlass._mlir_helpers.op import _set_enable_frame_filtering
from cutlass.cute.runtime import make_fake_stream, make_fake_tensor

from tmapipe.base import disk
from tmapipe.base.arithmetic import int32
from tmapipe.base.tma_rules import ALIGNMENT
from tmapipe.errors import InputError
from tmapipe.gpu import WORDS, control, cute_type, describe, full_shape, make_atom, to_core_first
from tmapipe.gpu.control import EMITTERS, emit_ptx
from tmapipe.gpu.copies import copy_tile
from tmapipe.gpu.fragments import edge_of
from tmapipe.gpu.isa import GpuIsa, emit
from tmapipe.gpu.watchdog import NUMBERS
from tmapipe.isa import ALL_LANES, ops
from tmapipe.plan.model import Plan
from tmapipe.plan.rings import Barrier
from tmapipe.program import ONE_AT_A_TIME, Traced, trace
from tmapipe.program.explain import fragments_held
from tmapipe.tiles.dynamic import COUNTERS

if TYPE_CHECKING:
    from tmapipe.schedule import Schedule


# ---- sm80 ------------------------------------------------------------------------------------------------------------
#
# The instruction set of architectures before sm_90: their mbarriers count no bytes, and their warps elect no lane.


WAIT = """{
.reg .pred done;
wait_${:uid}:
mbarrier.test_wait.parity.shared.b64 done, [$0], $1;
@!done bra wait_${:uid};
}"""


def _wait(isa: GpuIsa, op: Any) -> None:
    emit_ptx(WAIT, "rr", isa.mbarrier(*op.bar).toint(), op.parity)


def _arrive(isa: GpuIsa, op: Any, when: Any = True) -> None:
    def arrive() -> None:
        emit_ptx("mbarrier.arrive.shared.b64 _, [$0];", "r", isa.mbarrier(*op.bar).toint())

    isa.when(when, arrive if op.lanes == ALL_LANES else lambda: control.when(isa.lane == 0, arrive))


def _cp_async(isa: GpuIsa, op: Any) -> None:
    copy_tile(isa, op)
    emit_ptx("cp.async.mbarrier.arrive.noinc.shared.b64 [$0];", "r", isa.mbarrier(*op.bar).toint())


class Sm80Isa(GpuIsa):
    """`GpuIsa` for sm_80 to sm_89. CuTe DSL has these instructions for sm_90 and later only, so they are inline PTX."""

    emitters = EMITTERS | {ops.MbarWait: _wait, ops.MbarArrive: _arrive, ops.CpAsync: _cp_async}

    def mbarrier_init(self, barrier: Barrier, count: int) -> None:
        control.when(self.lane == 0, lambda: ops.Isa.mbarrier_init(self, barrier, count))


# ---- caches ----------------------------------------------------------------------------------------------------------
#
# CuTe DSL remembers values of each compilation, and with them all of its IR, until later compilations push them out.


def forget_ir() -> None:
    """Empties the DSL's caches of values in IR. Each cache keeps the last 128 values, and each value keeps megabytes of IR."""
    for clear in _clears():
        clear()


@functools.cache
def _clears() -> tuple[Callable[[], None], ...]:
    """`cache_clear` of all functions under ``lru_cache_ir``, of the modules that are imported."""
    modules = [module for name, module in list(sys.modules.items()) if name.partition(".")[0] == "cutlass"]
    shared = {id(value): value for module in modules for value in list(vars(module).values())}
    clears: dict[int, Any] = {}
    for function in _functions(shared.values()):
        clear: Any = getattr(function, "cache_clear", None)
        if "lru_cache_ir" in getattr(getattr(clear, "__self__", None), "__qualname__", ""):
            clears[id(clear.__self__)] = clear
    return tuple(clears.values())


def _functions(values: Iterable[Any]) -> Iterator[Any]:
    """Functions, methods and properties among *values*, also if another decorator is around them."""
    for value in values:
        for each in vars(value).values() if isinstance(value, type) else (value,):
            function = each.fget if isinstance(each, property) else each
            yield from (function, getattr(function, "__wrapped__", None))


# ---- notes -----------------------------------------------------------------------------------------------------------
#
# Notes of ptxas on a kernel: serialized wgmmas, used registers, spilled registers.


#: Notes C7510 to C7519: wgmmas are serialized, or fences and waits for them are put in.
_WGMMA = re.compile(r"\(C751\d\)[^\n]*")
_MEMORY = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores")
_USED = re.compile(r"Used (\d+) registers")
REST = 32  #: registers a thread that a role needs beside sums and fragments, about
MANY = 32  #: copies of boxes a slot whose addresses may take more


@attrs.frozen
class Resources:
    """Args:
    registers: per thread, at launch
    spill_bytes: local memory per thread: spilled registers and arrays
    shared_bytes: shared memory per CTA
    """

    registers: int
    spill_bytes: int
    shared_bytes: int


def check_notes(plan: Plan, file: Path, held: Callable[[], Mapping[str, tuple[int, str]]] = dict) -> Resources | None:
    """What the kernel uses; None if the file is not there. Warns of spilled registers.

    Args:
        held: Returns, by role, how many registers a thread its fragments need at once, and the line.

    Raises:
        InputError: If ptxas serializes wgmmas, or waits for them where the kernel does not.
    """
    text = file.read_text() if file.exists() else ""
    serialized = _WGMMA.search(text)
    if serialized:
        note = re.split(r" in function |in the function", serialized[0])[0].strip()
        rule = "makes the matmuls run one after another, since registers of a matmul in flight are used"
        fix = "use an accumulator, or registers that start() got, only after .wait(), in the block of code of the start"
        raise InputError(f"compile of {plan.name}", note, rule, fix)
    if not _USED.search(text):
        return None
    used = int(_USED.findall(text)[-1])
    memory = _MEMORY.findall(text)  # of the kernel, and of functions that it calls
    frame, spilled = (max(int(each[i]) for each in memory) for i in range(2))
    if spilled:
        what = f"ptxas spills {spilled} bytes of registers a thread to local memory"
        warnings.warn(f"{plan.name}: {what}.{_reason(plan, held(), used)}", RuntimeWarning, stacklevel=2)
    return Resources(used, frame, plan.smem_bytes)


def _reason(plan: Plan, held: Mapping[str, tuple[int, str]], used: int) -> str:
    """Why the kernel spills: what the role holds whose registers are short by most, or how many boxes one role loads; and what
    to do.

    Args:
        used: Registers of a thread at launch.
    """
    most = (0, "", 0)
    for role in plan.roles:
        has = plan.registers.get(role.first_warp // 4, used)
        needs = {f"for {m.name}": sum(m.registers) for m in plan.matmuls if m.first_warp == role.first_warp}
        if role.name in held:
            count, line = held[role.name]
            needs[f"for fragments at {line}"] = count
        text = ", ".join(f"{count} {what}" for what, count in needs.items())
        if needs:
            text = f" Role {role.name}, with {has} registers a thread, holds {text} (see explain())."
            need = sum(needs.values())
            most = max(most, (need - has + 256, text, -(-(need + REST) // 8) * 8))
    copies = max((_copies(plan, role.name), role.name) for role in plan.roles)
    if copies[0] >= MANY and most[0] <= 256 - REST:
        return (
            f" Role {copies[1]} loads {copies[0]} boxes a slot, and each one's coordinates take registers. Use "
            "smaller tiles, or a BulkLoadStage, which loads a tile at once."
        )
    enough = most[2] if plan.registers and most[2] <= 240 else ""
    return f"{most[1]} Use smaller tiles, more warps, or Role(registers={enough})."


def _copies(plan: Plan, role: str) -> int:
    """Boxes that the role loads into a slot, at most."""
    boxes = {x.name: math.prod(x.buffer.tile) // (x.peers * math.prod(x.box)) for x in plan.loads if x.tensor_map}
    return max(sum(boxes.get(name, 0) for name in ring.loads.get(role, ())) for ring in plan.rings)


# ---- objects ---------------------------------------------------------------------------------------------------------
#
# Machine code of kernels as object files: exported from what CuTe DSL has compiled, and loaded without its compiler.


_SYMBOL = "tmapipe_kernel"


class Code:
    """A kernel's machine code.

    Args:
        export: Returns the object file. Called once, when it is needed.
    """

    def __init__(self, export: Callable[[], bytes]):
        self._export: Callable[[], bytes] | None = export

    @staticmethod
    def of(compiled: Any) -> Code:
        """The code of a result of `cute.compile`."""
        return Code(functools.partial(_exported, compiled))

    @functools.cached_property
    def object(self) -> bytes:
        """The object file."""
        with ONE_AT_A_TIME:
            if self._export is None:  # another thread has exported it meanwhile
                return self.object
            content = self._export()
            self.__dict__["object"], self._export = content, None  # the IR is no longer needed
        return content

    @functools.cached_property
    def function(self) -> Any:
        """Call it with a list of tensors and a list of numbers, as `Compiled` says."""
        file = os.memfd_create(_SYMBOL)
        try:
            with open(file, "wb", closefd=False) as to:
                to.write(self.object)
            module = cute.runtime.load_module(f"/proc/self/fd/{file}", enable_tvm_ffi=True)
        finally:
            os.close(file)
        return getattr(module, _SYMBOL)


def _exported(compiled: Any) -> bytes:
    with tempfile.TemporaryDirectory(prefix="tmapipe-") as folder:
        path = Path(folder, "kernel.o")
        compiled.export_to_c(str(path), function_name=_SYMBOL)
        return path.read_bytes()


# ---- build -----------------------------------------------------------------------------------------------------------
#
# From a plan to a compiled kernel: the traced host function, and what the compiler says about the result.


@attrs.frozen
class Compiled:
    """A compiled schedule.

    Args:
        plan: The plan from which it was compiled.
        code: The object file, and the function in it.
        used: What ptxas has noted, if that is known.
        instrument: The kernel's instrument, one of `tmapipe.gpu.watchdog.INSTRUMENTS`, or "".
        ptx, cubin: Kept if the build was asked to keep them.
    """

    plan: Plan
    code: Code = attrs.field(repr=False)
    used: Resources | None = attrs.field(default=None, repr=False)
    instrument: str = attrs.field(default="", kw_only=True)
    ptx: str | None = attrs.field(default=None, repr=False)
    cubin: bytes | None = attrs.field(default=None, repr=False)

    @property
    def function(self) -> Any:
        """The kernel's function. It is called with a list of tensors and a list of numbers.

        Tensors: one for each name in `plan.arguments`; then, for an order with a queue, its counters (`COUNTERS` int32 that
        are 0); then memory for the descriptors that the kernel makes. Numbers: how many clusters; then the numbers that the
        order adds; then `WORDS` for each descriptor that the library encodes; then `NUMBERS` for an instrument.
        """
        return self.code.function

    @property
    def resources(self) -> Resources:
        """Registers, local memory and shared memory."""
        assert self.used is not None
        return self.used


class _Kernel:
    """What CuTe DSL traces: `host` makes the TMA descriptors and launches `device`, which emits the program."""

    def __init__(self, program: Traced, backend: type[GpuIsa], instrument: str):
        self.program, self.schedule, self.plan, self.backend = program, program.schedule, program.plan, backend
        self.instrument = instrument

    @cute.jit
    def host(self, tensors: list, numbers: list, stream: Any) -> None:
        _set_enable_frame_filtering(False)  # operations have the lines of the program's nodes, and cost a third less
        self.device(self.given(tensors, numbers)).launch(
            grid=(numbers[0] * self.plan.cluster_size, 1, 1),
            block=(self.plan.threads, 1, 1),
            cluster=cluster_of(self.plan),
            smem=self.schedule.tiles.smem_bytes(self.plan),
            min_blocks_per_mp=self.schedule.tiles.least_ctas(),
            preferred_smem_carveout=100,
            use_pdl=self.plan.target.tma,  # see `Isa.griddepcontrol_wait`
            stream=stream,
        )

    @cute.kernel
    def device(self, given: Any) -> None:
        emit(self.program, self.backend(self.plan, given))

    def given(self, tensors: list, numbers: list) -> SimpleNamespace:
        """The kernel's parameters, as `GpuIsa` documents them. CuTe DSL takes namespaces, but no dictionaries."""
        plan, count = self.plan, len(self.plan.arguments)
        of = dict(zip(plan.arguments, tensors[:count], strict=True))
        kept = 1 + self.schedule.tiles.launch_words
        return SimpleNamespace(
            atoms=SimpleNamespace(**self.make_atoms(of, numbers[kept:])),
            divisors=SimpleNamespace(**self.make_divisors(of, numbers[0])),
            clusters=numbers[0],
            addressed=SimpleNamespace(**{name: of[name] for name in plan.by_address}),
            scratch=tensors[count:],
            kept=numbers[1:kept],
            **({self.instrument: numbers[-NUMBERS:]} if self.instrument else {}),
        )

    def make_atoms(self, tensors: dict[str, Any], words: list) -> dict[str, Any]:
        atoms, encoded = {}, [load.name for load in self.plan.encoded]
        for part in (*self.plan.described, *(edge_of(load) for load in self.plan.loads if load.edge_rows)):
            tensor = to_core_first(tensors[part.argument], part)
            if part.name in encoded:
                first = encoded.index(part.name) * WORDS
                atoms[part.name] = describe(tensor, words[first : first + WORDS])
            else:
                atoms[part.name] = make_atom(part, tensor)
        return atoms

    def make_divisors(self, tensors: dict[str, Any], clusters: Int32) -> dict[str, Any]:
        parts = {part.name: part for part in self.plan.transfers}

        def extent(name: str, i: int) -> Any:
            tensor = tensors[name]
            return tensor.shape[i] if name in self.plan.tables else full_shape(tensor, parts[name])[i]

        values = self.schedule.tiles.divisors(self.schedule.grid(extent), self.plan.cluster, clusters)
        return {name: cute.fast_divmod_create_divisor_v2(Int32(value)) for name, value in values.items()}


def cluster_of(plan: Plan) -> tuple[int, int, int] | None:
    """The launch's cluster; None where it is one CTA, which starts at half the rate if it is launched as a cluster. But
    ``st.async``, by which queues get their words, is an illegal instruction outside of a cluster.
    """
    return (plan.cluster_size, 1, 1) if plan.cluster_size > 1 or plan.queue is not None else None


def build(
    schedule: Schedule,
    plan: Plan,
    ranks: dict[str, int] | None = None,
    *,
    keep: bool = False,
    unroll: bool = True,
    instrument: str = "",
    backend: type[GpuIsa] | None = None,
    program: Traced | None = None,
) -> Compiled:
    """Compiles *schedule* for `plan.arch`. It needs no GPU. Compilations in one process run one after another.

    Args:
        plan: The schedule's plan.
        ranks: How many dimensions each tensor has; by default as declared.
        keep: Whether to keep PTX and cubin. The function is then compiled when it is asked for, since most kept kernels are
            only read.
        unroll: False keeps LLVM from unrolling run-time loops, so that each instruction of a body is in the PTX once.
        instrument: One of `tmapipe.gpu.watchdog.INSTRUMENTS`: with "watch" waits end, with "stamps" the kernel records when
            waits end. A launch then takes `NUMBERS` more numbers.
        backend: The class that emits instructions, by default the class for the architecture. Another class may leave
            something out, to measure what it costs.
        program: The schedule's program, if it has been traced.

    Raises:
        InputError: A body has no source, or ptxas notes that it serializes matmuls.
    """
    _check_sources(schedule)
    fakes = [_fake_tensor(plan, name, ranks or {}) for name in plan.arguments]
    if plan.queue is not None:
        fakes.append(make_fake_tensor(Int32, (COUNTERS,), stride=(1,), assumed_align=4))
    if plan.made:
        fakes.append(make_fake_tensor(Int64, (cute.sym_int(),), stride=(1,), assumed_align=8 * WORDS))
    numbers = [Int32(1)] * (1 + schedule.tiles.launch_words) + [Int64(0)] * (WORDS * len(plan.encoded))
    numbers += [Int64(0)] * (NUMBERS * bool(instrument))
    flags = f"--gpu-arch {plan.arch} " + ("--keep-ptx --keep-cubin" if keep else "--enable-tvm-ffi")
    # What is kept is read back at once; the files' names are not unique, so each compilation has a folder of its own.
    # Two traces at once in threads break CuTe DSL.
    with ONE_AT_A_TIME, tempfile.TemporaryDirectory(prefix="tmapipe-") as folder:
        notes = Path(folder) / "notes"
        program, written = program or trace(schedule, plan), f"--remark-output={notes} --remark-filter=ptxas"
        backend = backend or (GpuIsa if plan.target.tma else Sm80Isa)
        try:
            made = cute.compile(
                _Kernel(program, backend, instrument).host,
                fakes,
                numbers,
                make_fake_stream(),
                options=f"{flags} --dump-dir={folder} {written}",
                trace_finalize_hooks=None if unroll else _forbid_unrolling,
                no_jit_engine=True,  # what is exported is loaded again, and called without a layer of Python
            )
        finally:
            forget_ir()
        used = check_notes(plan, notes, functools.partial(fragments_held, program))
    if not keep:
        return Compiled(plan, Code.of(made), used, instrument=instrument)

    def object_file() -> bytes:
        options: dict[str, Any] = {"instrument": instrument, "backend": backend, "program": program}
        return build(schedule, plan, ranks, unroll=unroll, **options).code.object

    return Compiled(plan, Code(object_file), used, made.__ptx__, made.__cubin__, instrument=instrument)


def _fake_tensor(plan: Plan, name: str, ranks: dict[str, int]) -> Any:
    """A tensor of an argument's type and alignment; a launch says its extents."""
    if name in plan.tables:
        of = plan.vectors.get(name, int32)
        dtype, rank, aligned, nbytes = cute_type(of), len(plan.tables[name]), of.bytes, of.bytes
    else:
        part = next(part for part in plan.transfers if part.name == name)
        dtype, nbytes = cute_type(part.buffer.dtype), part.buffer.dtype.bytes
        rank = ranks.get(name, len(part.dims) - len(getattr(part, "folded", ())))
        aligned = part.vector or ALIGNMENT
    shape = tuple(cute.sym_int() for _ in range(rank))
    last = cute.sym_int64() if name in plan.entries else 1  # of int64, the lower words
    stride = (*(cute.sym_int64(divisibility=max(1, aligned // nbytes)) for _ in range(rank - 1)), last)
    return make_fake_tensor(dtype, shape, stride=stride, assumed_align=aligned)


def _check_sources(schedule: Schedule) -> None:
    """Raises `InputError` for a body that was typed in, or read from standard input."""
    for body in (*schedule.declared.bodies.values(), *schedule.declared.befores.values()):
        try:
            inspect.getsource(body)
        except (OSError, TypeError):
            rule = "has source in a file or in a notebook's cell, where its loops and branches are read"
            fix = "write the schedule to a file, and import or run that"
            raise InputError(f"body {body.__qualname__}", body.__code__.co_filename, rule, fix) from None


def _forbid_unrolling(owner: Any, module: Any, name: str) -> None:
    """Puts on every loop without an annotation what `cutlass.range(n, unroll=1)` would."""

    def visit(operation: Any) -> Any:
        if operation.name == "scf.for" and "loop_annotation" not in operation.attributes:
            operation.attributes["loop_annotation"] = once
        return ir.WalkResult.ADVANCE

    with module.context:
        once = control.no_unrolling()
        module.operation.walk(visit)


# ---- store -----------------------------------------------------------------------------------------------------------


def recalled(name: str, plan: Plan, instrument: str = "") -> Compiled | None:
    """The kernel of this name on disk; None if there is none."""
    entry = disk.recall("kernels", name)
    if entry is None:
        return None
    facts, content = entry
    used = facts.get("used")
    fields = {field.name for field in attrs.fields(Resources)}
    sound = isinstance(used, dict) and set(used) == fields and all(type(value) is int for value in used.values())
    return Compiled(plan, Code(lambda: content), Resources(**used) if sound and used else None, instrument=instrument)


def put_by(name: str, compiled: Compiled) -> Compiled:
    """Keeps a kernel on disk under its name, and returns it."""
    disk.keep("kernels", name, {"used": compiled.used and attrs.asdict(compiled.used)}, compiled.code.object)
    return compiled
