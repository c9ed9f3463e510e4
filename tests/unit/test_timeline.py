"""Timelines with times: slices nest, arrows pair, rings fill and empty, and the page draws them."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest

import tmapipe as tp
from tests import browser
from tests.check.test_timeline import Forgets
from tmapipe.isa import ops
from tmapipe.model.run import Timeline, page
from tmapipe.timeline import H200, cycles_of_wgmma, wgmmas_of
from tmapipe.timeline.trace import REASONS, share_of, timed

S = tp.schedules
CATEGORIES = {"op", "wait", "stuck", "compute", "tile", "engine", "slot"}


def well_formed(document):
    """A trace that viewers take: the slices of a thread nest, each arrow goes from one slice to another, later one, and
    counters are of rings. Returns (slices, arrows as pairs of slices, names of threads)."""
    document = json.loads(json.dumps(document))
    threads, flows, names = {}, {}, {}
    for event in document["traceEvents"]:
        key = event["pid"], event.get("tid", -1)
        if event["ph"] == "X":
            assert event["dur"] > 0 and event["ts"] >= 0 and event["cat"] in CATEGORIES
            threads.setdefault(key, []).append(event)
        elif event["ph"] in "sf":
            assert event["ph"] not in flows.setdefault(event["id"], {}), "an end of an arrow twice"
            flows[event["id"]][event["ph"]] = event
        elif event["ph"] == "C":
            assert all(n >= 0 for n in event["args"].values())
        elif event["name"] == "thread_name":
            names[key] = event["args"]["name"]
    for key, slices in threads.items():
        assert key in names
        slices.sort(key=lambda each: (each["ts"], -each["dur"]))
        open_ = []
        for each in slices:
            began, end = (round(1000 * t) for t in (each["ts"], each["ts"] + each["dur"]))
            while open_ and open_[-1] <= began:
                open_.pop()
            assert not open_ or end <= open_[-1], f"{each} crosses the end of another"
            open_.append(end)
    pairs = []
    for both in flows.values():
        assert set(both) == {"s", "f"} and both["s"]["ts"] <= both["f"]["ts"]
        pairs.append(tuple(slice_at(threads, both[end]) for end in "sf"))
    return [each for slices in threads.values() for each in slices], pairs, names


def slice_at(threads, event):
    """The innermost slice that an end of an arrow is bound to."""
    around = [s for s in threads[event["pid"], event["tid"]] if s["ts"] <= event["ts"] < s["ts"] + s["dur"]]
    assert around, f"{event} lies in no slice"
    return around[-1]


@pytest.mark.parametrize("late, begins", [(0.0, 1.009), (0.005, 1.011), (0.02, None)])
def test_an_arrow_never_ends_before_it_begins(late, begins):
    """On a GPU an arrival is stamped a little later than it is made, perhaps after the end of the wait that it ends."""
    made = Timeline("a kernel")
    arrival, wait = {"ts": 1.0 + late, "dur": 0.01, "pid": 0, "tid": 0}, {"ts": 0.5, "dur": 0.512, "pid": 0, "tid": 1}
    made.arrow(1, arrival, wait, "full")
    ends = [event["ts"] for event in made.events if event["ph"] in "sf"]
    assert ends == ([] if begins is None else [begins, 1.011])


@pytest.fixture(scope="module")
def gemm():
    """Two CTAs that multiply three tiles each, four steps a tile, through a ring of four slots."""
    a, b = (np.random.default_rng(i).standard_normal((384, 256)).astype(np.float16) for i in range(2))
    d = np.zeros((384, 384), np.float16)
    schedule = S.Gemm((64, 128, 64), (2, 1), stages=4)
    trace = schedule.trace(a, b, out=d, clusters=3)
    np.testing.assert_allclose(d.astype(np.float32), a.astype(np.float32) @ b.astype(np.float32).T, atol=0.5)
    return trace


@pytest.fixture(scope="module")
def parts(gemm):
    return well_formed(gemm.timeline())


@pytest.fixture(scope="module")
def hang():
    return Forgets().trace(np.zeros((40, 64), np.float16))


def test_slices_nest_and_arrows_pair(parts):
    slices, arrows, names = parts
    assert {"CTA" in each for each in names.values()} == {False}
    tiles = [each for each in slices if each["cat"] == "tile"]
    roles = Counter(each["args"]["role"] for each in tiles)
    assert roles == {"load": 2 * 9, "math": 4 * 2 * 9}, "a slice for each tile of each warp"
    waits = [each for each in slices if each["cat"] == "wait"]
    assert waits and {each["args"]["waits for"] for each in waits} <= set(REASONS)
    ended = {id(head) for _, head in arrows}
    by_arrival = [w for w in waits if w["args"]["waits for"] in ("data", "a free slot", "the tensor core")]
    assert by_arrival and all(id(wait) in ended for wait in by_arrival), "a wait that nothing ends"
    for tail, head in arrows:
        if head["args"].get("waits for") == "data":
            assert tail["cat"] == "engine" and head["args"]["ring"] == "ring"
        if head["args"].get("waits for") == "a free slot":
            assert tail["args"]["role"] == "math" and tail["args"]["barrier"] == head["args"]["barrier"]


def test_what_slices_say(parts):
    slices, _, names = parts
    loads = [each for each in slices if names[each["pid"], each["tid"]].startswith("TMA loads")]
    assert {each["args"]["bytes"] for each in loads} == {64 * 64 * 2, 64 * 64 * 2} and len(loads) == 2 * 9 * 4 * 3
    data = [each for each in slices if each["name"].startswith("waits for ring.full") and each["pid"] == 0]
    one = [each["args"]["iteration"] for each in data if each["tid"] == data[0]["tid"]]
    assert one == list(range(3 * 4)), "each wait says which slot of the ring it is about, counted from the first"
    assert all("gemm.py:" in each["args"]["source"] or "mainloop" in each["args"]["source"] for each in data)


def test_rings_fill_and_empty(gemm, parts):
    document, (slices, _, names) = gemm.timeline(), parts
    slots = [each for each in slices if each["cat"] == "slot" and each["pid"] == 0]
    assert {names[0, each["tid"]] for each in slots} == {f"ring[{i}]" for i in range(4)}
    used = sorted(each["args"]["iteration"] for each in slots if each["name"] == "in use")
    assert used == list(range(3 * 4))
    counts = [e["args"] for e in document["traceEvents"] if e["ph"] == "C" and e["pid"] == 0]
    assert max(sum(each.values()) for each in counts) == 4 and counts[-1] == {"in use": 0, "filling": 0}


def test_times_follow_the_costs(gemm, parts):
    """The tensor cores are the limit, and what they do takes as many cycles as the model says."""
    (matmul,) = gemm.plan.matmuls
    assert cycles_of_wgmma(matmul) == 64 * 128 * 64 / 2048
    slices, _, names = parts
    busy = [e for e in slices if names[e["pid"], e["tid"]].startswith("wgmma") and e["pid"] == 0]
    cycles = sum(1000 * each["dur"] for each in busy) * gemm.gigahertz
    assert cycles == pytest.approx(3 * 4 * cycles_of_wgmma(matmul), rel=0.01) and cycles < gemm.cycles
    parts = gemm.roles()
    assert set(parts) == {"load", "math"} and all(0 < sum(each.values()) <= 1 for each in parts.values())


@pytest.mark.parametrize(("k", "waits"), [(64, 0), (128, 4)])
def test_four_wgmmas_are_queued(k, waits):
    """Who issues the eight of a slot waits until four are over; the four of another slot are taken at once."""
    gemm = S.Gemm((64, 128, k), (1, 1))
    bound = gemm.bind(*(np.zeros((m, k), np.float16) for m in (64, 128)))
    machine, failure = timed(gemm, bound, 1, share_of(gemm, bound))
    first = next(step for step in machine.steps if isinstance(step.op, ops.Wgmma))
    (matmul,) = machine.layout.matmuls.values()
    assert failure is None and wgmmas_of(matmul) == k // 16
    assert first.end - first.began == H200.wgmma and first.began - first.came == waits * 64 * 128 * 16 / 2048


def test_a_copy_takes_what_memory_gives():
    """In a steady state, as long as its multiprocessor's share of the memory takes for what it reads and writes."""
    copy = S.Copy(tile=(4, 256), stages=40)
    copy.tiles = tp.tiles.PersistentTiles()
    found = copy.trace(np.zeros((640, 256), np.int32), clusters=1)
    share = H200.memory / H200.boosted / H200.multiprocessors
    assert found.cycles == pytest.approx(2 * 640 * 256 * 4 / share, rel=0.1)


def test_a_hang_is_drawn_up_to_where_it_hangs(hang):
    assert [each.args["kind"] for each in hang.findings] == ["MISSING_ARRIVAL", "DEADLOCK"]
    document = hang.timeline()
    slices, _, names = well_formed(document)
    stuck = [each for each in slices if each["cat"] == "stuck"]
    assert {names[0, each["tid"]] for each in stuck} == {"load (warp 0)", "keep (warp 1)"}
    deadlock = document["traceEvents"][-1]
    assert deadlock["ph"] == "i" and deadlock["args"]["kind"] == "DEADLOCK" and deadlock["args"]["fix"]
    (wait,) = (each for each in stuck if each["tid"] == deadlock["tid"])
    assert wait["ts"] == deadlock["ts"] and wait["args"]["waits for"] == "a free slot"


def test_what_cannot_be_traced_is_refused():
    copy = S.Copy()
    with pytest.raises(tp.InputError, match="elements to compute from"):
        copy.trace(np.zeros((0, 256), np.int32))
    with pytest.raises(tp.InputError, match="from 1 to 1024"):
        copy.trace(np.zeros((4, 256), np.int32), clusters=0)
    with pytest.raises(tp.InputError, match="one kernel"):
        S.SplitK(parts=2).trace(np.zeros((4, 256), np.float16), np.zeros((4, 256), np.float16))


# ---- the page ---------------------------------------------------------------------------------------------------------------


def test_the_page_needs_nothing_else(hang, tmp_path):
    path = tmp_path / "page.html"
    hang.write_timeline(path)
    text = path.read_text()
    assert text == page(hang.timeline()) and "//" not in text.replace("// ", "").replace(r"/^.*\/", "")
    evil = hang.timeline()
    evil["otherData"]["title"] = "<script>alert(1)</script>"
    evil["traceEvents"].append({**evil["traceEvents"][-1], "name": "</script><b>"})
    assert page(evil).count("<script>") == text.count("<script>") and page(evil).count("</script>") == 2


ACTS = """
<script>
const said = {}, canvas = document.getElementById("front"), back = document.getElementById("back");
const colours = () => {
  const all = back.getContext("2d").getImageData(0, 0, back.width, back.height).data, found = {};
  for (let i = 0; i < all.length; i += 4) {
    const c = [all[i], all[i + 1], all[i + 2]].join();
    found[c] = (found[c] || 0) + 1;
  }
  return found; };
const t = window.timeline, send = (kind, at, more) => {
  const Kind = kind === "wheel" ? WheelEvent : PointerEvent, where = { clientX: at[0], clientY: at[1], pointerId: 1 };
  canvas.dispatchEvent(new Kind(kind, { ...where, bubbles: true, cancelable: true, ...more })); };
const box = canvas.getBoundingClientRect(), frame = () => new Promise(done => setTimeout(done, 60));
canvas.setPointerCapture = () => {};
(async () => {
  await frame();
  said.lanes = t.lanes.size; said.found = t.findings.length; said.colours = colours();
  said.arrows = t.arrows.filter(a => a.source && a.target).length;
  said.opened = { ...t.view, at: (t.findings[0] || {}).ts, chosen: t.chosen && t.chosen.name };
  const lane = [...t.lanes.values()].find(l => l.name === LANE);
  const s = lane.slices.reduce((a, b) => a.dur > b.dur ? a : b), y = lane.y + 72 + (lane.tiles.length ? 13 : 0) + 6 + box.top;
  const place = () => [box.left + Math.min(t.x((s.ts + s.end) / 2), box.width - 4), y];
  t.zoomTo(s.ts - 2 * s.dur, s.end + 2 * s.dur); await frame();
  const before = t.view.to - t.view.from;
  send("pointermove", place()); said.hovered = t.hovered && t.hovered.name;
  said.tip = document.getElementById("tip").textContent;
  send("wheel", place(), { deltaY: -300 }); said.zoomed = (t.view.to - t.view.from) / before; await frame();
  send("pointerdown", place()); send("pointerup", place()); await frame();
  said.clicked = t.chosen && t.chosen.name; said.longest = s.name;
  said.panel = document.getElementById("selected").textContent;
  document.getElementById("all").click(); await frame();
  parent.postMessage([NUMBER, said], "*");
})();
</script>
"""


BOTH = """
<body style="margin: 0"><script>
const said = [];
addEventListener("message", e => {
  said[e.data[0]] = e.data[1];
  if (Object.keys(said).length === 2) document.body.dataset.said = JSON.stringify(said); });
</script>
<iframe src="0.html" width=1400 height=900 style="border: 0; display: block"></iframe>
<iframe src="1.html" width=1400 height=900 style="border: 0; display: block"></iframe>
"""


@pytest.fixture(scope="module")
def browsed(gemm, hang, tmp_path_factory):
    """What a browser says of both pages after some acts of a reader's, and the size of its screenshot. It starts once."""
    folder = tmp_path_factory.mktemp("pages")
    for i, (trace, lane) in enumerate(((gemm, "load (warp 0)"), (hang, "keep (warp 1)"))):
        acts = ACTS.replace("LANE", json.dumps(lane)).replace("NUMBER", str(i))
        (folder / f"{i}.html").write_text(page(trace.timeline()).replace("</body>", acts + "</body>"))
    path = folder / "both.html"
    path.write_text(BOTH)
    said, shot = browser.said_by(path, (1400, 1800))
    return *said, shot.stat().st_size


def drawn(said, colour):
    """Pixels of a colour."""
    return said["colours"].get(",".join(str(int(colour[i : i + 2], 16)) for i in (1, 3, 5)), 0)


@browser.needed
def test_a_browser_draws_a_gemm(browsed, parts):
    said, _, size = browsed
    slices, arrows, _ = parts
    assert said["lanes"] == len({(each["pid"], each["tid"]) for each in slices}) and said["arrows"] == len(arrows)
    assert said["found"] == 0 and said["opened"]["from"] < 0
    assert drawn(said, "#12a594") > 2000 and drawn(said, "#f2a33a") > 500, "waits for the tensor core, and for slots"
    assert drawn(said, "#2fae66") > 1000 and drawn(said, "#a9dcc3") > 500, "wgmma, and slots in use"
    assert said["hovered"] == said["clicked"] == said["longest"] and "waits for" in said["longest"]
    assert "ended by" in said["tip"] and "gemm.py" in said["panel"] and 0.4 < said["zoomed"] < 0.7 and size > 80_000


@browser.needed
def test_a_browser_opens_a_hang_where_it_hangs(browsed):
    _, said, _ = browsed
    opened = said["opened"]
    assert said["found"] == 2 and opened["from"] < opened["at"] < opened["to"] and "in vain" in opened["chosen"]
    assert drawn(said, "#d92d20") > 20, "where it happens is marked"
    assert "in vain" not in said["hovered"]
