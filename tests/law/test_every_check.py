"""Every check is whole: its file says its code, it has a page and a test, and is told apart."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from pathlib import Path
from typing import Any

from every import for_every
from flatout.diagnosing import checks, pages
from flatout.diagnosing.checks import CheckFile
from flatout.nouns.finding import Severity
from law.sources import FINDING, assert_whole_page
from machines import composed

FAMILIES = {
    "machine": {"env", "hw"},
    "job": {"comm", "copy", "data", "host", "kern", "loop", "mem", "sync"},
    "ceilings": {"hw"},
}
FACTS = {"machine": ["machine"], "job": ["profile"], "ceilings": ["benched", "machine"]}
KINDS: dict[str, checks.CheckKind[...]] = {
    kind.folder: kind for kind in (checks.MACHINE, checks.JOB, checks.CEILINGS)
}
FILES = checks.files()
CODES = {file.code for file in FILES}
GONE = {
    *("COMM009", "COPY005", "COPY009", "DATA003", "DATA005", "DATA008", "DATA012"),
    *("ENV010", "ENV024", "ENV027", "ENV029", "ENV036", "ENV040", "ENV041", "ENV043", "ENV046"),
    *("ENV015", "ENV026", "ENV056", "ENV059", "ENV062", "ENV068"),
    *("ENV042", "ENV044", "ENV049", "ENV055", "ENV057", "ENV058", "ENV070", "ENV072"),
    *("HW002", "HW005", "HW007", "HW017", "HW019", "HW022", "HW025", "HW026", "HW028", "HW030"),
    *("HW012", "HW013", "HW015", "HW032", "HW033", "HW036", "HW037", "HW039", "HW040"),
    *("HOST002", "HOST016", "KERN014", "KERN018", "KERN021", "KERN024", "KERN025", "KERN026"),
    *("KERN027", "KERN028", "KERN029", "LOOP012", "LOOP019", "LOOP021", "LOOP022", "LOOP023"),
    *("COMM007", "ENV050", "HW021", "MEM002"),
    # Merged into a check of a lower number.
    *("COPY003", "KERN013", "KERN016", "KERN017", "LOOP011", "MEM010", "SYNC002", "SYNC003"),
    *("COMM004", "COMM010", "DATA006", "DATA007", "LOOP005", "LOOP009", "LOOP015", "MEM006"),
    *("ENV013", "ENV035", "ENV037", "ENV039", "ENV047", "ENV048", "ENV054", "ENV065", "ENV067"),
    *("HW004", "HW029", "HW042"),
    *("ENV014", "ENV032", "ENV033", "ENV069", "ENV074", "HW020", "HW023"),
    *("COMM005", "COPY006", "COPY008", "ENV071", "HW018", "HW038", "MEM003", "SYNC007"),
    *("SYNC004", "SYNC005", "SYNC006", "SYNC008", "SYNC009", "SYNC010", "SYNC011", "SYNC012"),
}
"""They are given to no other check: results and plans name findings by their codes."""
CURES_IN_A_NAME = {"fix", "install", "enable", "set", "use", "no", "not", "disallow", "banned"}

each_check = for_every(FILES, lambda file: file.code)


def place(file: CheckFile) -> tuple[str, str]:
    """Kind and family, by the folders."""
    family = file.path.parent
    return family.parent.name, family.name


def module(file: CheckFile) -> Any:
    return KINDS[place(file)[0]].load(file.id)


@for_every(FAMILIES)
def test_the_folders_are_the_families(kind: str) -> None:
    folders = (checks.FOLDER / kind).glob("*/__init__.py")
    assert {path.parent.name for path in folders} == FAMILIES[kind]
    assert len(KINDS[kind].files()) >= 5


def test_whatever_defines_a_check_is_one() -> None:
    every = {path for kind in FAMILIES for path in (checks.FOLDER / kind).rglob("*.py")}
    defining = {path for path in every if re.search(r"^CHECK\b", path.read_text("utf-8"), re.M)}
    assert defining == {file.path for file in FILES}


def test_codes_and_names_are_unique_among_all_families() -> None:
    names = Counter(name for file in FILES for name in (file.code, file.id))
    assert [name for name, count in names.items() if count > 1] == []


def test_codes_count_up_from_one_in_each_family() -> None:
    """HW is one family in two folders: the machine's come first."""
    assert not CODES & GONE, "they were other checks' codes: take the next after the last"
    for family in sorted({code[:-3] for code in CODES} - {"ENV"}):
        codes = [code for code in (*CODES, *GONE) if code[:-3] == family]
        numbers = sorted(int(code.removeprefix(family)) for code in codes)
        assert numbers == list(range(1, len(numbers) + 1)), f"{family}: the next after the last"
    assert min(file.code for file in checks.CEILINGS.files()) > max(
        file.code for file in checks.MACHINE.files()
    )


@each_check
def test_its_file_says_its_code(file: CheckFile) -> None:
    assert module(file).CHECK.code == file.code
    assert file.code[:-3].lower() == place(file)[1]


@each_check
def test_page(file: CheckFile) -> None:
    found = module(file)
    assert_whole_page(found, FINDING)
    page = pages.find(file.code)
    assert page == pages.find(file.id)
    assert page is not None
    assert (page.code, page.id) == (found.CHECK.code, file.id)
    assert (page.severity, page.since) == (found.CHECK.severity.value, found.CHECK.since)
    assert f"{page.title}.\n\n{page.body}" == inspect.cleandoc(found.__doc__)


@each_check
def test_shape(file: CheckFile) -> None:
    found = module(file)
    assert isinstance(found.CHECK, checks.Check)
    assert found.CHECK.severity is not Severity.UNCHECKED
    assert set(found.CHECK.hides) <= CODES - {file.code}
    assert list(inspect.signature(found.check).parameters) == FACTS[place(file)[0]]


@each_check
def test_a_name_says_the_problem_and_not_the_cure(file: CheckFile) -> None:
    first, *_ = file.id.split("-")
    assert first not in CURES_IN_A_NAME


@each_check
def test_has_a_test(file: CheckFile, root: Path) -> None:
    """A file of its own, or a place in one that asks several checks by their codes."""
    kind, family = place(file)
    folder = root / "tests/diagnosing" / kind / family
    own = folder / f"test_{file.path.stem}.py"
    named = any(file.code in path.read_text("utf-8") for path in folder.glob("test_*.py"))
    assert own.is_file() or named, f"no test in {folder.relative_to(root)} names it"


def test_every_test_of_a_check_has_that_check(root: Path) -> None:
    known = {(*place(file), file.path.stem) for file in FILES}
    for path in (root / "tests/diagnosing").glob("*/*/test_*.py"):
        name = path.stem.removeprefix("test_")
        if checks.FILE.fullmatch(name):
            assert (path.parent.parent.name, path.parent.name, name) in known


def test_a_composed_machine_shows_every_code() -> None:
    shown = {code for _, codes in composed.machines().values() for code in codes}
    assert {file.code for file in checks.MACHINE.files()} - shown == set()
