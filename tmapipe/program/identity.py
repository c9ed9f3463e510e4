"""The identity of a kernel: a hash of its traced program and its plan, of canonical bytes, the same in any process."""

from __future__ import annotations

import builtins
import enum
import functools
import hashlib
import importlib.util
import struct
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import numpy as np

from tmapipe.isa import TABLE, Kind
from tmapipe.isa.fragment import ClusterExchange, Fragment, SlotRef
from tmapipe.program import Traced
from tmapipe.program.calls import Captured, alike
from tmapipe.program.expressions import Call, Expr, For, Function, If, Let, OfModel, Var, While, resolve
from tmapipe.program.names import NotCanonical, attributes_of, is_users_file, named_by, note_home_of
from tmapipe.protocol.tile import Tile

# ---- canonical -------------------------------------------------------------------------------------------------------
#
# Canonical bytes of Python's values and functions are equal for values that do the same, in any process and on any lines.
#
# The bytes of a function are of its bytecode, its defaults, its captured values and the globals that it names; functions
# among these are written in the same way. A class of the user's is written with all its attributes; code of packages, by its
# name and the package's version. Values that depend on more, such as an open file or a tensor, have no canonical bytes.


#: Modules of Python whose functions give the same of the same arguments.
_PURE = frozenset(
    ["abc", "cmath", "collections", "contextlib", "copy", "dataclasses", "enum", "fractions", "functools", "itertools",
     "math", "numbers", "operator", "string", "struct", "types", "typing"]
)  # fmt: skip
#: Built-in functions that find values which no name in the code says, or whose result no other process has.
_OPAQUE = frozenset(
    ["__import__", "breakpoint", "compile", "delattr", "eval", "exec", "getattr", "globals", "id", "input", "locals", "open",
     "setattr", "vars"]
)  # fmt: skip
#: Packages whose versions are noted by whoever keeps bytes.
_NOTED = frozenset(["cutlass", "tmapipe"])
_OF_CLASSES = frozenset(
    ["__annotations__", "__dict__", "__doc__", "__firstlineno__", "__module__", "__qualname__", "__static_attributes__",
     "__weakref__"]
)  # fmt: skip
_CODE = (
    "co_argcount", "co_posonlyargcount", "co_kwonlyargcount", "co_flags", "co_code", "co_names", "co_varnames", "co_freevars",
    "co_cellvars",
)  # fmt: skip
_CACHED = type(functools.lru_cache(lambda: None))


#: What is made of functions: a tag, and the attributes that have them.
_OF_FUNCTIONS: dict[type, tuple[bytes, tuple[str, ...]]] = {
    functools.partial: (b"p", ("func", "args", "keywords")),
    types.MethodType: (b"m", ("__func__", "__self__")),
    property: (b"P", ("fget", "fset")),
    functools.cached_property: (b"P", ("func",)),
    _CACHED: (b"L", ("__wrapped__",)),
}


class Canonical:
    """Writes values, one after another. A value that is met again is written as its number, by first appearance."""

    def __init__(self) -> None:
        self.bytes = bytearray()
        self.numbers: dict[int, int] = {}
        self.kept: list[Any] = []  # values with numbers, which stay alive, so that their ids stay theirs
        self.read: list[Callable[[], list[Any]]] = []  # what reads anew that which may change in what has been written

    def begin(self, tag: bytes, count: int = 0) -> None:
        """Writes that a value of the kind *tag* with *count* parts follows."""
        self.bytes += tag
        self.bytes += struct.pack("<q", count)

    def text(self, tag: bytes, text: str | bytes) -> None:
        raw = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
        self.begin(tag, len(raw))
        self.bytes += raw

    def again(self, x: Any) -> bool:
        """Whether *x* has been met, and then writes its number; else gives it one."""
        number = self.numbers.get(id(x))
        if number is not None:
            self.begin(b"@", number)
            return True
        self.numbers[id(x)] = len(self.kept)
        self.kept.append(x)
        return False

    def write(self, x: Any) -> None:
        """Raises `NotCanonical` for what has no canonical bytes."""
        kind = type(x)
        if x is None or kind is bool or x is Ellipsis or x is NotImplemented:
            self.text(b"c", repr(x))
        elif kind is int:
            self.text(b"i", str(x) if abs(x) < 1 << 62 else hex(x))
        elif kind is float:
            self.text(b"f", struct.pack("<d", x))
        elif kind is str or kind is bytes:
            self.text(b"s" if kind is str else b"b", x)
        elif kind is tuple or kind is list:
            self._sequence(b"t" if kind is tuple else b"l", x)
        elif kind is dict or kind is types.MappingProxyType:
            self._mapping(b"d", x)
        else:
            self._other(x, kind)

    def _sequence(self, tag: bytes, values: Any) -> None:
        if tag == b"l":
            if self.again(values):
                return
            self.read.append(lambda: [*values])
        self.begin(tag, len(values))
        for each in values:
            self.write(each)

    def _mapping(self, tag: bytes, values: Mapping[Any, Any]) -> None:
        if tag == b"d" and self.again(values):
            return
        self.read.append(lambda: [*values, *values.values()])
        self.begin(tag, len(values))
        for key, value in values.items():
            self.write(key)
            self.write(value)

    def _other(self, x: Any, kind: type) -> None:
        if kind is complex:
            self.text(b"z", struct.pack("<dd", x.real, x.imag))
        elif kind in (set, frozenset):
            self._set(x)
        elif isinstance(x, enum.Enum):
            self._named(b"n", kind, x.name)
        elif isinstance(x, types.FunctionType):
            self._function(x)
        elif isinstance(x, types.CodeType):
            self._code(x)
        elif isinstance(x, type):
            self._class(x)
        elif isinstance(x, types.ModuleType):
            self._outside(x.__name__)
        elif isinstance(x, (np.ndarray, np.generic, np.dtype, np.ufunc)):
            self._of_numpy(x)
        elif isinstance(x, (staticmethod, classmethod)):
            self._parts(b"w", kind.__name__, x.__func__)
        elif isinstance(x, tuple(_OF_FUNCTIONS)):
            tag, names = next(of for made, of in _OF_FUNCTIONS.items() if isinstance(x, made))
            self._parts(tag, *(getattr(x, name) for name in names))
        elif kind in (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType, slice, range):
            self._builtin(x)
        else:
            self._instance(x, kind)

    def _parts(self, tag: bytes, *parts: Any) -> None:
        self.begin(tag, len(parts))
        for each in parts:
            self.write(each)

    def _set(self, values: Any) -> None:
        members = []
        for each in values:
            alone = type(self)()
            alone.write(each)
            members.append(bytes(alone.bytes))
            self.read += alone.read
        self.read.append(lambda: [*values])
        self.begin(b"S", len(members))
        for each in sorted(members):
            self.text(b"b", each)

    def _named(self, tag: bytes, kind: type, name: str) -> None:
        self.text(tag, f"{kind.__module__}.{kind.__qualname__}.{name}")

    def _of_numpy(self, x: Any) -> None:
        if isinstance(x, np.ufunc):
            return self.text(b"u", x.__name__)
        if isinstance(x, np.dtype):
            return self.text(b"D", f"{x.str} {x.name}")
        array = np.asarray(x)
        if array.dtype.hasobject:
            raise NotCanonical("an array of objects")
        self.read.append(lambda: [str(array.dtype), str(array.shape), array.tobytes()])
        self._parts(b"A", array.dtype, array.shape, array.tobytes())

    def _builtin(self, x: Any) -> None:
        if isinstance(x, (slice, range)):
            return self._parts(b"R", type(x).__name__, x.start, x.stop, x.step)
        owner = getattr(x, "__self__", None) or getattr(x, "__objclass__", None)
        if owner is None or isinstance(owner, types.ModuleType):
            self._outside(owner.__name__ if owner else x.__module__)
            if x.__name__ in _OPAQUE:
                raise NotCanonical(f"{x.__name__}()")
            return self.text(b"B", x.__name__)
        self._parts(b"B", owner, x.__name__)

    # ---- code -----------------------------------------------------------------------------------------------------

    def _outside(self, module: str) -> None:
        """A module that is not the user's: its name, and the version of its package."""
        loaded = sys.modules.get(module)
        file = getattr(loaded, "__file__", None)
        if file is not None and is_users_file(file):
            raise NotCanonical(f"module {module}, as a whole")
        top = module.partition(".")[0]
        if top in _NOTED or top == "builtins":
            version = ""
        elif top in sys.stdlib_module_names:
            if top.lstrip("_") not in _PURE:
                raise NotCanonical(f"module {module}, which may give something else in another process")
            version = sys.version
        else:
            version = getattr(sys.modules.get(top), "__version__", "")
            if not (isinstance(version, str) and version):
                raise NotCanonical(f"module {module}, which has no version")
        self.text(b"M", f"{module} {version}")

    def _function(self, function: types.FunctionType) -> None:
        if self.again(function):
            return
        inner = getattr(function, "__wrapped__", None)
        module = function.__module__ or ""
        if inner is None and not is_users_file(function.__code__.co_filename) and _found(module, function):
            self._outside(module)
            return self.text(b"N", function.__qualname__)
        # CuTe DSL replaces the code of a function that it has traced
        code = getattr(function, "_original_code", function.__code__)
        cells, names = function.__closure__ or (), function.__globals__
        self._parts(b"F", code, function.__defaults__, function.__kwdefaults__, [*map(_content, cells)], inner)
        named = self._globals(code, names)
        self.read.append(
            lambda: [function.__code__, function.__defaults__, function.__kwdefaults__, inner,
                     *map(_content, cells), *(names.get(name, NotImplemented) for name in named)]
        )  # fmt: skip

    def _code(self, code: types.CodeType) -> None:
        self.begin(b"C", len(_CODE))
        self.text(b"b", importlib.util.MAGIC_NUMBER)
        for name in _CODE:
            self.write(getattr(code, name))
        self.write(getattr(code, "co_exceptiontable", b""))
        self.write(code.co_consts)

    def _globals(self, code: types.CodeType, names: Mapping[str, Any]) -> list[str]:
        """Writes the globals that a function names, and of a module of the user's, the attributes that the function names.
        Returns the names."""
        named = []
        for value, attributes in named_by(code, names.get("__package__") or ""):
            if isinstance(value, str):
                named.append(value)
                self.write(value)
                if value in names:
                    self._value_of(names[value], attributes)
                elif hasattr(builtins, value):
                    self.write(getattr(builtins, value))
                else:
                    raise NotCanonical(f"the name {value}, which has no value")
            else:
                self._outside(value[0])
        return named

    def _value_of(self, value: Any, attributes: frozenset[str]) -> None:
        file = getattr(value, "__file__", None) if isinstance(value, types.ModuleType) else None
        if file is None or not is_users_file(file):
            return self.write(value)
        if self.again(value):
            return
        own = sorted(name for name in attributes if name in vars(value))
        self.read.append(lambda: [vars(value).get(name, NotImplemented) for name in attributes])
        self.begin(b"U", len(own))
        for name in own:
            self.write(name)
            self._value_of(vars(value)[name], attributes)

    def _class(self, kind: type) -> None:
        if self.again(kind):
            return
        module = sys.modules.get(kind.__module__)
        file = getattr(module, "__file__", None)
        if kind.__module__ == "builtins" or (file is not None and not is_users_file(file)):
            self._outside(kind.__module__)
            return self.text(b"T", kind.__qualname__)
        self.read.append(lambda: [kind.__bases__, *vars(kind), *vars(kind).values()])
        own = {name: value for name, value in sorted(vars(kind).items()) if name not in _OF_CLASSES}
        slots = [name for name, value in own.items() if isinstance(value, types.MemberDescriptorType)]
        self._parts(b"K", kind.__name__, kind.__bases__, type(kind), slots)
        for name, value in own.items():
            if name not in slots and not isinstance(value, types.GetSetDescriptorType):
                self.write(name)
                self.write(value)

    def _instance(self, x: Any, kind: type) -> None:
        if self.again(x):
            return
        if isinstance(x, tuple):
            self._parts(b"q", kind, tuple(x))
        elif attrs.has(kind) and not (isinstance(self, _Watched) and self._is_users(kind)):
            own = [field.name for field in attrs.fields(kind) if field.eq]
            self.read.append(lambda: [getattr(x, name, None) for name in own])
            fields = [(name, getattr(x, name, None)) for name in own]
            self._parts(b"a", kind, fields)
        elif isinstance(x, Mapping) and str(kind.__module__).startswith("tmapipe."):
            self.read.append(lambda: [*x, *x.values()])
            self._parts(b"x", kind, dict(x))
        elif self._is_users(kind):
            slots = [name for base in kind.__mro__ for name in _slots(base) if hasattr(x, name)]
            mine = getattr(x, "__dict__", {})
            self.read.append(
                lambda: [type(x), *mine, *mine.values(), *(getattr(x, name, NotImplemented) for name in slots)]
            )
            self._parts(b"o", kind, {**dict(sorted(mine.items())), **{name: getattr(x, name) for name in slots}})
        else:
            raise NotCanonical(f"a {kind.__module__}.{kind.__qualname__}")

    def _is_users(self, kind: type) -> bool:
        """Whether it and its bases are classes of the user's, whose instances have nothing but attributes."""
        files = [getattr(sys.modules.get(base.__module__), "__file__", None) for base in kind.__mro__[:-1]]
        return all(file is not None and is_users_file(file) for file in files)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a name that has no value yet
        return NotImplemented


def _found(module: str, function: types.FunctionType) -> bool:
    """Whether the function is what its module has under its name."""
    value: Any = sys.modules.get(module)
    for name in function.__qualname__.split("."):
        value = getattr(value, name, None)
    return value is function


def _slots(kind: type) -> tuple[str, ...]:
    slots = vars(kind).get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


# ---- unchanged -------------------------------------------------------------------------------------------------------


def unchanged(function: Any) -> Callable[[], bool]:
    """What tells quickly whether all that *function* is made of and refers to is what it was. Never, of a function that
    depends on more than canonical bytes say, or on what a package may change."""
    note_home_of(function)
    writer = _Watched()
    try:
        writer.write(function)
    except (NotCanonical, RecursionError):
        return lambda: False
    before = [(read, read()) for read in writer.read]

    def test() -> bool:
        try:
            return all(alike(read(), values) for read, values in before)
        except Exception:  # any: what has no values any more has changed
            return False

    return test


class _Watched(Canonical):
    """Writes what can be compared quickly, and refuses what may give one number now and another one later."""

    def _outside(self, module: str) -> None:
        top = module.partition(".")[0]
        if "random" in module or (top not in sys.stdlib_module_names and top not in (*_NOTED, "builtins", "numpy")):
            raise NotCanonical(f"module {module}, which may change")
        super()._outside(module)

    def _function(self, function: types.FunctionType) -> None:
        code = function.__code__
        if is_users_file(code.co_filename) and ({*vars(function)} - {"__wrapped__"} or "random" in attributes_of(code)):
            raise NotCanonical("a function that has attributes, or draws numbers")
        super()._function(function)


# ---- identity --------------------------------------------------------------------------------------------------------
#
# Kernels of one identity compile to the same code, and a proof of one is a proof of the other. Lines, paths, names of
# variables, and how functions are split up do not count. Variables and expressions are numbered by first appearance.
# Functions of `k.raw` count by their bytecode.


def identity(program: Traced) -> str | None:
    """64 hexadecimal digits. None if something in the program has no canonical bytes, such as a function of `k.raw` that has
    captured an open file."""
    writer = _Program()
    plan, schedule, isa = program.plan, program.schedule, program.isa
    try:
        writer.write(plan)
        writer.write([*isa.symbols["extents"].items()])
        writer.write(isa.symbols.get("launch"))
        writer.nodes(program.nodes)
        order, grid = schedule.tiles, schedule.grid(isa.extent)  # what a launch computes
        writer.write((order, grid, order.divisors(grid, plan.cluster, isa.clusters)))
        writer.write((order.launch_words, order.smem_bytes(plan), order.least_ctas()))
    except (NotCanonical, RecursionError):
        return None
    return hashlib.sha256(writer.bytes).hexdigest()


#: What is written of a node or an operand: a tag, attributes, and then attributes that are blocks of nodes.
_WRITTEN: dict[type, tuple[bytes, tuple[str, ...], tuple[str, ...]]] = {
    For: (b"\x02", ("index", "count", "carried"), ("body",)),
    While: (b"\x03", ("carried", "condition", "iterations"), ("body",)),
    If: (b"\x04", ("condition", "lane_0", "phis"), ("then", "other")),
    Let: (b"\x07", ("value",), ()),
    Fragment: (b"\x09", ("layout", "along", "kind", "data"), ()),
    SlotRef: (b"\x0a", ("buffer", "stage"), ()),
    Function: (b"\x0b", ("inputs", "named", "outputs"), ("body",)),
    Captured: (b"\x0c", ("function",), ()),
    Tile: (b"\x0d", ("_coordinates", "_bounds", "_moved"), ()),
    ClusterExchange: (b"\x0e", ("rank", "mask", "peers", "full"), ()),
}


class _Program(Canonical):
    """Writes the nodes of a program, beside what Python has."""

    def __init__(self) -> None:
        super().__init__()
        self.plain: dict[int, tuple[Any, bytes]] = {}  # of parts of the plan, which have no expressions

    def nodes(self, nodes: list[Any]) -> None:
        self.begin(b"\x01", len(nodes))
        for node in nodes:
            if type(node) is Call:
                self._call(node)
            else:
                self._attributes(node)

    def _attributes(self, x: Any) -> None:
        tag, names, blocks = _WRITTEN[type(x)]
        self._parts(tag, *(getattr(x, name) for name in names))
        for name in blocks:
            self.nodes(getattr(x, name))

    def _call(self, node: Call) -> None:
        self._parts(b"\x05", node.method, list(node.args), node.named, node.results)
        self.begin(b"\x06", len(node.ops))
        for op in node.ops:
            self.write(type(op).__name__)
            for name, kind in TABLE[type(op)].operands.items():
                if kind is not Kind.WHERE:
                    self.write(getattr(op, name))

    def write(self, x: Any) -> None:
        if isinstance(x, Expr):
            self._expression(resolve(x))
        else:
            super().write(x)

    def _expression(self, x: Any) -> None:
        if not isinstance(x, Expr):
            self.write(x)
        elif not self.again(x):
            if isinstance(x, Var):
                self.begin(b"v", x.is_bool)
            else:
                self.text(b"e", x.op)
                self._parts(b"\x08", *x.args)

    def _other(self, x: Any, kind: type) -> None:
        if kind in _WRITTEN:
            self._attributes(x)
        elif kind is OfModel:
            self.nodes(x.nodes)
            self.write(x.values)
        elif str(kind.__module__).startswith("tmapipe.plan.") and attrs.has(kind):
            self._planned(x)
        else:
            super()._other(x, kind)

    def _planned(self, x: Any) -> None:
        entry = self.plain.get(id(x))
        if entry is None:
            alone = Canonical()
            alone.write(x)
            entry = self.plain[id(x)] = x, hashlib.sha256(alone.bytes).digest()
        self.text(b"\x0f", entry[1])
