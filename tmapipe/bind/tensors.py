"""Matches tensors with stages, makes outputs, and checks each tensor.

Torch is imported only if a caller passes torch tensors.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np

from tmapipe.base.arithmetic import Dim, DType, dtype_of, fp32
from tmapipe.base.tma_rules import ALIGNMENT, MOST_EXTENT, check_address, check_contiguous, check_strides
from tmapipe.bind import Bound, check_apart, check_ascending, check_kind, check_memory, is_torch, low_words, made_as
from tmapipe.errors import InputError, require
from tmapipe.parts import Table
from tmapipe.stage import LoadStage
from tmapipe.store_pipeline import FROM_ZERO, StoreStage

if TYPE_CHECKING:
    from tmapipe.plan.declarations import Declarations
    from tmapipe.schedule import Schedule


Extents = dict[str, tuple[str, int]]  # dimension -> a tensor that has it, and its extent there


def bind(schedule: Schedule, tensors: tuple[Any, ...], named: dict[str, Any], out: Any) -> Bound:
    """Matches tensors with stages, makes missing outputs, and checks everything that could go wrong on the GPU.

    Args:
        schedule: The schedule that has the stages.
        tensors: Tensors by position: one for each load stage, then for each table, then for each store stage.
        named: Tensors by stage name.
        out: The first output.

    Raises:
        InputError: A tensor breaks a rule. The error names the argument, its value, the rule and a fix.
    """
    declared = schedule.declared
    if not declared.loads and not declared.stores:
        raise InputError("Schedule", declared.name, "has no load and no store stage", "declare one")
    parts: dict[str, LoadStage | StoreStage] = {**declared.inputs, **declared.stores}
    inputs = (*declared.inputs, *declared.tables)
    stores = tuple(declared.stores)
    made: list[str] = []
    given = match(declared.arguments, tensors, named, out, stores[0] if stores else "")
    for name in inputs:
        require(name in given, name, None, "a tensor is needed for every load stage and table", f"pass {name}=")
    extents: Extents = {}
    shapes: dict[str, tuple[int, ...]] = {}
    strides: dict[str, tuple[int, ...]] = {}
    first_load = next(iter(declared.inputs), None)
    like = given[first_load] if first_load else None
    for name in declared.inputs:
        if declared.inputs[name].number and name != first_load:
            given[name] = _as_element(name, given[name], like)
        check_kind(name, given[name])
        shapes[name], strides[name] = _padded(name, given[name], parts[name].dims)
        _note_extents(name, parts[name].dims, shapes[name], extents)
    for name, table in declared.tables.items():
        shapes[name] = _check_table(name, given[name], table, extents)
        given[name] = low_words(name, given[name])
        if table.ascending:
            check_ascending(name, given[name])
        strides[name] = strides_of(given[name])
    _relate(declared.relations, extents)
    for name, store in declared.stores.items():
        for dim, extent in store.derive({dim: extent for dim, (_, extent) in extents.items()}).items():
            extents.setdefault(dim, (name, extent))
        if name not in given:
            if first_load is None:
                raise InputError(name, None, "a tensor is needed for the output", f"pass {name}=")
            given[name] = _make_output(declared, name, extents, given)
            made.append(name)
        check_kind(name, given[name])
        lacking = (
            parts[first_load].dims[: len(parts[first_load].dims) - like.ndim] if first_load and like is not None else ()
        )
        folded = tuple(store.folded.values())
        shapes[name], strides[name] = _padded(name, given[name], store.dims, folded, lacking)
        _note_extents(name, store.dims, shapes[name], extents)  # which later stores may derive theirs from
    _relate(declared.relations, extents)
    given = {name: given[name] for name in declared.arguments}
    devices = {name: _device(given[name]) for name in given}
    first = next(iter(devices.values()))
    for name, device in devices.items():
        if device != first:
            rule = f"lies on another device than {next(iter(devices))} ({first})"
            raise InputError(name, device, rule, "move it there")
    kinds = {name: "numpy" if isinstance(given[name], np.ndarray) else "torch" for name in given}
    if len(set(kinds.values())) > 1:
        raise InputError("tensors", kinds, "are either all NumPy arrays or all torch tensors", "convert one kind")
    dtypes = {name: dtype_of(given[name], name) for name in given}
    added_to = tuple(name for name, store in declared.stores.items() if store.reduce)
    bound = Bound(given, shapes, strides, dtypes, stores, first != "cpu", added_to, tuple(made))
    for name, part in parts.items():
        if 0 not in shapes[name]:
            _check_layout(name, given[name], part.vector)
    for stage, load in declared.loads.items():
        name = declared.tensor_of(stage)
        if load.result is not None:
            continue
        if load.input is not None and 0 not in shapes[name]:
            _check_layout(name, given[name], load.vector)
        if load.windows is not None and not bound.empty:
            load.windows.check_image(f"{name}.shape", shapes[name][1:-1])
        if not load.tensor_map and not load.vector:
            pieces = [n * declared.cluster.get(dim, 1) for n, dim in zip(load.extents, load.dims, strict=True)]
            if any(extent % piece for extent, piece in zip(shapes[name], pieces, strict=True)):
                whole = " x ".join(str(piece) for piece in pieces if piece > 1)
                rule = f"is loaded in whole pieces of {whole} elements a cluster: no descriptor fills the rest"
                raise InputError(f"{name}.shape", shapes[name], rule, "pad the tensor, or use a TmaLoadStage")
    for name, store in declared.stores.items():
        if 0 not in shapes[name]:
            _check_output(name, given[name], store.vector)
    for name in given:
        check_memory(name, given[name], name in stores)
    check_apart(bound.tensors, stores, declared.in_place)
    return bound


def signature(tensors: tuple[Any, ...], out: Any) -> tuple[Any, ...] | None:
    """Everything that `bind` looks at, except where memory lies and how much there is: equal signatures can use one kernel.

    None if some argument is no plain torch tensor with its values in memory, or takes part in automatic differentiation.
    """
    torch = sys.modules.get("torch")
    if torch is None or torch.autograd.forward_ad._current_level >= 0:  # when tensors may have tangents
        return None
    plain, parameter = torch.Tensor, torch.nn.Parameter
    facts: list[Any] = [len(tensors)]
    try:
        for t in tensors if out is None else (*tensors, out):
            kind, address = type(t), t.data_ptr()
            if not address or (kind is not plain and kind is not parameter) or t.is_neg():
                return None
            if t.requires_grad and torch.is_grad_enabled():
                return None
            facts += (t.shape, t.stride(), t.dtype, t.get_device(), address % ALIGNMENT)
    except (AttributeError, TypeError, RuntimeError):
        return None
    return tuple(facts)


def new_like(tensor: Any, shape: tuple[int, ...] | None = None, dtype: DType | None = None) -> Any:
    """A new dense tensor of the same kind and device as *tensor*; its shape and type are the defaults."""
    shape = tuple(tensor.shape) if shape is None else shape
    if isinstance(tensor, np.ndarray):
        return np.empty(shape, tensor.dtype if dtype is None else dtype.numpy)
    torch = sys.modules["torch"]
    return tensor.new_empty(shape, dtype=tensor.dtype if dtype is None else getattr(torch, dtype.torch))


def new_in_order(tensor: Any, width: int) -> Any:
    """A new tensor like *tensor*, with dimensions in the same order in memory, and *width* elements along the last
    dimension."""
    if width == tensor.shape[-1]:
        return np.empty_like(tensor) if isinstance(tensor, np.ndarray) else sys.modules["torch"].empty_like(tensor)
    return made_like(tensor, (*tensor.shape[:-1], width), (*strides_of(tensor)[:-1], 0))


def made_like(x: Any, shape: tuple[int, ...], steps: tuple[int, ...], dtype: DType | None = None) -> Any:
    """A new dense tensor of the same kind as *x*. Its dimensions lie in memory in the order of the strides *steps*, the
    largest first. dtype: the type of its elements; None: the type of *x*."""
    order = sorted(range(len(shape)), key=lambda dim: -steps[dim])
    made = new_like(x, tuple(shape[dim] for dim in order), dtype)
    back = sorted(range(len(shape)), key=order.__getitem__)
    return made.transpose(back) if isinstance(made, np.ndarray) else made.permute(back)


def as_words(name: str, tensor: Any) -> Any:
    """The memory of a tensor as 32-bit integers, along its last dimension.

    Raises:
        InputError: Rows or row strides are no whole units of 16 bytes.
    """
    size = tensor.dtype.itemsize
    if is_torch(tensor) and tensor.storage_offset() * size % 4:
        rule = f"must be a multiple of {ALIGNMENT} bytes"
        raise InputError(f"{name}.data_ptr()", hex(tensor.data_ptr()), rule, "start the view at such an offset")
    if size == 4 or 0 in tensor.shape:
        return in_integers(tensor if size == 4 else tensor.reshape(-1)[:0], 4)
    *outer, last = strides_of(tensor)
    if last != 1 or any(stride * size % ALIGNMENT for stride in outer) or tensor.shape[-1] * size % ALIGNMENT:
        unit = f"units of {ALIGNMENT} bytes, as TMA stores write them"
        rule = f"rows must be contiguous, and rows and their strides whole {unit}"
        fix = f"pad the rows to a multiple of {ALIGNMENT // size} elements"
        raise InputError(f"{name}.shape, {name}.stride", (tuple(tensor.shape), (*outer, last)), rule, fix)
    return in_integers(tensor, 4)


def in_words(tensor: Any) -> Any:
    """The tensor; if its elements have 64 bits or more, the tensor with one more dimension, of their words."""
    return tensor if tensor.dtype.itemsize <= 4 else in_integers(tensor[..., None], 4)


def in_integers(tensor: Any, size: int) -> Any:
    """The memory of a tensor as integers of this many bytes, along its last dimension."""
    library = np if isinstance(tensor, np.ndarray) else sys.modules["torch"]
    return tensor.view(getattr(library, f"int{8 * size}"))


def _as_element(name: str, value: Any, like: Any) -> Any:
    """A number as a tensor of one fp32 element, of the kind and device of *like*."""
    if isinstance(value, Real):
        element = new_like(like, (1,), fp32)
        try:
            element[...] = float(value)
        except (OverflowError, RuntimeError):
            raise InputError(name, value, "is a number that a float can hold", "pass a smaller one") from None
        return element
    check_kind(name, value)
    rule = "is a number or a tensor of one element"
    require(tuple(value.shape) in ((), (1,)), f"{name}.shape", tuple(value.shape), rule, "pass one number")
    return value.reshape(1)


def last_but_one(tensor: Any) -> bool:
    """Whether the last but one dimension is contiguous, and the last is not."""
    *_, rows, columns = strides_of(tensor)
    return rows == 1 and columns != 1 and tensor.shape[-1] > 1


def is_contiguous(tensor: Any) -> bool:
    """Whether the elements fill their memory in order, without gaps."""
    return bool(tensor.flags.c_contiguous) if isinstance(tensor, np.ndarray) else tensor.is_contiguous()


def _padded(
    name: str, tensor: Any, dims: tuple[str, ...], folded: tuple[int, ...] = (), lacking: tuple[str, ...] = ()
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The tensor's shape and strides (elements), with the leading dimensions that it lacks: first the *folded* extents, then
    1s. A vector may lack only dimensions that the first input lacks, too (*lacking*). Raises `InputError` if it has too many
    or too few dimensions."""
    shape, strides = tuple(int(extent) for extent in tensor.shape), strides_of(tensor)
    most = len(dims) - len(folded)
    missing = most - len(shape)
    alike = bool(lacking) and dims[len(folded) :][:missing] == lacking
    if missing < 0 or (missing > 0 and len(shape) < 2 <= most and not alike):
        own = " ".join(dims[len(folded) :])
        fewer = f", or of {'2 to ' * (most > 3)}{most - 1} without the first {'ones' if most > 3 else 'one'}"
        fix = f"pass a tensor of rank {most}{fewer if most > 2 else ''}"
        raise InputError(f"{name}.shape", shape, f"has the dimensions {own}", fix)
    outer = shape[0] * strides[0] if shape else 1  # where any value would do
    return (*folded, *(1,) * missing, *shape), (*(0,) * len(folded), *(outer,) * missing, *strides)


def match(
    names: Sequence[str], tensors: tuple[Any, ...], named: dict[str, Any], out: Any = None, first: str = ""
) -> dict[str, Any]:
    """The tensors of a call by name, without tensors that are None.

    Args:
        names: The names of all tensors. *tensors* has them in this order.
        tensors: The first tensors, by position.
        named: Other tensors, by name.
        out: The first output, or None.
        first: The name of the first output, if there is one.

    Raises:
        InputError: A tensor is unknown or given twice, or there are too many.
    """
    if len(tensors) > len(names):
        rule = f"at most {len(names)}: {', '.join(names)}"
        raise InputError("tensors", f"{len(tensors)} tensors", rule, "pass fewer")
    given = dict(zip(names, tensors, strict=False))
    for name, tensor in named.items():
        if name not in names:
            rule = f"is no stage; the stages are {', '.join(names)}"
            raise InputError(name, type(tensor).__name__, rule, "rename it, or declare it")
        require(name not in given, name, type(tensor).__name__, "is given twice", "pass it once")
        given[name] = tensor
    given = {name: tensor for name, tensor in given.items() if tensor is not None}
    if out is not None:
        rule = "is the first output alone"
        require(
            not isinstance(out, (tuple, list)), "out", type(out).__name__, rule, f"pass {first}= and so on, by name"
        )
        rule = "names the first output, which is given already"
        require(first and first not in given, "out", type(out).__name__, rule, "pass it once")
        given[first] = out
    return given


def _note_extents(name: str, dims: tuple[str, ...], shape: tuple[int, ...], seen: Extents) -> None:
    for dim, extent in zip(dims, shape, strict=True):
        owner, known = seen.setdefault(dim, (name, extent))
        if known != extent:
            other = f"{owner} has {dim} = {known}" if owner != dim else f"by its Dim it is {known}"
            transposed = len(dims) > 1 and dim in dims[-2:] and known == shape[-2 if dim == dims[-1] else -1]
            fix = "transpose it, or make them equal" if transposed else "make them equal"
            raise InputError(f"{name}.shape", shape, f"has {dim} = {extent}, but {other}", fix)


def _relate(relations: Sequence[Dim], seen: Extents) -> None:
    """Adds the extents that follow from other extents. Raises `InputError` if a tensor has another extent."""
    for dim in relations:
        extent = dim.extent({name: extent for name, (_, extent) in seen.items()})
        if dim.at_most is not None:
            owner, known = seen.get(dim.name, (dim.name, extent or 0))
            if known > dim.at_most:
                rule = f"is at most {dim.at_most} by its Dim: tiles hold no more"
                raise InputError(f"{owner}.shape along {dim.name}", known, rule, "use a schedule with larger tiles")
        if extent is None:
            continue
        owner, known = seen.setdefault(dim.name, (dim.name, extent))
        if known != extent:
            of = "" if dim.of is None else f", with {dim.of} = {seen[dim.of][1]} of {seen[dim.of][0]}"
            rule = f"is {extent} by its Dim" if dim.of is None else f"is {dim.formula} = {extent}{of}"
            raise InputError(f"{owner}.shape along {dim.name}", known, rule, f"pass {extent} elements along {dim.name}")


def _check_table(name: str, table: Any, declared: Table, extents: Extents) -> tuple[int, ...]:
    """The shape of a table. Raises `InputError` unless it is dense, of a type as *declared*, with extents that fit others'."""
    check_kind(name, table)
    kind, dims = str(table.dtype).removeprefix("torch."), declared.dims
    kinds = ("int32", "int64") if declared.dtype is None else (declared.dtype.name,)
    require(kind in kinds, f"{name}.dtype", kind, f"a table holds {' or '.join(kinds)}", f"{name}.to(torch.{kinds[0]})")
    if table.ndim != len(dims) or not is_contiguous(table):
        rule = f"a table of {' '.join(dims)} is a dense {'vector' if len(dims) == 1 else 'matrix'}"
        how = tuple(table.shape), strides_of(table)
        fix = f"{name}.contiguous()" if table.ndim == len(dims) else f"pass a tensor of rank {len(dims)}"
        raise InputError(f"{name}.shape, {name}.stride", how, rule, fix)
    shape = tuple(map(int, table.shape))
    require(math.prod(shape) < 2**31, f"{name}.shape", shape, "has fewer than 2^31 entries", "use a smaller table")
    _note_extents(name, dims, shape, extents)
    return shape


def _make_output(declared: Declarations, name: str, extents: Extents, given: Mapping[str, Any]) -> Any:
    """A new output on the device of the first input, as `made_as` says. It is zero if results are added to it."""
    store, like = declared.stores[name], given[next(iter(declared.inputs))]
    shape, dtype = made_as(declared, name, {dim: extent for dim, (_, extent) in extents.items()}, given)
    made = new_like(like, shape, dtype)
    if store.reduce:
        rule = f"must be passed, since {store.reduce} combines results with the numbers that it holds"
        require(store.reduce in FROM_ZERO, name, None, rule, f"pass {name}=")
        made[...] = 0
    return made


def _device(tensor: Any) -> str:
    return "cpu" if isinstance(tensor, np.ndarray) else str(tensor.device)


def strides_of(tensor: Any) -> tuple[int, ...]:
    """The strides of a tensor, in elements."""
    if isinstance(tensor, np.ndarray):
        return tuple(stride // tensor.itemsize for stride in tensor.strides)
    return tuple(tensor.stride())


def _check_layout(name: str, tensor: Any, vector: int) -> None:
    """Checks the rules of descriptors, or of copies of *vector* bytes; on the CPU too, so that what runs on the model runs on
    the GPU."""
    shape, strides = tuple(tensor.shape), strides_of(tensor)
    unit, who = (vector, f"copies of {vector} bytes need") if vector else (ALIGNMENT, "TMA needs")
    fix = f"{name}.contiguous(), or tell a GEMM how it lies (tp.Operand)"
    check_contiguous(f"{name}.stride", shape, strides, fix)
    other = "declare a CpAsyncLoadStage or a ThreadStoreStage" if not vector else "pass a smaller vector="
    check_strides(f"{name}.stride", shape, strides, tensor.itemsize, unit, who, other)
    rule = f"has extents of at most {MOST_EXTENT} elements, since places in a tensor have 32 bits"
    require(max(shape, default=0) <= MOST_EXTENT, f"{name}.shape", shape, rule, "split the tensor")
    if is_torch(tensor):
        check_address(f"{name}.data_ptr()", tensor.data_ptr(), unit)


def _check_output(name: str, tensor: Any, vector: int) -> None:
    """Checks what an output needs, besides what every tensor needs.

    Its elements must not overlap, or two tiles would write the same bytes. Its rows must be multiples of 16 bytes. (A TMA
    store clips at the tensor's edge only in units of 16 bytes; on an H200, the rest of the last unit became zero.) If threads
    store, its rows must be multiples of *vector* bytes.
    """
    shape, strides, size = tuple(tensor.shape), strides_of(tensor), tensor.itemsize
    reach = 0  # of the dimensions with smaller strides, from their first element to their last
    for stride, extent in sorted(zip(strides, shape, strict=True)):
        if extent > 1 and stride <= reach:
            raise InputError(f"{name}.stride", strides, "an output's elements must not overlap", "pass a dense tensor")
        reach += (extent - 1) * stride
    unit, who = (vector, "threads") if vector else (ALIGNMENT, "TMA stores")
    if shape[-1] * size % unit:
        row = f"a row of {shape[-1]} x {size} bytes is no multiple of {unit}"
        rule = f"{row}, and {who} write whole units of {unit} bytes, so they would overwrite what follows"
        other = "pass a smaller vector=" if vector else "declare a ThreadStoreStage"
        fix = f"make the last extent a multiple of {unit // size}, or {other}"
        raise InputError(f"{name}.shape", shape, rule, fix)


def converted(x: Any, dtype: DType) -> Any:
    """The tensor converted to another type; the tensor itself if it has that type."""
    if isinstance(x, np.ndarray):
        return x.astype(dtype.numpy, copy=False)
    return x.to(getattr(sys.modules["torch"], dtype.torch))


def widest(tensors: list[Any]) -> Any:
    """The type of 32 bits of one of them if there is any, else that of the first."""
    return dtype_of(max(tensors, key=lambda x: x.dtype.itemsize), "x")


def address_of(x: Any) -> int:
    """Where a tensor lies."""
    return int(x.ctypes.data) if isinstance(x, np.ndarray) else int(x.data_ptr())


def as_matrix(name: str, x: Any, kinds: Sequence[str], number: bool | None = None) -> Any:
    """*x*, of one to four dimensions, as a matrix of its rows: a view, or a copy if the strides allow no view.

    Args:
        kinds: Types that are taken, by name.
        number: Whether it is an output of one number a row, which is seen as a vector, or another output; of an output, there
            is no copy.

    Raises:
        InputError: It is no tensor of these types and of so many dimensions, or an output that is no such view.
    """
    check_kind(name, x)
    kind = dtype_of(x, name)
    if kind.name not in kinds or (number and kind != fp32):
        kinds, fix = (fp32.name,) if number else kinds, f"{name}.to(torch.float32)"
        raise InputError(f"{name}.dtype", kind.name, f"is one of {', '.join(kinds)}", fix)
    if not number and not 1 <= x.ndim <= 4:
        raise InputError(f"{name}.shape", tuple(x.shape), "has one to four dimensions", "reshape it")
    seen = x.reshape(-1) if number else x if x.ndim == 2 else x.reshape(-1, x.shape[-1])
    if number is not None and address_of(seen) != address_of(x):
        rule = "can be seen as a matrix of its rows"
        raise InputError(f"{name}.stride", x.stride(), rule, "pass a contiguous tensor")
    return seen


# ---- views -----------------------------------------------------------------------------------------------------------


DIMS = "abcmn"  # names of up to five dimensions, the last ones first


def seen_as(x: Any, shape: tuple[int, ...], strides: tuple[int, ...], start: int = 0) -> Any:
    """A tensor's memory, from *start* elements before its first one on, with other extents and strides (elements)."""
    if isinstance(x, np.ndarray):
        words = x.view(f"u{x.itemsize}")  # NumPy makes no such view of every type
        return np.lib.stride_tricks.as_strided(words, shape, [step * x.itemsize for step in strides]).view(x.dtype)
    return x.as_strided(shape, strides, x.storage_offset() - start)


def collapsed(views: list[Any], out: Any) -> tuple[list[Any], Any]:
    """All with dimensions joined that follow one another in each of them, in the order of the output's."""
    steps = list(zip(*map(strides_of, (*views, out)), strict=True))
    dims = sorted(((n, each) for n, each in zip(out.shape, steps, strict=True) if n > 1), key=lambda dim: -dim[1][-1])
    joined: list[tuple[int, tuple[int, ...]]] = []
    for n, each in dims or [(1, (1,) * (len(views) + 1))]:
        if joined and joined[-1][1] == tuple(step * n for step in each):
            joined[-1] = (joined[-1][0] * n, each)
        else:
            joined.append((n, each))
    shape = tuple(n for n, _ in joined)
    *found, result = (seen_as(x, shape, tuple(each[i] for _, each in joined)) for i, x in enumerate((*views, out)))
    return found, result


def as_rows(x: Any, rows: int, columns: int) -> Any:
    """The first elements of a vector, perhaps of one number that is repeated, as a matrix."""
    (step,) = strides_of(x)
    return seen_as(x, (rows, columns), (columns * step, step))


def varying(x: Any) -> Any:
    """A tensor without the dimensions along which it is repeated; of a number, a vector of one element."""
    dims = [(n, step) for n, step in zip(x.shape, strides_of(x), strict=True) if step] or [(1, 1)]
    shape, strides = zip(*dims, strict=True)
    return seen_as(x, shape, strides)


def vector_of(out: Any) -> int:
    """Bytes of which the rows of an output are whole multiples: at most 16."""
    steps = [step for step, n in zip(strides_of(out)[:-1], out.shape[:-1], strict=True) if n > 1]
    size = out.dtype.itemsize
    return math.gcd(ALIGNMENT, address_of(out), out.shape[-1] * size, *(step * size for step in steps))


def fits_tma(x: Any) -> bool:
    """Whether TMA takes a tensor without the dimensions along which it is repeated."""
    steps = [step for step in strides_of(x) if step]
    size = x.dtype.itemsize
    return (
        address_of(x) % ALIGNMENT == 0 and steps[-1:] in ([], [1]) and not any(s * size % ALIGNMENT for s in steps[:-1])
    )


def along_of(x: Any) -> str:
    """The dimensions along which a tensor varies, the last ones of "a b c m n"."""
    names = DIMS[len(DIMS) - x.ndim :]
    return " ".join(name for name, step in zip(names, strides_of(x), strict=True) if step)
