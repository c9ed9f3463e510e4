"""The problem that a schedule is chosen for, its epilogue as the tuner needs it, and a candidate: a schedule as plain
data."""

from __future__ import annotations

import functools
import hashlib
import math
import warnings
from collections.abc import Iterator, Mapping
from types import CodeType
from typing import Any

import attrs

from tmapipe.base.arithmetic import DType, as_dtype, bf16, ceil_div, dtype_of, fp32, int32, tf32
from tmapipe.bind import check_kind, of_sums
from tmapipe.bind.tensors import last_but_one
from tmapipe.epilogue import Epilogue
from tmapipe.epilogue.operands import Matrix
from tmapipe.errors import InputError, check_type, is_count, must, require
from tmapipe.plan import types_of_sums
from tmapipe.schedules.gemm import Gemm
from tmapipe.schedules.mainloop import Cooperative, Operand
from tmapipe.tiles import SplitKTiles
from tmapipe.tiles.dynamic import GpcTiles, GridTiles
from tmapipe.tiles.persistent import Grouped, Hilbert, PersistentTiles, Snake

# ---- problem: a GEMM's sizes and types, and the device ----------------------------------------------------------------
LINE, SECTOR = 128, 32  # bytes of a line of L2, and of what it writes at once


_positive = must(is_count, "is a positive number of elements", "pass the extent")


def _of_operands(problem: Any, attribute: Any, value: DType) -> None:
    value.check_held("Problem(dtype)", multiplied=True)


def _of_sums(problem: Any, attribute: Any, value: DType) -> None:
    known = types_of_sums(problem.dtype)
    rule = f"is a type that sums of {problem.dtype} products are stored in"
    require(value in known, "Problem(out)", value, rule, f"one of {', '.join(dtype.name for dtype in known)}")


def _of_a_and_b(problem: Any, attribute: Any, value: Any) -> None:
    if not isinstance(value, tuple) or value not in [(of_a, of_b) for of_a in "km" for of_b in "kn"]:
        raise InputError("Problem(majors)", value, 'is "k" or "m" of a, and "k" or "n" of b', 'e.g. ("k", "n")')


def _of_rows(problem: Any, attribute: Any, value: Any) -> None:
    powers = {1, 2, 4, 8, 16, 32, 64, 128}
    if value is not None and not (isinstance(value, tuple) and len(value) in (3, 4) and powers.issuperset(value)):
        rule = "must be powers of 2 up to 128, of which the first bytes of rows of a, b and d are multiples"
        raise InputError("Problem(aligned)", value, rule, "leave it out, or use Problem.of(a, b, out)")


@attrs.frozen
class Problem:
    """``d[l, m, n] = sum over k of a[l, m, k] * b[l, n, k]``.

    Args:
        m, n, k, batch: Extents (elements).
        dtype: The element type of a and b.
        out: The element type of d.
        majors: The dimensions along which a and b are contiguous, as in `tmapipe.schedules.Gemm`.
        aligned: Of which numbers the bytes at which rows of a, b and d begin are multiples: powers of 2, at most 128. None:
            their rows lie next to each other. Rows that begin within lines of 128 bytes are read more slowly. A fourth number,
            if given, is the same for the pitch of d's rows; it is larger than the third.

    Raises:
        InputError: An extent is no positive integer, or `out`, `majors` or `aligned` do not fit the other arguments.
    """

    m: int = attrs.field(validator=_positive)
    n: int = attrs.field(validator=_positive)
    k: int = attrs.field(validator=_positive)
    dtype: DType = attrs.field(default=bf16, converter=as_dtype, validator=_of_operands)
    out: DType = attrs.field(default=bf16, converter=as_dtype, validator=_of_sums)
    batch: int = attrs.field(default=1, validator=_positive)
    majors: tuple[str, str] = attrs.field(default=("k", "k"), validator=_of_a_and_b)
    aligned: tuple[int, ...] | None = attrs.field(default=None, validator=_of_rows)

    @classmethod
    def of(cls, a: Any, b: Any, out: Any = None, *, tf32: bool = False) -> Problem:
        """The problem of multiplying *a* by *b*; `majors` and `aligned` follow from their strides and addresses.

        Args:
            a: Torch tensor or NumPy array [m, k], or [l, m, k].
            b: The same [n, k], or [l, n, k].
            out: The result's tensor, or its element type; by default that of a, or int32 for int8.
            tf32: Whether fp32 operands are multiplied as tf32.

        Raises:
            InputError: The shapes or types do not fit.
        """
        for name, tensor in (("a", a), ("b", b)):
            check_kind(name, tensor)
            if tensor.ndim not in (2, 3):
                raise InputError(name, tuple(tensor.shape), "has two dimensions, or three with a batch", "reshape it")
        if a.ndim != b.ndim or a.shape[-1] != b.shape[-1] or tuple(a.shape[:-2]) != tuple(b.shape[:-2]):
            rule = f"agrees with a {tuple(a.shape)} in batch and k, as (n, k)"
            raise InputError("b", tuple(b.shape), rule, "transpose b if it is (k, n)")
        batch = int(a.shape[0]) if a.ndim == 3 else 1
        dtype = dtype_of(a, "a")
        d = out if hasattr(out, "strides") or hasattr(out, "data_ptr") else None
        if d is not None:
            check_kind("out", d)
            if tuple(d.shape) != (shape := (*a.shape[:-1], b.shape[-2])):
                rule = f"has the shape of the result, {shape}"
                raise InputError("out", tuple(d.shape), rule, "pass the result's tensor, or its element type")
            out = dtype_of(d, "out")
        elif out is None:
            out = int32 if dtype.integer else dtype
        if tf32:
            require(dtype == fp32, "tf32", True, f"is only for operands of fp32; they are {dtype}", "leave it out")
            dtype = as_dtype("tf32")
        majors = ("m" if last_but_one(a) else "k", "n" if last_but_one(b) else "k")
        problem = cls(int(a.shape[-2]), int(b.shape[-2]), int(a.shape[-1]), dtype, out, batch, majors)
        rows = problem.rows_at
        of_d = rows[2:] if d is None else tuple(dict.fromkeys([_rows_of(d), _rows_of(d, start=False)]))
        aligned = _rows_of(a, majors[0] == "m"), _rows_of(b, majors[1] == "n"), *of_d
        return problem if aligned == rows else attrs.evolve(problem, aligned=aligned)

    @functools.cached_property
    def rows_at(self) -> tuple[int, int, int]:
        """Of which numbers, at most 128, the bytes at which rows of a, b and d begin are multiples."""
        if self.aligned is not None:
            return self.aligned[0], self.aligned[1], self.aligned[2]
        sides = zip((self.m, self.n), self.majors, strict=True)
        of_a, of_b = (self.k if major == "k" else rows for rows, major in sides)
        size = self.dtype.bytes
        return math.gcd(LINE, of_a * size), math.gcd(LINE, of_b * size), math.gcd(LINE, self.n * self.out.bytes)

    @property
    def pitch(self) -> int:
        """Of which number, at most 128, the bytes between rows of d are a multiple."""
        return (self.aligned or self.rows_at)[-1]

    @property
    def flops(self) -> float:
        return 2.0 * self.batch * self.m * self.n * self.k

    @property
    def bytes(self) -> float:
        """Bytes that must cross the device's memory at least once."""
        inputs = (self.m + self.n) * self.k * self.dtype.bytes
        return float(self.batch * (inputs + self.m * self.n * self.out.bytes))

    def __str__(self) -> str:
        batch = f"{self.batch} x " if self.batch > 1 else ""
        majors = "" if self.majors == ("k", "k") else f", {self.majors[0]}- and {self.majors[1]}-major"
        rows = "" if self.aligned is None else ", rows at multiples of {}, {} and {} bytes".format(*self.rows_at)
        return f"{batch}{self.m}x{self.n}x{self.k} {self.dtype} to {self.out}{majors}{rows}"


def _rows_of(tensor: Any, transposed: bool = False, start: bool = True) -> int:
    """As in `Problem.rows_at`. transposed: whether the last dimension but one is contiguous; start: whether it counts."""
    torch = hasattr(tensor, "data_ptr")
    size = tensor.element_size() if torch else tensor.itemsize
    first = tensor.data_ptr() if start and torch and tensor.is_cuda else 0  # no kernel reads others
    strides = [s * size for s in tensor.stride()] if torch else list(tensor.strides)
    along = len(strides) - (2 if transposed else 1)
    pitches = (s for i, s in enumerate(strides) if (i != along or s != size) and tensor.shape[i] > 1)
    return math.gcd(LINE, first, *pitches)


_is_rate = must(lambda n: not isinstance(n, bool) and 0 < n < math.inf, "is a positive number of GB/s", "e.g. 4800.0")


def _of_clusters(value: Any) -> bool:
    return isinstance(value, tuple) and all(len(each) == 2 and all(map(is_count, each)) for each in value)


@attrs.frozen
class Device:
    """What the estimate knows of a GPU.

    Args:
        name: The name that CUDA reports.
        multiprocessors: How many SMs it has.
        clusters: (CTAs of a cluster, clusters that are resident at once) for each size, as cudaOccupancyMaxActiveClusters
            reports them with one CTA per SM.
        memory: GB/s of its memory: twice the memory's clock, times the bytes of its bus.

    Raises:
        InputError: For any other value.
    """

    name: str = attrs.field(
        validator=must(lambda name: isinstance(name, str) and name != "", "is a name", 'e.g. "NVIDIA H200"')
    )
    multiprocessors: int = attrs.field(
        validator=must(lambda n: is_count(n) and n < 2**16, "is a positive number of SMs below 2^16", "e.g. 132")
    )
    clusters: tuple[tuple[int, int], ...] = attrs.field(
        validator=must(_of_clusters, "is a tuple of (CTAs of a cluster, resident clusters)", "e.g. ((1, 132), (2, 66))")
    )
    memory: float = attrs.field(default=4800.0, validator=_is_rate)

    def resident(self, cluster_size: int) -> int:
        """How many clusters of *cluster_size* CTAs run at once. Raises `InputError` unless that is a positive integer."""
        if not is_count(cluster_size):
            raise InputError("Device.resident(cluster_size)", cluster_size, "is a positive number of CTAs", "e.g. 2")
        return dict(self.clusters).get(cluster_size, self.multiprocessors // cluster_size)


#: The default device of `choose` and `ranked`.
H200 = Device("NVIDIA H200", 132, ((1, 132), (2, 66), (3, 39), (4, 30), (8, 15)))


# ---- epilogues: the tensors of an epilogue, its expected result, and its key in the cache --------------------------------


PLAIN = Epilogue()  #: none: the sums are stored


def epilogue_dtypes(problem: Problem, epilogue: Epilogue) -> dict[str, DType]:
    """Element types of an epilogue's tensors, by stage name. An operand that does not declare its type has the type of the
    result; an output that does not has the type that a call gives it."""
    made = of_sums(problem.dtype.in_memory)
    dtypes = {name: kind.type_of(problem.out) for name, kind in epilogue.operands.items()}
    return dtypes | {name: kind.type_of(made) for name, kind in epilogue.outputs.items() if not kind.reduced}


def epilogue_ranks(problem: Problem, epilogue: Epilogue) -> dict[str, int]:
    """How many dimensions each tensor of an epilogue has, by stage name. For a reduced output, the number of dimensions of its
    parts."""
    batch = (problem.batch,) if problem.batch > 1 else ()
    ranks = {name: len(kind.shape(problem.m, problem.n, batch)) for name, kind in epilogue.operands.items()}
    return ranks | {name: 2 + len(batch) for name in epilogue.outputs}


def operands(problem: Problem, epilogue: Epilogue, device: str) -> dict[str, Any]:
    """A torch tensor on *device* for each operand, random normal from a fixed seed."""
    import torch

    generator = torch.Generator(device).manual_seed(1)
    batch = (problem.batch,) if problem.batch > 1 else ()
    tensors = {}
    for name, kind in epilogue.operands.items():
        values = torch.randn(kind.shape(problem.m, problem.n, batch), generator=generator, device=device)
        tensors[name] = values.to(getattr(torch, kind.type_of(problem.out).torch))
    return tensors


def expected(epilogue: Epilogue, product: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Every output, by name, that the epilogue makes of *product* [m, n] or [l, m, n] and the operands *given*: torch tensors,
    computed with NumPy in fp32."""
    if epilogue.function is None:
        return {"d": product}
    import torch

    arrays = {name: kind.whole(given[name].float().cpu().numpy()) for name, kind in epilogue.operands.items()}
    made = epilogue.values((product.float().cpu().numpy(),), arrays)
    values = made if isinstance(made, dict) else {"d": made}
    outputs = {name: kind.whole(values[name], product.shape) for name, kind in epilogue.whole_outputs.items()}
    return {name: torch.from_numpy(value).to(product.device) for name, value in outputs.items()}


def fingerprint(epilogue: Epilogue) -> str:
    """A short text that is another one for other operands, outputs or operations of the epilogue; "" for none. Numbers that
    the function encloses do not count: with others it takes as long."""
    if epilogue.plain:
        return ""
    function = epilogue.function
    while isinstance(function, functools.partial):
        function = function.func
    code = getattr(function, "__code__", None)
    parts = [repr(type(function))] if code is None else [repr(part) for part in _operations(code)]
    parts += [f"{name}={kind!r}" for name, kind in (*epilogue.operands.items(), *epilogue.outputs.items())]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _operations(code: CodeType) -> Iterator[Any]:
    """The operations of a function, without where it is written."""
    yield code.co_code, code.co_names, code.co_varnames[: code.co_argcount]
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _operations(constant)
        else:
            yield constant


# ---- candidate: a schedule as plain data that can be counted, compared, stored and built ------------------------------


SWIZZLE_SPAN = 128  # bytes along k of one slot
BUFFER, PIECE = 64 * 128, 64  # bytes of an output buffer, and columns
NARROW = 32  # columns of a piece where a matrix takes a slot of a and b, and one output buffer saves none


_pair = must(
    lambda pair: isinstance(pair, tuple) and len(pair) == 2 and all(map(is_count, pair)),
    "is two positive numbers, along m and n",
    "e.g. (128, 128)",
)


def _named(options: Any) -> bool:
    pairs = isinstance(options, tuple) and all(isinstance(pair, tuple) and len(pair) == 2 for pair in options)
    return pairs and all(isinstance(name, str) for name, _ in options)


@attrs.frozen
class Candidate:
    """A schedule as data.

    Args:
        schedule: The name of a class in `tmapipe.schedules`.
        tile: (m, n) elements of a CTA's output tile.
        cluster: How many CTAs lie along (m, n), without CTAs that share k.
        options: (name, value) of the other arguments. These names are kept on disk. "stages": slots for operands.
            "store_stages": buffers of a warpgroup. "order": a tile scheduler as ("Snake", 8), or by GPC as ("Snake", 8,
            "gpc"). "l2_hints" and "outside": for (a, b). "store_hint": the L2 hint of whole outputs. "columns": of the pieces
            in which they are stored. "promote". "in_turn" and "along": of the mainloop. "parts": how many parts a split k has,
            or how many CTAs of a cluster share k; then "clusters": how many clusters a tile has. "spans": how many spans of
            128 bytes of k a slot has. "share": how many CTAs share a multiprocessor, with one tile each.
    """

    schedule: str
    tile: tuple[int, int] = attrs.field(validator=_pair)
    cluster: tuple[int, int] = attrs.field(validator=_pair)
    options: tuple[tuple[str, Any], ...] = attrs.field(
        default=(), validator=must(_named, "is pairs of a name and a value", 'e.g. (("spans", 2),)')
    )

    @functools.cached_property
    def chosen(self) -> dict[str, Any]:
        """The options by name."""
        return dict(self.options)

    @property
    def parts(self) -> int:
        """Number of parts of k that a second kernel adds up."""
        return int(self.chosen.get("clusters" if self.schedule == "ClusterSplitK" else "parts", 1))

    @property
    def sharing(self) -> int:
        """CTAs of a cluster that share the k of an output tile."""
        return int(self.chosen["parts"]) if self.schedule == "ClusterSplitK" else 1

    @property
    def ctas(self) -> int:
        """CTAs of a cluster."""
        return self.cluster[0] * self.cluster[1] * self.sharing

    @property
    def in_parts(self) -> bool:
        """Whether a second kernel adds up parts of k."""
        return self.schedule == "SplitK" or self.parts > 1

    @property
    def spans(self) -> int:
        """Spans of 128 bytes of k in a slot."""
        return int(self.chosen.get("spans", 1))

    @property
    def share(self) -> int:
        """CTAs on a multiprocessor."""
        return int(self.chosen.get("share", 1))

    @property
    def slots(self) -> int:
        """Slots of the rings of a multiprocessor, at least one: what fits beside the output buffers."""
        if self.share > 1:
            return self.share * int(self.chosen["stages"])
        in_turn, stored = self.chosen.get("in_turn", True), self.chosen.get("store_stages", 2)
        buffers = own_buffers(self.schedule, self.accumulators[0], in_turn) * stored
        buffers *= ceil_div(self.chosen.get("columns", PIECE), PIECE)
        if self.sharing > 1:
            buffers += ceil_div(4 * self.tile[0] * self.tile[1], BUFFER)  # sums of the other CTAs
        return min(self.chosen.get("stages", 99), max(1, slots_of(self.tile, buffers) // self.spans))

    @property
    def accumulators(self) -> tuple[int, int]:
        """Rows, which warpgroups share, and columns of the tile's accumulators."""
        return self.tile[::-1] if self.chosen.get("along") == "n" else self.tile

    @property
    def by_gpc(self) -> bool:
        """Whether clusters of one GPC take tiles with consecutive numbers."""
        return "gpc" in self.chosen.get("order", ())

    def build(self, problem: Problem, epilogue: Epilogue = PLAIN) -> Gemm:
        """The schedule.

        Raises:
            InputError: It cannot be planned for the problem's types, or not with the epilogue.
        """
        from tmapipe import schedules

        check_type("Candidate.build(problem)", problem, Problem, "e.g. Problem(4096, 4096, 4096)")
        check_type("Candidate.build(epilogue)", epilogue, Epilogue, "e.g. Epilogue(lambda acc: acc * 2)")
        kind = getattr(schedules, self.schedule, None) if isinstance(self.schedule, str) else None
        if not (isinstance(kind, type) and issubclass(kind, Gemm)):
            raise InputError("Candidate(schedule)", self.schedule, "names a GEMM of tmapipe.schedules", 'e.g. "Gemm"')
        if self.in_parts and problem.batch > 1 and (epilogue.operands or epilogue.outputs):
            rule = "has no operands and one output, where parts of k of a batch are added"
            raise InputError("epilogue", epilogue.function, rule, "compute the rest apart")
        chosen = dict(self.options)
        stages, hint = chosen.pop("store_stages", epilogue.stages), chosen.pop("store_hint", epilogue.l2_hint)
        columns = chosen.pop("columns", epilogue.columns)
        stored = attrs.evolve(epilogue, stages=stages, l2_hint=hint, columns=columns, dtype=problem.out)
        options: dict[str, Any] = self._operands(problem, chosen)
        if "order" in chosen:
            options["tiles"] = order_of(*chosen.pop("order"))
        if "share" in chosen:
            options["tiles"] = GridTiles(Grouped(1), chosen.pop("share"))
        if "clusters" in chosen:
            options["tiles"] = SplitKTiles(chosen.pop("clusters"))
        form: dict[str, Any] = {"cluster": self.cluster}
        if self.sharing > 1:
            form = {"along_m": self.cluster[0]}
        elif self.schedule != "PingPong":
            mainloop = {name: chosen.pop(name) for name in ("promote", "along") if name in chosen}
            options["mainloop"] = Cooperative(**mainloop)
        if epilogue.operands:  # a ping-pong with operands needs its epilogues in turn
            chosen.pop("in_turn", None)
        tile = *self.tile, chosen.pop("spans", 1) * SWIZZLE_SPAN // problem.dtype.bytes
        shape = form | chosen | {"tile": tile}

        def make(stored: Epilogue) -> tuple[int, Gemm]:
            made = kind(**shape, **(options | {"epilogue": stored}))
            with warnings.catch_warnings():  # of spills, which show when it is measured
                warnings.simplefilter("ignore")
                return made.plan(self.dtypes(problem, epilogue)).ring("ring").stages, made

        slots, made = make(stored)
        if not self.in_parts and any(isinstance(kind, Matrix) for kind in epilogue.operands.values()):
            for buffers, columns in ((1, None), (stages, NARROW), (1, NARROW)):
                more, other = make(attrs.evolve(stored, stages=buffers, columns=columns))
                if more > slots:
                    slots, made = more, other
        return made

    def _operands(self, problem: Problem, chosen: dict[str, Any]) -> dict[str, Operand]:
        """How a and b are loaded, by what is *chosen* for them."""
        dtype = "tf32" if problem.dtype == tf32 else None
        hints, outside = chosen.pop("l2_hints", (None, None)), chosen.pop("outside", ("zeros", "zeros"))
        each = zip("ab", problem.majors, hints, outside, strict=True)
        return {side: Operand(major, dtype=dtype, l2_hint=hint, outside=rest) for side, major, hint, rest in each}

    def dtypes(self, problem: Problem, epilogue: Epilogue = PLAIN) -> dict[str, Any]:
        """Element types by stage name, as the schedule's `plan` takes them, of *problem* with *epilogue*; of the first of two
        kernels."""
        dtypes = {"a": problem.dtype, "b": problem.dtype}
        return dtypes if self.in_parts else {**dtypes, "d": problem.out, **epilogue_dtypes(problem, epilogue)}

    def ranks(self, problem: Problem, epilogue: Epilogue = PLAIN) -> dict[str, int]:
        """Number of dimensions of each tensor of *problem* with *epilogue*, by stage name: two, or three with a batch; of the
        first of two kernels."""
        several = 3 if problem.batch > 1 else 2
        rest = {"d": 3} if self.in_parts else {"d": several, **epilogue_ranks(problem, epilogue)}
        return {"a": several, "b": several, **rest}

    def can_be_built(self, problem: Problem, epilogue: Epilogue = PLAIN) -> bool:
        """Whether `build` succeeds for *problem* with *epilogue*."""
        try:
            self.build(problem, epilogue)
        except InputError:
            return False
        return True

    def __str__(self) -> str:
        options = "".join(f" {name} {value}" for name, value in self.options)
        return f"{self.schedule} {self.tile[0]}x{self.tile[1]} {self.cluster[0]}x{self.cluster[1]}{options}"


def own_buffers(schedule: str, rows: int, in_turn: bool = True) -> int:
    """How many warpgroups have output buffers of their own, for accumulators of *rows* rows."""
    if schedule == "PingPong":
        return 1 if in_turn else 2
    return 2 if rows in (128, 256) else rows // 64


def slots_of(tile: tuple[int, int], buffers: int) -> int:
    """Slots of one span of k beside *buffers* output buffers of 64 rows by 128 bytes, in 227 KiB less the barriers."""
    return (226 * 1024 - buffers * BUFFER) // (sum(tile) * SWIZZLE_SPAN)


def order_of(raster: str, rows: int, near: str = "") -> PersistentTiles:
    """The tile scheduler that a candidate's "order" means."""
    kind = GpcTiles if near == "gpc" else PersistentTiles
    return kind({"Grouped": Grouped, "Snake": Snake, "Hilbert": Hilbert}[raster](rows))
