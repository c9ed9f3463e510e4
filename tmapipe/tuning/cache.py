"""What tuning has found, kept on disk: one JSON file a GPU and set of versions, one entry a problem and epilogue."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import tempfile
from pathlib import Path
from typing import Any

import attrs

import tmapipe
from tmapipe.tuning.candidates import Candidate
from tmapipe.tuning.epilogues import NOTHING, Fused, fingerprint
from tmapipe.tuning.problem import Problem

__all__ = ["Entry", "cache_folder", "load", "store"]


@attrs.frozen
class Entry:
    """candidate: the fastest; us: microseconds that it took; tried: how many were timed."""

    candidate: Candidate
    us: float
    tried: int


def cache_folder() -> Path:
    """TMAPIPE_CACHE_DIR if it is set, else tmapipe/ in XDG_CACHE_HOME or ~/.cache."""
    chosen = os.environ.get("TMAPIPE_CACHE_DIR")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tmapipe"


def _file(gpu: str) -> Path:
    versions = f"{tmapipe.__version__}-dsl{importlib.metadata.version('nvidia-cutlass-dsl')}"
    return cache_folder() / f"tuned-{re.sub('[^A-Za-z0-9]+', '-', gpu)}-{versions}.json"


def _key(problem: Problem, fused: Fused) -> str:
    return f"{problem} {fingerprint(fused)}".strip()


def load(problem: Problem, gpu: str, fused: Fused = NOTHING) -> Entry | None:
    """The entry of *problem* on a GPU of this name. A file that cannot be read counts as empty."""
    found = _read(_file(gpu)).get(_key(problem, fused))
    if found is None:
        return None
    try:
        options = tuple((name, _tuples(value)) for name, value in found["options"])
        candidate = Candidate(found["schedule"], tuple(found["tile"]), tuple(found["cluster"]), options)
        return Entry(candidate, float(found["us"]), int(found["tried"]))
    except (KeyError, TypeError, ValueError):
        return None


def store(problem: Problem, gpu: str, entry: Entry, fused: Fused = NOTHING) -> Path:
    """Adds or replaces the entry; returns the file. The file is replaced as a whole, so that readers never see half."""
    path = _file(gpu)
    path.parent.mkdir(parents=True, exist_ok=True)
    entries = _read(path)
    entries[_key(problem, fused)] = {**attrs.asdict(entry.candidate), "us": entry.us, "tried": entry.tried}
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=path.name, delete=False) as file:
        json.dump(entries, file, indent=1, sort_keys=True)
    os.replace(file.name, path)
    return path


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _tuples(value: Any) -> Any:
    return tuple(_tuples(v) for v in value) if isinstance(value, list) else value
