"""From a plan to a compiled kernel: the traced host function, and what the compiler says about the result."""

from __future__ import annotations

import functools
import inspect
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import attrs
import cutlass.cute as cute
from cutlass import Int32, Int64
from cutlass._mlir import ir
from cutlass._mlir_helpers.op import _set_enable_frame_filtering
from cutlass.cute.runtime import make_fake_stream, make_fake_tensor

from tmapipe.errors import InputError
from tmapipe.gpu.caches import forget_ir
from tmapipe.gpu.descriptors import WORDS, describe
from tmapipe.gpu.edges import edge_of
from tmapipe.gpu.emission import emit
from tmapipe.gpu.isa import GpuIsa
from tmapipe.gpu.layouts import cute_type, full_shape, make_atom, to_core_first
from tmapipe.gpu.notes import Resources, check_notes, options_for
from tmapipe.gpu.objects import Code
from tmapipe.gpu.sm80 import backend_for
from tmapipe.plan.model import Plan
from tmapipe.program.trace import ONE_AT_A_TIME, Traced, trace
from tmapipe.registers import fragments_held
from tmapipe.tiles.gpc_positions import COUNTERS
from tmapipe.tma_rules import ALIGNMENT

if TYPE_CHECKING:
    from tmapipe.schedule import Schedule

__all__ = ["Compiled", "build", "cluster_of"]


@attrs.frozen
class Compiled:
    """A compiled schedule.

    Args:
        plan: What it was compiled from.
        code: The object file, and the function in it.
        used: What ptxas has noted, if that is known.
        ptx, cubin: Kept if the build was asked to.
    """

    plan: Plan
    code: Code = attrs.field(repr=False)
    used: Resources | None = attrs.field(default=None, repr=False)
    ptx: str | None = attrs.field(default=None, repr=False)
    cubin: bytes | None = attrs.field(default=None, repr=False)

    @property
    def function(self) -> Any:
        """Call it with a list of tensors and a list of numbers.

        Tensors: one per name in `plan.arguments`, then, for a queued order, its counters (`COUNTERS` int32 that are 0), then
        memory for the descriptors that it makes. Numbers: how many clusters, then what the order adds, then `WORDS` of each
        descriptor that the library encodes.
        """
        return self.code.function

    @property
    def resources(self) -> Resources:
        """Registers, local memory and shared memory."""
        assert self.used is not None
        return self.used


class _Kernel:
    """What CuTe DSL traces: `host` makes the TMA descriptors and launches `device`, which emits the program."""

    def __init__(self, program: Traced, backend: type[GpuIsa]):
        self.program, self.schedule, self.plan, self.backend = program, program.schedule, program.plan, backend

    @cute.jit
    def host(self, tensors: list, numbers: list, stream: Any) -> None:
        _set_enable_frame_filtering(False)  # operations have the lines of the program's nodes, and cost a third less
        self.device(self.given(tensors, numbers)).launch(
            grid=(numbers[0] * self.plan.cluster_size, 1, 1),
            block=(self.plan.threads, 1, 1),
            cluster=cluster_of(self.plan),
            smem=self.schedule.tiles.smem_bytes(self.plan),
            min_blocks_per_mp=self.schedule.tiles.least_ctas(self.plan),
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
        )

    def make_atoms(self, tensors: dict[str, Any], words: list) -> dict[str, Any]:
        found, encoded = {}, [load.name for load in self.plan.encoded]
        for part in (*self.plan.described, *(edge_of(load) for load in self.plan.loads if load.edge_rows)):
            tensor = to_core_first(tensors[part.argument], part)
            if part.name in encoded:
                first = encoded.index(part.name) * WORDS
                found[part.name] = describe(tensor, words[first : first + WORDS])
            else:
                found[part.name] = make_atom(part, tensor)
        return found

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
    backend: type[GpuIsa] | None = None,
    program: Traced | None = None,
) -> Compiled:
    """Compiles *schedule* for `plan.arch`. Needs no GPU. Compilations in one process run one after another.

    Args:
        plan: The schedule's plan.
        ranks: Number of dimensions of each tensor; by default as declared.
        keep: Keep PTX and cubin.
        unroll: False keeps LLVM from unrolling run-time loops, so that each instruction of a body is in the PTX once.
        backend: The class that emits instructions, by default that of the architecture. Another may leave something out, to
            measure what it costs.
        program: The schedule's, if it has been traced.

    Raises:
        InputError: For a body without source, or if ptxas notes that it serializes matmuls.
    """
    _check_sources(schedule)
    fakes = [_fake_tensor(plan, name, ranks or {}) for name in plan.arguments]
    if plan.queue is not None:
        fakes.append(make_fake_tensor(Int32, (COUNTERS,), stride=(1,), assumed_align=4))
    if plan.made:
        fakes.append(make_fake_tensor(Int64, (cute.sym_int(),), stride=(1,), assumed_align=8 * WORDS))
    numbers = [Int32(1)] * (1 + schedule.tiles.launch_words) + [Int64(0)] * (WORDS * len(plan.encoded))
    flags = f"--gpu-arch {plan.arch} --enable-tvm-ffi" + (" --keep-ptx --keep-cubin" if keep else "")
    # What is kept is read back at once; the files' names are not unique, so each compilation has a folder of its own.
    # Two traces at once in threads break CuTe DSL.
    with ONE_AT_A_TIME, tempfile.TemporaryDirectory(prefix="tmapipe-") as folder:
        notes = Path(folder) / "notes"
        program = program or trace(schedule, plan)
        try:
            made = cute.compile(
                _Kernel(program, backend or backend_for(plan)).host,
                fakes,
                numbers,
                make_fake_stream(),
                options=f"{flags} --dump-dir={folder} {options_for(notes)}",
                trace_finalize_hooks=None if unroll else _forbid_unrolling,
                no_jit_engine=True,  # what is exported is loaded again, and called without a layer of Python
            )
        finally:
            forget_ir()
        used = check_notes(plan, notes, functools.partial(fragments_held, program))
    return Compiled(plan, Code.of(made), used, made.__ptx__ if keep else None, made.__cubin__ if keep else None)


def _fake_tensor(plan: Plan, name: str, ranks: dict[str, int]) -> Any:
    """A tensor of an argument's type and alignment; a launch says its extents."""
    if name in plan.tables:
        dtype, rank, aligned, nbytes = Int32, len(plan.tables[name]), 4, 4
    else:
        part = next(part for part in plan.transfers if part.name == name)
        dtype, nbytes = cute_type(part.buffer.dtype), part.buffer.dtype.bytes
        rank = ranks.get(name, len(part.dims) - len(getattr(part, "folded", ())))
        aligned = part.vector or ALIGNMENT
    shape = tuple(cute.sym_int() for _ in range(rank))
    stride = (*(cute.sym_int64(divisibility=max(1, aligned // nbytes)) for _ in range(rank - 1)), 1)
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
        once = ir.Attribute.parse("#llvm.loop_annotation<unroll = <disable = true, count = 1 : i32>>")
        module.operation.walk(visit)
