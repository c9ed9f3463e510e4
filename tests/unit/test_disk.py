"""Files that processes share: whole or ignored with a warning that names them, and nothing that hangs."""

import hashlib
import json
import multiprocessing
import os
import time
import warnings

import pytest

from tmapipe.base import disk

NAME = hashlib.sha256(b"a kernel").hexdigest()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TMAPIPE_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def kept(content=b"some\nbytes", **facts):
    disk.keep("things", NAME, facts, content)
    return disk.cache_folder() / "things" / NAME


def recalled():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return disk.recall("things", NAME)


def test_what_is_kept_is_recalled(folder):
    assert recalled() is None
    path = kept(b"\n\x00bytes\n", used={"registers": 8}, partly=["d"])
    assert recalled() == ({"used": {"registers": 8}, "partly": ["d"]}, b"\n\x00bytes\n")
    assert path.stat().st_mode & 0o777 == 0o600 and folder.stat().st_mode & 0o777 == 0o700
    kept(b"others")
    assert recalled() == ({}, b"others")
    assert [each.name for each in path.parent.iterdir()] == [NAME]  # nothing half-written is left


def nested():
    rest = b"[" * 100_000 + b"]" * 100_000 + b"\n"
    return b"tmapipe 1 " + hashlib.sha256(NAME.encode() + b"\n" + rest).hexdigest().encode() + b"\n" + rest


def list_of_facts():
    rest = json.dumps([1]).encode() + b"\n"
    return b"tmapipe 1 " + hashlib.sha256(NAME.encode() + b"\n" + rest).hexdigest().encode() + b"\n" + rest


#: What becomes of the file -> the reason in the warning.
DAMAGE = {
    "truncated": (lambda path: path.write_bytes(path.read_bytes()[:-1]), "not whole"),
    "one bit": (lambda path: path.write_bytes(path.read_bytes()[:-1] + b"t"), "not whole"),
    "a fact": (lambda path: path.write_bytes(path.read_bytes().replace(b"8", b"9")), "not whole"),
    "empty": (lambda path: path.write_bytes(b""), "no entry"),
    "foreign": (lambda path: path.write_bytes(b"\x7fELF" * 1000), "no entry"),
    "deeply nested": (lambda path: path.write_bytes(nested()), "no facts"),
    "a list": (lambda path: path.write_bytes(list_of_facts()), "no facts"),
    "huge": (lambda path: os.truncate(path, disk.LARGEST + 1), "more than"),
    "a pipe": (lambda path: (path.unlink(), os.mkfifo(path)), "no plain file"),
    "a link": (lambda path: (path.rename(path.with_name("x")), path.symlink_to(path.with_name("x"))), "symbolic links"),
    "a folder": (lambda path: (path.unlink(), path.mkdir()), "a directory"),
    "writable": (lambda path: path.chmod(0o666), "written by other users"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_what_is_not_whole_is_ignored_and_named(folder, damage):
    path = kept(used=8)
    change, reason = DAMAGE[damage]
    change(path)
    with pytest.warns(RuntimeWarning, match=f"{path} is ignored: .*{reason}"):
        assert disk.recall("things", NAME) is None
    if damage != "a folder":
        kept(b"again")
        assert recalled() == ({}, b"again")


def test_an_entry_under_another_name_is_ignored(folder):
    path = kept()
    other = path.with_name(NAME[::-1])
    path.rename(other)
    with pytest.warns(RuntimeWarning, match="copied from elsewhere"):
        assert disk.recall("things", other.name) is None


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives files away, and reads those that nobody may")
def test_a_file_of_another_user_is_ignored(folder):
    os.chown(kept(), 12345, 12345)
    with pytest.warns(RuntimeWarning, match="another user"):
        assert disk.recall("things", NAME) is None


@pytest.mark.skipif(os.getuid() == 0, reason="root reads what nobody may")
def test_a_file_that_nobody_may_read_is_ignored(folder):
    kept().chmod(0)
    with pytest.warns(RuntimeWarning, match="Permission denied"):
        assert disk.recall("things", NAME) is None


def test_a_folder_that_is_none(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("TMAPIPE_CACHE_DIR", str(tmp_path / "file"))
    with pytest.warns(RuntimeWarning, match=f"{tmp_path / 'file'}.* is not kept"):
        kept()
    with pytest.warns(RuntimeWarning, match=f"{tmp_path / 'file'}.* is ignored"):
        assert disk.recall("things", NAME) is None
    with pytest.warns(RuntimeWarning, match="is not held"), disk.locked(disk.lock_of(NAME)):
        pass


def test_the_oldest_files_go_first(folder, monkeypatch):
    monkeypatch.setattr(disk, "MOST", 10 * 4096)
    for number in range(12):
        disk.keep("things", str(number), {}, b"x")
        os.utime(folder / "things" / str(number), (number, number))
        disk.recall("things", "0")  # is in use
    assert sorted(int(path.name) for path in (folder / "things").iterdir()) == [0, 3, 4, 5, 6, 7, 8, 9, 10, 11]


# ---- locks ------------------------------------------------------------------------------------------------------------


def make_once(made):
    with disk.locked(disk.lock_of(NAME)):
        if disk.recall("things", NAME) is None:
            time.sleep(0.2)
            made.put(os.getpid())
            disk.keep("things", NAME, {}, b"content")


def test_one_makes_it_while_others_wait(folder):
    context = multiprocessing.get_context("fork")
    made = context.Queue()
    processes = [context.Process(target=make_once, args=(made,)) for _ in range(8)]
    for each in processes:
        each.start()
    for each in processes:
        each.join(30)
        assert each.exitcode == 0
    assert recalled() == ({}, b"content")
    made.get(timeout=5)
    assert made.empty()


@pytest.mark.parametrize("kind", ["held", "a pipe", "a link", "a folder"])
def test_a_lock_that_cannot_be_had_is_done_without(folder, kind, tmp_path):
    path = disk.lock_of(NAME)
    disk.make_folder(path.parent)
    began = time.monotonic()
    if kind == "held":
        with disk.locked(path):
            context = multiprocessing.get_context("fork")
            other = context.Process(target=lambda: disk.locked(path, 0.1).__enter__())
            other.start()
            other.join(20)
            assert other.exitcode == 0
    else:
        {
            "a pipe": lambda: os.mkfifo(path),
            "a link": lambda: path.symlink_to(tmp_path / "elsewhere"),
            "a folder": path.mkdir,
        }[kind]()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with disk.locked(path, 0.1):
                pass
    assert time.monotonic() - began < 10
    assert not (tmp_path / "elsewhere").exists()
