"""What `flatout export` keeps beside plain torch.compile and Olive, on the benchmark's models.

    python benchmarks/export.py build
    python benchmarks/export_rivals.py [build] [MODEL ...] --olive PYTHON
    python benchmarks/export_rivals.py [time] [MODEL ...]       run it alone

PYTHON is one that has olive-ai; without it Olive is left out. Olive gets its exporter, its graph
passes, its fusions for transformers and its search for session settings, in float32; torch.compile
the captured model and one warm shape. Each is compared with what flatout keeps of the exact builds
and of all. All take turns, each in its own process.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import export
import record
import torch

from flatout.exporting import timing
from flatout.exporting.export import LOAD_LIMIT_S

HERE = Path(__file__).resolve().parent
BUILDER = HERE / "olive_build.py"
LIMIT_S = 900.0
SECONDS = 1.5
LOADING = {
    "torch.compile": """
import torch

def load(threads):
    torch.set_num_threads(threads)
    compiled = torch.compile(torch.export.load({model!r}).module())

    def run(*arrays):
        with torch.inference_mode():
            outputs = compiled(*map(torch.from_numpy, arrays))
        return dict(enumerate(output.numpy() for output in outputs))

    return run
""",
    "Olive": """
import json
import onnxruntime

def load(threads):
    settings, chosen = onnxruntime.SessionOptions(), json.load(open({settings!r}))
    for name in ("intra_op_num_threads", "inter_op_num_threads"):
        if chosen.get(name) is not None:
            setattr(settings, name, chosen[name])
    if chosen.get("graph_optimization_level") is not None:
        level = onnxruntime.GraphOptimizationLevel(chosen["graph_optimization_level"])
        settings.graph_optimization_level = level
    if chosen.get("execution_mode") is not None:
        settings.execution_mode = onnxruntime.ExecutionMode(chosen["execution_mode"])
    session = onnxruntime.InferenceSession({model!r}, settings, ["CPUExecutionProvider"])
    names = [item.name for item in session.get_inputs()]

    def run(*arrays):
        return dict(enumerate(session.run(None, dict(zip(names, arrays)))))

    return run
""",
}


def main() -> None:
    """Do the part that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*", help="build, time or both; names of models")
    parser.add_argument("--olive", help="the Python that has olive-ai")
    arguments = parser.parse_args()
    parts, models = export.asked(arguments.words, ("build", "time"))
    if "build" in parts:
        for name in models:
            build(name, arguments.olive)
    for name in models if "time" in parts else ():
        if (export.WORK / name / "rivals").exists() and name not in earlier():
            save({**earlier(), name: timed(name)})


def build(name: str, python: str | None) -> None:
    """Olive's model; what loads it and the compiled one lies beside it."""
    folder = export.WORK / name / "rivals"
    capture = (export.WORK / name / "capture").resolve()
    olive = folder / "Olive"
    if python and not (olive / "session.json").exists():
        command = [python, str(BUILDER), name, str(capture), str(olive)]
        done = subprocess.run(command, timeout=LIMIT_S, capture_output=True, text=True, check=False)
        if done.returncode:
            olive.mkdir(parents=True, exist_ok=True)
            (olive / "error.txt").write_text(done.stderr[-2000:], encoding="utf-8")
            print(f"{name}: Olive failed: {done.stderr.splitlines()[-1:]}")
    places = {
        "torch.compile": {"model": str(capture / "model.pt2")},
        "Olive": {
            "model": str(olive.resolve() / "model.onnx"),
            "settings": str(olive.resolve() / "session.json"),
        },
    }
    for rival, files in places.items() if python else list(places.items())[:1]:
        (folder / rival).mkdir(parents=True, exist_ok=True)
        (folder / rival / "load.py").write_text(LOADING[rival].format(**files), encoding="utf-8")
    print(f"{name}: built")


def timed(name: str) -> dict[str, Any]:
    """Milliseconds of all, and how much faster each rival is than what flatout keeps."""
    chosen = export.figures()["models"][name]
    kept = {chosen["chosen"], chosen["chosen_exact"]}
    folders = {key: export.WORK / name / "run/candidates" / key for key in ("eager", *kept)}
    failed = {}
    for rival in LOADING:
        folder = export.WORK / name / "rivals" / rival
        if not (folder / "load.py").exists():
            continue
        if (folder / "error.txt").exists():
            failed[rival] = (folder / "error.txt").read_text(encoding="utf-8").strip()[-200:]
        else:
            folders[rival] = folder
    with ExitStack() as stack:
        builds = {}
        for key, folder in folders.items():
            process = stack.enter_context(export.started(name, folder))
            process.wait(LOAD_LIMIT_S)
            process.ask({"do": "load"}, LOAD_LIMIT_S)
            builds[key] = timing.TimedBuild(key, process)
        timing.in_rounds(list(builds.values()), lambda build: 1, SECONDS)
    found = {key: timing.latency(build, 1) for key, build in builds.items()}
    row: dict[str, Any] = {
        "p50_ms": {key: item.p50_ms for key, item in found.items() if item is not None},
        "kept": chosen["chosen"],
        "kept_exact": chosen["chosen_exact"],
        "failed": failed,
    }
    for rival in LOADING:
        if rival in builds:
            row[rival] = {
                label: against(builds[rival], builds[chosen[label]])
                for label in ("chosen", "chosen_exact")
            }
    return row


def against(rival: timing.TimedBuild, own: timing.TimedBuild) -> dict[str, float] | None:
    """How many times as fast as the rival, with its interval."""
    ratio = timing.ratio(rival.medians(1), own.medians(1))
    if ratio is None:
        return None
    return {"ratio": ratio[0], "low": ratio[1][0], "high": ratio[1][1]}


def earlier() -> dict[str, Any]:
    """The rows of the results that are there."""
    path = record.RESULTS / "export_rivals.json"
    if not path.exists():
        return {}
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["figures"]["models"]
    return found


def save(models: dict[str, Any]) -> None:
    """Rows, and the worst and the mean of each rival."""
    figures: dict[str, Any] = {"models": models, "threads": torch.get_num_threads()}
    for rival in LOADING:
        for label in ("chosen", "chosen_exact"):
            ratios = [row[rival][label]["ratio"] for row in models.values() if row.get(rival)]
            if ratios:
                figures[f"{rival} {label}"] = {"mean": export.mean(ratios), "worst": min(ratios)}
    record.write("export_rivals", figures)
    print(json.dumps({key: value for key, value in figures.items() if key != "models"}, indent=1))


if __name__ == "__main__":
    main()
