"""`pytest -n N` where there is no GPU: the tests run in processes that are forked from the one that has collected them.

pytest-xdist starts each process anew, which imports and collects everything again, and passes each report on as text: 2 ms a
test. Here the processes take portions from one queue, a pipe of numbers. Reports go through a pipe of each process's to the
first one, which logs them as if it had run the tests. A process that dies fails the test that it was at, and others run the
rest. CUDA does not work in a forked process, so GPUs have pytest-xdist."""

from __future__ import annotations

import contextlib
import os
import pickle
import selectors
import signal
import struct
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest

_NUMBER = struct.Struct("i")  # of a portion, or of bytes that follow


class Forked:
    """A plugin of pytest. count: of processes; portion_of: from a test's id to the portion that one process runs."""

    def __init__(self, count: int, portion_of: Callable[[str], str]):
        self.count, self.portion_of = count, portion_of

    def pytest_runtestloop(self, session: Any) -> bool | None:
        """Runs all tests; None: pytest does it itself."""
        options = session.config.option
        if session.testsfailed or options.collectonly or options.usepdb:
            return None
        left = dict(enumerate(session.items))
        session.config._tmp_path_factory.getbasetemp()  # one for all
        while left:  # again, if a process has died
            self._round(session, left)
        return True

    def _round(self, session: Any, left: dict[int, Any]) -> None:
        portions: dict[str, list[int]] = {}
        for number, item in left.items():
            portions.setdefault(self.portion_of(item.nodeid), []).append(number)
        work = list(portions.values())
        taken, given = os.pipe()
        running: dict[int, list[Any]] = {}  # by pipe: the process, its portion, and how many tests of it are done
        with selectors.DefaultSelector() as selector:
            try:
                for _ in range(min(self.count, len(work))):
                    source, process = _started(session, work, taken, given)
                    running[source] = [process, None, 0]
                    selector.register(source, selectors.EVENT_READ)
                os.close(taken)
                _fill(given, len(work))
                while running:
                    for key, _ in selector.select():
                        if not self._heard(session, left, work, key.fd, running[key.fd]):
                            selector.unregister(key.fd)
                            del running[key.fd]
                            os.close(key.fd)
            finally:
                for process, *_ in running.values():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(process, signal.SIGKILL)
                        os.waitpid(process, 0)

    def _heard(self, session: Any, left: dict[int, Any], work: list[list[int]], source: int, state: list[Any]) -> bool:
        """Takes what a process says; False at its end."""
        header = os.read(source, _NUMBER.size)
        if not header:
            _, status = os.waitpid(state[0], 0)
            if state[1] is not None and state[2] < len(work[state[1]]):
                item = left.pop(work[state[1]][state[2]])
                said = f"the process that ran it ended: status {os.waitstatus_to_exitcode(status)}"
                where = item.location
                failed = pytest.TestReport(item.nodeid, where, {}, "failed", f"{item.nodeid}: {said}", "call")
                _log(session, item, [failed])
            elif status:
                raise RuntimeError(f"a process of the tests ended with status {status}") from None
            return False
        kind, said = pickle.loads(_read(source, *_NUMBER.unpack(header)))
        if kind == "error":
            raise RuntimeError(f"a process of the tests failed:\n{said}")
        if kind == "portion":
            state[1:] = said, 0
        elif kind == "warning":
            session.config.hook.pytest_warning_recorded.call_historic(kwargs=said)
        else:
            item = left.pop(work[state[1]][state[2]])
            state[2] += 1
            hook = session.config.hook.pytest_report_from_serializable
            _log(session, item, [hook(config=session.config, data=each) for each in said])
        return True


def _read(source: int, size: int) -> bytes:
    found = bytearray()
    while len(found) < size and (more := os.read(source, size - len(found))):
        found += more
    return bytes(found)


def _log(session: Any, item: Any, reports: list[Any]) -> None:
    about = {"nodeid": item.nodeid, "location": item.location}
    item.ihook.pytest_runtest_logstart(**about)
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(**about)
    if session.shouldfail:
        raise session.Failed(session.shouldfail)
    if session.shouldstop:
        raise session.Interrupted(session.shouldstop)


def _fill(given: int, count: int) -> None:
    """Writes the numbers of all portions, for whoever reads them first."""
    with open(given, "wb") as queue, contextlib.suppress(BrokenPipeError):  # if nobody is left
        for number in range(count):
            queue.write(_NUMBER.pack(number))


def _started(session: Any, work: list[list[int]], taken: int, given: int) -> tuple[int, int]:
    """The pipe of a new process, and the process."""
    heard, told = os.pipe()
    process = os.fork()
    if process:
        os.close(told)
        return heard, process
    status = 1
    try:
        os.close(heard)
        os.close(given)
        _run(session, work, taken, told)
        status = 0
    except BaseException:
        _send(told, "error", traceback.format_exc())
    finally:
        os._exit(status)


def _send(told: int, kind: str, said: Any) -> None:
    content = pickle.dumps((kind, said))
    rest = memoryview(_NUMBER.pack(len(content)) + content)
    while rest:
        rest = rest[os.write(told, rest) :]


class _Sends:
    """A plugin of each process: what it reports goes to the first one."""

    def __init__(self, config: Any, told: int):
        self.config, self.told, self.begun = config, told, False
        self.reports: list[Any] = []

    def pytest_runtest_logreport(self, report: Any) -> None:
        hook = self.config.hook.pytest_report_to_serializable
        self.reports.append(hook(config=self.config, report=report))

    def pytest_runtest_logfinish(self) -> None:
        _send(self.told, "done", self.reports)
        self.reports = []

    def pytest_warning_recorded(self, warning_message: Any, when: str, nodeid: str, location: Any) -> None:
        if not self.begun:
            return  # the first process has it
        try:
            pickle.dumps(warning_message)
        except Exception:
            warning_message.message = warning_message.category(str(warning_message.message))
        said = {"warning_message": warning_message, "when": when, "nodeid": nodeid, "location": location}
        _send(self.told, "warning", said)


def _run(session: Any, work: list[list[int]], taken: int, told: int) -> None:
    """What a process does. It knows the next test before it ends one, so that both can have a fixture of their module's."""
    config, capture = session.config, session.config.pluginmanager.getplugin("capturemanager")
    capture.stop_global_capturing()  # into a file that all processes have
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # where pytest shows its progress
    capture.start_global_capturing()
    capture.suspend_global_capture()
    sends = _Sends(config, told)
    config.pluginmanager.register(sends)
    sends.begun = True
    tests = _tests(session, work, taken)
    number, item = next(tests, (0, None))
    while item is not None:
        if number >= 0:
            _send(told, "portion", number)
        number, following = next(tests, (0, None))
        config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        item = following


def _tests(session: Any, work: list[list[int]], taken: int) -> Iterator[tuple[int, Any]]:
    """Tests, with the number of the portion for its first one, and -1 for the others."""
    while found := os.read(taken, _NUMBER.size):
        (portion,) = _NUMBER.unpack(found)
        for i, number in enumerate(work[portion]):
            yield (-1 if i else portion), session.items[number]
