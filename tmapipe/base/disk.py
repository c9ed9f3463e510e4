"""Files that the library keeps on disk, and that several processes read and write at the same time.

A file is written under another name and then renamed, so that nobody sees half of a file. A file is trusted only if nobody but
this user could have written it. It must be a plain file that belongs to this user, that nobody else can write, whose size is
bounded, and that is whole; any other file is ignored, with a warning that names it. Nothing is unpickled or evaluated, and
nothing waits for a file without end.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import stat
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

LARGEST = 64 << 20  # bytes of a file; a kernel has some 50 KB
MOST = 512 << 20  # bytes of all files of a kind: the oldest ones are removed
PATIENCE = 120.0  # seconds that a process waits for another one, which proves and compiles what it needs
_BEGIN = b"tmapipe 1 "  # then the hash of the rest, a line of JSON, and the content


def cache_folder() -> Path:
    """The folder TMAPIPE_CACHE_DIR if it is set, else tmapipe/ among the user's caches (in XDG_CACHE_HOME, or as platformdirs
    says); without a home, one among the temporary files that belongs to this user alone."""
    if chosen := os.environ.get("TMAPIPE_CACHE_DIR"):
        return Path(os.path.expanduser(chosen))
    caches = os.path.expanduser(os.environ.get("XDG_CACHE_HOME") or "")
    if os.path.isabs(caches):
        return Path(caches, "tmapipe")
    if not os.environ.get("HOME", "~") or not os.path.isabs(os.path.expanduser("~")):
        return _of_nobody()
    try:
        from platformdirs import user_cache_dir
    except ModuleNotFoundError:  # where the model runs without what kernels take
        return Path(os.path.expanduser("~"), ".cache", "tmapipe")
    return Path(user_cache_dir("tmapipe", appauthor=False))


def _of_nobody() -> Path:
    return Path(tempfile.gettempdir(), f"tmapipe-{os.getuid()}")


def _check_folder(folder: Path) -> None:
    """Raises `PermissionError` for a folder among the temporary files that others may have made, or can write to."""
    if folder == _of_nobody() and folder.exists():
        about = os.lstat(folder)
        if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid() or about.st_mode & 0o022:
            raise PermissionError(f"{folder} belongs to another user. Fix: set TMAPIPE_CACHE_DIR.")


# ---- files ------------------------------------------------------------------------------------------------------------


def read(path: Path) -> bytes | None:
    """The content of a file; None if there is no file, or it is ignored."""
    try:
        _check_folder(cache_folder())
        return _read(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        _ignored(path, error.strerror or str(error))
    except _Refused as reason:
        _ignored(path, str(reason))
    return None


class _Refused(Exception):
    """Why a file is ignored."""


def _read(path: Path) -> bytes:
    # Neither a link nor, by way of O_NONBLOCK, a pipe that nobody writes to is followed or waited for.
    opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(opened, "rb") as file:
        about = os.fstat(opened)
        if not stat.S_ISREG(about.st_mode):
            raise _Refused("is no plain file")
        if about.st_uid != os.getuid():
            raise _Refused("belongs to another user")
        if about.st_mode & 0o022:
            raise _Refused("can be written by other users")
        if about.st_size > LARGEST:
            raise _Refused(f"has {about.st_size} bytes, more than {LARGEST}")
        content = file.read(LARGEST + 1)
        with contextlib.suppress(OSError):
            os.utime(opened)  # so that what is in use is removed last
        return content


def write(path: Path, content: bytes) -> None:
    """Writes a file as a whole. Raises `OSError` if that cannot be done."""
    make_folder(path.parent)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".", delete=False) as file:  # mode 0600
        try:
            file.write(content)
            file.close()
            os.replace(file.name, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(file.name)
            raise


def make_folder(folder: Path) -> None:
    """Makes a folder in that of the library, for this user alone. Raises `OSError` if that cannot be done."""
    cache_folder().mkdir(parents=True, exist_ok=True, mode=0o700)
    _check_folder(cache_folder())
    folder.mkdir(exist_ok=True, mode=0o700)


def _ignored(path: Path, why: str) -> None:
    warnings.warn(f"{path} is ignored: {why}", RuntimeWarning, stacklevel=4)


# ---- entries ----------------------------------------------------------------------------------------------------------


def recall(kind: str, name: str) -> tuple[dict[str, Any], bytes] | None:
    """(facts, content) that `keep` has under this name of a kind; None if nothing, or nothing whole."""
    path = cache_folder() / kind / name
    entry = read(path)
    if entry is None:
        return None
    start = len(_BEGIN) + 64
    if not entry.startswith(_BEGIN) or entry[start : start + 1] != b"\n":
        _ignored(path, "is no entry of tmapipe's")
    elif entry[len(_BEGIN) : start] != _hash(name, entry[start + 1 :]):
        _ignored(path, "is not whole, or was copied from elsewhere")
    else:
        line, _, content = entry[start + 1 :].partition(b"\n")
        with contextlib.suppress(ValueError, RecursionError):
            facts = json.loads(line)
            if isinstance(facts, dict):
                return facts, content
        _ignored(path, "has no facts")
    return None


def keep(kind: str, name: str, facts: dict[str, Any], content: bytes = b"") -> None:
    """Keeps *content*, with facts about it in JSON, for whoever asks for this name. What cannot be written is lost, with a
    warning."""
    try:
        put(kind, name, facts, content)
    except OSError as error:
        path = cache_folder() / kind / name
        warnings.warn(f"{path} is not kept: {error.strerror or error}", RuntimeWarning, stacklevel=3)


def put(kind: str, name: str, facts: dict[str, Any], content: bytes = b"") -> Path:
    """Keeps an entry as `keep` does, and returns its file. Raises `OSError` if it cannot be written."""
    path = cache_folder() / kind / name
    rest = json.dumps(facts, sort_keys=True).encode() + b"\n" + content
    write(path, _BEGIN + _hash(name, rest) + b"\n" + rest)
    _bound(path.parent)
    return path


def names(kind: str) -> list[str]:
    """The names that `keep` has of a kind."""
    folder = cache_folder() / kind
    try:
        return sorted(name for name in os.listdir(folder) if not name.startswith("."))
    except OSError:
        return []


def _hash(name: str, rest: bytes) -> bytes:
    return hashlib.sha256(name.encode() + b"\n" + rest).hexdigest().encode()


def _bound(folder: Path) -> None:
    """Removes the files of *folder* that have not been used for longest, if there are too many."""
    files = []
    with os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):
                about = entry.stat(follow_symlinks=False)
                files.append((about.st_mtime, max(about.st_size, 4096), entry.path))
    left = sum(size for _, size, _ in files)
    for _, size, path in sorted(files):
        if left <= MOST:
            return
        with contextlib.suppress(OSError):
            os.unlink(path)
        left -= size


def lock_of(name: str) -> Path:
    """The lock of a name, which is a hash: there are 256 of them."""
    return cache_folder() / "locks" / f"{name[:2]}.lock"


@contextlib.contextmanager
def locked(path: Path, patience: float = PATIENCE) -> Iterator[None]:
    """Holds the lock of a file among all processes. If the lock cannot be had within *patience* seconds, a warning follows and
    the scope runs without it; then two processes do the same work."""
    from filelock import FileLock  # 40 ms, when something is made

    lock = None
    try:
        make_folder(path.parent)
        lock = FileLock(path, mode=0o600)
        lock.acquire(timeout=patience, poll_interval=0.02)
    except (OSError, NotImplementedError) as error:
        warnings.warn(f"{path} is not held: {error}", RuntimeWarning, stacklevel=3)
        lock = None
    try:
        yield
    finally:
        if lock is not None:
            lock.release()


@functools.cache
def library() -> str:
    """A hash of the library's source. It is part of the names of kept files, so that no file outlives a change of
    the library."""
    digest, root = hashlib.sha256(), Path(__file__).parents[1]
    for path in sorted(root.rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()
