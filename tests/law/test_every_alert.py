"""Every rule is whole: its file says its code, it has a page, and is told apart from checks."""

from __future__ import annotations

import inspect
from collections import Counter
from pathlib import Path

from every import for_every
from flatout.diagnosing import checks
from flatout.knowledge import signatures
from flatout.watching import pages, rules
from law.sources import FINDING, assert_whole_page

each_rule = for_every(rules.every(), lambda module: module.RULE.code)
GUIDE = Path(__file__).parents[2] / "docs/guide-monitor.md"


@each_rule
def test_its_file_says_its_code(module: rules.RuleModule) -> None:
    stem = module.__name__.rpartition(".")[2]
    assert stem.startswith(f"{module.RULE.code.lower()}_")
    assert list(inspect.signature(module.check).parameters) == ["view"]


@each_rule
def test_it_has_a_page(module: rules.RuleModule) -> None:
    assert_whole_page(module, FINDING)
    page = pages.find(module.RULE.code)
    assert page == pages.find(rules.id_of(module))
    assert page is not None
    assert page.severity == module.RULE.severity
    source = Path(module.__file__ or "").name
    assert f"[{page.code}](../src/flatout/watching/alerts/{source})" in GUIDE.read_text("utf-8")


def test_codes_and_names_are_unique() -> None:
    modules = rules.every()
    names = [name for module in modules for name in (module.RULE.code, rules.id_of(module))]
    assert [name for name, count in Counter(names).items() if count > 1] == []
    others = {name for file in checks.files() for name in (file.code, file.id)}
    assert set(names) & (others | {signature.id for signature in signatures.every()}) == set()
    assert len(modules) == 12
