"""What `flatout profile` says of scripts with one planted fault each, and of clean ones.

The scripts of `faults/`, `faults_2026_12/` and `faults_2026_12_b/` (--set) and their labels were
written by people who have not seen the checks; each set is of the checks that were made after the
one before. A fault is named where one finding stands at one of its lines and says its cause and its
cure, in any of the label's words. Wrong is a finding that comes first, promises more than 1.1x and
is not the planted fault, where the fault is not named at all. An alarm is a finding at a clean
script that is not about what any script in plain float32 could gain (families KERN, and HOST008:
compile). What other programs take of the machine (HOST014) counts nowhere.

The first run over all scripts of a set is kept as `<set>-first.json`.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import record

SETS = {
    "planted_faults": "faults",
    "planted_faults_2026_12": "faults_2026_12",
    "planted_faults_2026_12_b": "faults_2026_12_b",
}
"""Name of the results -> folder of the scripts."""
LARGE = 1.1
LIMIT_S = 240
STOCK = ("KERN", "HOST008")
OF_THE_MACHINE = ("HOST014",)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="scripts without .py; all where none is named")
    parser.add_argument("--set", choices=SETS, default="planted_faults")
    parser.add_argument("--documents", type=Path, help="keep what flatout printed, in this folder")
    arguments = parser.parse_args()
    scripts = Path(__file__).parent / SETS[arguments.set]
    labels: dict[str, dict[str, Any]] = json.loads((scripts / "labels.json").read_text())
    patterns = arguments.set != "planted_faults"
    labels = {
        name.removesuffix(".py"): {**label, "patterns": patterns} for name, label in labels.items()
    }
    rows = {}
    for name in arguments.names or sorted(labels):
        began = time.monotonic()
        document = profiled(scripts / f"{name}.py", arguments.documents)
        rows[name] = row(name, labels[name], document)
        seconds = time.monotonic() - began
        sys.stdout.write(
            f"{name:20} {rows[name]['verdict']:8} {seconds:4.0f} s  {first(rows[name])}\n"
        )
        sys.stdout.flush()
    figures = {**summary(rows), "scripts": rows}
    if arguments.names:
        sys.stdout.write(json.dumps(summary(rows), indent=2) + "\n")
        return
    is_first = not (record.RESULTS / f"{arguments.set}-first.json").exists()
    record.write(f"{arguments.set}-first" if is_first else arguments.set, figures)


def profiled(script: Path, folder: Path | None) -> dict[str, Any]:
    """The document of one script, run in an empty folder; with an error where there is none."""
    with tempfile.TemporaryDirectory() as work:
        shutil.copy(script, work)
        command = [sys.executable, "-m", "flatout", "profile", "--json", "--no-bench", "--stop"]
        try:
            run = subprocess.run(
                [*command, script.name],
                cwd=work, capture_output=True, text=True, timeout=LIMIT_S, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return {"error": f"took more than {LIMIT_S} s", "findings": []}
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{script.stem}.json").write_text(run.stdout)
        (folder / f"{script.stem}.log").write_text(run.stderr)
    try:
        document: dict[str, Any] = json.loads(run.stdout)
    except ValueError:
        return {"error": run.stderr.strip().splitlines()[-2:], "findings": []}
    return document


def row(name: str, label: dict[str, Any], document: dict[str, Any]) -> dict[str, Any]:
    """How one script was judged."""
    findings = [
        finding for finding in document["findings"] if finding["code"] not in OF_THE_MACHINE
    ]
    entry: dict[str, Any] = {
        "fault": label.get("kind", "clean"),
        "step_ms": document.get("step_ms"),
        "error": document.get("error"),
        "findings": [
            [finding["code"], finding["where"], gain(finding), finding["title"]]
            for finding in findings
        ],
    }
    if label.get("clean"):
        alarms = [
            finding["code"]
            for finding in findings
            if not finding["code"].startswith(STOCK) and finding["severity"] != "note"
        ]
        return {**entry, "alarms": alarms, "verdict": "alarm" if alarms else "clean"}
    by_part = {
        part: [finding["code"] for finding in findings if holds(finding, label, name)]
        for part, holds in (("line", at_line), ("cause", says_cause), ("cure", says_cure))
    }
    right = [
        number
        for number, finding in enumerate(findings)
        if all(holds(finding, label, name) for holds in (at_line, says_cause, says_cure))
    ]
    wrong = not right and bool(findings) and gain(findings[0]) > LARGE
    verdict = "named" if right else "wrong" if wrong else "missed"
    return {**entry, **by_part, "rank": right[0] if right else None, "verdict": verdict}


def at_line(finding: dict[str, Any], label: dict[str, Any], name: str) -> bool:
    """Whether it stands at one of the fault's lines."""
    file, _, line = (finding["where"] or "").rpartition(":")
    return file.endswith(f"{name}.py") and line.isdecimal() and int(line) in label["lines"]


def says_cause(finding: dict[str, Any], label: dict[str, Any], name: str) -> bool:
    """Whether it says the cause."""
    return says(finding, label["must_mention"], label["patterns"])


def says_cure(finding: dict[str, Any], label: dict[str, Any], name: str) -> bool:
    """Whether it says the cure."""
    return says(finding, label["cure"], label["patterns"])


def says(finding: dict[str, Any], groups: list[str], patterns: bool) -> bool:
    """Whether it has any word of each group, or, in the later set, what each pattern describes."""
    cure = finding["cure"]
    parts = (finding["title"], finding["evidence"], cure["text"], *cure["commands"])
    text = " ".join(parts).lower()
    if patterns:
        return all(re.search(group, text, re.IGNORECASE) for group in groups)
    return all(any(word in text for word in group.split("|")) for group in groups)


def gain(finding: dict[str, Any]) -> float:
    """The predicted ratio; 1 where there is none."""
    return float((finding.get("gain") or {}).get("predicted") or 1.0)


def first(entry: dict[str, Any]) -> str:
    """What comes first, or what went wrong."""
    if not entry["findings"]:
        return str(entry["error"] or "nothing said")
    code, where, ratio, title = entry["findings"][0]
    return f"{ratio:.2f}x {code} {where}: {title}"[:90]


def summary(rows: dict[str, dict[str, Any]]) -> dict[str, Any]:
    faulty = [entry for entry in rows.values() if "alarms" not in entry]
    clean = [entry for entry in rows.values() if "alarms" in entry]
    return {
        "faults": len(faulty),
        "named": sum(entry["verdict"] == "named" for entry in faulty),
        "named_first": sum(entry["rank"] == 0 for entry in faulty),
        "with_line": sum(bool(entry["line"]) for entry in faulty),
        "with_cause": sum(bool(entry["cause"]) for entry in faulty),
        "wrong": sum(entry["verdict"] == "wrong" for entry in faulty),
        "clean": len(clean),
        "alarms": sum(entry["verdict"] == "alarm" for entry in clean),
    }


if __name__ == "__main__":
    main()
