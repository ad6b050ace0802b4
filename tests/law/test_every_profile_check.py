"""Every file in profile_checks/ is a whole check: documented, named, and told apart."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from check_pages import assert_whole_page
from flatout.diagnosing import checks, profile_checks
from flatout.nouns.finding import Severity

FAMILIES = ("DATA", "COPY", "SYNC", "HOST", "KERN", "MEM", "COMM", "LOOP")
NAMES = profile_checks.names()


def test_the_folder_is_the_table() -> None:
    assert len(NAMES) >= 40
    files = {path.stem for path in Path(profile_checks.__file__).parent.glob("*.py")}
    assert {name.replace("-", "_") for name in NAMES} == files - {"__init__"}


def test_codes_count_up_from_one_in_each_family() -> None:
    codes = [profile_checks.load(name).CHECK.code for name in NAMES]
    for family in FAMILIES:
        numbers = sorted(int(code.removeprefix(family)) for code in codes if code[:-3] == family)
        assert numbers == list(range(1, len(numbers) + 1)), family
    assert {code[:-3] for code in codes} == set(FAMILIES)


@pytest.mark.parametrize("name", NAMES)
def test_page(name: str) -> None:
    assert_whole_page(profile_checks.load(name))


@pytest.mark.parametrize("name", NAMES)
def test_shape(name: str) -> None:
    module = profile_checks.load(name)
    known = {profile_checks.load(other).CHECK.code for other in NAMES}
    assert isinstance(module.CHECK, checks.Check)
    assert module.CHECK.severity is not Severity.UNCHECKED
    assert re.fullmatch(r"\d+\.\d+\.\d+", module.CHECK.since)
    assert set(module.CHECK.hides) <= known - {module.CHECK.code}
    assert list(inspect.signature(module.check).parameters) == ["profile"]


@pytest.mark.parametrize("name", NAMES)
def test_its_code_is_in_a_test_of_its_family(name: str, root: Path) -> None:
    code = profile_checks.load(name).CHECK.code
    family = root / f"tests/diagnosing/profile_checks/test_{code[:-3].lower()}.py"
    assert code in family.read_text(encoding="utf-8")
