"""Every signature is recognised in its own log, alone and however the log was mangled on its way.

A new signature costs one [[signature]] and one log: this file is all that checks it.
"""

from __future__ import annotations

import importlib.util
import re
from collections import Counter
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

from flatout.diagnosing.signatures import conditions, explaining
from flatout.diagnosing.signatures.patterns import compiled
from flatout.knowledge import signatures
from flatout.nouns.explained import Confidence, Explained
from flatout.nouns.signature import LANGUAGES, Role, Signature

LOGS = Path(__file__).parent.parent / "signatures"
EVERY = signatures.every()
IDS = [item.id for item in EVERY]
CHINESE = re.compile("[\u4e00-\u9fff]")


def _mangling() -> ModuleType:
    """Shared with the benchmark that scores real cases."""
    path = Path(__file__).parents[2] / "benchmarks" / "mangling.py"
    spec = importlib.util.spec_from_file_location("mangling", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


MANGLING = _mangling()
every_signature = pytest.mark.parametrize("signature", EVERY, ids=IDS)


@cache
def log(signature_id: str) -> str:
    return (LOGS / f"{signature_id}.log").read_text(encoding="utf-8")


def top(explained: Explained) -> str:
    return explained.matches[0].id if explained.matches else "nothing"


def test_ids_are_unique_and_each_has_its_log() -> None:
    twice = [item for item, count in Counter(IDS).items() if count > 1]
    logs = {path.stem for path in LOGS.glob("*.log")}
    assert not twice
    assert set(IDS) == logs


@every_signature
def test_its_log_has_one_winner(signature: Signature) -> None:
    explained = explaining.explain_text(log(signature.id))
    roots = [item for item in explained.matches if item.consequence_of is None]
    winners = [item.id for item in roots if item.signature.role is signature.role]
    assert top(explained) == signature.id
    assert winners == [signature.id]


@every_signature
def test_it_says_all_in_both_languages(signature: Signature) -> None:
    texts = [signature.title, signature.cause, *(step.text for step in signature.cure)]
    for text in texts:
        assert CHINESE.search(text.zh), text.zh
        assert not CHINESE.search(text.en), text.en
    assert len(signature.title.en) <= 110
    assert set(LANGUAGES) == {"en", "zh"}


@every_signature
def test_what_it_names_exists(signature: Signature) -> None:
    assert set(signature.needs) <= set(conditions.CAPTURED)
    assert {step.when for step in signature.cure} - {None} <= set(conditions.MACHINE)
    assert set(signature.leads_to) <= set(IDS)
    assert signature.id not in signature.leads_to
    assert all(source.startswith("https://") for source in signature.sources)
    in_steps = [step.if_text for step in signature.cure if step.if_text]
    for pattern in (
        *signature.any,
        *signature.all,
        *signature.none,
        *signature.captures,
        *in_steps,
    ):
        assert compiled(pattern).search(b"") is None, f"{pattern!r} is found in nothing"


@every_signature
def test_it_is_recognised_however_the_log_was_mangled(signature: Signature) -> None:
    text = log(signature.id)
    for mangle in MANGLING.EVERY:
        assert top(explaining.explain_text(mangle(text))) == signature.id, mangle.__name__


@every_signature
def test_a_part_of_its_log_never_gives_a_sure_wrong_answer(signature: Signature) -> None:
    rows = log(signature.id).splitlines()
    related = {signature.id, *signature.leads_to}
    related |= {item.id for item in EVERY if signature.id in item.leads_to}
    for part in (rows[: len(rows) // 2], rows[len(rows) // 2 :], rows[-1:], rows[:1]):
        for match in explaining.explain_text("\n".join(part)).matches[:1]:
            sure = match.confidence is Confidence.HIGH and match.signature.role is Role.ERROR
            less = match.signature.specificity < signature.specificity
            assert not sure or less or match.id in related, (match.id, part)
