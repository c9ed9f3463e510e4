"""Random configurations, planned and compiled: ``python -m tests.fuzz.compiling --count 400 --seed 1``.

What `plan()` accepts must compile for sm_90a, and spill at most with a warning. Results are added to a file, line by line, so
that a run that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import tmapipe as tp

__all__ = ["configuration", "judge", "table"]

S, E = tp.schedules, tp.epilogue
KINDS = (S.Gemm, S.Gemm, S.Gemm, S.PingPong, S.PingPong, S.GatedGemm, S.GatedGemm, S.GroupedGemm, S.SplitK, S.StreamK,
         S.AddParts, S.Copy)  # fmt: skip
TYPES = ("bf16", "bf16", "fp16", "fp8_e4m3", "tf32", "int8")
STORED = ("bf16", "bf16", "fp16", "fp32", "fp8_e4m3")
OPERANDS = {"bias": E.PerColumn, "scale": E.PerRow, "c": E.Matrix, "alpha": E.Scalar}
OUTCOMES = {
    "right": "compiles and spills nothing",
    "refused": "plan() refuses it, with an InputError",
    "warned": "spills, and plan() warned",
    "spills": "spills without a word",
    "fails": "does not compile",
}
GOOD = ("right", "refused", "warned")


def _epilogue(rng: random.Random) -> Any:
    """One for a single accumulator, or None."""
    function = rng.choice((tp.math.gelu, tp.math.silu, tp.math.relu, lambda x: x))
    names = rng.sample(list(OPERANDS), rng.choice((0, 0, 1, 1, 2, 4)))
    outputs = rng.sample(("sums", "rows", "columns"), rng.choice((0, 0, 0, 1, 2)))
    kinds = {"sums": E.Output("fp32"), "rows": E.RowSum(), "columns": E.ColumnSum()}
    dtype, stages = rng.choice((None, None, "fp32")), rng.choice((1, 2, 2))

    def combine(acc: Any, bias: Any = 0.0, scale: Any = 1.0, c: Any = 0.0, alpha: Any = 1.0) -> Any:
        value = function(acc * scale * alpha + bias) + c
        return {"d": value, **{n: acc if n == "sums" else value * value for n in outputs}} if outputs else value

    declared = {"operands": {n: OPERANDS[n]() for n in names}, "outputs": {n: kinds[n] for n in outputs}}
    return E.Epilogue(combine, dtype=dtype, stages=stages, **declared)


def _gated(rng: random.Random) -> Any:
    function = rng.choice((tp.math.gelu, tp.math.silu))
    if rng.random() < 0.5:
        return E.Epilogue(lambda gate, up: function(gate) * up, stages=rng.choice((1, 2)))
    operands = {"bias": E.PerColumn()}
    return E.Epilogue(lambda gate, up, bias: function(gate + bias) * up, operands=operands, stages=rng.choice((1, 2)))


def configuration(seed: int) -> tuple[str, type, dict[str, Any], dict[str, str]]:
    """(in words, the schedule's class, its arguments, element types) of this seed."""
    rng = random.Random(seed)
    kind: Any = rng.choice(KINDS)
    if kind in (S.AddParts, S.Copy):
        chosen: dict[str, Any] = {"tile": (rng.choice((1, 4, 8, 32)), rng.choice((64, 128, 256, 512)))}
        x = rng.choice(("fp32", "bf16", "fp16", "fp8_e4m3", "int32"))
        types = {"x": x} | ({"d": rng.choice(STORED)} if kind is S.AddParts else {})
    else:
        dtype, of_k = rng.choice(TYPES), rng.choice((1, 2, 2, 4))
        k = {"bf16": 32, "fp16": 32, "fp8_e4m3": 64, "tf32": 16, "int8": 64}[dtype] * of_k
        chosen = {
            "tile": (rng.choice((64, 128, 128, 192, 256)), 8 * rng.choice((*range(1, 33), 16, 16, 32, 32)), k),
            "cluster": rng.choice(((1, 1), (2, 1), (1, 2), (2, 2))),
        }
        if kind in (S.SplitK, S.StreamK):
            chosen["parts" if kind is S.SplitK else "shares"] = 3
        majors = [rng.choice(("k", "k", side)) if dtype in ("bf16", "fp16") else "k" for side in "mn"]
        given: dict[str, Any] = {"dtype": "tf32"} if dtype == "tf32" else {}
        chosen |= {name: tp.Operand(major, **given) for name, major in zip("ab", majors, strict=True)}
        if kind is not S.PingPong and rng.random() < 0.2:
            chosen["mainloop"] = tp.mainloop.Cooperative(promote=rng.random() < 0.5)
        if rng.random() < 0.7:
            chosen["epilogue"] = _gated(rng) if kind is S.GatedGemm else _epilogue(rng)
        names = ("a", "gate", "up") if kind is S.GatedGemm else ("a", "b")
        types = dict.fromkeys(names, "fp32" if dtype == "tf32" else dtype) | {"d": rng.choice(STORED)}
        types["d"] = rng.choice(("int32", "bf16")) if dtype == "int8" else types["d"]
    said = ", ".join(f"{name}={value!r}" for name, value in chosen.items())
    return f"{kind.__name__}({said}) of {types}", kind, chosen, types


def judge(seed: int) -> dict[str, Any]:
    """What becomes of the configuration of this seed."""
    text, kind, chosen, types = configuration(seed)
    found: dict[str, Any] = {"seed": seed, "text": text, "spill_bytes": 0, "why": ""}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            schedule = kind(**chosen)
            free = {name for name, part in schedule.declared.parts.items() if getattr(part, "dtype", None) is None}
            types = {name: dtype for name, dtype in types.items() if name in free}
            schedule.plan(types)
        except tp.InputError as error:
            return found | {"outcome": "refused", "why": str(error)}
    warned = [str(each.message) for each in caught if "spill" in str(each.message)]
    try:
        compiled = schedule.compile(types)
    except Exception as error:
        return found | {"outcome": "fails", "why": f"{type(error).__name__}: {str(error).strip()[:300]}"}
    spilled = compiled.resources.spill_bytes
    outcome = "right" if not spilled else "warned" if warned else "spills"
    return found | {"outcome": outcome, "spill_bytes": spilled, "why": " ".join(warned)}


def table(judged: list[dict[str, Any]]) -> str:
    """Configurations by outcome."""
    counts = Counter(each["outcome"] for each in judged)
    return "\n".join(f"{counts[outcome]:6} {outcome:8} {meaning}" for outcome, meaning in OUTCOMES.items())


def _run(seeds: list[int], jobs: int) -> Iterator[dict[str, Any]]:
    if jobs == 1:
        yield from map(judge, seeds)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(judge, seeds)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument(
        "--out", type=Path, help="a file of results, to which these are added; those in it are not run again"
    )
    given = parser.parse_args()
    seeds = [given.seed * 1_000_003 + i for i in range(given.count)]
    done: dict[int, dict[str, Any]] = {}
    if given.out and given.out.exists():
        done = {each["seed"]: each for each in map(json.loads, given.out.read_text().splitlines())}
    for found in _run([seed for seed in seeds if seed not in done], given.jobs):
        done[found["seed"]] = found
        if given.out:
            with given.out.open("a") as file:
                file.write(json.dumps(found) + "\n")
    judged = [done[seed] for seed in seeds]
    print(f"{given.count} configurations of seed {given.seed}\n{table(judged)}")
    bad = [each for each in judged if each["outcome"] not in GOOD]
    for each in bad:
        print(f"\n{each['outcome']}, {each['spill_bytes']} bytes: {each['why']}\n    {each['text']}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
