"""What `flatout export` gains on twelve models, whether its choice is the best, and its guard.

Three parts, each resumable: what stands in the results is not done again. Without a name, all.

    python benchmarks/export.py [build] [MODEL ...]   build and verify (minutes for each model)
    python benchmarks/export.py [time] [MODEL ...]    time all builds twice, in turns; run it alone
    python benchmarks/export.py [guard]               planted wrong builds and sound ones

`time` first chooses as the command does, then times every build anew: the time of the chosen one
must be within 3 % of the best one's in the second measurement. torch.compile is left out unless
--all is given: it takes most of the time and was not chosen.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import math
import shutil
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import export_models
import numpy
import planted_exports
import record
import torch

from flatout.exporting import candidates, choosing, export, timing, worker
from flatout.nouns.exported import BuildPrecision, BuildState, ExportSettings, Goal
from flatout_programs.exporting import guard, prepare
from flatout_programs.exporting.calls import CallFiles

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))
RESULTS = ROOT / "benchmarks/results/export.json"
WORK = ROOT / ".flatout/export-benchmark"
LEFT_OUT = ("compile",)
SECONDS = 1.5
"""For each build and each of the two measurements."""
WITHIN = 1.03
GUARDED = ("mlp", "tcn", "lstm")
"""Models with which the guard is tried."""


def main() -> None:
    """Do the part that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*", help="build, time or guard; names of models")
    parser.add_argument("--all", action="store_true", help="torch.compile too")
    parser.add_argument("--until", type=float, default=math.inf, help="seconds; then it stops")
    arguments = parser.parse_args()
    began = time.monotonic()
    parts, models = asked(arguments.words, ("build", "time", "guard"))
    if "guard" in parts:
        save(guard=guarded())
    for part, name in itertools.product(parts, models):
        if time.monotonic() - began > arguments.until:
            print(f"stopped before {name}: call it again")
            return
        if part == "build":
            build(name, arguments)
        elif (
            part == "time"
            and (WORK / name / "rows.json").exists()
            and name not in figures()["models"]
        ):
            save(models={**figures()["models"], name: timed(name)})


def asked(words: list[str], parts: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """Parts and models out of the words of a command line; none means all."""
    models = [word for word in words if word not in parts]
    if unknown := [name for name in models if name not in export_models.MODELS]:
        sys.exit(f"no such part or model: {', '.join(unknown)}")
    return [part for part in parts if part in words] or list(parts), models or list(
        export_models.MODELS
    )


def figures() -> dict[str, Any]:
    """What was measured so far."""
    if not RESULTS.exists():
        return {"models": {}, "guard": None}
    found: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8"))["figures"]
    return found


def save(**parts: Any) -> None:
    """Add to the results, with the means over all models so far."""
    found = {**figures(), **parts}
    rows = found["models"].values()
    if rows:
        found["geometric_mean"] = mean([row["speedup"] for row in rows])
        found["geometric_mean_exact"] = mean([row["speedup_exact"] for row in rows])
        found["worst"] = min(row["speedup"] for row in rows)
        found["worst_choice"] = max(row["choice_over_best"] for row in rows)
    record.write("export", found)
    print(json.dumps({key: value for key, value in found.items() if key != "models"}, indent=1))


def mean(values: list[float]) -> float:
    """Geometric."""
    return math.exp(sum(map(math.log, values)) / len(values))


def settings(arguments: Any, out: Path) -> ExportSettings:
    """As the command has them by default."""
    skip = () if arguments.all else LEFT_OUT
    return ExportSettings(sys.executable, out, skip=skip)


def build(name: str, arguments: Any) -> None:
    """Capture, build and verify one model; its rows go to the disk."""
    from exported import capture  # of the tests: a capture folder as the agent writes it

    folder = WORK / name
    if (folder / "rows.json").exists():
        return
    shutil.rmtree(folder, ignore_errors=True)
    model, calls = export_models.make(name)
    captured = capture(folder / "capture", model, calls, weights="as made")
    run = export.Export(
        captured,
        export.read(captured),
        settings(arguments, folder / "artefact"),
        lambda step: print(f"{name}: {step}", flush=True),
        folder=folder / "run",
    )
    (folder / "run").mkdir(exist_ok=True)
    began = time.monotonic()
    with ExitStack() as processes:
        run.prepare()
        for plan in candidates.plans(run.settings):
            run.attempt(plan, processes)
    rows = {key: dataclasses.asdict(row) for key, row in run.rows.items()}
    document = {"rows": rows, "build_s": time.monotonic() - began}
    (folder / "rows.json").write_text(json.dumps(document), encoding="utf-8")


def timed(name: str) -> dict[str, Any]:
    """Both measurements of one model's verified builds."""
    folder = WORK / name
    saved = json.loads((folder / "rows.json").read_text(encoding="utf-8"))
    rows = {k: row for k, row in saved["rows"].items() if row["state"] == BuildState.VERIFIED}
    plans = {plan.id: plan for plan in candidates.plans(ExportSettings(sys.executable, folder))}
    with ExitStack() as stack:
        builds = []
        for key in rows:
            process = stack.enter_context(started(name, folder / "run/candidates" / key))
            process.wait(export.LOAD_LIMIT_S)
            process.ask({"do": "load"}, export.LOAD_LIMIT_S)
            builds.append(timing.TimedBuild(key, process))
        timing.in_rounds(builds, lambda build: 1, SECONDS)
        second = [timing.TimedBuild(build.id, build.worker) for build in builds]
        count = timing.in_rounds(second, lambda build: 1, SECONDS)
    first_ms = {build.id: timing.latency(build, 1) for build in builds}
    again_ms = {build.id: timing.latency(build, 1) for build in second}
    chosen = {
        exact: chosen_of([b for b in builds if not exact or is_exact(rows[b.id])], plans)
        for exact in (False, True)
    }
    again = {key: item.p50_ms for key, item in again_ms.items() if item is not None}
    best = min(again, key=lambda key: again[key])
    rounds = {build.id: build.medians(1) for build in second}
    return {
        "chosen": chosen[False],
        "chosen_exact": chosen[True],
        "speedup": over(rounds["eager"], rounds[chosen[False]]),
        "speedup_exact": over(rounds["eager"], rounds[chosen[True]]),
        "best": best,
        "choice_over_best": over(rounds[chosen[False]], rounds[best]),
        "rounds": dataclasses.asdict(count),
        "p50_ms": {key: item.p50_ms for key, item in first_ms.items() if item is not None},
        "p50_ms_again": again,
        "not_verified": {
            key: f"{row['state']}: {row['reason']}"
            for key, row in saved["rows"].items()
            if row["state"] != BuildState.VERIFIED
        },
        "build_s": saved["build_s"],
    }


def over(slow: list[float], fast: list[float]) -> float:
    """How many times as fast, the median over rounds in which both took turns."""
    ratio = timing.ratio(slow, fast)
    assert ratio is not None
    return ratio[0]


def is_exact(row: dict[str, Any]) -> bool:
    """Whether it keeps float32 arithmetic."""
    return bool(row["precision"] == BuildPrecision.EXACT)


def chosen_of(builds: list[timing.TimedBuild], plans: dict[str, Any]) -> str:
    """The one that the command would keep."""
    contenders = []
    for build in builds:
        latency = timing.latency(build, 1)
        if latency is not None:
            plan = plans[build.id]
            rounds = tuple(build.medians(1))
            contenders.append(
                choosing.Contender(build.id, plan.order, plan.variant.title, latency.p50_ms, rounds)
            )
    found = choosing.choose(contenders, Goal.LATENCY)
    assert found is not None
    return found[0]


def started(name: str, folder: Path) -> Any:
    """A process that serves what a folder holds, with the inputs of the model of this name."""
    order = {
        "do": "serve",
        "prepared": str(WORK / name / "run/prepared"),
        "folder": str(folder),
        "threads": torch.get_num_threads(),
        "compiled": str(WORK / name / "run/scratch"),
    }
    return worker.start(sys.executable, order, worker.memory_limit(None))


def guarded() -> dict[str, Any]:
    """Every planted wrong build and every sound one, on the outputs of real models."""
    from exported import capture

    found = {"wrong": 0, "caught": 0, "sound": 0, "refused": 0, "missed": [], "false_alarms": []}
    for name in GUARDED:
        folder = WORK / f"guard-{name}"
        model, calls = export_models.make(name)
        captured = capture(folder / "capture", model, calls)
        facts = prepare.prepare(captured, folder / "prepared", torch.get_num_threads())
        files = CallFiles(folder / "prepared")

        def run(inputs: list[Any], model: Any = model) -> list[Any]:
            with torch.inference_mode():
                return [model(torch.from_numpy(numpy.array(inputs[0]))).numpy()]

        for change, precisions in planted_exports.WRONG.items():
            for precision in precisions:
                passed = guard.verify(files, facts, change(run), precision)["passed"]
                found["wrong"] += 1
                found["caught"] += not passed
                found["missed"] += [f"{name} {change.__name__} {precision}"] if passed else []
        for change, precisions in planted_exports.SOUND.items():
            for precision in precisions:
                answer = guard.verify(files, facts, change(run), precision)
                found["sound"] += 1
                found["refused"] += not answer["passed"]
                if not answer["passed"]:
                    found["false_alarms"].append(f"{name} {change.__name__}: {answer['reason']}")
    return found


if __name__ == "__main__":
    main()
