"""Reports for programs and for readers: JSON, SARIF, and the excerpts of source lines."""

import json

import jsonschema
import pytest

from tests.check.mistakes.form import PROGRAMS, make
from tests.unit.test_command import SCHEMA
from tmapipe.check import excerpt, marked_in

TWICE = {
    "            slot.y.store(tile)\n": "            slot.y.store(tile)\n"
    "        with k.ring.consume() as again:\n            again.y.store(tile)\n"
}
#: What SARIF 2.1.0 (OASIS, 2020-03-27) asks of the parts that are written: sections 3.13, 3.14, 3.19, 3.27, 3.29, 3.30, 3.36.
REGION = {
    "type": "object",
    "properties": {each: {"type": "integer", "minimum": 1} for each in ("startLine", "startColumn", "endColumn")},
    "required": ["startLine"],
}
PHYSICAL = {
    "properties": {"artifactLocation": {"required": ["uri"]}, "region": REGION},
    "required": ["artifactLocation", "region"],
}
LOCATION = {"properties": {"physicalLocation": PHYSICAL}, "required": ["physicalLocation"]}
FLOW = {
    "required": ["threadFlows"],
    "properties": {"threadFlows": {"minItems": 1, "items": {"required": ["locations"]}}},
}
RESULT = {
    "properties": {
        "level": {"enum": ["none", "note", "warning", "error"]},
        "message": {"required": ["text"]},
        "locations": {"type": "array", "items": LOCATION},
        "relatedLocations": {"type": "array", "items": LOCATION},
        "codeFlows": {"type": "array", "items": FLOW},
    },
    "required": ["ruleId", "ruleIndex", "message", "level"],
}
SARIF = {
    "properties": {
        "version": {"const": "2.1.0"},
        "runs": {
            "items": {
                "required": ["tool", "results"],
                "properties": {
                    "tool": {"properties": {"driver": {"required": ["name", "rules"]}}, "required": ["driver"]},
                    "results": {"type": "array", "items": RESULT},
                },
            }
        },
    },
    "required": ["version", "runs"],
}


@pytest.fixture
def wrong(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = PROGRAMS["copy"]
    for old, new in TWICE.items():
        assert text.count(old) == 1
        text = text.replace(old, new)
    return make(text, tmp_path / "mine.py").check(), text


def test_json(wrong):
    report, _ = wrong
    document = json.loads(json.dumps(report.to_json()))
    jsonschema.validate(document, {"$ref": "#/$defs/report", "$defs": SCHEMA["$defs"]})
    assert not document["ok"] and [each["rule"] for each in document["findings"]] == ["TRIP_COUNTS", "DEADLOCK"]
    for said, finding in zip(document["findings"], report.findings, strict=True):
        assert [f"{each['file']}:{each['line']}" for each in said["where"]] == list(finding.where)
        assert (said["fix"], len(said["steps"])) == (finding.fix, len(finding.steps))


def test_sarif(wrong):
    report, text = wrong
    log = json.loads(json.dumps(report.to_sarif()))
    jsonschema.validate(log, SARIF)
    (run,) = log["runs"]
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    for result, finding in zip(run["results"], report.findings, strict=True):
        place = result["locations"][0]["physicalLocation"]
        assert rules[result["ruleIndex"]] == result["ruleId"] == finding.kind.name
        assert place["artifactLocation"] == {"uri": "mine.py", "uriBaseId": "SRCROOT"}
        region = place["region"]
        line = text.splitlines()[region["startLine"] - 1]
        assert line[region["startColumn"] - 1 : region["endColumn"] - 1] == "k.ring.consume()"
        assert finding.message in result["message"]["text"] and f"Fix: {finding.fix}." in result["message"]["text"]
        assert len(result["codeFlows"][0]["threadFlows"][0]["locations"]) == len(finding.steps)


def test_files_elsewhere_have_whole_uris(wrong, tmp_path, monkeypatch):
    report, _ = wrong
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    place = report.to_sarif()["runs"][0]["results"][0]["locations"][0]["physicalLocation"]
    assert place["artifactLocation"] == {"uri": (tmp_path / "mine.py").as_uri()}


@pytest.mark.parametrize(
    ("line", "words", "marked"),
    [
        ("with k.ring.consume() as slot:", ("ring",), "k.ring.consume()"),
        ("with k.one.produce() as a, k.other.consume() as b:", ("other",), "k.other.consume()"),
        ("slot.x.write(slot.y.read() * 2)", ("y",), "slot.y.read()"),
        ("slot.x.write(slot.y.read() * 2)", ("x",), "slot.x.write(slot.y.read() * 2)"),
        ("slot.x.write(slot.y.read() * 2)", ("none",), "slot.x.write(slot.y.read() * 2)"),
        ("größe = k.ring.wait()", ("ring",), "k.ring.wait()"),
        ("\tslot.x.load(tile,", ("x",), "slot.x.load(tile,"),
        ("for step in steps:", (), "for step in steps:"),
        ("def fill(self, k, tile):", (), "fill"),
        ("this is no Python", ("x",), "this is no Python"),
    ],
)
def test_carets_are_below_what_is_wrong(line, words, marked, tmp_path):
    path = tmp_path / "mine.py"
    above, below = ("if 1:", "     k=1)") if line.endswith(",") else ("", " pass" if line.endswith(":") else "")
    path.write_text(f"{above}\n{line}\n{below}\n")
    shown, first, last = marked_in(f"{path}:2", words)
    assert shown == line and shown[first:last] == marked
    text, carets = excerpt(f"{path}:2", words)
    assert text == f"     2 | {line}"
    assert carets[text.index(marked) :] == "^" * len(marked) and not carets[: text.index(marked)].strip(" |\t")


@pytest.mark.parametrize("where", ["nowhere.py:3", "<stdin>:1", "tmapipe/kernel.py:100000"])
def test_lines_that_cannot_be_read_have_no_excerpt(where):
    assert marked_in(where, ()) is None and excerpt(where, ()) == []
