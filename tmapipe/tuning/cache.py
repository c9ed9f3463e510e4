"""What tuning has found, kept on disk: one JSON file per GPU and versions, one entry per problem and epilogue."""

from __future__ import annotations

import contextlib
import fcntl
import importlib.metadata
import json
import os
import re
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs

import tmapipe
from tmapipe.epilogue.epilogue import Epilogue
from tmapipe.tuning.candidate import Candidate
from tmapipe.tuning.epilogues import PLAIN, fingerprint
from tmapipe.tuning.problem import Problem

__all__ = ["Entry", "cache_folder", "load", "store"]

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


def cache_folder() -> Path:
    """The folder TMAPIPE_CACHE_DIR if it is set, else tmapipe/ in XDG_CACHE_HOME or in ~/.cache. Without a home, one among the
    temporary files that belongs to this user alone: `load` and `store` pass over one that does not."""
    if chosen := os.environ.get("TMAPIPE_CACHE_DIR"):
        return Path(os.path.expanduser(chosen))
    caches = os.path.expanduser(os.environ.get("XDG_CACHE_HOME") or "")
    if os.path.isabs(caches):  # others are to be passed over (XDG Base Directory Specification)
        return Path(caches, "tmapipe")
    home = os.path.expanduser("~") if os.environ.get("HOME", "~") else ""
    return Path(home, ".cache", "tmapipe") if os.path.isabs(home) else _of_nobody()


def _of_nobody() -> Path:
    return Path(tempfile.gettempdir(), f"tmapipe-{os.getuid()}")


def _trusted(folder: Path) -> bool:
    """Whether nobody else can have put files there, who would then choose what runs: anyone can make a folder among the
    temporary files."""
    if folder != _of_nobody():
        return True
    try:
        found = os.lstat(folder)
    except FileNotFoundError:
        return True
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022


def _file(gpu: str) -> Path:
    versions = f"{tmapipe.__version__}-dsl{importlib.metadata.version('nvidia-cutlass-dsl')}"
    return cache_folder() / f"tuned-{re.sub('[^A-Za-z0-9]+', '-', gpu)}-{versions}.json"


def _key(problem: Problem, epilogue: Epilogue) -> str:
    return f"{problem} {fingerprint(epilogue)}".strip()


def load(problem: Problem, gpu: str, epilogue: Epilogue = PLAIN) -> Entry | None:
    """The entry of *problem* on a GPU of this name. A file that cannot be read counts as empty."""
    path = _file(gpu)
    found = _read(path).get(_key(problem, epilogue)) if _trusted(path.parent) else None
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
    path = _file(gpu)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700 if path.parent == _of_nobody() else 0o777)
    if not _trusted(path.parent):
        raise PermissionError(f"{path.parent} belongs to another user. Fix: set TMAPIPE_CACHE_DIR.")
    with _locked(path.with_suffix(".lock")):
        entries = _read(path)
        entries[_key(problem, epilogue)] = {**attrs.asdict(entry.candidate), "us": entry.us, "tried": entry.tried}
        with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=path.name, delete=False) as file:
            json.dump(entries, file, indent=1, sort_keys=True)
        os.replace(file.name, path)
    return path


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Holds the lock of the file *path*, for which it waits up to `PATIENCE`: an entry that is lost is measured again, but a
    writer that was stopped while it held the lock must not stop the others."""
    ends = time.monotonic() + PATIENCE
    with open(path, "a") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # until the file is closed
                break
            except OSError:
                if time.monotonic() > ends:
                    break
                time.sleep(0.01)
        yield


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _tuples(value: Any) -> Any:
    return tuple(_tuples(v) for v in value) if isinstance(value, list) else value
