"""One message, several causes: the second fact in the text decides, or the answer is not certain.

Of each message both texts stand in second_facts.jsonl: the one with the fact, and the one of the
other cause (null: no signature is meant to know it).
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flatout.explaining.explaining import explain_text
from flatout.knowledge import signatures
from flatout.nouns.signature import Confidence

ROWS = Path(__file__).with_name("second_facts.jsonl").read_text(encoding="utf-8").splitlines()
CASES: list[dict[str, str | None]] = [json.loads(row) for row in ROWS]


@pytest.mark.slow
def test_the_fact_decides() -> None:
    offenders = []
    for case in CASES:
        matches = explain_text(case["text"] or "").matches
        found = matches[0].id if matches else None
        if found != case["cause"]:
            offenders.append((case["text"], case["cause"], found))
    assert offenders == [], "text, what it means, what it is taken for"


@pytest.mark.parametrize(("capability", "told"), [("12", "new"), ("7", "old")])
def test_of_opposite_causes_with_one_line_the_figures_decide(capability: str, told: str) -> None:
    text = "requires device with capability <= (9, 0) but your GPU has capability ({}, 0) (too {})"
    match = explain_text(text.format(capability, told)).matches[0]
    assert f"is too {told} for this xFormers" in match.title.en


def test_where_no_fact_decides_nothing_is_certain() -> None:
    likely = {item.id for item in signatures.every() if item.confidence is not Confidence.HIGH}
    unclear = [case["text"] or "" for case in CASES if case["cause"] in likely]
    assert len(unclear) > 40
    matches = [explain_text(text).matches[0] for text in unclear]
    assert [item.id for item in matches if item.confidence is Confidence.HIGH] == []
