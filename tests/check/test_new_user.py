"""A new user breaks examples/stream_copy.py: each report begins with the line that is wrong, and says what to change."""

from __future__ import annotations

import importlib.util
import pathlib
import re

import attrs
import pytest

import tmapipe as tp

EXAMPLE = pathlib.Path(__file__).parents[2] / "examples" / "stream_copy.py"
LOAD = "            slot.x.load(tile)\n"
STORE = "            slot.y.store(tile)\n"
CONSUME = "        with k.ring.consume() as slot:\n"

EARLY = (
    "        slot = k.ring.wait()\n" + STORE[4:] + "        k.isa.bulk_commit_group()\n"
    "        k.isa.mbarrier_arrive(k.ring.signalled, slot.index)\n"
)


@attrs.frozen
class Mistake:
    """change: of the example's text, what is replaced by what; wrong: the line (or a part) that the report must begin with;
    message, fix: patterns of the first finding's, or of the error that `check` raises."""

    change: tuple[str, str]
    wrong: str
    message: str
    fix: str


REPORTED = {
    "consumes twice a tile": Mistake(
        (STORE, STORE + CONSUME.replace("slot:", "again:") + STORE.replace("slot", "again")),
        "as again:",
        "roles of ring enter different numbers of its slots: load 1, store 2$",
        "let load and store enter as many slots of ring for each tile",
    ),
    "never releases": Mistake(
        (CONSUME + STORE, "        slot = k.ring.wait()\n        slot.y.store(tile)\n"),
        "k.ring.wait()",
        r"store \(warp 1\) enters 1 slot of ring and gives back 0$",
        r"let store leave each slot: `with k\.ring\.consume\(\) as slot`, or `release` after `wait`",
    ),
    "threads write, no fence before the store": Mistake(
        (
            STORE,
            "            k.isa.fragments.write(slot.x.ref, k.full('x', 0.0))\n            k.isa.warp_sync()\n" + STORE,
        ),
        "k.isa.fragments.write(",
        r"TMA store .* reads x\[0\] through the async proxy after store \(warp 1\) writes it",
        "let store execute fence_proxy_async after its access to x",
    ),
    "threads write, neither fence nor warp_sync": Mistake(
        (STORE, "            k.isa.fragments.write(slot.x.ref, k.full('x', 0.0))\n" + STORE),
        "k.isa.fragments.write(",
        r"TMA store .* reads x\[0\] after store \(warp 1\) writes it.* and no proxy fence of store lies between",
        "let store execute fence_proxy_async, then warp_sync, after its access to x",
    ),
    "threads write, a fence but no warp_sync": Mistake(
        (
            STORE,
            "            k.isa.fragments.write(slot.x.ref, k.full('x', 0.0))\n            k.isa.fence_proxy_async()\n"
            + STORE,
        ),
        "k.isa.fragments.write(",
        "the others' accesses are not$",
        "let store execute warp_sync between its access to x and",
    ),
    "no wait for the store's read": Mistake(
        (CONSUME + STORE, EARLY),
        "slot.y.store(tile)",
        r"TMA load issued by load \(warp 0\) writes x\[0\] while a TMA store .* by store \(warp 1\) reads it: no wait_group",
        r"let store wait for the store's group \(bulk_wait_group\(..., read=True\)\) before it hands x on",
    ),
    "waits for the read after the release": Mistake(
        (CONSUME + STORE, EARLY + "        k.isa.bulk_wait_group(0, read=True)\n"),
        "slot.y.store(tile)",
        r"TMA load issued by load \(warp 0\) writes x\[0\] while a TMA store .* by store \(warp 1\) reads it: no wait_group",
        "before it hands x on",
    ),
    "loops in one role only": Mistake(
        (
            "        with k.ring.produce() as slot:\n" + LOAD,
            '        for n in range(k.steps("x", "n")):\n            with k.ring.produce() as slot:\n'
            "                slot.x.load(tile, n=n)\n",
        ),
        "k.ring.produce()",
        "roles of ring enter different numbers of its slots: load 4, store 2$",
        "let load and store enter as many slots of ring for each tile, in loops of the same count",
    ),
    "takes a slot and loads nothing": Mistake(
        (LOAD, "            pass\n"),
        "k.ring.produce()",
        "waits for ring.full.0. parity 0: .* 16384 bytes armed, not delivered",
        "16384 bytes armed that no load delivers: start the load of x in each slot",
    ),
    "loads twice into a slot": Mistake(
        (LOAD, LOAD + "            slot.x.load(tile, n=0)\n"),
        "slot.x.load(tile, n=0)",
        r"TMA load issued by load \(warp 0\) writes x\[0\] while a TMA load",
        "let load load x once a slot",
    ),
    "arms more bytes": Mistake(
        (LOAD, LOAD + "            k.isa.mbarrier_expect_tx(k.ring.signalled, slot.index, 1024)\n"),
        "mbarrier_expect_tx",
        "1024 bytes armed, not delivered",
        "arm 1024 bytes fewer",
    ),
    "signals once more": Mistake(
        (STORE, STORE + "            k.isa.mbarrier_arrive(k.ring.signalled, slot.index)\n"),
        "k.isa.mbarrier_arrive",
        r"store \(warp 1\) enters \d+ slots of ring and gives back \d+$",
        "let store arrive at ring.free once a slot: leaving the slot does it",
    ),
}
REFUSED = {
    "the wrong end of the ring": Mistake(
        ("with k.ring.consume()", "with k.ring.produce()"),
        "k.ring.produce() as slot:  # wait for the bytes",
        "produce.. on ring 'ring' in role 'store', which plays phase 1 of 2",
        r"Use consume\(\)",
    ),
    "stores after the slot": Mistake(
        (STORE, "            pass\n        slot.y.store(tile)\n"),
        "        slot.y.store(tile)",
        "a slot of ring 'ring' used outside its `with` block in role 'store'",
        "Move the use into the block",
    ),
    "releases twice": Mistake(
        (CONSUME + STORE, "        slot = k.ring.wait()\n" + 2 * "        k.ring.release(slot)\n"),
        "k.ring.release(slot)",
        "a slot of ring 'ring' left a second time",
        "Leave each slot once",
    ),
    "more stores pending than there are slots": Mistake(
        ("TmaStoreStage(source=x)", "TmaStoreStage(source=x, stages=4)"),
        "",
        "role store holds back 4 slots while it reads the next, so 5 or more are needed",
        "use more stages",
    ),
}


def broken(mistake: Mistake, folder: pathlib.Path):
    """(the schedule of the example with this mistake, its file)."""
    text = re.sub(r"( as slot:)  # [^\n]*\n", r"\1\n", EXAMPLE.read_text()) if "\n" in mistake.change[0] else ""
    text = text or EXAMPLE.read_text()
    old, new = mistake.change
    assert text.count(old) == 1, f"examples/stream_copy.py has changed: {old!r}"
    path = folder / "mine.py"
    path.write_text(text.replace(old, new))
    spec = importlib.util.spec_from_file_location("mine", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Copy(), path


def line_at(place: str, path: pathlib.Path) -> str:
    """The source line of a "file:line"."""
    file, _, number = place.rpartition(":")
    assert pathlib.Path(file).name == path.name, f"leads to {place}"
    return path.read_text().splitlines()[int(number) - 1]


@pytest.mark.parametrize("name", REPORTED)
def test_report_leads_to_the_line(name, tmp_path, monkeypatch):
    mistake = REPORTED[name]
    copy, path = broken(mistake, tmp_path)
    report = copy.check()
    first = report.errors[0]
    assert not report.ok and mistake.wrong in line_at(first.where[0], path), str(report)
    assert re.search(mistake.message, first.message), str(report)
    assert re.search(mistake.fix, first.fix), str(report)
    assert all(step.what for step in first.steps) and first.steps
    monkeypatch.chdir(tmp_path)  # places are shown as a compiler does, relative to the working directory
    _, _, head, said, *steps = str(report).splitlines()
    assert re.match(r"mine\.py:\d+: error: ", head) and mistake.wrong in line_at(head.split(": ")[0], path)
    assert said.strip().startswith(first.message.splitlines()[0])
    for step, line in zip(first.steps, (line for line in steps if line.startswith("    step ")), strict=False):
        assert f"{step.agent} {step.what}" in line


@pytest.mark.parametrize("name", REFUSED)
def test_error_leads_to_the_line(name, tmp_path):
    """Misuse of the objects is refused at once, in every backend, with the line in the message."""
    mistake = REFUSED[name]
    copy, path = broken(mistake, tmp_path)
    with pytest.raises(tp.errors.PipelineError) as info:
        copy.check()
    text = str(info.value)
    assert re.search(mistake.message, text) and re.search(mistake.fix, text), text
    if mistake.wrong:
        place = re.search(r" At (.*:\d+)\.$", text)
        assert place and mistake.wrong in line_at(place[1], path), text


def test_the_example_itself_is_safe(tmp_path):
    copy, _ = broken(Mistake(("stages=4", "stages=3"), "", "", ""), tmp_path)
    assert copy.check().ok
