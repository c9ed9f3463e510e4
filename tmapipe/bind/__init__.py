"""The tensors of one call: `Bound` has them by stage, and the module `tensors` matches them with stages. This file also has
the outputs that a call makes, and the checks of what a kernel can read and write."""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import attrs
import numpy as np

from tmapipe.base.arithmetic import DType, bf16, dtype_of, int32
from tmapipe.errors import InputError
from tmapipe.parts import Wgmma
from tmapipe.plan.declarations import Declarations

# ---- bound -----------------------------------------------------------------------------------------------------------
#
# Bound: the tensors of one call by stage, with what the CPU model and the launch need to know about them.


@attrs.define
class Bound:
    """The tensors of one call.

    Args:
        tensors: The tensors, by stage name.
        shapes: Their shapes (elements), by stage name, with leading 1s for batch dimensions that a tensor lacks.
        strides: Their strides (elements), by stage name.
        dtypes: Their element types, by stage name.
        stores: Names of the outputs.
        on_gpu: Whether the tensors lie on a CUDA device.
        added_to: Names of the outputs to which a kernel adds, instead of overwriting them.
        made: Names of the outputs that the call has left out and `bind` has made. Their elements hold nothing yet, unless they
            are added to.
        program: What the model runs; None: the schedule's, as it is by then.
    """

    tensors: dict[str, Any]
    shapes: dict[str, tuple[int, ...]]
    strides: dict[str, tuple[int, ...]]
    dtypes: dict[str, DType]
    stores: tuple[str, ...]
    on_gpu: bool
    added_to: tuple[str, ...] = ()
    made: tuple[str, ...] = ()
    program: Any = None

    @property
    def empty(self) -> bool:
        """Whether there is nothing to compute: no output element, or nothing that goes into one."""
        return any(0 in shape for shape in self.shapes.values())

    def check_whole(self, partly: Collection[str]) -> None:
        """Raises `InputError` if an output that the call has left out would keep elements that nobody stores. partly: outputs
        of which the kernel stores only some elements."""
        for name in self.made:
            if name in partly:
                rule = "is stored in part by some shapes (see check()), and the rest of a new tensor holds anything"
                raise InputError(name, None, rule, f"store all of it, or pass {name}= with what the rest is to be")

    def fill_outputs(self, value: Any) -> None:
        """Writes *value* to the outputs: the result of a call that computes it from nothing (k = 0, say). Empty outputs stay
        as they are.

        Args:
            value: A number, an array that broadcasts to the output, or a dictionary of these by output.
        """
        for name in self.stores:
            tensor = self.tensors[name]
            if 0 not in self.shapes[name] and name not in self.added_to:
                mine = value[name] if isinstance(value, dict) else value
                if isinstance(mine, np.ndarray):
                    mine = np.broadcast_to(mine, self.shapes[name]).reshape(tensor.shape).copy()
                    mine = mine if isinstance(tensor, np.ndarray) else sys.modules["torch"].from_numpy(mine)
                tensor[...] = mine

    def begin_sums(self) -> None:
        """Sets to 0 the outputs that the call has made and to which the kernel adds."""
        for name in self.made:
            if name in self.added_to:
                self.tensors[name][...] = 0

    def array(self, name: str) -> np.ndarray:
        """The tensor of stage *name* as a NumPy array with the stage's dimensions; a copy if it lies on the GPU."""
        tensor = self.tensors[name]
        array = tensor if isinstance(tensor, np.ndarray) else _torch_to_numpy(tensor.cpu(), self.dtypes[name])
        folded = any(step == 0 and size > 1 for step, size in zip(self.strides[name], self.shapes[name], strict=True))
        if folded:  # several indices name one element
            steps = tuple(stride * array.itemsize for stride in self.strides[name])
            integers = array.view(f"i{array.itemsize}")  # NumPy makes no such view of every type
            return np.lib.stride_tricks.as_strided(integers, self.shapes[name], steps).view(array.dtype)
        return array.reshape(self.shapes[name]) if array.ndim != len(self.shapes[name]) else array

    def arrays(self) -> dict[str, np.ndarray]:
        """NumPy arrays for the CPU model: they share memory with the tensors and have the stages' dimensions."""
        return {name: self.array(name) for name in self.tensors}

    def result(self) -> Any:
        """The output, or a tuple of the outputs."""
        results = self.outputs
        return results[0] if len(results) == 1 else results

    @property
    def outputs(self) -> tuple[Any, ...]:
        """The stores' tensors, in the order of declaration."""
        return tuple(self.tensors[name] for name in self.stores)


def _torch_to_numpy(tensor: Any, dtype: DType) -> np.ndarray:
    """A NumPy view of a CPU torch tensor. Types that torch cannot pass to NumPy go through integers of the same size."""
    torch = sys.modules["torch"]
    plain = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.bytes]
    integers = tensor.detach().view(plain).numpy()
    return integers.view(dtype.numpy)


# ---- made ------------------------------------------------------------------------------------------------------------
#
# Shapes and types of the outputs that a call makes: rules on extents, which may be numbers that only a trace knows.


def of_sums(dtype: DType) -> DType:
    """The default type of sums of products of *dtype*: the same type; bf16 for 8-bit floats, int32 for integers."""
    if dtype.bytes > 1:
        return dtype
    return int32 if dtype.integer else bf16


def made_as(
    declared: Declarations, name: str, extents: Mapping[str, Any], given: Mapping[str, Any]
) -> tuple[tuple[Any, ...], DType | None]:
    """(shape, type) of a new output, without the batch dimensions that the first input lacks. The type is by default that of
    the slots that it is stored from; of sums of 8 bits, bf16 or int32; else None, for that of the first input.

    Raises:
        InputError: An extent follows from no input.
    """
    store, first = declared.stores[name], next(iter(declared.inputs))
    dims = store.dims[len(store.folded) :]
    unknown = [dim for dim in dims if dim not in extents]
    if unknown:
        fix = f"pass {name}=, or say what it follows from: relations = (Dim({unknown[0]!r}, of=...),)"
        raise InputError(name, None, f"its extent along {', '.join(unknown)} follows from no input", fix)
    like_dims = declared.inputs[first].dims
    lacking = like_dims[: len(like_dims) - given[first].ndim]
    dtype = store.dtype
    if dtype is None and isinstance(store.source, Wgmma):
        dtype, stage = of_sums(dtype_of(given[first], first)), store.source.stages[0]
        operand = declared.name_of(stage)
        if dtype.integer and operand != first:  # integers that are widened for the matmul
            known = dtype_of(given[operand], operand) if operand in given else bf16
            dtype = of_sums((stage.dtype or known).in_memory)
    if dtype is None and store.slot is not None:
        dtype = store.slot.dtype and store.slot.dtype.in_memory
    return tuple(extents[dim] for dim in dims if dim not in lacking), dtype


def outputs_of(declared: Declarations, given: Mapping[str, Any]) -> list[tuple[tuple[Any, ...], DType | None]]:
    """(shape, type) of each output that a call makes. The type is None if it is the type of the first input.

    Args:
        given: Inputs and tables by name. They have shapes, as fake tensors do. Nothing else about them is checked.

    Raises:
        InputError: An extent follows from no input.
    """
    extents: dict[str, Any] = {}
    parts: dict[str, Any] = {**declared.inputs, **declared.tables}
    for name, part in parts.items():
        shape = tuple(given[name].shape)
        extents |= dict(zip(part.dims, (*(1,) * (len(part.dims) - len(shape)), *shape), strict=True))
    outputs = []
    for name, store in declared.stores.items():
        extents |= {dim.name: size for dim in declared.relations if (size := dim.extent(extents)) is not None}
        extents = {**store.derive(extents), **extents}
        outputs.append(made_as(declared, name, extents, given))
    return outputs


# ---- memory ----------------------------------------------------------------------------------------------------------
#
# Whether a kernel can read and write tensors: their elements lie in memory as they say, and an output, which may be
# written, shares none with another tensor, which would be overwritten while it is read.


MAX_WORK: Any = 100_000  # steps of NumPy's exact search; tensors with strides that TMA takes need far fewer


def check_kind(name: str, tensor: Any) -> None:
    """Checks that *tensor* is a torch tensor or a NumPy array whose elements lie in memory as its strides say.

    Raises:
        InputError: It is something else.
    """
    if isinstance(tensor, np.ndarray):
        wrong = _wrong_array(tensor)
    elif is_torch(tensor):
        wrong = _wrong_torch(tensor)
    else:
        wrong = type(tensor).__name__, "is a torch tensor or a NumPy array", "convert it"
    if wrong:
        value, rule, fix = wrong
        raise InputError(name, value, rule, re.sub(r"\bx\b", lambda _: name, fix))


def is_torch(tensor: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(tensor, torch.Tensor)


def _wrong_array(array: np.ndarray) -> tuple[object, str, str] | None:
    """(value, rule, fix) for an error about a NumPy array; None if nothing is wrong with it."""
    if type(array) not in (np.ndarray, np.memmap):
        return type(array).__name__, "is a plain NumPy array: what subclasses add would be lost", "numpy.asarray(x)"
    if array.dtype.hasobject:
        return str(array.dtype), "has elements in its own memory, not references", "convert it to numbers"
    steps = zip(array.shape, array.strides, strict=True)
    if array.size and any(extent > 1 and stride % array.itemsize for extent, stride in steps):
        rule = f"has strides of whole elements of {array.itemsize} bytes"
        return array.strides, rule, "numpy.ascontiguousarray(x)"
    return None


def _wrong_torch(tensor: Any) -> tuple[object, str, str] | None:
    """(value, rule, fix) for an error about a torch tensor; None if nothing is wrong with it."""
    torch = sys.modules["torch"]
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        rule = "is a plain torch tensor: a subclass may keep its elements elsewhere"
        return type(tensor).__name__, rule, "x.as_subclass(torch.Tensor), if its memory is what it seems"
    if tensor.layout != torch.strided or tensor.is_nested:
        return ("nested" if tensor.is_nested else str(tensor.layout)), "is dense, with strides", "x.to_dense()"
    if tensor.is_quantized:
        return str(tensor.dtype), "has elements that are no quantized numbers", "x.int_repr()"
    if tensor.is_conj() or tensor.is_neg():
        rule = "has its values in memory, neither conjugated nor negated later"
        return "a lazy view", rule, "x.resolve_conj().resolve_neg()"
    try:
        tensor.data_ptr()
    except RuntimeError:
        rule = "has memory, which tensors inside torch.func and vmap have not"
        return type(tensor).__name__, rule, "call it outside of them"
    return None


def check_memory(name: str, tensor: Any, output: bool) -> None:
    """Checks that *tensor* can be read, and as an output written, here and now.

    Raises:
        InputError: It cannot.
    """
    if isinstance(tensor, np.ndarray):
        if output and not tensor.flags.writeable:
            raise InputError(f"{name}.flags.writeable", False, "an output is written to", "pass a copy")
        return
    if tensor.device.type not in ("cpu", "cuda"):
        rule = "lies on a CUDA device, or on the CPU for the model"
        raise InputError(f"{name}.device", str(tensor.device), rule, f'{name}.to("cuda")')
    check_held(name, tensor)
    if tensor.requires_grad and sys.modules["torch"].is_grad_enabled():
        rule = "takes part in automatic differentiation, which kernels (like torch's out=) do not support"
        raise InputError(f"{name}.requires_grad", True, rule, f"pass {name}.detach(), or call it under torch.no_grad()")
    check_tangent(name, tensor)


def check_tangent(name: str, tensor: Any) -> None:
    """Raises `InputError` for a torch tensor with a tangent, of forward-mode differentiation: a kernel would lose it."""
    forward = sys.modules["torch"].autograd.forward_ad
    if forward._current_level >= 0 and forward.unpack_dual(tensor).tangent is not None:
        rule = "has no tangent: kernels have no forward-mode derivatives (jvp, jacfwd), which torch would take as 0"
        raise InputError(name, "a tensor with a tangent", rule, "use torch.autograd.grad, or torch's own functions")


def check_held(name: str, tensor: Any) -> None:
    """Raises `InputError` for a torch tensor whose memory has been freed, or made smaller."""
    if not is_torch(tensor):
        return
    held = tensor.untyped_storage().nbytes() - tensor.storage_offset() * tensor.element_size()
    if held < span(tensor):
        rule = f"holds {span(tensor)} bytes"
        raise InputError(f"{name}.untyped_storage()", f"{held} bytes", rule, "pass a tensor not freed")


def note_written(tensors: Iterable[Any]) -> None:
    """Raises the version of torch tensors that a kernel has written, so that a later `backward` notices."""
    written = [tensor for tensor in tensors if is_torch(tensor)]
    if written:
        sys.modules["torch"].autograd.graph.increment_version(written)


def check_apart(tensors: dict[str, Any], outputs: tuple[str, ...], in_place: Collection[tuple[str, str]] = ()) -> None:
    """Checks that no output shares memory with another of *tensors*. Pairs *in_place* may, if both lie in the same elements.

    Raises:
        InputError: Two tensors share memory.
    """
    there = {name: tensor for name, tensor in tensors.items() if 0 not in tensor.shape}
    arrays = {name: x if isinstance(x, np.ndarray) else np.asarray(_Memory(x)) for name, x in there.items()}
    for name in filter(arrays.__contains__, outputs):
        for other, array in arrays.items():
            same = other == name or ((name, other) in in_place and _alike(tensors[name], tensors[other]))
            if not same and _overlap(arrays[name], array):
                rule = f"must not overlap that of {other}, which is read or written at the same time"
                fix = "pass a tensor of its own, or leave it out to get a new one"
                raise InputError(name, f"memory at {hex(arrays[name].ctypes.data)}", rule, fix)


def _alike(one: Any, other: Any) -> bool:
    """Whether two tensors are one."""
    places = [
        (x.ctypes.data, x.strides) if isinstance(x, np.ndarray) else (x.data_ptr(), x.stride()) for x in (one, other)
    ]
    return places[0] == places[1] and one.shape == other.shape and bool(one.dtype == other.dtype)


def span(tensor: Any) -> int:
    """Bytes from the first element of a torch tensor to the end of its last one."""
    if 0 in tensor.shape:
        return 0
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return (sum((extent - 1) * stride for extent, stride in steps) + 1) * tensor.element_size()


class _Memory:
    """Where the elements of a torch tensor lie, on any device, in a form that NumPy can compare. The elements are not read."""

    def __init__(self, tensor: Any):
        size = tensor.element_size()
        self.__array_interface__ = {
            "version": 3,
            "typestr": f"|V{size}",
            "data": (tensor.data_ptr(), True),
            "shape": tuple(tensor.shape),
            "strides": tuple(stride * size for stride in tensor.stride()),
        }


def _overlap(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether they share a byte, or whether that is too hard to tell."""
    try:
        return bool(np.shares_memory(one, other, max_work=MAX_WORK))
    except RuntimeError:  # numpy's TooHardError
        return True


def _numbers(table: Any) -> np.ndarray:
    """A table's numbers, for a check. None of one on a GPU, which is not waited for."""
    here = isinstance(table, np.ndarray) or table.device.type == "cpu"
    return np.asarray(table) if here else np.empty(0, np.int32)


def check_ascending(name: str, table: Any) -> None:
    """Refuses a table on the CPU whose entries fall."""
    table = _numbers(table)
    falls = np.flatnonzero(table[1:] < table[:-1])
    if len(falls):
        i, rule = int(falls[0]), "is not less than the entry before it: the schedule declares Table(ascending=True)"
        said = f"{table[i + 1]}, after {table[i]}"
        raise InputError(f"{name}[{i + 1}]", said, rule, f"sort {name}, or declare the Table without ascending")


def low_words(name: str, table: Any) -> Any:
    """The same memory as int32: of int64, every second word, the lower one."""
    check_low(name, table)
    if table.dtype.itemsize <= 4:
        return table
    return table.view(np.int32 if isinstance(table, np.ndarray) else sys.modules["torch"].int32)[..., ::2]


def check_low(name: str, table: Any) -> None:
    """Refuses int64 on the CPU that 32 bits do not hold, of which a kernel reads the lower ones."""
    if table.dtype.itemsize == 8:
        here = _numbers(table).reshape(-1)
        wrong = np.flatnonzero(here != here.astype(np.int32))
        if len(wrong):
            rule = "holds whole numbers of 32 bits, since a kernel reads the lower bits alone"
            raise InputError(name, int(here[wrong[0]]), rule, "e.g. -1 for none")
