"""What a profile predicts of each boost against what it gains: how good are the rules?

python benchmarks/prediction.py                 # all scripts of `breadth`: some two hours
python benchmarks/prediction.py --add nano_gpt  # beside the rows that are there
python benchmarks/prediction.py --half calibration
python benchmarks/prediction.py --again         # profile again, against what was measured before

Each script is profiled, then tuned. Predicted is the largest gain that a finding which asks for
the boost promises; measured is what the boost's pairs of blocks showed when it was on alone: a
boost that the tuning tried on top of others is tuned once more by itself. A boost that no finding
asks for is predicted to gain nothing; it stands apart, as measured on top of what was kept.

GPUs were there for an hour, and without a profile: `results/gpu/pairs.json` has what boosts gained
there, with the facts that are known of the step. From these the rules predict, too.

The rules were set by looking at one half of the scripts; the other half is reported. Which half a
script belongs to depends on its name alone.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import record
from breadth import JOB_NAMES, JOB_STEPS, JOBS, STRANGERS, strangers

from flatout.diagnosing.diagnose import diagnose_profile
from flatout.nouns.anatomy import Anatomy, Kind, Part
from flatout.nouns.ceiling import Ceiling
from flatout.nouns.profile import Operator, Profile
from flatout_agent.wire import JobFacts, ModelFacts
from tuning import tune

Half = Literal["calibration", "report"]
HALVES: tuple[Half, ...] = ("calibration", "report")
GOALS = {"median_error": 0.20, "within_1.3": 0.90, "sign_right": 0.95}
NOTHING = 1.03
"""What gains less than this, or costs less, is no difference that matters."""
WITHIN = 1.3
ALONE_BUDGET = "25s"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help="scripts; all where none is named")
    parser.add_argument("--budget", default="45s")
    parser.add_argument("--add", action="store_true", help="keep the rows of earlier runs")
    parser.add_argument("--again", action="store_true", help="keep what was measured, too")
    parser.add_argument("--half", choices=HALVES, help="this half of the scripts only")
    arguments = parser.parse_args()
    rows = earlier() if arguments.add or arguments.again else {}
    every = rows if arguments.again else [*strangers(), *JOB_NAMES]
    for name in arguments.names or list(every):
        if arguments.half in (None, half(name)):
            before = rows.get(name) if arguments.again else None
            rows[name] = of_script(name, arguments.budget, before)
            record.write("prediction", figures(rows))


def earlier() -> dict[str, dict[str, Any]]:
    """The rows of the results that are there, by script."""
    path = record.RESULTS / "prediction.json"
    if not path.exists():
        return {}
    scripts: dict[str, dict[str, Any]] = json.loads(path.read_text())["figures"]["scripts"]
    return scripts


def half(name: str) -> Half:
    """Which half a script belongs to."""
    return HALVES[hashlib.sha256(name.encode()).digest()[0] % 2]


def of_script(name: str, budget: str, before: dict[str, Any] | None) -> dict[str, Any]:
    """What was predicted and what was measured on one script; measured in `before`, if given."""
    stranger = STRANGERS / f"{name}.py"
    steps = ["--steps", str(JOB_STEPS)]
    words = [str(stranger)] if stranger.exists() else [str(JOBS / f"{name}.py"), *steps]
    with tempfile.TemporaryDirectory() as folder:
        predicted = predictions(words, Path(folder))
        row = dict(before or measured(words, Path(folder), budget))
        for boost in predicted:
            if boost not in row["alone"] and boost not in row["refused"]:
                document = tune(words, Path(folder), "--budget", ALONE_BUDGET, "--only", boost)
                gains = trials(document, alone=True)
                row["alone"] |= gains
                row["refused"] += [] if boost in gains else [boost]
    return {"half": half(name), **row, "predicted": predicted, "commit": record.commit()}


def measured(words: list[str], folder: Path, budget: str) -> dict[str, Any]:
    """The gains of one tuning."""
    document = tune(words, folder, "--budget", budget)
    return {
        "step_ms": round(document["baseline"]["step_ms"], 3),
        "noise": round(document["noise"], 4),
        "alone": trials(document, alone=True),
        "on_top": trials(document, alone=False),
        "refused": [],
    }


def trials(document: dict[str, Any], alone: bool) -> dict[str, dict[str, Any]]:
    """Boost -> what its pairs of blocks showed, where it was on alone, or on top of others."""
    return {
        trial["tried"]: {
            "gain": round(trial["gain"], 3),
            "pairs": trial["pairs"],
            "verdict": trial["verdict"],
        }
        for trial in document["trials"]
        if trial["gain"] and trial["pairs"] and (trial["boosts"] == [trial["tried"]]) == alone
    }


def predictions(words: list[str], folder: Path) -> dict[str, dict[str, Any]]:
    """Boost -> the largest gain that a finding promises of it, and that finding's code."""
    command = [sys.executable, "-m", "flatout", "profile", "--stop", "--json", *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    if not done.stdout:
        raise SystemExit(f"{' '.join(command)}\nexit code {done.returncode}\n{done.stderr}")
    findings = json.loads(done.stdout)["findings"]
    gains = [(finding, finding.get("gain") or {}) for finding in findings]
    return largest(
        (finding["boost"], gain["predicted"], gain["low"], gain["high"], finding["code"])
        for finding, gain in gains
        if finding.get("boost") and gain.get("predicted")
    )


def largest(found: Iterable[tuple[str, float, float, float, str]]) -> dict[str, dict[str, Any]]:
    """Boost -> the largest of its gains; found: boost, gain, its lowest, its highest, the code."""
    predicted: dict[str, dict[str, Any]] = {}
    for boost, ratio, low, high, code in found:
        if ratio > predicted.get(boost, {"gain": 1.0})["gain"]:
            interval = {"interval": [round(low, 3), round(high, 3)], "finding": code}
            predicted[boost] = {"gain": round(ratio, 3), **interval}
    return predicted


# On GPUs ------------------------------------------------------------------------------------------


def on_gpus() -> dict[str, dict[str, Any]]:
    """Rows as of scripts: what the rules predict of the steps in `results/gpu/pairs.json`."""
    known = json.loads((record.RESULTS / "gpu" / "pairs.json").read_text())
    ceilings = tuple(
        Ceiling(name, name, "cuda:0", value, "TFLOP/s") for name, value in known["ceilings"].items()
    )
    return {
        name: {
            "step_ms": facts["step_ms"],
            "alone": {boost: {"gain": gain} for boost, gain in facts["gains"].items()},
            "on_top": {},
            "predicted": _of_facts(facts, ceilings),
        }
        for name, facts in known["steps"].items()
    }


def _of_facts(facts: dict[str, Any], ceilings: tuple[Ceiling, ...]) -> dict[str, dict[str, Any]]:
    """What is predicted of a step of which only its products are known, in float32 without TF32.

    They are taken to run at the measured ceiling; what else the step does is not known.
    """
    at = next(ceiling.value for ceiling in ceilings if ceiling.id == "matmul-fp32")
    products_ms = facts["products_tflop"] / at * 1000
    rest = Part(Kind.OTHER, facts["step_ms"] - products_ms)
    step = Anatomy("cuda", facts["step_ms"], (Part(Kind.MATMUL, products_ms), rest), steps=1)
    flops = facts["products_tflop"] * 1e12
    products = Operator(
        "aten::mm", Kind.MATMUL, 1.0, 0.0, products_ms, dtypes=("float",), flops=flops
    )
    model = ModelFacts("Model", 10**8, "float32", "cuda", matmul=1)
    job = JobFacts("2.11.0", "3.12", "linux", "cuda", bf16=True, models=(model,))
    profile = Profile(
        (), step, (products,), device_name="NVIDIA H200", capability=(9, 0), ceilings=ceilings,
        job=job,
    )  # fmt: skip
    return largest(
        (finding.boost, finding.gain.ratio, finding.gain.low, finding.gain.high, finding.code)
        for finding in diagnose_profile(profile)
        if finding.boost and finding.gain
    )


def figures(rows: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """What is reported: each half for itself, and GPUs."""
    gpus = on_gpus()
    return {
        "goal": GOALS,
        **{name: of_half([r for r in rows.values() if r["half"] == name]) for name in HALVES},
        "gpus": of_half(list(gpus.values())),
        "scripts": dict(sorted(rows.items())),
        "on_gpus": gpus,
    }


def of_half(scripts: list[dict[str, Any]]) -> dict[str, Any]:
    """The figures of one half: of boosts that a finding asks for, and of the others."""
    pairs = [
        (prediction, script["alone"][boost]["gain"])
        for script in scripts
        for boost, prediction in script["predicted"].items()
        if boost in script["alone"]
    ]
    others = [
        trial["gain"] > NOTHING and trial.get("verdict") == "kept"
        for script in scripts
        for boost, trial in {**script["on_top"], **script["alone"]}.items()
        if boost not in script["predicted"]
    ]
    summary: dict[str, Any] = {"scripts": len(scripts), "asked": len(pairs), "others": len(others)}
    if pairs:
        ratios = [prediction["gain"] / gain for prediction, gain in pairs]
        inside = [p["interval"][0] <= gain <= p["interval"][1] for p, gain in pairs]
        summary |= {
            "median_error": round(statistics.median(abs(ratio - 1) for ratio in ratios), 3),
            "within_1.3": statistics.mean(1 / WITHIN <= ratio <= WITHIN for ratio in ratios),
            "sign_right": statistics.mean(gain > 1 for _, gain in pairs),
            "not_slower": statistics.mean(gain > 1 / NOTHING for _, gain in pairs),
            "inside_the_interval": statistics.mean(inside),
        }
    if others:
        summary["others_that_gained"] = statistics.mean(others)
    return summary


if __name__ == "__main__":
    main()
