"""Compiled kernels, kept for all processes; the function of each signature that launches a kernel; the GPCs of a
device."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from cuda.bindings import driver

from tmapipe.base import disk, replaced
from tmapipe.base.tma_rules import ALIGNMENT
from tmapipe.bind import span
from tmapipe.errors import PipelineError
from tmapipe.gpu import name_of
from tmapipe.gpu.build import Compiled, build, put_by, recalled
from tmapipe.plan.model import Plan
from tmapipe.program import ONE_AT_A_TIME, Traced, trace
from tmapipe.program.identity import identity

if TYPE_CHECKING:
    from tmapipe.gpu.launch import Launcher
    from tmapipe.schedule import Schedule


# ---- gpcs ------------------------------------------------------------------------------------------------------------
#
# Which multiprocessors of a device lie in one GPC, as `tmapipe.tiles.dynamic` asks.
#
# No register names the GPC of a multiprocessor. But the CTAs of a cluster always lie in one GPC. So clusters of
# several sizes are launched, each CTA writes down its multiprocessor, and multiprocessors that were seen in one
# cluster belong together.
#
# On an H200, four pairs of multiprocessors form clusters only by themselves, and a GPC has half as many as the
# others. These are taken as one GPC; they are near the same half of L2.


SIZES = (2, 3, 4, 5, 6, 7, 8, 16)  # CTAs of a cluster; more than 8 is not portable
SHARED_BYTES = 128 << 10  # so that each multiprocessor gets one CTA

#: Each CTA writes its multiprocessor's number and stays for 20 microseconds, so that no two CTAs share one.
PTX = b"""
.version 8.0
.target sm_90
.address_size 64
.visible .entry note_multiprocessor(.param .u64 numbers) {
    .reg .pred %early;
    .reg .b32 %cta, %multiprocessor;
    .reg .b64 %to, %offset, %begun, %now;
    mov.u64 %begun, %globaltimer;
    ld.param.u64 %to, [numbers];
    mov.u32 %cta, %ctaid.x;
    mul.wide.u32 %offset, %cta, 4;
    add.u64 %to, %to, %offset;
    mov.u32 %multiprocessor, %smid;
    st.global.u32 [%to], %multiprocessor;
stay:
    mov.u64 %now, %globaltimer;
    sub.u64 %now, %now, %begun;
    setp.lt.u64 %early, %now, 20000;
    @%early bra stay;
    ret;
}
"""


def loaded(ptx: bytes, name: bytes, shared: int) -> tuple[driver.CUmodule, driver.CUfunction]:
    """(a module of the driver, its kernel). The kernel may have clusters of 16 CTAs.

    Args:
        name: The kernel's name.
        shared: How many bytes of dynamic shared memory a CTA may have.
    """
    module = called(driver.cuModuleLoadData(ptx))
    kernel = called(driver.cuModuleGetFunction(module, name))
    attribute = driver.CUfunction_attribute
    for kind, value in (
        (attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, shared),
        (attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1),
    ):
        called(driver.cuFuncSetAttribute(kernel, kind, value))
    return module, kernel


@functools.cache
def gpcs(device: int) -> tuple[tuple[int, ...], ...]:
    """The multiprocessors of a CUDA device, by GPC. Measured once per process."""
    with torch.cuda.device(device):
        count = torch.cuda.get_device_properties(device).multi_processor_count
        numbers = torch.empty(count, dtype=torch.int32, device="cuda")
        module, kernel = loaded(PTX, b"note_multiprocessor", SHARED_BYTES)
        clusters = [cluster for size in SIZES for cluster in clusters_of(kernel, size, numbers)]
        called(driver.cuModuleUnload(module))
    return joined(count, clusters)


def joined(count: int, clusters: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    """The numbers below *count* in sorted sets, such that all numbers of each of *clusters* are in one set."""
    of = {number: {number} for number in range(count)}
    for first, *others in clusters:
        for other in others:
            if of[other] is not of[first]:
                of[first] |= of[other]
                of |= dict.fromkeys(of[other], of[first])
    return tuple(sorted({tuple(sorted(multiprocessors)) for multiprocessors in of.values()}))


def in_clusters(size: int, ctas: int, threads: int, shared: int) -> driver.CUlaunchConfig:
    """The driver's configuration of a launch of *ctas* CTAs in clusters of *size*, with this many threads and bytes of dynamic
    shared memory each."""
    config, cluster = driver.CUlaunchConfig(), driver.CUlaunchAttribute()
    cluster.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
    cluster.value.clusterDim.x, cluster.value.clusterDim.y, cluster.value.clusterDim.z = size, 1, 1
    config.gridDimX, config.gridDimY, config.gridDimZ = ctas, 1, 1
    config.blockDimX, config.blockDimY, config.blockDimZ = threads, 1, 1
    config.sharedMemBytes, config.attrs, config.numAttrs = shared, [cluster], 1
    return config


def clusters_of(kernel: Any, size: int, numbers: torch.Tensor) -> list[list[int]]:
    """The multiprocessors of each cluster, for as many clusters of *size* CTAs as fit on the device at once.

    None if the device has no clusters of this size.
    """
    config = in_clusters(size, len(numbers) // size * size, 32, SHARED_BYTES)
    status, *most = driver.cuOccupancyMaxActiveClusters(kernel, config)
    if status != driver.CUresult.CUDA_SUCCESS or not most[0]:
        return []
    fit = most[0]
    config.gridDimX, config.hStream = fit * size, torch.cuda.current_stream().cuda_stream
    called(driver.cuLaunchKernelEx(config, kernel, ((numbers.data_ptr(),), (ctypes.c_void_p,)), 0))
    positions = numbers[: fit * size].tolist()
    return [positions[i : i + size] for i in range(0, len(positions), size)]


def called(result: tuple[Any, ...]) -> Any:
    """The result of a driver call. Raises `RuntimeError` if the call failed."""
    status, *values = result
    if status != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"the CUDA driver answered {status.name} when it was asked about the device")
    return values[0] if values else None


# ---- callers ---------------------------------------------------------------------------------------------------------
#
# A caller is a function for calls of one signature: Python code of a few lines, written for this signature. It compares all
# tensors with the signature (by torch's function, if it has one), looks at their addresses and the size of their memory,
# and launches. If a call does not fit, the caller returns None. Then the call goes the long way, which says what is wrong.


#: (tensors, out, named) -> the outputs, or None for a call that does not fit the signature.
Caller = Callable[[tuple[Any, ...], Any, dict[str, Any]], Any]
Launches = Sequence[tuple["Launcher", list[int]]]  # launchers, with the addresses that they launched with
NEWEST = (2, 13)  # the newest torch whose comparison of tensors was tried


def _version() -> tuple[int, ...]:
    return tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2] if part.isdecimal())


def _quick() -> tuple[Any, Any]:
    """(torch's comparison of tensors, what makes an output), as Inductor's code has them, or None."""
    if not (2, 6) <= _version() <= NEWEST:
        return None, None
    try:
        from torch._C._dynamo import guards

        return guards.TensorGuards, getattr(guards, "_empty_strided_cuda", None)
    except (ImportError, AttributeError):
        return None, None


GUARDS, EMPTY_ON_CUDA = _quick()
capturing: Callable[[], bool] = getattr(
    torch._C, "_cuda_isCurrentStreamCapturing", torch.cuda.is_current_stream_capturing
)
_stream_of: Callable[[int], int] = getattr(
    torch._C, "_cuda_getCurrentRawStream", lambda device: torch.cuda.current_stream(device).cuda_stream
)


def same_as(tensors: Sequence[Any]) -> Callable[..., bool]:
    """A function that tells whether tensors are like *tensors*: in type, element type, device, extents, strides, lazy views,
    and whether they require gradients."""
    if GUARDS is not None:
        sizes, strides = [list(x.shape) for x in tensors], [list(x.stride()) for x in tensors]
        check: Callable[..., bool] = GUARDS(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides).check
        return check
    known = [(type(x), x.dtype, x.device, tuple(x.shape), x.stride()) for x in tensors]

    def check_each(*given: Any) -> bool:
        if torch._C._len_torch_dispatch_stack():
            return False
        for x, (kind, dtype, device, shape, strides) in zip(given, known, strict=True):
            if type(x) is not kind or x.dtype != dtype or x.device != device or x.shape != shape:
                return False
            if torch._C._functorch.is_functorch_wrapped_tensor(x):
                return False
            if x.stride() != strides or x.is_neg() or x.is_conj() or (x.requires_grad and torch.is_grad_enabled()):
                return False
        return True

    return check_each


def _overlapping(i: int, j: int, one: Any, other: Any) -> str:
    """The condition, as text, that tensors *i* and *j* may share memory. They do not if all strides of both (except the last)
    are multiples of one length, and their rows lie in different parts of that length, as the left and the right halves of a
    matrix do."""
    said = f"p{i} < p{j} + {span(other)} and p{j} < p{i} + {span(one)}"
    steps = [step for x in (one, other) for n, step in zip(x.shape[:-1], x.stride()[:-1], strict=True) if n > 1]
    if one.itemsize != other.itemsize or {1} != {x.stride()[-1] for x in (one, other) if x.ndim} or not any(steps):
        return said
    length = math.gcd(*steps) * one.itemsize
    mine, others = (x.shape[-1] * x.itemsize if x.ndim else x.itemsize for x in (one, other))
    return f"{said} and not {others} <= (p{i} - p{j}) % {length} <= {length - mine}"


def caller_of(
    launcher: Launcher,
    tensors: Sequence[Any],
    names: Sequence[str],
    out: Any,
    like: Sequence[Any] = (),
    places: Sequence[tuple[int, int]] = (),
    more: Sequence[tuple[Launcher, Sequence[tuple[int, int]]]] = (),
) -> Caller:
    """Writes the function for calls with tensors of one signature. *launcher* has taken such a call.

    Args:
        tensors: The tensors by position, then those by name. They may have other shapes than the launcher's tensors, but the
            same elements.
        names: Names of the last tensors, which are passed by name.
        out: The first output, or None.
        like: Tensors like the outputs that the call makes, if these differ from the launcher's outputs.
        places: For each of the kernel's tensors: the number of the call's tensor in whose memory it lies (inputs first), and
            how many bytes after that tensor's first byte it begins, which may be negative. (): the tensors are the call's.
        more: The call's further launches, with the places of their tensors. No launch adds to its outputs then.
    """
    count, outputs = len(tensors) - len(names), len(like) or len(launcher.outputs)
    steps = [(launcher, places), *more]
    given = [*tensors] if out is None else [*tensors, out]
    inputs = 1 + max((i for i, _ in places[: launcher.inputs]), default=launcher.inputs - 1)
    at = [f"x{i}" for i in range(len(given))]
    made = range(len(given) - inputs, outputs)
    results = [f"d{i}" if i in made else f"x{inputs + i}" for i in range(outputs)]
    fits: list[str] = []  # conditions, any of which sends a call the long way, where its launch is noted
    fits.append("out is not None" if out is not None else "out is None")
    fits.append(f"len(named) == {len(names)}" if names else "not named")
    lines = ["def call(tensors, out, named):", f"    if not ({' and '.join(fits)}):", "        return None", "    try:"]
    lines.append(f"        {''.join(f'{x}, ' for x in at[:count])} = tensors" if count else "        () = tensors")
    lines += [f"        {x} = named[{name!r}]" for x, name in zip(at[count:], names, strict=False)]
    lines += ["    except (ValueError, KeyError):", "        return None"]
    lines += [f"    {at[-1]} = out"] * (out is not None)
    # Outputs in place.
    twice = {j: i for i, j in itertools.combinations(range(len(given)), 2) if given[i] is given[j]}
    refused = ["watchers and noted.launches is not None", "forward._current_level >= 0"]
    refused += [f"x{j} is not x{i}" for j, i in twice.items()]
    refused.append(f"not same({', '.join(x for i, x in enumerate(at) if i not in twice)})")  # which takes each once
    refused += ["gradients()"] * any(x.requires_grad for x in given)  # which torch's comparison leaves out
    for i, x in enumerate(given):  # its address, and the end of its memory
        refused.append(f"(p{i} := x{i}.data_ptr()) % {ALIGNMENT} != {x.data_ptr() % ALIGNMENT}")
        refused.append(f"len(x{i}.untyped_storage()) < {span(x)} + x{i}.storage_offset() * {x.element_size()}")
    refused += [f"x{i}.storage_offset() < {-n // given[i].element_size()}" for i, n in places if n < 0]
    for i, j in itertools.combinations(range(len(given)), 2):
        if j >= inputs:
            in_place = given[i].data_ptr() == given[j].data_ptr()
            refused.append(f"p{i} != p{j}" if in_place else _overlapping(j, i, given[j], given[i]))
    refused.append(f"(stream := stream_of({launcher.index})) and capturing()")  # never the default stream
    for s, (each, _) in enumerate(steps):
        refused += [f"(scratch{s} := scratch_of{s}.get(stream)) is None"] * bool(each.scratch)
    refused += [f"current_device() != {launcher.index}"] * (not launcher.one_device)
    lines += [f"    if {each}:\n        return None" for each in refused]
    for i in made:
        shape, strides = (tuple(like[i].shape), like[i].stride()) if like else launcher.outputs[i][:2]
        added_to = not more and launcher.outputs[i][3]
        lines.append(f"    d{i} = empty({shape!r}, {strides!r}, type_{i}){'.zero_()' * added_to}")
        lines += [f"    q{i} = d{i}.data_ptr()"] * bool(more)
    begins = [*(f"p{i}" for i in range(len(given))), *(f"q{i}" if more else f"d{i}.data_ptr()" for i in made)]
    whole = ", ".join([*at, *(f"d{i}" for i in made)])
    names_of: dict[str, Any] = {}
    for s, (each, of) in enumerate(steps):
        packed = each.packed
        addresses = [f"{begins[i]} + {n}" if n else begins[i] for i, n in of or ((i, 0) for i in range(len(begins)))]
        addresses += [f"scratch{s}[{i}]" for i in range(len(each.scratch))]
        lines += ["    try:", f"        memory = pop{s}()", "    except IndexError:", f"        memory = make{s}()"]
        lines.append("    words, arguments, result = memory")
        lines += [f"    words[{place}] = {address}" for place, address in zip(packed.places, addresses, strict=True)]
        lines.append(f"    words[{packed.stream}] = stream")
        lines += [f"    if launch(handle{s}, arguments, three, result):", f"        fail{s}(({whole},))"]
        lines.append(f"    push{s}(memory)")
        names_of |= {
            f"scratch_of{s}": each.scratch_of,
            f"pop{s}": packed.free.pop,
            f"push{s}": packed.free.append,
            f"make{s}": packed.make,
            f"handle{s}": packed.handle,
            f"fail{s}": each.fail,
        }
    lines += [f"    written(({', '.join(at[inputs:])},))"] * (len(given) > inputs)
    lines.append(f"    return {results[0] if len(results) == 1 else '(' + ', '.join(results) + ')'}")
    names_of |= {
        "same": same_as([x for i, x in enumerate(given) if i not in twice]),
        "noted": noted,
        "watchers": watchers,
        "forward": torch.autograd.forward_ad,
        "gradients": torch.is_grad_enabled,
        "capturing": capturing,
        "stream_of": _stream_of,
        "current_device": torch.cuda.current_device,
        "empty": (launcher.device.type == "cuda" and EMPTY_ON_CUDA) or _empty_on(launcher.device),
        "launch": launcher.packed.call,
        "three": launcher.packed.count,
        "written": increment_version,
        **{f"type_{i}": like[i].dtype if like else launcher.outputs[i][2] for i in range(outputs)},
    }
    exec(compile("\n".join(lines), f"<a caller of {launcher.name}>", "exec"), names_of)
    made_here: Caller = names_of["call"]
    return made_here


def parts_of(launches: Launches, tensors: Sequence[Any], results: Sequence[Any]) -> list[list[tuple[int, int]]]:
    """The places, as `caller_of` takes them, of launches with tensors at these addresses, all of which lie in a call's tensors
    or in its outputs, or fewer than 16 bytes before an input, and which take some of each; [] for other launches."""
    whole, found, used = [*tensors, *results], list[list[tuple[int, int]]](), set[int]()
    for launcher, addresses in launches:
        places: list[tuple[int, int]] = []
        for k, address in enumerate(addresses):
            own = range(len(whole)) if found or k >= launcher.inputs else range(len(tensors))
            own = own[len(tensors) :] if k >= launcher.inputs else own
            after = [(i, address - whole[i].data_ptr()) for i in own]
            inside = [(i, n) for i, n in after if 0 <= n < span(whole[i])]
            places += (inside or [(i, n) for i, n in after if k < launcher.inputs and -ALIGNMENT < n < 0])[:1]
        if len(places) < len(addresses):
            return []
        used |= {i for i, _ in places}
        found.append(places)
    return found if used == {*range(len(whole))} else []


def in_parts(launches: Launches, tensors: Sequence[Any], out: Any, results: Sequence[Any]) -> Caller | None:
    """As `tmapipe.gpu.launch.repeated`, for launches that take parts of the tensors and of the results."""
    places, every = parts_of(launches, tensors, results), [launcher for launcher, _ in launches]
    last = max((i for i, _ in places[0][: every[0].inputs]), default=0) if places else 0
    alone = len(every) == 1
    if not places or last != len(tensors) - 1:
        return None
    if not alone and any(x.watchdog is not None or any(each[3] for each in x.outputs) for x in every):
        return None
    more = [*zip(every[1:], places[1:], strict=True)]
    return every[0].caller(tensors, (), out, results, places[0], more)


class _Noted(threading.local):
    """The notes of a thread: launches; and by address, from which index on memory was set to zero before them."""

    launches: list[tuple[Launcher, list[int]]] | None = None

    def __init__(self) -> None:
        self.zeroed: dict[int, int] = {}


noted = _Noted()
# One entry for each open `watched`, of any thread: a list is read faster than a thread's notes.
watchers: list[None] = []


@contextlib.contextmanager
def watched() -> Iterator[list[tuple[Launcher, list[int]]]]:
    """Notes this thread's launches: each launcher, and the addresses of its tensors. What is noted within is noted outside,
    too."""
    watchers.append(None)
    before, noted.launches = noted.launches, []
    if before is None:
        noted.zeroed.clear()
    try:
        yield noted.launches
        if before is not None:
            before += noted.launches
    finally:
        noted.launches = before
        watchers.pop()


def unwatched() -> contextlib.AbstractContextManager[None]:
    """The scope of which `watched` notes no launches."""
    return replaced(noted, "launches", None)


def note_zeroed(tensor: Any, first: int) -> None:
    """Notes that a tensor was set to zero from index *first* on, before a launch that fills the rest of it."""
    if noted.launches is not None:
        noted.zeroed[tensor.data_ptr()] = first


def _empty_on(device: Any) -> Callable[..., Any]:
    def empty(shape: tuple[int, ...], strides: tuple[int, ...], dtype: Any) -> Any:
        return torch.empty_strided(shape, strides, dtype=dtype, device=device)

    return empty


def _increment() -> Callable[[Sequence[Any]], None]:
    """`torch.autograd.graph.increment_version`, without its layer of Python where that can be left out."""
    quick: Callable[[Sequence[Any]], None] | None = getattr(torch._C, "_increment_version", None)
    try:
        probe = torch.empty(0)
        if quick is not None:
            quick([probe, probe])
            if probe._version == 2:
                return quick
    except (TypeError, RuntimeError):
        pass
    return torch.autograd.graph.increment_version


increment_version = _increment()


def stream_of(device: int) -> int:
    """The handle of torch's current stream of a device."""
    return _stream_of(device)


# ---- kernels ---------------------------------------------------------------------------------------------------------
#
# Kernels are kept: a kernel is compiled once for all processes, however many schedules it belongs to.
#
# Its name is made of its identity (`tmapipe.program.identity`), the number of dimensions of its tensors, the library's
# source, and the version of CuTe DSL, which implies the version of ptxas. On disk a kernel is an object file, with the
# notes of ptxas.


MOST = 256  # kernels that the process keeps, beside those of schedules that are in use
kept: OrderedDict[str, Compiled] = OrderedDict()  #: this process's kernels, by name
_lock = threading.RLock()


def kernel_for(
    schedule: Schedule,
    plan: Plan,
    ranks: Mapping[str, int],
    gate: Callable[[Traced | None, str | None], object] = lambda program, identity: None,
    instrument: str = "",
) -> Compiled:
    """The compiled kernel: from this process, from disk, or newly compiled.

    Args:
        plan: The schedule's plan.
        ranks: How many dimensions each tensor has.
        gate: Called with the traced program and its identity before the kernel is used. It raises an error for a kernel that
            must not be used.
        instrument: As in `tmapipe.gpu.build.build`.
    """
    try:
        with ONE_AT_A_TIME:
            program = trace(schedule, plan)
    except PipelineError:
        gate(None, None)  # which says where it stands
        raise
    known = identity(program)
    make = functools.partial(build, schedule, plan, dict(ranks), program=program, instrument=instrument)
    if known is None:
        gate(program, None)
        return make()
    with _lock:
        name = name_of(known, ranks, instrument)
        compiled = kept.get(name) or recalled(name, plan, instrument)
        if compiled is not None:
            gate(program, known)
        else:
            with disk.locked(disk.lock_of(name)):  # others wait, and find it on disk
                gate(program, known)
                compiled = recalled(name, plan, instrument)
                if compiled is None:
                    compiled = put_by(name, make())
        kept[name] = compiled
        kept.move_to_end(name)
        while len(kept) > MOST:
            kept.popitem(last=False)
        return compiled
