"""`replay` carries a traced program out on any instruction set whose values are numbers, such as the model's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tmapipe.errors import ScopeError
from tmapipe.isa.ops import Exit
from tmapipe.machine.layout import Layout, Shapes
from tmapipe.machine.locate import line_of, line_of_errors
from tmapipe.machine.warp import MachineIsa
from tmapipe.program.python_text import code_of
from tmapipe.program.trace import Traced


def operations(
    program: Traced,
    layout: Layout,
    agent: int,
    shapes: Shapes,
    cluster: int = 0,
    clusters: int = 1,
    tables: Mapping[str, Sequence[int]] | None = None,
    emit: Callable[[Any], None] | None = None,
) -> list[Any]:
    """The operations of one warp, `Exit` last, in a run without data.

    Args:
        program: As `trace` makes it.
        layout: Of its plan.
        agent: The warp, of all of the cluster.
        shapes: Of tensors by argument.
        cluster: In the grid.
        clusters: In the grid.
        tables: Entries of tables, 1 behind the last one; without those of a table, it has what `Isa.load_entry` says.
        emit: Takes each operation, while its source line can still be asked for; then the list has `Exit` alone.
    """
    found: list[Any] = []
    replay(program, MachineIsa(layout, agent, cluster, clusters, shapes, emit or found.append, tables=tables))
    found.append(Exit())
    return found


def replay(program: Traced, isa: Any) -> None:
    """Carries out *program* for one warp: that of *isa*.

    Raises:
        ScopeError: A number of the program has no value, such as one divided by 0.
    """
    if program.code is None:
        program.code = code_of(program)
    try:
        with line_of_errors():
            program.code(isa)
    except ZeroDivisionError as error:
        raise ScopeError(f"{error}. At {line_of(error)}.") from error
