"""Launching: from bound CUDA tensors to a running kernel; how many clusters a device holds; its clock."""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from cuda.bindings import driver

from tmapipe.base.arithmetic import ceil_div, int32
from tmapipe.base.tma_rules import ALIGNMENT
from tmapipe.bind import check_apart, check_held, span
from tmapipe.bind.tensors import signature
from tmapipe.errors import MissingGpuError, require
from tmapipe.gpu import WORDS, encoded_words, kernels
from tmapipe.gpu.build import Compiled
from tmapipe.gpu.exporting import Memory, Packed, type_of
from tmapipe.gpu.kernels import Caller, called, capturing, gpcs, increment_version, noted, stream_of
from tmapipe.gpu.watchdog import Watchdog, launched, seconds_of
from tmapipe.program import Traced
from tmapipe.tiles.dynamic import COUNTERS

if TYPE_CHECKING:
    from tmapipe.bind import Bound
    from tmapipe.schedule import Schedule


# ---- residency -------------------------------------------------------------------------------------------------------
#
# How many clusters a device holds at once: what the driver says of a kernel that does nothing and takes all shared
# memory.


EMPTY_KERNEL = b".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry nothing() { ret; }\0"
THREADS = 128  # of a CTA, which takes all shared memory of a multiprocessor


@functools.cache
def resident_clusters(device: int, cluster_size: int) -> int:
    """Clusters of this size that the device holds at once, with one CTA per multiprocessor."""
    if cluster_size == 1:
        return torch.cuda.get_device_properties(device).multi_processor_count
    number = called(driver.cuDeviceGet(device))
    called(driver.cuCtxPushCurrent(called(driver.cuDevicePrimaryCtxRetain(number))))  # torch's, in any thread
    try:
        return _asked(number, cluster_size)
    finally:
        called(driver.cuCtxPopCurrent())
        called(driver.cuDevicePrimaryCtxRelease(number))


def _asked(number: driver.CUdevice, cluster_size: int) -> int:
    most = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
    shared = called(driver.cuDeviceGetAttribute(most, number))
    module, kernel = kernels.loaded(EMPTY_KERNEL, b"nothing", shared)
    config = kernels.in_clusters(cluster_size, cluster_size, THREADS, shared)
    count = called(driver.cuOccupancyMaxActiveClusters(kernel, config))
    called(driver.cuModuleUnload(module))
    return int(count)


# ---- clock -----------------------------------------------------------------------------------------------------------
#
# The clock of `tmapipe.tuning.cost` for a CUDA device: events around each launch, after a flush of the L2 cache.


FLUSH_BYTES = 256 << 20  # more than four times an H200's L2 cache of 60 MB
HEAD_START_CYCLES = 4_000_000  # the device idles for about 2 ms, in which the host queues the batch


class CudaClock:
    """Times kernels by the device's own clock. Work of the device hides what a launch costs on the host.

    Args:
        flush: What is done before each launch. "write" zeroes a large buffer, which leaves dirty lines that the launch must
            evict; "read" reads it, which leaves clean lines; "none" leaves the cache warm.
        device: The device, by its name in torch.
    """

    def __init__(self, flush: str = "write", device: str = "cuda"):
        if flush not in ("write", "read", "none"):
            raise ValueError(f"flush={flush!r}: give 'write', 'read' or 'none'")
        self.mode = flush
        self.buffer = torch.zeros(FLUSH_BYTES // 4, dtype=torch.int32, device=device)

    def rest(self, seconds: float) -> None:
        torch.cuda.synchronize()
        time.sleep(seconds)

    def batch(self, run: Callable[[], object], launches: int) -> list[float]:
        pairs = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(launches)]
        torch.cuda.synchronize()
        torch.cuda._sleep(HEAD_START_CYCLES)
        for start, end in pairs:
            self._flush()
            start.record()
            run()
            end.record()
        torch.cuda.synchronize()
        return [start.elapsed_time(end) * 1e3 for start, end in pairs]

    def span(self, run: Callable[[], object], seconds: float) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        once = max(self.batch(run, 1)[0], 1.0)
        launches = max(1, round(seconds * 1e6 / once))
        start.record()
        for _ in range(launches):
            run()
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end) * 1e3 / launches

    def _flush(self) -> None:
        if self.mode == "write":
            self.buffer.zero_()
        elif self.mode == "read":
            self.buffer.max()


# ---- launch ----------------------------------------------------------------------------------------------------------
#
# Launching: from bound CUDA tensors to a running kernel, with one compilation per signature.


Gate = Callable[[Traced | None, str | None], object]
MOST_CALLERS = 16
in_graphs: list[Any] = []  # memory and kernels that graphs use. They are kept, since nobody tells when a graph ends


class Launcher:
    """Launches one schedule for one signature of tensors, which `bind` has checked.

    Calling it again with tensors of the same signature checks whether an output that is passed overlaps another tensor, and
    whether all tensors still have their memory. `caller` makes a function that does the same in a few microseconds.
    """

    def __init__(self, schedule: Schedule, bound: Bound, gate: Gate, stamps: Sequence[int] = ()):
        """Compiles *schedule* for the tensors' types and numbers of dimensions, unless it has been compiled.

        Args:
            gate: Called with the traced program and its identity, as in `tmapipe.gpu.kernels.kernel_for`.
            stamps: For a stamped kernel, for which no watchdog waits, as of `watchdog.launched`.

        Raises:
            MissingGpuError: There is no GPU.
            InputError: The GPU has another architecture than the plan.
        """
        device, seconds = next(iter(bound.tensors.values())).device, None if stamps else seconds_of(schedule)
        with uncaptured(device):
            compiled = compiled_for(schedule, bound, gate, "stamps" if stamps else "watch" if seconds else "")
            plan, self.name = compiled.plan, compiled.plan.name
            self.device, self.index = device, device.index or 0
            resident = resident_clusters(self.index, plan.cluster_size)
            tiles = schedule.cluster_count(bound.shapes)
            near = functools.partial(gpcs, self.index)
            numbers = list(schedule.tiles.launch_numbers(tiles, resident, plan.cluster_size, near))
            function = compiled.function
        for load in plan.encoded:
            numbers += encoded_words(load, bound.tensors[load.argument])
        self.watchdog = None if seconds is None else Watchdog(schedule, plan, bound.dtypes, seconds)
        self.tiles = ceil_div(tiles, max(1, numbers[0]))  # of a CTA, at most
        numbers += self.watchdog.numbers if self.watchdog is not None else launched(plan, stamps, self.tiles)
        self.inputs = len(plan.arguments) - len(plan.stores)
        self.names, self.in_place = tuple(bound.tensors), schedule.declared.in_place
        self.spans = [span(tensor) for tensor in bound.tensors.values()]
        made = sum(buffer.stages for buffer in plan.made) * plan.cluster_size * numbers[0]
        self.scratch: list[tuple[int, torch.dtype]] = []
        if plan.queue is not None:
            self.scratch.append((COUNTERS, torch.int32))  # which each launch leaves at 0
        if made:
            self.scratch.append((WORDS * made, torch.int64))  # for the descriptors that the kernel makes
        self.scratch_of: dict[int, list[int]] = {}  # addresses by stream: several may run at once
        self.kept: list[Any] = []  # the memory there
        self.graphs: dict[tuple[int, int], list[int]] = {}  # addresses by capture and stream
        self.spare: list[list[int]] = []  # memory for captures to come
        tensors = bound.tensors.items()
        layouts = [(*type_of(bound.dtypes[name]), tuple(tensor.shape), tensor.stride()) for name, tensor in tensors]
        layouts += [(0, 8 * dtype.itemsize, (n,), (1,)) for n, dtype in self.scratch]
        self.packed = Packed(function, layouts, numbers, self.index)
        self.numbers = numbers
        self.callers = 0  # that were made
        self.reads = vars(schedule).get("_reads")  # values that the kernel was made of, which may change
        self.one_device = torch.cuda.device_count() == 1
        self.views: list[int] = []  # positions of tensors that are passed with their last two dimensions exchanged
        self.outputs = []
        for name in bound.stores:
            tensor = bound.tensors[name]
            dense = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta").stride()
            self.outputs.append((tuple(tensor.shape), dense, tensor.dtype, name in bound.added_to))

    def __call__(self, tensors: tuple[Any, ...], out: Any) -> Any:
        """Launches with tensors in the order of declaration, makes the outputs that are left out, and returns the outputs."""
        arguments = [*tensors] if out is None else [*tensors, out]
        given = len(arguments)
        for tensor, extent in zip(arguments, self.spans, strict=False):
            if tensor.untyped_storage().nbytes() < extent + tensor.storage_offset() * tensor.itemsize:
                for name, each in zip(self.names, arguments, strict=False):
                    check_held(name, each)
        if given > self.inputs:
            self._check_apart([x.mT if i in self.views else x for i, x in enumerate(arguments)])
        for shape, strides, dtype, added_to in self.outputs[given - self.inputs :]:
            made = torch.empty_strided(shape, strides, dtype=dtype, device=self.device)
            arguments.append(made.zero_() if added_to else made)
        self.launch(arguments)
        if given > self.inputs:
            increment_version(arguments[self.inputs :])
        results = arguments[self.inputs :]
        return results[0] if len(results) == 1 else tuple(results)

    def caller(
        self,
        tensors: Sequence[Any],
        names: Sequence[str],
        out: Any,
        like: Sequence[Any] = (),
        places: Sequence[tuple[int, int]] = (),
        more: Sequence[tuple[Launcher, Sequence[tuple[int, int]]]] = (),
    ) -> Caller | None:
        """The function that `tmapipe.gpu.kernels.caller_of` makes; None in a capture, after several that did not take their
        own tensors, or if launches are waited for, or noted."""
        if capturing() or self.callers >= MOST_CALLERS or self.watchdog is not None or noted.launches is not None:
            return None
        self.callers += 1
        return kernels.caller_of(self, tensors, names, out, like, places, more)

    def _check_apart(self, arguments: list[Any]) -> None:
        """Raises `InputError` if an output overlaps another tensor. Looks closely only where their spans overlap."""
        starts = [tensor.data_ptr() for tensor in arguments]
        for i in range(self.inputs, len(starts)):
            for j in range(i):
                if starts[i] < starts[j] + self.spans[j] and starts[j] < starts[i] + self.spans[i]:
                    check_apart(
                        dict(zip(self.names, arguments, strict=False)), self.names[self.inputs :], self.in_place
                    )

    def launch(self, arguments: Sequence[Any]) -> None:
        """Launches on torch's current stream of the tensors' device."""
        if not self.one_device and torch.cuda.current_device() != self.index:
            with torch.cuda.device(self.device):
                self.launch(arguments)
            return
        stream = stream_of(self.index)
        addresses = [*(x.data_ptr() for x in arguments), *self.scratch_for(stream)]
        if noted.launches is not None:
            noted.launches.append((self, addresses[: len(arguments)]))
        with relaxed():  # where a first launch loads the kernel
            launched = self.packed.launch(addresses, stream)
        if not launched:
            self.fail(arguments)
        if self.watchdog is not None:
            self.watchdog.wait()

    def fail(self, arguments: Sequence[Any]) -> None:
        """Raises the error that the kernel's host code has for a launch that it has refused."""
        made = [torch.zeros(n, dtype=dtype, device=self.device) for n, dtype in self.scratch]
        viewed = [x.mT if i in self.views else x for i, x in enumerate(arguments)]
        self.packed.function([*viewed, *made], self.numbers, stream_of(self.index))
        raise RuntimeError(f"{self.name} could not be launched")

    def scratch_for(self, stream: int) -> list[int]:
        """Addresses of the memory in which the kernel works, beside its tensors. Each stream has its own memory, and so has
        each captured graph. A capture never makes the memory: graphs may be replayed in any order, and each must find its
        memory at 0."""
        if not capturing():
            if self.scratch and stream not in self.scratch_of:
                self.scratch_of[stream] = self._made()
            return self.scratch_of.get(stream, [])
        known_as = (_capture(stream), stream)  # streams of one capture may run at once in the graph
        memory = self.graphs.get(known_as)
        if memory is None:
            in_graphs.append(self.packed)  # the kernel
            memory = self.graphs[known_as] = self.spare.pop() if self.spare else self._made()
        return memory

    def _made(self) -> list[int]:
        """Addresses of new scratch memory. If nothing is captured, another thread makes it. Otherwise this thread could get it
        from a graph's pool (as when `torch.compile` runs what it is going to capture), and torch refuses memory that stays in
        such a pool."""
        if not self.scratch:
            return []
        with uncaptured(self.device) as inside, concurrent.futures.ThreadPoolExecutor(1) as aside:
            made = self._zeros() if inside else aside.submit(self._zeros).result()
        (in_graphs if inside else self.kept).append(made)
        return [x.data_ptr() for x in made]

    def _zeros(self) -> list[Any]:
        made = [torch.zeros(n, dtype=dtype, device=self.device) for n, dtype in self.scratch]
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()
        return made

    def warm_up(self) -> None:
        """Makes what launches on the current stream, and in a graph, work in."""
        with torch.cuda.device(self.device):
            self.scratch_for(stream_of(self.index))
            if self.scratch and not self.spare:
                in_graphs.append(made := self._zeros())
                self.spare.append([x.data_ptr() for x in made])


class Prepared:
    """A launch of fixed tensors, as `Schedule.prepare` says."""

    def __init__(self, launcher: Launcher, bound: Bound):
        self.launcher, self.arguments = launcher, list(bound.tensors.values())
        self.outputs, self.result = list(bound.outputs), bound.result()
        self.begin = bound.begin_sums if set(bound.made) & set(bound.added_to) else None
        self.packed = packed = launcher.packed
        self.call, self.handle, self.count, self.place = packed.call, packed.handle, packed.count, packed.stream
        self.plain = launcher.one_device and not launcher.scratch and launcher.watchdog is None
        self.index, self.stream_of = launcher.index, stream_of
        self.free = [packed.make([x.data_ptr() for x in self.arguments])]

    def __call__(self) -> Any:
        if self.begin is not None:
            self.begin()
        stream = self.stream_of(self.index)
        if not self.plain or capturing():
            self.launcher.launch(self.arguments)
        else:
            memory = self.take()
            words, arguments, result = memory
            words[self.place] = stream
            if self.call(self.handle, arguments, self.count, result):
                self.launcher.fail(self.arguments)
            self.free.append(memory)
        increment_version(self.outputs)
        return self.result

    def take(self) -> Memory:
        """The memory of a launch with these tensors. It belongs to one thread while that thread launches."""
        try:
            return self.free.pop()
        except IndexError:
            return self.packed.make([x.data_ptr() for x in self.arguments])


def repeated(
    launches: kernels.Launches, tensors: Sequence[Any], out: Any, results: Sequence[Any], parts: bool = False
) -> Caller | None:
    """A function that makes a call again; None if that is not possible. The call was one launch, of other views of its
    tensors; or it was two launches, of which the second takes the result of the first, and then the call's other tensors.

    Args:
        launches: The call's launches, as `watched` has noted them.
        tensors: The call's tensors, in the launcher's order.
        out: The call's first output, or None.
        results: All outputs of the call.
        parts: Whether a launch may take parts of these tensors, too: for a call that does nothing but launch.
    """
    if signature(tuple(tensors), out) is None:
        return None
    found = _again(*launches[0], tensors, out, results) if len(launches) == 1 else None
    if found is not None:
        return found
    if parts:
        return kernels.in_parts(launches, tensors, out, results)
    if len(launches) != 2 or out is not None:
        return None
    (first, places), (second, others) = launches
    count = first.inputs
    if len(first.outputs) != 1 or places[count:] != others[:1]:
        return None
    shape, strides, dtype, _ = first.outputs[0]
    make = functools.partial(torch.empty_strided, shape, strides, dtype=dtype, device=first.device)
    between, least = make(), noted.zeroed.get(places[count])
    if least is None:
        begin = _again(first, places[:count], tensors[:count], None, ())
    else:
        begin = _again(first, [*places[:count], between.data_ptr()], tensors[:count], between, ())
    end = _again(second, [between.data_ptr(), *others[1:]], [between, *tensors[count:]], None, results)
    if begin is None or end is None:
        return None

    def both(given: tuple[Any, ...], out: Any, named: dict[str, Any]) -> Any:
        if out is not None:
            return None
        workspace = None  # made by the first launch
        if least is not None:
            workspace = make()
            workspace[least:].zero_()
        made = begin(given[:count], workspace, named)
        return None if made is None else end((made, *given[count:]), None, named)

    return both


def _again(
    launcher: Launcher, addresses: Sequence[int], tensors: Sequence[Any], out: Any, results: Sequence[Any]
) -> Caller | None:
    """As `repeated`, for one launch with tensors at *addresses*."""
    given, inputs = [*tensors] if out is None else [*tensors, out], launcher.inputs
    whole = [*given, *results[len(given) - inputs :]]
    after = [address - x.data_ptr() for x, address in zip(whole, addresses, strict=False)]
    if len(whole) != len(addresses) or any(after[inputs:]) or not all(-ALIGNMENT < n <= 0 for n in after[:inputs]):
        return None
    made = [(i, 0) for i in range(len(whole), inputs + len(launcher.outputs))]
    return launcher.caller(tensors, (), out, results, [*enumerate(after), *made])


@contextlib.contextmanager
def uncaptured(device: Any) -> Iterator[bool]:
    """The scope in which work is done now, even if the current stream of *device* is captured: on a separate stream, which has
    ended when the scope ends. Yields whether there is a capture."""
    if device.type != "cuda" or not torch.cuda.is_available() or not capturing():
        yield False
        return
    with relaxed():
        aside = torch.cuda.Stream(device)
        with torch.cuda.stream(aside):
            yield True
        aside.synchronize()


@contextlib.contextmanager
def relaxed() -> Iterator[None]:
    """The scope in which this thread may load kernels and wait for streams, while it captures a stream."""
    if not capturing():
        yield
        return
    mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    before = called(driver.cuThreadExchangeStreamCaptureMode(mode))
    try:
        yield
    finally:
        called(driver.cuThreadExchangeStreamCaptureMode(before))


def _capture(stream: int) -> int:
    """The number of the capture that a stream is in."""
    status, _, number, *_ = driver.cuStreamGetCaptureInfo(driver.CUstream(stream))
    called((status,))
    return int(number)


def compiled_for(schedule: Schedule, bound: Bound, gate: Gate, instrument: str = "") -> Compiled:
    """The compiled kernel for these tensors, of the schedule's or as `kernel_for` finds it."""
    ranks = {name: tensor.ndim for name, tensor in bound.tensors.items()}
    key = instrument, _key({name: bound.dtypes[name].name for name in ranks}, ranks)
    cache: dict[Any, Compiled] = schedule.__dict__.setdefault("_compiled", {})
    if key not in cache:
        plan = schedule.plan(bound.dtypes)
        _check_device(next(iter(bound.tensors.values())).device, plan.arch)
        cache[key] = kernels.kernel_for(schedule, plan, ranks, gate, instrument)
    return cache[key]


def adopt(schedule: Schedule, compiled: Compiled, ranks: dict[str, int]) -> None:
    """Lets *schedule* launch this kernel.

    Args:
        ranks: Number of dimensions of each tensor that it was compiled for.
    """
    types = {part.argument: part.buffer.dtype.in_memory.name for part in compiled.plan.transfers}
    types |= {name: compiled.plan.vectors.get(name, int32).name for name in compiled.plan.tables}
    schedule.__dict__.setdefault("_compiled", {})[compiled.instrument, _key(types, ranks)] = compiled


def _key(types: dict[str, str], ranks: dict[str, int]) -> tuple[tuple[str, str, int], ...]:
    return tuple((name, types[name], rank) for name, rank in sorted(ranks.items()))


def _check_device(device: Any, arch: str) -> None:
    if device.type != "cuda" or not torch.cuda.is_available():
        raise MissingGpuError(f"tensors lie on {device}, where no CUDA kernel can run; CPU tensors run on the model.")
    major, minor = torch.cuda.get_device_capability(device)
    have = f"sm_{major}{minor}" + "a" * (major >= 9)
    require(have == arch, "arch", arch, f"the device {device} is {have}", f'set the schedule\'s arch to "{have}"')
