"""What tuning has found, kept on disk: one JSON file per GPU and versions, one entry per problem and epilogue."""

from __future__ import annotations

import importlib.metadata
import json
import re
from pathlib import Path
from typing import Any

import attrs

import tmapipe
from tmapipe.disk import cache_folder, locked, read, write
from tmapipe.epilogue.epilogue import Epilogue
from tmapipe.tuning.candidate import Candidate
from tmapipe.tuning.epilogues import PLAIN, fingerprint
from tmapipe.tuning.problem import Problem

__all__ = ["Entry", "cache_folder", "keep", "load", "recall", "store"]

PATIENCE = 10.0  # seconds: a writer holds the lock for a few milliseconds


@attrs.frozen
class Entry:
    """The winner on one problem.

    Args:
        candidate: The fastest one.
        us: Its time (microseconds).
        tried: How many candidates were timed.
    """

    candidate: Candidate
    us: float
    tried: int


def _file(gpu: str) -> Path:
    versions = f"{tmapipe.__version__}-dsl{importlib.metadata.version('nvidia-cutlass-dsl')}"
    return cache_folder() / f"tuned-{re.sub('[^A-Za-z0-9]+', '-', gpu)}-{versions}.json"


def _key(problem: Problem, epilogue: Epilogue) -> str:
    return f"{problem} {fingerprint(epilogue)}".strip()


def load(problem: Problem, gpu: str, epilogue: Epilogue = PLAIN) -> Entry | None:
    """The entry of *problem* on a GPU of this name. A file that cannot be read counts as empty."""
    found = recall(_key(problem, epilogue), gpu)
    if found is None:
        return None
    try:
        options = tuple((name, _tuples(value)) for name, value in found["options"])
        candidate = Candidate(found["schedule"], tuple(found["tile"]), tuple(found["cluster"]), options)
        return Entry(candidate, float(found["us"]), int(found["tried"]))
    except (KeyError, TypeError, ValueError):
        return None


def store(problem: Problem, gpu: str, entry: Entry, epilogue: Epilogue = PLAIN) -> Path:
    """Adds or replaces the entry; returns the file. Other writers wait meanwhile, so that no entry is lost; readers never
    see half a file. Raises `OSError` if it cannot be written."""
    found = {**attrs.asdict(entry.candidate), "us": entry.us, "tried": entry.tried}
    return keep(_key(problem, epilogue), gpu, found)


def keep(name: str, gpu: str, found: dict[str, Any]) -> Path:
    """Adds or replaces what is kept under this name, of which values are JSON. As `store`: a writer that was stopped while it
    held the lock stops the others for `PATIENCE` seconds."""
    path = _file(gpu)
    with locked(path.with_suffix(".lock"), PATIENCE):
        entries = {**_read(path), name: found}
        write(path, json.dumps(entries, indent=1, sort_keys=True).encode())
    return path


def recall(name: str, gpu: str) -> dict[str, Any] | None:
    """What `keep` has under this name for a GPU; None if nothing."""
    found = _read(_file(gpu)).get(name)
    return found if isinstance(found, dict) else None


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(read(path) or b"{}")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _tuples(value: Any) -> Any:
    return tuple(_tuples(v) for v in value) if isinstance(value, list) else value
