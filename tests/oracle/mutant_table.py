"""What was found of mutants, as rows by schedule and rule, as text and as JSON, and why some mutants are right."""

from __future__ import annotations

import datetime
import functools
import json
import os
import platform
import subprocess
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs

import tmapipe
from tests.oracle.mutant_changes import rule_of
from tests.oracle.mutant_sites import Change
from tmapipe.isa import (
    Access,
    Accumulators,
    Arm,
    Arrive,
    ArriveAt,
    AwaitGrid,
    AwaitGroup,
    EndGroup,
    FenceInit,
    FenceProxy,
    Group,
    Init,
    SetRegisters,
    Start,
    SyncLanes,
    Use,
    Wait,
    WaitAt,
    declared,
)
from tmapipe.model.layout import Kind

__all__ = ["Outcome", "Row", "read", "show", "table", "text_of", "why_equivalent", "write"]


@attrs.frozen
class Outcome:
    """What was found of one mutant. breakable: whether some interleaving breaks (None: the oracle gave up); killed: whether
    the linear check rejects it; false_alarm: whether it does so on a problem on which no interleaving breaks; steps: that the
    oracle took; exhaustive, linear: kinds of failures that each found."""

    schedule: str
    change: Change
    breakable: bool | None
    killed: bool
    false_alarm: bool
    steps: int
    exhaustive: frozenset[Kind] = frozenset()
    linear: frozenset[Kind] = frozenset()

    @property
    def wrong(self) -> str:
        """What the linear check or the oracle did not decide as it should; empty if nothing."""
        if self.false_alarm:
            return "false alarm"
        if self.breakable is None:
            return "undecided"
        return "missed" if self.breakable and not self.killed else ""


@attrs.define
class Row:
    """One rule in one schedule. total: mutants; breakable: those that some interleaving breaks; killed: those of them that
    the linear check rejects; false_alarms: rejected though no interleaving breaks; undecided: the oracle gave up."""

    schedule: str
    rule: str
    total: int = 0
    breakable: int = 0
    killed: int = 0
    false_alarms: int = 0
    undecided: int = 0

    def add(self, outcome: Outcome) -> None:
        self.total += 1
        self.breakable += outcome.breakable is True
        self.killed += outcome.breakable is True and outcome.killed
        self.false_alarms += outcome.false_alarm
        self.undecided += outcome.breakable is None

    @property
    def rate(self) -> str:
        return f"{100 * self.killed / self.breakable:.1f}%" if self.breakable else "-"


def table(outcomes: Sequence[Outcome], by: str = "both") -> list[Row]:
    """by: "both", "schedule" or "rule": what a row is for."""
    rows: dict[tuple[str, str], Row] = {}
    for outcome in outcomes:
        key = (outcome.schedule if by != "rule" else "all", rule_of(outcome.change) if by != "schedule" else "all")
        rows.setdefault(key, Row(*key)).add(outcome)
    return list(rows.values())


def show(outcomes: Sequence[Outcome]) -> str:
    """All rows, then those by rule, by schedule, and the total."""
    lines = [
        f"{'schedule':<16} {'rule':<19} {'total':>6} {'breakable':>10} {'killed':>7} {'rate':>7} {'false alarms':>13}"
    ]
    total = Row("all", "all")
    for outcome in outcomes:
        total.add(outcome)
    for rows in (table(outcomes), table(outcomes, "rule"), table(outcomes, "schedule"), [total]):
        for row in rows:
            lines.append(
                f"{row.schedule:<16} {row.rule:<19} {row.total:>6} {row.breakable:>10} {row.killed:>7} {row.rate:>7} "
                f"{row.false_alarms:>13}" + (f"  ({row.undecided} undecided)" if row.undecided else "")
            )
        lines.append("")
    return "\n".join(lines[:-1])


EQUIVALENT = ("schedule", "reason", "total")  # of the mutants that cannot go wrong, why, and how many


def write(path: Path, outcomes: Sequence[Outcome], seconds: float, append: bool = False, rule: str = "") -> None:
    """Rows, and how many mutants are equivalent for which reason.

    Args:
        append: After what a file there has of other schedules.
        rule: Of what rules alone the outcomes are: the file's rows of other rules stay, also those of these schedules.

    Raises:
        ValueError: The file has rows of such a rule already, whose mutants would be counted twice.
    """
    before: dict[str, Any] = read(path) if append and path.exists() else {}
    mine = set() if rule else {outcome.schedule for outcome in outcomes}
    others = {
        name: [one for one in before.get(name, []) if one["schedule"] not in mine] for name in ("rows", "equivalent")
    }
    rows = table(outcomes)
    if twice := {(one["schedule"], one["rule"]) for one in others["rows"]} & {(row.schedule, row.rule) for row in rows}:
        raise ValueError(f"{path} has {sorted(twice)} already: judge the whole schedules, without a rule")
    spent = before.get("method", {"seconds": 0, "steps": 0})
    right = Counter((o.schedule, why_equivalent(o)) for o in outcomes if o.breakable is False)
    for one in others["equivalent"] if rule else ():
        right[one["schedule"], one["reason"]] += one["total"]
    others["equivalent"] = [] if rule else others["equivalent"]
    equivalent = [{"schedule": name, "reason": reason, "total": total} for (name, reason), total in right.items()]
    data = {
        "suite": "mutants",
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "gpu": "none",
        "versions": {"python": platform.python_version(), "tmapipe": tmapipe.__version__},
        "commit": ", ".join(dict.fromkeys([*before.get("commit", "").split(", "), commit()])).lstrip(", "),
        "method": {
            "seconds": round(spent["seconds"] + seconds, 1),
            "steps": spent["steps"] + sum(o.steps for o in outcomes),
        },
        "equivalent": [*others["equivalent"], *equivalent],
        "rows": [*others["rows"], *(attrs.asdict(row) for row in rows)],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text_of(data))


def text_of(data: dict[str, Any]) -> str:
    """As JSON: by schedule a row a line, as a list of what "fields" names, and of "equivalent" of what `EQUIVALENT` names."""
    fields = [field.name for field in attrs.fields(Row)]
    lists = {"equivalent": EQUIVALENT, "rows": fields}
    text = json.dumps({**{name: data[name] for name in data if name not in lists}, "fields": fields[1:]}, indent=1)
    for name, (_, *of) in lists.items():
        groups: dict[str, list[str]] = {}
        for row in data[name]:
            groups.setdefault(row["schedule"], []).append(
                json.dumps([row[field] for field in of], separators=(",", ":"))
            )
        lines = (f"{json.dumps(schedule)}: [\n" + ",\n".join(rows) + "]" for schedule, rows in groups.items())
        text = text.removesuffix("\n}") + f',\n "{name}": {{\n' + ",\n".join(lines) + "\n }\n}"
    return text + "\n"


def read(path: Path) -> dict[str, Any]:
    """What `text_of` has written, each row as a dictionary."""
    data: dict[str, Any] = json.loads(path.read_text())
    lists = {"equivalent": EQUIVALENT[1:], "rows": data.pop("fields")}
    for name, of in lists.items():
        data[name] = [
            {"schedule": schedule, **dict(zip(of, row, strict=True))}
            for schedule, rows in data[name].items()
            for row in rows
        ]
    return data


@functools.cache
def commit() -> str:
    """The commit, short; TMAPIPE_COMMIT says it where there is no repository."""
    found = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return found.stdout.strip() or os.environ.get("TMAPIPE_COMMIT", "")


# ---- equivalent mutants -----------------------------------------------------------------------------------------------


def why_equivalent(outcome: Outcome) -> str:
    """Why a mutant that the oracle calls right is right."""
    return next(reason for test, reason in _REASONS if test(outcome.change))


def _has(change: Change, *kinds: type) -> bool:
    """Whether the operation has such an effect."""
    return any(isinstance(effect, kinds) for effect in declared(change.site.op).effects)


def _is(how: str, *kinds: type) -> Callable[[Change], bool]:
    return lambda c: c.how == how and (not kinds or _has(c, *kinds))


def _is_fence(change: Change) -> bool:
    return _has(change, FenceInit, FenceProxy) or any(
        isinstance(effect, Accumulators) and effect.use is Use.FENCE for effect in declared(change.site.op).effects
    )


def _waits(change: Change) -> bool:
    return _has(change, Wait, ArriveAt, WaitAt, SyncLanes, AwaitGroup)


_REASONS: tuple[tuple[Callable[[Change], bool], str], ...] = (
    (lambda c: c.how == "double" and _is_fence(c), "a second fence orders nothing more"),
    (_is("double", AwaitGroup), "the groups have ended already"),
    (_is("double", Wait), "the same phase is seen complete again"),
    (_is("double", ArriveAt, SyncLanes), "all participants synchronize twice"),
    (_is("double", AwaitGrid), "the kernels before have ended already"),
    (_is("double", EndGroup), "an empty group, which no wait depends on"),
    (_is("double", SetRegisters), "the warp has as many registers already"),
    (_is("move"), "the two operations do not depend on each other's order"),
    (_is("shift stage", Init), "the barriers of the array are initialized alike, in another order"),
    (
        _is("swap read"),
        "to wait for a group to complete includes its reads, and at the end only the reads must be over: writes to global "
        "memory outlive the CTA",
    ),
    (_is("shift id"), "all that take part meet at another barrier, which is free"),
    (_is("shift share"), "the CTAs exchange the shares that they load"),
    (
        lambda c: _has(c, Start) and _has(c, Accumulators),
        "the tensor core reads slots that nobody overwrites then: only the result is another",
    ),
    (
        lambda c: _has(c, Start),
        "as many bytes move, at times when nobody else uses theirs: only the result is another",
    ),
    (lambda c: _has(c, Access), "the slot is not in use then: only the result is another"),
    (
        lambda c: _has(c, SetRegisters) and c.by <= 0 and c.how != "drop",
        "the pool has the registers, and how many the code needs is the compiler's matter",
    ),
    (lambda c: _has(c, SetRegisters), "the pool has the registers for the others"),
    (lambda c: c.how == "shift pending" and c.by < 0, "waits for more than is needed"),
    (
        lambda c: c.warps != "all" and any(e.group is Group.WGMMA for e in declared(c.site.op).all(AwaitGroup)),
        "the other warps of the warpgroup wait for the same wgmmas, and the next phase for all of them",
    ),
    (lambda c: c.site.tail and _waits(c), "what it waits for is implied by another wait"),
    (lambda c: c.when == "first" and _waits(c), "nothing has been there before that it must wait for"),
    (_waits, "what it orders is not used again, or is ordered by another wait"),
    (_is_fence, "no access follows that it must order"),
    (
        lambda c: _has(c, EndGroup),
        "what it should have closed ends with the next group, which is waited for in time",
    ),
    (lambda c: _has(c, Arrive, Arm, Init), "nobody waits for that phase any more"),
    (lambda c: True, "no interleaving of the small problems breaks"),
)
