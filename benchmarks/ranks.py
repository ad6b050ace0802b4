"""Scripts for one device on two ranks: the same training? And how fast beside an expert's DDP?

python benchmarks/ranks.py                    # both parts, all scripts: half an hour
python benchmarks/ranks.py --part same           # goes on where an earlier run was broken off
python benchmarks/ranks.py --part same --again plain gan
python benchmarks/ranks.py --part speed --pairs 14

Same: each script of tests/jobs and strangers as one process and as two ranks, with the same random
numbers; the losses that both print; and what the trial of `flatout run --ranks 2` says of it: the
speed-up, or why it is not trained on ranks. Speed: `rank_programs/one_device.py` on two ranks of
one thread each, in turn with `rank_programs/expert_ddp.py` under torchrun; and one process with two
threads.

What stands in the results is not run again without --again; nothing takes longer than its limit.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import breadth
import record

from flatout.nouns.ranks import RANKS_TRIAL
from flatout_agent import wire

sys.path.insert(0, str(record.REPOSITORY / "tests"))
import ranked

STEP = re.compile(r"step (\d+) loss (\S+)")
STEPS = 12
PROGRAMS = Path(__file__).parent / "rank_programs"
MODELS = {"transformer": ("32", "24"), "mlp": ("512", "80"), "resnet": ("64", "24")}
"""Batch and steps: a few seconds each."""
LIMIT_S = 280.0
"""For each way of running a script, and for its trial."""
TRIAL_STEPS = 20_000
"""A job of the tests takes milliseconds a step: enough of them for a trial."""
FLATOUT = [sys.executable, "-m", "flatout"]
TRIALS = f".flatout/runs/*-ranks/{RANKS_TRIAL}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", choices=("same", "speed"), action="append")
    parser.add_argument("--pairs", type=int, default=14)
    parser.add_argument("--again", action="store_true", help="run also what is in the results")
    parser.add_argument("names", nargs="*", default=[*breadth.strangers(), *breadth.JOB_NAMES])
    arguments = parser.parse_args()
    parts = arguments.part or ["same", "speed"]
    figures: dict[str, Any] = earlier()
    if "same" in parts:
        rows = figures.setdefault("scripts", {})
        for name in arguments.names:
            row = {} if arguments.again else rows.get(name, {})
            if "outcome" not in row:
                row = same(name)
            elif "trial" in row:
                continue
            rows[name] = {**row, "trial": tried(name)}
            sys.stderr.write(f"{name}: {rows[name]}\n")
            record.write("ranks", figures)  # the rows so far are not lost with the last one
    if "speed" in parts:
        figures["speed"] = {model: speed(model, arguments.pairs) for model in MODELS}
        record.write("ranks", figures)
        record.write("ranks", figures)


def earlier() -> dict[str, Any]:
    path = record.RESULTS / "ranks.json"
    return json.loads(path.read_text(encoding="utf-8"))["figures"] if path.exists() else {}


def same(name: str) -> dict[str, Any]:
    """One script: the losses of one process and of two ranks."""
    with tempfile.TemporaryDirectory() as folder:
        words = [str(script(name)), "--steps", str(STEPS)]
        try:
            alone = ranked.run(Path(folder), words, 1, LIMIT_S, fork=False)
            together = ranked.run(Path(folder), words, 2, LIMIT_S, fork=False)
        except subprocess.TimeoutExpired:
            return {"outcome": "no end", "reason": f"more than {LIMIT_S:.0f} s"}
    if any(together.codes):
        refusals = [refusal.reason for refusal in together.refused]
        faults = [fault.message for fault in together.faults]
        outcome = "refused" if refusals else "failed"
        return {"outcome": outcome, "reason": (refusals or faults or together.errors)[0][-300:]}
    first, second = losses(alone.outputs[0]), losses(together.outputs[0])
    regions = [region for region in together.seen.regions if region.training]
    return {
        "outcome": outcome_of(regions),
        "steps": len(first),
        "difference": difference(first, second),
        "random": any(region.random for region in regions),
        "gradient_error": together.seen.gradient_error,
        "reason": "; ".join(sorted({r.reason for r in regions if not r.cut})),
    }


def tried(name: str) -> dict[str, Any]:
    """The row of the trial before a run on two ranks; `error` says why there is no speed-up."""
    path = script(name)
    own = [] if path.parent == breadth.STRANGERS else ["--steps", str(TRIAL_STEPS)]
    with tempfile.TemporaryDirectory() as folder:
        return trial_of([str(path), *own], trial_environment(folder), folder)


def script(name: str) -> Path:
    path = breadth.STRANGERS / f"{name}.py"
    return path if path.exists() else breadth.JOBS / f"{name}.py"


def outcome_of(regions: list[wire.RegionSeen]) -> str:
    cut = {region.cut for region in regions}
    return {(True,): "rows", (False,): "whole", (): "no model"}.get(tuple(cut), "partly")


def losses(output: str) -> list[float]:
    found = dict(STEP.findall(output))
    return [float(found[step]) for step in sorted(found, key=int)][:STEPS]


def difference(first: list[float], second: list[float]) -> float | None:
    """The largest relative one; None: the programs did not print the same steps."""
    if not first or len(first) != len(second):
        return None
    pairs = zip(first, second, strict=True)
    return max(abs(a - b) / max(abs(a), 1e-12) for a, b in pairs)


def speed(model: str, pairs: int) -> dict[str, Any]:
    """Step times in turn: two ranks, the expert's, one process with two threads."""
    turns = []
    for _ in range(pairs):
        turns.append((on_ranks(model), by_expert(model), by_one(model)))
        sys.stderr.write(f"{model}: {turns[-1]}\n")
    return {
        "ms": [round(statistics.median(column), 2) for column in zip(*turns, strict=True)],
        "against_expert": interval([expert / ours for ours, expert, _ in turns]),
        "against_one_process": interval([one / ours for ours, _, one in turns]),
        "pairs": len(turns),
    }


def trial_environment(folder: str) -> dict[str, str]:
    """Without a number of threads, and with lines that are not broken."""
    environ = dict(os.environ, FLATOUT_CACHE=folder, COLUMNS="2000")  # a message is one line
    environ.pop("OMP_NUM_THREADS", None)
    return environ


def trial_of(words: list[str], environ: dict[str, str], folder: str) -> dict[str, Any]:
    """The row of two ranks in the trial of `flatout run`; the run after the trial is ended."""
    command = [*FLATOUT, "run", "--no-plan", "--ranks", "2", "--", *words]
    before = set(Path(folder).glob(TRIALS))
    deadline = time.monotonic() + LIMIT_S
    with tempfile.TemporaryFile() as errors:
        streams = {"stdout": subprocess.DEVNULL, "stderr": errors}
        process = subprocess.Popen(command, env=environ, cwd=folder, **streams)
        while process.poll() is None and time.monotonic() < deadline:
            if set(Path(folder).glob(TRIALS)) - before:
                break
            time.sleep(0.2)
        late = process.poll() is None and not set(Path(folder).glob(TRIALS)) - before
        end(process)
        errors.seek(0)
        said = errors.read().decode(errors="replace")
    new = set(Path(folder).glob(TRIALS)) - before
    if not new:
        return no_trial(f"no trial within {LIMIT_S:.0f} s" if late else last_message(said))
    scaling = json.loads(new.pop().read_text(encoding="utf-8"))
    row = scaling["rows"][-1]
    keys = ("step_ms", "speedup", "interval", "losses", "losses_reason")
    figures = {key: row[key] for key in keys}
    return {**figures, "written_ms": scaling["written_ms"], "error": row["error"] or None}


def end(process: subprocess.Popen[bytes]) -> None:
    """Ask the run to end; its own processes end with it."""
    process.terminate()
    try:
        process.wait(30.0)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def no_trial(why: str) -> dict[str, Any]:
    return {"speedup": None, "interval": None, "error": why}


def last_message(said: str) -> str:
    """Why flatout has made no trial, from all that was written to stderr."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("error: ")]
    warnings = [line for line in lines if line.startswith("warning: ")]
    line = (errors or warnings or lines or ["it ended without a trial"])[-1]
    return line.removeprefix("error: ").removeprefix("warning: ")[:300]


def words_of(program: str, model: str) -> list[str]:
    batch, steps = MODELS[model]
    return [str(PROGRAMS / program), "--model", model, "--batch", batch, "--steps", steps]


def step_ms(output: str) -> float:
    found = re.search(r"STEP_MS (\S+)", output)
    assert found is not None, output[-1000:]
    return float(found[1])


def on_ranks(model: str) -> float:
    return ranks_ms(words_of("one_device.py", model))


def ranks_ms(words: list[str]) -> float:
    """A step of a program on two ranks, as it prints it."""
    with tempfile.TemporaryDirectory() as folder:
        done = ranked.run(Path(folder), words, 2, LIMIT_S, fork=False)
    assert done.codes == (0, 0), (done.refused, done.faults, done.errors)
    return step_ms(done.outputs[0])


def by_expert(model: str) -> float:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return step_ms(program([*launcher, *words_of("expert_ddp.py", model)], 1))


def by_one(model: str) -> float:
    return step_ms(program(words_of("one_device.py", model), 2))


def program(words: list[str], threads: int) -> str:
    environ = dict(os.environ, OMP_NUM_THREADS=str(threads))
    command = [sys.executable, *words]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    return done.stdout


def interval(ratios: list[float]) -> dict[str, Any]:
    """The median with its 95% interval, by resampling."""
    dice = random.Random(0)
    medians = sorted(statistics.median(dice.choices(ratios, k=len(ratios))) for _ in range(4000))
    return {
        "median": round(statistics.median(ratios), 3),
        "interval": [round(medians[100], 3), round(medians[3899], 3)],
        "range": [round(min(ratios), 3), round(max(ratios), 3)],
    }


if __name__ == "__main__":
    main()
