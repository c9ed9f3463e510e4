"""Random right calls on a GPU: ``python -m tests.fuzz.valid --calls 1000 --seed 1``; ``--device cpu`` makes them on the model.

Shapes, strides, offsets, batches, streams, CUDA graphs, outputs given or made. Results are compared with float64, and what
lies around each output must stay as it was. With ``--bad``, one input of each call is wrong, and it must be refused.
"""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import random
import sys
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np
import torch

import tmapipe as tp
from tests.fuzz.outcomes import Wrong
from tests.fuzz.schedules import SCHEDULES, Schedule

__all__ = ["BAD", "bad_call", "valid_call"]

TYPES = {
    "bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "int8": torch.int8, "int32": torch.int32,
    "fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2,
}  # fmt: skip
GUARD = 64  # elements on each side of an output, whose rows are whole units of 16 bytes


def _drawn(
    rng: random.Random, device: str, most: int
) -> tuple[Schedule, dict[str, np.ndarray], dict[str, torch.Tensor]]:
    """A schedule, and its inputs as arrays and as tensors that are views of larger ones, some of them."""
    which = rng.choice(SCHEDULES)
    sizes = {"l": rng.randint(1, 4), "s": rng.randint(1, 4), "m": rng.randint(1, most)}
    sizes |= {dim: 16 * rng.randint(1, most // 16) for dim in "nk"}
    dtype = rng.choice(which.dtypes)
    arrays = which.tensors(sizes, dtype, np.random.default_rng(rng.randrange(1 << 30)))
    tensors = {}
    for name, array in arrays.items():
        kind = TYPES["int32" if name == "offsets" else dtype]
        values = torch.tensor(array.astype(np.float32)).to(kind)
        if array.ndim > 1 and rng.random() < 0.5:  # of a wider matrix, from its 17th column on
            wide = torch.zeros((*array.shape[:-1], array.shape[-1] + 48), dtype=kind, device=device)
            wide[..., 16 : 16 + array.shape[-1]] = values.to(device)
            tensors[name] = wide[..., 16 : 16 + array.shape[-1]]
        else:
            tensors[name] = values.to(device)
    return which, arrays, tensors


def _guarded(result: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Like *result*, with guards before and behind each row; and all of it."""
    whole = torch.full((*result.shape[:-1], result.shape[-1] + 2 * GUARD), 7, device=result.device, dtype=torch.float32)
    whole = whole.to(result.dtype)
    return whole[..., GUARD : GUARD + result.shape[-1]], whole


def _check(which: Schedule, arrays: dict[str, np.ndarray], result: torch.Tensor) -> None:
    expected = which.expected(arrays)
    assert expected is not None
    value, size = expected
    step = {torch.bfloat16: 2**-8, torch.float16: 2**-11, torch.float8_e4m3fn: 2**-4, torch.float8_e5m2: 2**-3}
    found = result.float().cpu().double().numpy()
    if found.shape != value.shape:
        raise Wrong(f"{which.name}: shape {found.shape}, not {value.shape}")
    rounding = step.get(result.dtype, 2**-20) * np.abs(value) + 2**-18 * size + 1e-6
    if not (np.abs(found - value) <= rounding).all():
        raise Wrong(f"{which.name} of {result.dtype}: off by {np.abs(found - value).max()}")


def valid_call(seed: int, device: str = "cuda", most: int = 600) -> str:
    """Makes the call of this seed. Returns what it was, in words. Raises `Wrong` for a wrong result or a guard overwritten."""
    rng = random.Random(seed)
    which, arrays, tensors = _drawn(rng, device, most)
    run: Callable[..., Any] = which.schedule
    how = rng.choice(("made", "given", "given") if device == "cpu" else ("made", "given", "given", "stream", "graph"))
    text = f"{which.name}, {how}: " + ", ".join(f"{name} {tuple(t.shape)} {t.stride()}" for name, t in tensors.items())
    first = run(*tensors.values())
    _check(which, arrays, first)
    if how == "made":
        return text
    out, whole = _guarded(first)
    if which.name == "GroupedGemm":
        out.copy_(first)  # rows beyond the groups are left as they are
    before = whole.clone()
    if how == "given":
        run(*tensors.values(), out=out)
    else:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            run(*tensors.values(), out=out)  # compiled and allocated before anything is captured
            if how == "graph":
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, stream=side):
                    run(*tensors.values(), out=out)
                graph.replay()
        torch.cuda.current_stream().wait_stream(side)
    _check(which, arrays, out)
    for part in (slice(None, GUARD), slice(GUARD + out.shape[-1], None)):
        if not torch.equal(whole[..., part].float(), before[..., part].float()):
            raise Wrong(f"{text}: bytes beside the output")
    return text


def _narrower(tensors: dict[str, torch.Tensor], name: str) -> None:
    tensors[name] = tensors[name][..., :-8]


def _elsewhere(tensors: dict[str, torch.Tensor], name: str) -> None:
    tensors[name] = tensors[name].to("meta")


def _of_doubles(tensors: dict[str, torch.Tensor], name: str) -> None:
    tensors[name] = tensors[name].double()


def _misplaced(tensors: dict[str, torch.Tensor], name: str) -> None:
    wide = torch.zeros((*tensors[name].shape[:-1], tensors[name].shape[-1] + 32), dtype=tensors[name].dtype)
    tensors[name] = wide.to(tensors[name].device)[..., 1 : 1 + tensors[name].shape[-1]]


def _spread(tensors: dict[str, torch.Tensor], name: str) -> None:
    tensors[name] = tensors[name].repeat_interleave(2, -1)[..., ::2]


def _learning(tensors: dict[str, torch.Tensor], name: str) -> None:
    tensors[name] = tensors[name].to(torch.bfloat16).requires_grad_()


BAD = {each.__name__: each for each in (_narrower, _elsewhere, _of_doubles, _misplaced, _spread, _learning)}


def bad_call(seed: int, device: str = "cuda", most: int = 200) -> str:
    """Makes a call with one wrong input, of at least two inputs. Raises `Wrong` unless it is refused before a launch."""
    rng = random.Random(seed)
    while True:
        which, _, tensors = _drawn(rng, device, most)
        if len(tensors) > 1:
            break
    name = rng.choice([name for name in tensors if name != "offsets"])
    how = rng.choice(list(BAD))
    BAD[how](tensors, name)
    text = f"{which.name}, {name} {how.strip('_')}: {tuple(tensors[name].shape)} {tensors[name].stride()}"
    try:
        which.schedule(*tensors.values())
    except tp.InputError:
        return text
    raise Wrong(f"{text}: not refused")


def _made(bad: bool, device: str, seed: int) -> tuple[int, str]:
    """The call of this seed: "" if it went as it should, or why not."""
    try:
        (bad_call if bad else valid_call)(seed, device)
        return seed, ""
    except Exception as error:
        return seed, f"{type(error).__name__}: {error}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="processes, each of which compiles what it calls")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--bad", action="store_true", help="calls that must be refused")
    given = parser.parse_args()
    good, counts = "refused" if given.bad else "right", Counter[str]()
    seeds = [given.seed * 1_000_003 + i for i in range(given.calls)]
    run = functools.partial(_made, given.bad, given.device)
    with ProcessPoolExecutor(given.jobs, multiprocessing.get_context("spawn")) as pool:
        for seed, why in pool.map(run, seeds, chunksize=4):
            counts["wrong" if why else good] += 1
            if why:
                print(f"{seed}: {why}", flush=True)
    print(f"{given.calls} calls of seed {given.seed}: {dict(counts)}")
    return 1 if counts["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
