"""``python -m docs.ring``: writes docs/img/ring.svg, the ring of tutorial 3 in motion, from its timeline.

Two warps and two slots, each with what it does at that time. The picture needs no script: it is animated by SMIL.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.tutorials import normal, page

SECONDS = 18  # of a round of the picture
SLOTS = 10**9  # the first lane of a slot
COLOURS = {"filling": "#f5cf8f", "in use": "#a9dcc3", "free": "#ffffff", "waits": "#f6b3ac", "works": "#cfe3fb"}
TARGET = Path(__file__).resolve().parent / "img" / "ring.svg"


class State(NamedTuple):
    """What a warp, a slot or a barrier is from a time on (microseconds)."""

    begin: float
    text: str
    colour: str = "none"


def events() -> list[dict[str, Any]]:
    """The slices of the timeline: one cluster, six tiles."""
    traced = page(3).Copy().trace(normal("cpu", 192, 256), clusters=1)
    return [each for each in traced.timeline()["traceEvents"] if each["ph"] == "X"]


def warp(slices: Iterable[dict[str, Any]], lane: int) -> list[State]:
    """Of a warp: what it waits for, in turn."""
    states = [State(0.0, "starts", COLOURS["works"])]
    for each in slices:
        if each["tid"] == lane and each.get("cat") == "wait" and each["dur"] > 0.03:
            name, args = each["name"], each["args"]
            waits = (
                f"waits for {args['barrier'][5:]},\nparity {args['parity']}"
                if "parity" in args
                else "waits for its\nstores"
            )
            states.append(State(each["ts"], waits if "waits for" in name else name, COLOURS["waits"]))
            states.append(State(each["ts"] + each["dur"], "works", COLOURS["works"]))
    return states


def slot(slices: Iterable[dict[str, Any]], number: int) -> tuple[list[State], list[State]]:
    """Of a slot: what is in it; and in which phase its two mbarriers are."""
    held, phases, full, free = (
        [State(0.0, "free", COLOURS["free"])],
        [State(0.0, "full: phase 0, free: phase 0")],
        0,
        0,
    )
    for each in slices:
        if each["tid"] != SLOTS + number:
            continue
        kind, end = each["name"], each["ts"] + each["dur"]
        held.append(State(each["ts"], f"tile {each['args']['iteration']}\n{kind}", COLOURS[kind]))
        full, free = full + (kind == "filling"), free + (kind == "in use")
        phases.append(State(end, f"full: phase {full}, free: phase {free}"))
        if kind == "in use":
            held.append(State(end, "free", COLOURS["free"]))
    return held, phases


def animate(name: str, times: Sequence[float], values: Sequence[str], end: float) -> str:
    """An attribute that takes *values* at *times*, again and again."""
    at = ";".join(f"{min(time / end, 1):.4f}" for time in times)
    timing = f'dur="{SECONDS}s" repeatCount="indefinite" calcMode="discrete"'
    return f'<animate attributeName="{name}" {timing} keyTimes="{at}" values="{";".join(values)}"/>'


def texts(states: Sequence[State], x: float, y: float, end: float) -> str:
    """The text of each state, shown while it lasts. The one in the middle of the run is shown where nothing moves."""
    drawn = []
    shown = max(i for i, state in enumerate(states) if state.begin <= end / 2)
    for i, state in enumerate(states):
        until = states[i + 1].begin if i + 1 < len(states) else end
        lines = state.text.split("\n")
        spans = "".join(f'<tspan x="{x}" dy="{0 if j == 0 else 19}">{line}</tspan>' for j, line in enumerate(lines))
        times, values = [0.0, state.begin, until], ["hidden", "visible", "hidden"]
        if state.begin == 0:
            times, values = times[1:], values[1:]
        if until >= end:
            times, values = times[:-1], values[:-1]
        visible = "visible" if i == shown else "hidden"
        moves = animate("visibility", times, values, end)
        drawn.append(f'<text x="{x}" y="{y - 9 * (len(lines) - 1)}" visibility="{visible}">{spans}{moves}</text>')
    return "\n".join(drawn)


def box(title: str, states: Sequence[State], place: tuple[int, int, int, int], end: float) -> str:
    """A box with a title above it, whose colour and text are those of the state."""
    x, y, wide, high = place
    fills = animate("fill", [state.begin for state in states], [state.colour for state in states], end)
    middle = states[max(i for i, state in enumerate(states) if state.begin <= end / 2)].colour
    return (
        f'<text x="{x + wide / 2}" y="{y - 9}" font-weight="bold">{title}</text>\n'
        f'<rect x="{x}" y="{y}" width="{wide}" height="{high}" rx="6" stroke="#44546a" fill="{middle}">{fills}</rect>\n'
        f"{texts(states, x + wide / 2, y + high / 2 + 5, end)}"
    )


def picture() -> str:
    """The picture, as the text of an SVG file."""
    slices = events()
    end = max(each["ts"] + each["dur"] for each in slices)
    parts = [
        box("load (warp 0)", warp(slices, 0), (20, 105, 170, 70), end),
        box("store (warp 1)", warp(slices, 1), (530, 105, 170, 70), end),
    ]
    for number, y in enumerate((40, 165)):
        held, phases = slot(slices, number)
        parts += [box(f"slot {number}", held, (275, y, 170, 60), end), texts(phases, 360, y + 80, end)]
    bar = f'<animate attributeName="width" dur="{SECONDS}s" repeatCount="indefinite" from="0" to="680"/>'
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 720 300"
 font-family="Helvetica, Arial, sans-serif" font-size="15">
<title>A ring of two slots: who waits for which phase, and what is in each slot, while six tiles are copied</title>
<defs><marker id="a" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" markerHeight="8" orient="auto">\
<path d="M0 0L10 5L0 10z" fill="#44546a"/></marker></defs>
<rect width="720" height="300" fill="#ffffff"/>
<g stroke="#44546a" stroke-width="1.6" fill="none">
<path d="M190 130C230 130 230 70 271 70" marker-end="url(#a)"/>
<path d="M190 150C230 150 230 195 271 195" marker-end="url(#a)"/>
<path d="M445 70C490 70 490 130 526 130" marker-end="url(#a)"/>
<path d="M445 195C490 195 490 150 526 150" marker-end="url(#a)"/>
<path d="M615 175C615 285 105 285 105 179" stroke-dasharray="5 4" marker-end="url(#a)"/>
</g>
<g text-anchor="middle" fill="#1a1a1a">
<text x="218" y="80">loads</text><text x="503" y="80">full</text><text x="360" y="278">free</text>
{chr(10).join(parts)}
</g>
<rect x="20" y="288" width="680" height="5" fill="#eef1f7"/>
<rect x="20" y="288" width="340" height="5" fill="#00897b">{bar}</rect>
</svg>
"""


if __name__ == "__main__":
    TARGET.write_text(picture())
