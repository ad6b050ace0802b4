"""Every signature is recognised in its own log, alone and however the log was mangled on its way.

A new signature costs one [[signature]]: this file is all that checks it. Each law names all
that break it.
"""

from __future__ import annotations

import importlib.util
import re
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

from flatout.explaining import conditions, described, explaining
from flatout.explaining.patterns import compiled
from flatout.knowledge import signatures
from flatout.nouns.explained import Explained
from flatout.nouns.signature import LANGUAGES, Confidence, Role, Signature

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
SHARES = 6
each_share = pytest.mark.parametrize(
    "share", [0, *(pytest.param(n, marks=pytest.mark.thorough) for n in range(1, SHARES))]
)
"""A sixth of all cases, of every signature and every kind of damage some."""


def top(explained: Explained) -> str:
    return explained.matches[0].id if explained.matches else "nothing"


def test_ids_and_logs_are_unique() -> None:
    for values in (IDS, [item.log for item in EVERY]):
        assert [value for value, count in Counter(values).items() if count > 1] == []


def test_each_log_has_one_winner() -> None:
    offenders = {}
    for signature in EVERY:
        explained = explaining.explain_text(signature.log)
        roots = [item for item in explained.matches if item.consequence_of is None]
        winners = [item.id for item in roots if item.signature.role is signature.role]
        if top(explained) != signature.id or winners != [signature.id]:
            offenders[signature.id] = (top(explained), winners)
    assert offenders == {}, "what its log is taken for, and the winners of its role"


@pytest.mark.slow
@each_share
def test_each_is_recognised_however_its_log_was_mangled(share: int) -> None:
    offenders = [
        (signature.id, mangle.__name__, recognised)
        for number, signature in enumerate(EVERY)
        for mangle in MANGLING.EVERY[(number + share) % SHARES :: SHARES]
        if (recognised := top(explaining.explain_text(mangle(signature.log)))) != signature.id
    ]
    assert offenders == []


@pytest.mark.slow
@each_share
def test_a_part_of_a_log_never_gives_a_sure_wrong_answer(share: int) -> None:
    offenders = []
    for number, signature in enumerate(EVERY):
        rows = signature.log.splitlines()
        related = {signature.id, *signature.leads_to}
        related |= {item.id for item in EVERY if signature.id in item.leads_to}
        parts = (rows[: len(rows) // 2], rows[len(rows) // 2 :], rows[-1:], rows[:1])
        for part in parts[(number + share) % SHARES :: SHARES]:
            for match in explaining.explain_text("\n".join(part)).matches[:1]:
                sure = match.confidence is Confidence.HIGH and match.signature.role is Role.ERROR
                less = match.signature.specificity < signature.specificity
                if sure and not less and match.id not in related:
                    offenders.append((signature.id, match.id, part))
    assert offenders == []


def test_every_text_is_in_both_languages_and_titles_are_short() -> None:
    offenders = [
        (signature.id, text)
        for signature in EVERY
        for text in (signature.title, signature.cause, *(step.text for step in signature.cure))
        if not CHINESE.search(text.zh) or CHINESE.search(text.en)
    ]
    assert offenders == []
    assert set(LANGUAGES) == {"en", "zh"}
    assert {item.id: item.title.en for item in EVERY if len(item.title.en) > 110} == {}


def test_conditions_and_signatures_that_are_named_exist() -> None:
    offenders = {}
    for signature in EVERY:
        conditions_asked = {step.when for step in signature.cure} - {None}
        unknown = conditions_asked - set(conditions.MACHINE)
        unknown |= set(signature.needs) - set(conditions.CAPTURED)
        unknown |= set(signature.leads_to) - (set(IDS) - {signature.id})
        if unknown:
            offenders[signature.id] = unknown
    assert offenders == {}


def test_sources_are_addresses_and_no_pattern_is_found_in_nothing() -> None:
    assert [
        (signature.id, source)
        for signature in EVERY
        for source in signature.sources
        if not source.startswith("https://")
    ] == []
    assert [
        (signature.id, pattern)
        for signature in EVERY
        for pattern in patterns(signature)
        if compiled(pattern).search(b"") is not None
    ] == []


def patterns(signature: Signature) -> tuple[str, ...]:
    in_steps = (step.if_text for step in signature.cure if step.if_text)
    return (*signature.any, *signature.all, *signature.none, *signature.captures, *in_steps)


def test_each_page_shows_the_message() -> None:
    assert [item.id for item in EVERY if not any(described.message(item))] == []
