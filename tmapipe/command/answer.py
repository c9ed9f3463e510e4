"""How a verb ends: text or JSON on standard output, errors without tracebacks, an exit code (docs/command.md)."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import attrs
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

import tmapipe
from tmapipe.command.named import users_line
from tmapipe.errors import DeadlockError, HazardError, InputError, PipelineError, ScopeError, UnsafeError

__all__ = ["FINE", "REFUSED", "WRONG", "Answer", "answering", "working"]

FINE, WRONG, REFUSED = 0, 1, 2
_FOUND = (DeadlockError, HazardError, ScopeError, UnsafeError)  # errors that say what is wrong with a pipeline


@attrs.define
class Answer:
    """What a verb says.

    Args:
        facts: Its own fields of the JSON object.
        text: For readers: text, or tables of rich's.
        code: The exit code.
    """

    facts: dict[str, Any] = attrs.field(factory=dict)
    text: list[Any] = attrs.field(factory=list)
    code: int = FINE


@contextlib.contextmanager
def answering(verb: str, as_json: bool) -> Iterator[Answer]:
    """The scope of a verb, which fills the `Answer`. Prints it, and ends the program with its code."""
    answer = Answer()
    try:
        yield answer
    except PipelineError as error:
        _fail(answer, error, str(error), WRONG if isinstance(error, _FOUND) else REFUSED)
    except Exception as error:
        line = users_line(error)
        if line is None:
            raise  # a fault of the library's
        _fail(answer, error, f"{line}: {type(error).__name__}: {error}", REFUSED)
    if as_json:
        document = {"verb": verb, "version": tmapipe.__version__, "exit": answer.code, **answer.facts}
        typer.echo(json.dumps(document, indent=1))
    else:
        _print(answer)
    raise typer.Exit(answer.code)


def _fail(answer: Answer, error: Exception, text: str, code: int) -> None:
    said: dict[str, Any] = {"kind": type(error).__name__, "message": text}
    if isinstance(error, InputError):
        said |= {"argument": error.argument, "value": str(error.value), "rule": error.rule, "fix": error.fix}
    answer.facts, answer.text, answer.code = {"error": said}, [text], code


def _print(answer: Answer) -> None:
    console = Console(stderr="error" in answer.facts, highlight=False, soft_wrap=True)
    for each in answer.text:
        console.print(each, markup=False, style="red" if "error" in answer.facts else None)


@contextlib.contextmanager
def working(what: str, total: int | None = None) -> Iterator[Any]:
    """Shows on a terminal's standard error that something is under way. Yields a function to be called after each of *total*
    steps."""
    columns = [SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()]
    columns[2:2] = [BarColumn(), MofNCompleteColumn()] if total else []
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(what, total=total)
        yield lambda: progress.advance(task)
