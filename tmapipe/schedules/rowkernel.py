"""Kernels of rows that a call fits to its tensors."""

from __future__ import annotations

import functools
from typing import Any

import attrs

from tmapipe.bind.memory import check_kind
from tmapipe.bind.tensors import is_contiguous, new_like
from tmapipe.calling import remember_by_name
from tmapipe.dtypes import dtype_of, fp32
from tmapipe.errors import InputError
from tmapipe.schedules.rowform import RowForm, row_forms
from tmapipe.schedules.rowplaces import address_of, alignment_of, copied, loadable, place_of
from tmapipe.schedules.rows import Rows
from tmapipe.tma_rules import ALIGNMENT

__all__ = ["KINDS", "RowKernel", "as_matrix"]

KINDS = ("bf16", "fp16", "fp32")


class RowKernel:
    """Base of kernels of rows that a call fits to its tensors: a `Rows` for each length, type and alignment."""

    hold = 64  # elements of a thread up to which rows are held in registers
    kept = 0  # fragments of rows that stay there in any case
    options: tuple[Any, ...] = ()  # what else a schedule is made of
    schedule: type[Rows]

    def __init__(self) -> None:
        self.fitted: dict[Any, Rows] = {}

    def rows(self, form: RowForm, stored: int, loads: int, columns: int) -> Rows:
        """The schedule of this form, with so many tensors of rows and of one number a column loaded, for results at multiples
        of *stored* bytes."""
        return self.schedule(form, stored)

    def takes(self, form: RowForm) -> bool:
        """Whether such a form is one for this kernel."""
        return bool(self.schedule.stored) or form.packed or (form.rows == 1 and form.each > 1)  # pieces need two slots

    def forms(
        self, length: int, size: int, vector: int, loads: int = 1, vectors: int = 0, dense: bool = True, width: int = 0
    ) -> list[RowForm]:
        """The forms for this kernel, the best one first. Arguments and errors as of `row_form`."""
        how: dict[str, Any] = {"hold": self.hold, "kept": self.kept, "dense": dense, "width": width}
        how["reads"] = not self.schedule.stored
        return [
            form for form in row_forms(length, size, vector, loads=loads, vectors=vectors, **how) if self.takes(form)
        ]

    def fit(self, loaded: list[Any], stored: list[Any], others: list[Any]) -> Rows:
        """The schedule for these matrices, and *others* of one number a column."""
        aligned, out = min(map(alignment_of, loaded)), min((alignment_of(x, True) for x in stored), default=ALIGNMENT)
        length, size = loaded[0].shape[1], max(x.dtype.itemsize for x in loaded)
        dense = all(is_contiguous(x) and address_of(x) % ALIGNMENT == 0 for x in loaded)
        place = (0, 0) if dense or aligned == ALIGNMENT else place_of(loaded[0])
        vectors = sum(x.dtype.itemsize for x in others)
        if aligned < ALIGNMENT and len({x.dtype.itemsize for x in loaded}) > 1:
            rule = "are of one size where their rows are no multiples of 16 bytes"
            raise InputError("element types", [str(x.dtype) for x in loaded], rule, "convert one")
        alike = dense and all(
            x.dtype.itemsize >= size and (place_of(x)[0] - length) * size % ALIGNMENT == place_of(x)[1] == 0
            for x in stored
        )
        per = min([aligned // size, *(out // x.dtype.itemsize for x in stored)])  # elements of results, at least
        width = 0 if alike else per
        key = length, size, aligned, out, len(loaded), vectors, len(others), dense, place, width, self.options
        if key not in self.fitted:
            (form, *_) = self.forms(length, size, aligned, len(loaded), vectors, dense, width)
            if form.apart > 1:  # results begin as many elements apart
                form = attrs.evolve(form, pitch=place[0], start=place[1], alike=alike)
                out = min([out, *(per * x.dtype.itemsize for x in stored)])
            self.fitted[key] = self.rows(form, out, len(loaded), len(others))
        return self.fitted[key]

    def apply(
        self, rows: dict[str, Any], stored: dict[str, Any], others: dict[str, Any], more: dict[str, Any]
    ) -> tuple[Any, ...]:
        """Runs the schedule for matrices of rows, and *others* of one number a column, with *more* by stage."""
        several = len({place_of(x) for x in rows.values()}) > 1 and min(map(alignment_of, rows.values())) < ALIGNMENT
        if several or not all(map(loadable, rows.values())):
            rows = {name: copied(x) for name, x in rows.items()}
        schedule = self.fit([*rows.values()], [*stored.values()], [*others.values()])
        return schedule.run({**rows, **stored, **more}, others)

    def run(
        self,
        loaded: dict[str, Any],
        stored: dict[str, Any],
        others: dict[str, Any],
        numbers: dict[str, Any] | None = None,
        tables: dict[str, Any] | None = None,
    ) -> Any:
        """Computes the outputs, of which those that are None are made, from tensors of rows and from *others*.

        Args:
            numbers: Outputs of one number a row, in fp32.
            tables: Integers of 32 bits, some a row.
        """
        given = {**loaded, **others, **(tables or {}), **stored, **(numbers or {})}
        for names, call in self.__dict__.get("_again", ()):  # such calls of one kernel
            if all((given.get(name) is not None) == (name in names) for name in given):
                found = call(tuple(given[name] for name in names), None, {})
                if found is not None:
                    return found
        first, numbers = next(iter(loaded.values())), numbers or {}
        rows = {name: as_matrix(name, x) for name, x in loaded.items()}
        for name, x in (*loaded.items(), *stored.items(), *numbers.items()):
            wanted = tuple(first.shape[:-1] if name in numbers else first.shape)
            if x is not None and tuple(x.shape) != wanted:
                raise InputError(f"{name}.shape", tuple(x.shape), f"is that of x, {wanted}", "make it so")
        for name, x in others.items():
            check_kind(name, x)
        made = {name: new_like(first) if x is None else x for name, x in stored.items()}
        made |= {n: new_like(first, tuple(first.shape[:-1]), fp32) if x is None else x for n, x in numbers.items()}
        more: tuple[Any, ...] = ()
        if 0 not in first.shape:
            outputs = {name: as_matrix(name, x, name in numbers) for name, x in made.items()}
            of_rows = {name: outputs.pop(name) for name in stored}
            run = functools.partial(self.apply, rows, of_rows, others, {**outputs, **(tables or {})})
            more = remember_by_name(self, run, given, made)
        results = (*made.values(), *more)
        return results[0] if len(results) == 1 else results


def as_matrix(name: str, x: Any, number: bool | None = None) -> Any:
    """*x*, of one to four dimensions, as a matrix of its rows; a copy where it lies so that there is no such view.

    Args:
        number: Whether it is an output of one number a row, which is seen as a vector, or another output; of an output, there
            is no copy.

    Raises:
        InputError: It is no tensor of bf16, fp16 or fp32 of so many dimensions, or an output that is no such view.
    """
    check_kind(name, x)
    kind = dtype_of(x, name)
    if kind.name not in KINDS or (number and kind != fp32):
        kinds, fix = KINDS[-1:] if number else KINDS, f"{name}.to(torch.float32)"
        raise InputError(f"{name}.dtype", kind.name, f"is one of {', '.join(kinds)}", fix)
    if not number and not 1 <= x.ndim <= 4:
        raise InputError(f"{name}.shape", tuple(x.shape), "has one to four dimensions", "reshape it")
    seen = x.reshape(-1) if number else x if x.ndim == 2 else x.reshape(-1, x.shape[-1])
    if number is not None and address_of(seen) != address_of(x):
        rule = "can be seen as a matrix of its rows"
        raise InputError(f"{name}.stride", x.stride(), rule, "pass a contiguous tensor")
    return seen
