"""Write the tables of benchmarks, from benchmarks/results.

    python docs/tables.py

README and the guides link to them, so they stand in the repository: docs/benchmarks.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
RESULTS = DOCS.parent / "benchmarks/results"


def tables() -> dict[str, str]:
    """The text of each file, by its place in docs/."""
    return {
        "benchmarks/breadth.md": breadth(_results("breadth")),
        "benchmarks/ranks.md": ranks(_results("ranks")),
    }


def _results(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return found


def breadth(results: dict[str, Any]) -> str:
    """What `flatout tune` made of scripts of every style: a row for each."""
    figures, machine = results["figures"], results["machine"]
    head = [
        "<!-- Made by `make docs` from benchmarks/results/breadth.json. -->",
        "",
        "# What tuning made of scripts of every style",
        "",
        f"Measured by `benchmarks/breadth.py`, the latest rows on {machine['cores']} cores of"
        f" {machine['cpu']}, torch {machine['torch']}, until {results['date'][:10]}"
        f" ([which](../measured.md#tuning)): {figures['scripts']} scripts as"
        " [strangers](../../benchmarks/strangers/README.md) and"
        " [tests](../../tests/jobs/README.md) write them."
        f" Geometric mean {figures['geometric_mean']:.2f}x, worst {figures['worst']:.2f}x;"
        f" {figures['plans']} got a plan.",
        "",
        "The speed-up is that of fresh processes, as written and with the plan in turn, with its"
        " 95 % interval; without one, that of a single pair of whole runs, or of"
        " neighbouring steps in one process, where fresh ones differ by too much to tell; 1 where"
        " no plan was written. *By hand*: an expert's version of the same script. *Budget*: seconds"
        " given to `flatout tune`; compiling takes most of so little and was hardly ever tried.",
        "",
        "| script | ms/step | budget | speed-up | by hand | boosts | same losses |",
        "|---|---|---|---|---|---|---|",
    ]
    rows = sorted(figures["rows"].items(), key=lambda item: -(item[1]["speedup"] or 1.0))
    return "\n".join([*head, *(_breadth_row(name, row) for name, row in rows)]) + "\n"


def _breadth_row(name: str, row: dict[str, Any]) -> str:
    speedup = "1"
    if row["speedup"]:
        low, high = row["interval"] or (None, None)
        spread = f" ({low:.2f}-{high:.2f})" if low and low != high else ""
        speedup = f"{row['speedup']:.2f}x{spread}"
    same = {True: "yes", False: "**no**", None: ""}[row["same_loss"]]
    hand = f"{row['by_hand']:.2f}x" if row.get("by_hand") else ""
    boosts_on = ", ".join(row["boosts"])
    times = f"{row['step_ms']:.3g} | {row['budget'].removesuffix('s')}"
    return f"| `{name}` | {times} | {speedup} | {hand} | {boosts_on} | {same} |"


def ranks(results: dict[str, Any]) -> str:
    """What became of scripts of every style on two ranks: a row for each."""
    scripts, machine = results["figures"]["scripts"], results["machine"]
    head = [
        "<!-- Made by `make docs` from benchmarks/results/ranks.json. -->",
        "",
        "# Scripts of every style on two ranks",
        "",
        f"Run by `benchmarks/ranks.py` on {machine['cores']} cores of {machine['cpu']}, torch"
        f" {machine['torch']}, on {results['date'][:10]}: {len(scripts)} scripts as"
        " [strangers](../../benchmarks/strangers/README.md) and"
        " [tests](../../tests/jobs/README.md) write them, each as one process and as two ranks"
        " with the same random numbers.",
        "",
        "*Rows*: each rank computes its own rows of the batch. *Partly*: of some models. *Whole*:"
        " every rank computes everything, for the reason named. *No model*: none is called with its"
        " own weights, and every rank computes everything. *Difference*: the largest relative"
        " one between the losses of the first steps. Where a model draws random numbers (dropout)"
        " each rank draws its own, and losses differ as with another seed; the gradient is then"
        " compared without them. *Gradient*: the relative error of the ranks' gradient together"
        " against that of the whole batch. *Speed-up*: of the trial before `flatout run --ranks 2`,"
        " against one process on as many cores, with its 95 % interval. Below 1.1x, without a"
        " speed-up, and with other losses (the reason says how far off) a script is not trained on"
        " ranks. The speed-ups are of a version that sent large tensors through memory shared"
        " by the ranks; now they go through gloo, and were not timed again.",
        "",
        "| script | mode | steps | difference | random | gradient | speed-up | reason |",
        "|---|---|---|---|---|---|---|---|",
    ]
    return "\n".join([*head, *(_ranks_row(*item) for item in sorted(scripts.items()))]) + "\n"


def _ranks_row(name: str, row: dict[str, Any]) -> str:
    difference, gradient = row.get("difference"), row.get("gradient_error")
    trial = row.get("trial") or {}
    figures = [
        str(row.get("steps", "")),
        "" if difference is None else f"{difference:.0e}",
        "yes" if row.get("random") else "",
        "" if gradient is None else f"{gradient:.0e}",
        _trial_speedup(trial),
    ]
    other = trial.get("losses_reason", "") if trial.get("losses") == "different" else ""
    why = [row["reason"], trial.get("error") or "", other]
    reason = "; ".join(dict.fromkeys(filter(None, why))).replace("|", "\\|").replace("\n", " ")
    return f"| `{name}` | {row['outcome']} | {' | '.join(figures)} | {reason} |"


def _trial_speedup(trial: dict[str, Any]) -> str:
    if trial.get("speedup") is None:
        return ""
    low, high = trial["interval"]
    return f"{trial['speedup']:.2f}x ({low:.2f}-{high:.2f})"


def main() -> None:
    for name, text in tables().items():
        (DOCS / name).write_text(text, encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
