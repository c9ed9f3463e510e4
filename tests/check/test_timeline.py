"""Timelines of findings, reports and runs: one format, in the user's names, that a viewer of Chrome traces takes."""

from __future__ import annotations

import json
import pathlib

import numpy as np
import pytest

import tmapipe as tp
from tests.check.corpus import proxy_fences
from tests.check.test_corpus import CASES, check
from tests.oracle.judged_bodies import program_of
from tmapipe.check import Kind
from tmapipe.isa.ops import LoadComplete, MbarWait, StoreWrite, TmaLoad, TmaStore, WgmmaDone
from tmapipe.model import Machine
from tmapipe.model.run import ENGINES

S = tp.schedules
FIELDS = {"name", "ph", "ts", "pid", "tid", "args"}
SOURCE = {"role", "ring", "barrier", "slot", "phase", "parity", "bytes", "source", "step"}


class Forgets(tp.Schedule):
    """Its second role keeps every slot."""

    load, keep = tp.Role(warps=1), tp.Role(warps=1)
    belt = tp.BarrierRing(2, producer=load, consumer=keep)
    sheet = tp.TmaLoadStage(tile=(8, 64), ring=belt)

    @load.jit
    def fill(self, k, tile):
        with k.belt.produce() as slot:
            slot.sheet.load(tile)

    @keep.jit
    def drain(self, k, tile):
        k.belt.wait()


def well_formed(document):
    """A trace that viewers take, as it comes back from JSON: (steps, names of processes and threads by (pid, tid))."""
    document = json.loads(json.dumps(document))
    events, names, ends = [], {}, {}
    for event in document["traceEvents"]:
        assert set(event) >= FIELDS, event
        assert isinstance(event["name"], str) and event["name"] and event["ts"] >= 0
        assert all(isinstance(event[key], int) for key in ("ts", "pid", "tid"))
        if event["ph"] == "M":
            key = event["pid"], event["tid"] if event["name"] == "thread_name" else -1
            assert key not in names, f"{key} is named twice"
            names[key] = event["args"]["name"]
            continue
        assert (event["pid"], -1) in names and (event["pid"], event["tid"]) in names
        if event["ph"] == "X":
            assert event["dur"] >= 1 and set(event["args"]) <= SOURCE and event["args"]["role"]
            assert event["ts"] + event["dur"] == event["args"]["step"] + 1
            events.append(event)
            if event["tid"] >= ENGINES:  # lanes: one at a time
                assert ends.get((event["pid"], event["tid"]), 0) <= event["ts"]
                ends[event["pid"], event["tid"]] = event["ts"] + event["dur"]
    return events, names


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_finding_of_the_corpus(case):
    """In order of steps; the last event is the finding, at its last step."""
    for bad in case.bad:
        report = check(bad, case.name)
        for finding in report.findings:
            events, _ = well_formed(finding.timeline())
            assert [event["name"] for event in events] == [step.what for step in finding.steps]
            assert [event["args"]["step"] for event in events] == sorted(step.order for step in finding.steps)
            if finding.steps:
                last = finding.timeline()["traceEvents"][-1]
                assert last["ph"] == "i" and last["name"] == finding.kind.value and last["ts"] == events[-1]["ts"]
                assert last["args"]["fix"] == finding.fix and last["args"]["message"] == finding.message
                assert (last["pid"], last["tid"]) == (events[-1]["pid"], events[-1]["tid"])
        together, _ = well_formed(report.timeline())
        assert len(together) == sum(len(finding.steps) for finding in report.findings)


def test_names_are_the_users(tmp_path):
    report = Forgets().check()
    (deadlock,) = (finding for finding in report.findings if finding.kind is Kind.DEADLOCK)
    path = tmp_path / "report.json"
    report.write_timeline(path)
    events, names = well_formed(json.loads(path.read_text()))
    assert {"load (warp 0)", "keep (warp 1)"} <= set(names.values())
    waits = [event for event in events if "in vain" in event["name"]]
    assert waits and all(event["args"]["ring"] == "belt" for event in waits)
    (wait,) = (event for event in waits if event["args"]["role"] == "load")
    assert wait["args"]["barrier"] == "belt.free[0]" and wait["args"]["parity"] == 0
    file, line = wait["args"]["source"].rsplit(":", 1)
    assert pathlib.Path(file) == pathlib.Path(__file__)
    assert "k.belt.produce()" in pathlib.Path(file).read_text().splitlines()[int(line) - 1]
    assert deadlock.fix in [event["args"].get("fix") for event in report.timeline()["traceEvents"]]


def test_bytes_and_phases_of_a_counterexample():
    """What a report says of bytes and slots stands in the events, too."""
    bad = proxy_fences.CASES[0].bad[0]
    finding = next(f for f in check(bad, "").errors)
    events, _ = well_formed(finding.timeline())
    assert all("source" in event["args"] for event in events)
    assert finding.steps[-1].slot and events[-1]["args"]["slot"] == finding.steps[-1].slot


@pytest.mark.parametrize("cluster", [(1, 1), (2, 1)])
def test_a_run(cluster, tmp_path):
    """Every operation of every warp, and every load, store and wgmma from its issue to its end."""
    gemm = S.Gemm((128, 64, 64), cluster, stages=2)
    a, b = np.zeros((256, 192), np.float16), np.zeros((64, 192), np.float16)
    run = gemm.simulate(a, b, trace=True)
    events, names = well_formed(run.timeline())
    engines = [event for event in events if event["cat"] == "engine"]
    ends = (LoadComplete, StoreWrite, WgmmaDone)
    assert len(engines) == sum(run.counts[kind.__name__] for kind in ends)
    assert len(events) - len(engines) == sum(isinstance(entry.agent, int) for entry in run.trace)
    assert (
        sum(e["args"]["bytes"] for e in engines if names[e["pid"], e["tid"]].startswith("TMA loads"))
        == run.loaded_bytes
    )
    issued = {}
    for entry in run.trace:
        if isinstance(entry.op, (TmaLoad, TmaStore)):
            for flight in entry.facts:
                issued[entry.cluster * gemm.plan().cluster_size + flight.cta, entry.number] = entry.op
    copies = [event for event in engines if not names[event["pid"], event["tid"]].startswith("wgmma")]
    for event in copies:
        assert issued[event["pid"], event["ts"]].where == event["args"]["source"]
    waits = [e for e in run.trace if isinstance(e.op, MbarWait) and e.reached < e.number]
    assert waits, "no warp was ever blocked"
    assert sum(event["dur"] > 1 for event in events if event["cat"] == "warp") >= len(waits)
    assert {event["args"]["phase"] for event in events if event["name"].startswith("waits for ring.full[0]")} >= {0}
    run.write_timeline(tmp_path / "run.json")
    assert json.loads((tmp_path / "run.json").read_text()) == json.loads(json.dumps(run.timeline()))


def test_more_copies_in_flight_than_a_hundred():
    """Lanes of different engines never meet in one thread: 150 loads land as late as they can, while stores go on."""
    copy = S.Copy(tile=(1, 256), stages=150)
    plan = copy.plan()
    arrays = {part.argument: np.zeros((320, 256), part.buffer.dtype.numpy) for part in plan.transfers}
    run = Machine(plan, policy="late", trace=True).run(program_of(copy), arrays)
    _, names = well_formed(run.timeline())
    lanes = [name for name in names.values() if name.startswith("TMA loads")]
    assert sorted(lanes) == sorted(f"TMA loads {i}" for i in range(150))
    assert len(set(names.values())) == len(names), "two threads have one name"


def test_a_run_without_a_trace_says_how_to_get_one():
    run = S.Copy().simulate(np.zeros((8, 256), np.int32))
    with pytest.raises(tp.InputError, match=r"trace=True"):
        run.timeline()
