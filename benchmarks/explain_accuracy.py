"""Whether `flatout explain` names the cause that a thread established: top-1 on a file of cases.

Each line of the file is a case: `text`, `must_mention` (each entry: alternatives joined by |, lower
case; what an adequate explanation must contain), `determinable` (`hidden` is not scored). Scored
are our own words (title, cause, cure, commands, what the text's figures decide), never the
evidence, which repeats the text; no fact about this machine is used. `confident_wrong`: wrong, and
the confidence was high. A case of family `none` is no known error: silence is right, and so is an
answer of low confidence.

The first result of a file is kept beside the latest, as `explain_accuracy-<stem>-first.json`, and
is never written again.

The cases of explain_cases.jsonl were gathered from public threads without sight of the signatures.
What they then taught went into the signatures, so they no longer measure how unseen cases fare.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import mangling
import record

from flatout.explaining import explaining
from flatout.nouns.explained import Explained, Match
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
    keep(f"explain_accuracy-{given.file.stem}", figures, record.RESULTS)


def keep(name: str, figures: dict[str, Any], folder: Path) -> None:
    """Write the result; the first one of a file a second time, under a name of its own."""
    first = not any((folder / f"{kept}.json").exists() for kept in (name, f"{name}-first"))
    path = record.write(name, figures, folder)
    if first:
        shutil.copyfile(path, folder / f"{name}-first.json")


def score(cases: list[dict[str, Any]], mangle: mangling.Mangle, show: bool) -> dict[str, Any]:
    """How many answers are right, wrong, wrong with high confidence, and not given."""
    counts: Counter[str] = Counter()
    confidence: Counter[str] = Counter()
    by_kind: dict[str, Counter[str]] = {}
    for case in cases:
        answer = explaining.explain_text(mangle(case["text"]))
        match = answer.matches[0] if answer.recognised else None
        verdict, missing = judged_case(case, answer)
        counts[verdict] += 1
        kind = by_kind.setdefault("none" if is_none(case) else case["determinable"], Counter())
        kind[verdict] += 1
        if match is not None:
            confidence[f"{match.confidence.value}_{verdict}"] += 1
            confident = verdict == "wrong" and match.confidence is Confidence.HIGH
            counts["confident_wrong"] += confident
            kind["confident_wrong"] += confident
        if show and verdict != "right":
            print(case["id"], case["family"], verdict, match.id if match else "-", missing)
    share = counts["right"] / len(cases) if cases else 0.0
    names = ("right", "wrong", "confident_wrong", "not_recognised")
    figures = {name: counts[name] for name in names}
    return {
        **figures,
        "share_right": round(share, 4),
        "confidence": dict(sorted(confidence.items())),
        "by_determinable": {
            kind: {name: counts[name] for name in names} for kind, counts in sorted(by_kind.items())
        },
    }


def is_none(case: dict[str, Any]) -> bool:
    """The text holds no known error."""
    return bool(case["family"] == "none")


def judged_case(case: dict[str, Any], answer: Explained) -> tuple[str, list[str]]:
    """The verdict on the answer to a case, and what is not mentioned."""
    match = answer.matches[0] if answer.recognised else None
    if is_none(case):
        quiet = match is None or match.confidence is Confidence.LOW
        return ("right" if quiet else "wrong"), []
    observed = "\n".join(said.en for said in answer.observations)
    return judged(match, case.get("must_mention", []), observed)


def judged(
    match: Match | None, must_mention: list[str], observed: str = ""
) -> tuple[str, list[str]]:
    """right, wrong or not_recognised, and what is not mentioned.

    observed: what is said beside the match.
    """
    if match is None:
        return "not_recognised", []
    said = f"{words(match)}\n{observed.lower()}"
    missing = [item for item in must_mention if not any(word in said for word in item.split("|"))]
    return ("wrong" if missing else "right"), missing


def words(match: Match) -> str:
    """All that the explanation says in English, lower case."""
    steps = [part for step in match.cure for part in (step.text.en, *step.commands)]
    return "\n".join([match.title.en, match.cause.en, *steps]).lower()


if __name__ == "__main__":
    main()
