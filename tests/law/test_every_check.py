"""Every file in checks/ is a whole check: documented, tested, shown by a machine."""

from __future__ import annotations

import inspect
import json
import re
from collections import Counter
from pathlib import Path

import pytest

from check_pages import assert_whole_page
from flatout.diagnosing import checks, pages
from flatout.nouns.finding import Severity

CODE = re.compile(r"(ENV|HW|DATA|COPY|SYNC|HOST|KERN|MEM|COMM|LOOP)\d{3}")
NAMES = checks.names()
CURES_IN_A_NAME = {"fix", "install", "enable", "set", "use", "no", "not", "disallow", "banned"}


def test_the_folder_is_the_table() -> None:
    assert len(NAMES) >= 50
    folder = Path(checks.__file__).parent
    files = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    assert {check_id.replace("-", "_") for check_id in NAMES} == files


def test_codes_and_names_are_unique_among_all_families() -> None:
    names = Counter(name for page in pages.every() for name in (page.code, page.id))
    assert [name for name, count in names.items() if count > 1] == []


@pytest.mark.parametrize("check_id", NAMES)
def test_page(check_id: str) -> None:
    assert_whole_page(checks.load(check_id))


@pytest.mark.parametrize("check_id", NAMES)
def test_shape(check_id: str) -> None:
    module = checks.load(check_id)
    assert isinstance(module.CHECK, checks.Check)
    assert CODE.fullmatch(module.CHECK.code)
    assert module.CHECK.severity is not Severity.UNCHECKED
    assert re.fullmatch(r"\d+\.\d+\.\d+", module.CHECK.since)
    assert list(inspect.signature(module.check).parameters) == ["machine"]


@pytest.mark.parametrize("check_id", NAMES)
def test_a_name_says_the_problem_and_not_the_cure(check_id: str) -> None:
    first, *_ = check_id.split("-")
    assert first not in CURES_IN_A_NAME


@pytest.mark.parametrize("check_id", NAMES)
def test_hides_only_codes_that_exist(check_id: str) -> None:
    known = {checks.load(name).CHECK.code for name in NAMES}
    check = checks.load(check_id).CHECK
    assert set(check.hides) <= known - {check.code}


@pytest.mark.parametrize("check_id", NAMES)
def test_has_a_test_file(check_id: str, root: Path) -> None:
    assert (root / "tests/diagnosing/checks" / f"test_{check_id.replace('-', '_')}.py").is_file()


def test_a_recorded_machine_shows_every_code(root: Path) -> None:
    shown: set[str] = set()
    for path in (root / "tests/machines").glob("*.json"):
        shown |= set(json.loads(path.read_text(encoding="utf-8"))["expected"])
    assert {checks.load(name).CHECK.code for name in checks.names()} - shown == set()
