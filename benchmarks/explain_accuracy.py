"""Whether `flatout explain` names the cause that a thread established: top-1 on a file of cases.

Each line of the file is a case: `text`, `must_mention` (each entry: alternatives joined by |, lower
case; what an adequate explanation must contain), `determinable` (`hidden` is not scored). Scored
are our own words (title, cause, cure, commands), never the evidence, which repeats the text; no
fact about this machine is used. `confident_wrong`: wrong, and the confidence was high.

The cases here were gathered from public threads without sight of the signatures. What they then
taught went into the signatures, so they no longer measure how unseen cases fare.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import Any

import mangling
import record

from flatout.explaining import explaining
from flatout.nouns.explained import Match
from flatout.nouns.signature import Confidence

GOAL_RIGHT = 0.97
CASES = Path(__file__).parent / "explain_cases.jsonl"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path, nargs="?", default=CASES, help="one JSON object a line")
    parser.add_argument("--show", action="store_true", help="print what was not right")
    given = parser.parse_args()
    rows = given.file.read_text(encoding="utf-8").splitlines()
    cases = [case for case in map(json.loads, rows) if case["determinable"] != "hidden"]
    asked = {"as_written": score(cases, lambda text: text, given.show)}
    asked |= {
        mangle.__name__: score(cases, mangle, False) for mangle in (*mangling.EVERY, *mangling.CUT)
    }
    figures = {"cases": len(cases), "file": given.file.name, "goal_right": GOAL_RIGHT, **asked}
    record.write(f"explain_accuracy-{given.file.stem}", figures)


def score(cases: list[dict[str, Any]], mangle: mangling.Mangle, show: bool) -> dict[str, Any]:
    """How many answers are right, wrong, wrong with high confidence, and not given."""
    counts: Counter[str] = Counter()
    confidence: Counter[str] = Counter()
    for case in cases:
        answer = explaining.explain_text(mangle(case["text"]))
        match = answer.matches[0] if answer.recognised else None
        verdict, missing = judged(match, case["must_mention"])
        counts[verdict] += 1
        if match is not None:
            confidence[f"{match.confidence.value}_{verdict}"] += 1
            counts["confident_wrong"] += verdict == "wrong" and match.confidence is Confidence.HIGH
        if show and verdict != "right":
            print(case["id"], case["family"], verdict, match.id if match else "-", missing)
    share = counts["right"] / len(cases) if cases else 0.0
    names = ("right", "wrong", "confident_wrong", "not_recognised")
    figures = {name: counts[name] for name in names}
    return {
        **figures,
        "share_right": round(share, 4),
        "confidence": dict(sorted(confidence.items())),
    }


def judged(match: Match | None, must_mention: list[str]) -> tuple[str, list[str]]:
    """right, wrong or not_recognised, and what is not mentioned."""
    if match is None:
        return "not_recognised", []
    said = words(match)
    missing = [item for item in must_mention if not any(word in said for word in item.split("|"))]
    return ("wrong" if missing else "right"), missing


def words(match: Match) -> str:
    """All that the explanation says in English, lower case."""
    steps = [part for step in match.cure for part in (step.text.en, *step.commands)]
    return "\n".join([match.title.en, match.cause.en, *steps]).lower()


if __name__ == "__main__":
    main()
