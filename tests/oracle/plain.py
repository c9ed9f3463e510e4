"""Programs as CPython runs them: kernels whose bodies are called unchanged, and programs of tests over the instruction set.

Loops and branches are Python's, numbers are known, and each warp runs by itself. The library has none of this: it carries out
traced programs.
"""

from __future__ import annotations

import ast
import functools
import inspect
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from types import CodeType, FrameType, FunctionType
from typing import Any

from tmapipe import model
from tmapipe.check import Finding
from tmapipe.check.deadlocks import check_operations, refused
from tmapipe.check.linear import LinearCheck
from tmapipe.errors import PipelineError
from tmapipe.isa.ops import Exit
from tmapipe.model import Entry, Layout, MachineFragments, MachineIsa, shapes_of
from tmapipe.model.layout import Shapes
from tmapipe.model.layout import locate as find_location
from tmapipe.plan.model import Plan

__all__ = ["PlainIsa", "block", "plainly", "record", "run_checked"]

MAX_STEPS = 1_000_000


class PlainIsa(MachineIsa):
    """One warp's instructions, with control flow, numbers and calls of Python's own.

    body: the code of the role's body that is being called.
    """

    body: Any = None

    @classmethod
    def of(cls, isa: MachineIsa) -> PlainIsa:
        """This view of the warp that *isa* is."""
        made = object.__new__(cls)
        vars(made).update(vars(isa))
        made.fragments = MachineFragments(made)
        return made

    def cells(self, *initial: Any, names: str = "") -> list[Any]:
        return list(initial)

    def select(self, condition: Any, then: Any, otherwise: Any) -> Any:
        return then if condition else otherwise

    def here(self, value: Any, name: str = "") -> Any:
        return value

    def when(self, condition: Any, body: Callable[[], None]) -> None:
        if condition:
            body()

    def lane_0(self, body: Callable[[], None], when: Any = True) -> None:
        if when:
            body()

    def loop(self, trips: Any, body: Callable[[Any], None]) -> None:
        for i in range(trips):
            body(i)

    def loop_while(self, state: Any, body: Callable[[], None], iterations: Callable[[], int] | None = None) -> None:
        if self.memory is None and iterations is not None:
            for _ in range(iterations()):
                body()
        while state[0]:
            body()

    def block(self) -> tuple[Any, ...]:
        return block(self.body)

    def call(self, body: Callable[..., None], *arguments: Any) -> None:
        plain = inspect.unwrap(body)
        self.body = plain.__code__
        plain(*arguments)

    def evaluate(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)

    def extent(self, argument: str, dim: int) -> int:
        return int(super().extent(argument, dim))

    def divisors(self, values: dict[str, int]) -> dict[str, int]:
        return values


for _method in vars(PlainIsa).values():
    if isinstance(_method, FunctionType):  # no line of a user: it is the library's for `locate`
        _method.__code__ = _method.__code__.replace(co_filename=model.__file__)


def plainly(entry: Entry) -> Entry:
    """For `Machine.run`: *entry* on `PlainIsa`."""
    return lambda isa: entry(PlainIsa.of(isa))


def record(
    plan: Plan,
    entry: Entry,
    shapes: Mapping[str, Any],
    cluster: int = 0,
    clusters: int = 1,
    *,
    layout: Layout | None = None,
    locate: bool = False,
    max_steps: int = 50_000_000,
    make: Callable[..., PlainIsa] = PlainIsa,
) -> list[list[Any]]:
    """The operations of each warp of one cluster, `Exit` last, of a run without data.

    Args:
        plan: Of the kernel.
        entry: The program of a warp: a function of `PlainIsa`.
        shapes: Shapes by argument, or arrays.
        cluster: In the grid.
        clusters: In the grid.
        layout: Of the plan, if there is one already.
        locate: Whether operations have their source line.
        max_steps: Operations of the cluster after which a `PipelineError` is raised: a loop may never end.
        make: Makes the instruction set of a warp, from what `PlainIsa` takes.
    """
    layout = layout or Layout(plan)
    programs: list[list[Any]] = []
    count = 0

    def add(op: Any) -> None:
        nonlocal count
        count += 1
        if count > max_steps:
            place = find_location(sys._getframe(1))
            error = PipelineError(f"stopped after recording {max_steps} operations (max_steps), at {place}")
            error.where = place
            raise error
        programs[-1].append(op._replace(where=find_location(sys._getframe(1))) if locate else op)

    for agent in range(layout.agents):
        programs.append([])
        entry(make(layout, agent, cluster, clusters, shapes_of(dict(shapes)), add))
        programs[-1].append(Exit())
    return programs


def run_checked(
    plan: Plan, entry: Entry, shapes: Shapes, cluster: int = 0, clusters: int = 1
) -> tuple[Sequence[Finding], int]:
    """(findings, transitions) of one cluster. Source lines are looked up only if there is something to report."""

    def once(locate: bool) -> tuple[Sequence[Finding], int]:
        try:
            options: Any = {"layout": layout, "locate": locate, "max_steps": MAX_STEPS}
            programs = record(plan, entry, shapes, cluster, clusters, **options)
        except PipelineError as error:
            return refused(error, LinearCheck(layout, shapes)), 0
        return check_operations(layout, programs, shapes)

    layout = Layout(plan)
    found, steps = once(locate=False)
    return once(locate=True) if found else (found, steps)


# ---- blocks of code ------------------------------------------------------------------------------------------------------
# When traced, a body's loops and branches are blocks of the program (those of functions that it calls are not). Here they
# are found in its source, so that what is refused when traced is refused here, too.


def block(body: CodeType | None) -> tuple[tuple[int, str], ...]:
    """The loops and branches of *body* around the point that it is at, from the outermost on: (line of the statement, arm).

    There are none if the caller has not been called by it, perhaps indirectly.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not body:
        frame = frame.f_back
    return () if frame is None else _arms(frame.f_code).get(frame.f_lineno, ())


@functools.cache
def _arms(code: CodeType) -> dict[int, tuple[tuple[int, str], ...]]:
    """Line -> the arms of loops and branches that it lies in, from the outermost on. Without source: none."""
    try:
        lines, first = inspect.getsourcelines(code)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError):
        return {}
    found: dict[int, tuple[tuple[int, str], ...]] = {}

    def visit(node: ast.AST, arms: tuple[tuple[int, str], ...]) -> None:
        for name, value in ast.iter_fields(node):
            for child in value if isinstance(value, list) else [value]:
                if not isinstance(child, ast.AST):
                    continue
                inside = arms
                if isinstance(node, (ast.For, ast.While, ast.If)) and name in ("body", "orelse"):
                    inside = (*arms, (first + node.lineno - 1, name))
                if isinstance(child, ast.stmt):
                    for line in range(child.lineno, (child.end_lineno or child.lineno) + 1):
                        found[first + line - 1] = inside
                visit(child, inside)

    visit(tree, ())
    return found
