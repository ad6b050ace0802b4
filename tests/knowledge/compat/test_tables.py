"""Reading tables: what is malformed is refused with what and where."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.knowledge.compat import tables

GOOD = """
checked = "2026-11-21"
[[release]]
version = "1.2"
released = "2026-01"
capabilities = "7.5 8.0"
names = ["a"]
source = "https://example.org/page"
"""


def row(text: str = GOOD) -> tables.Row:
    return tables.parse(text, "some.toml").rows("release")[0]


def test_a_good_table_is_read() -> None:
    found = row()
    assert found.text("version") == "1.2"
    assert found.month("released") == "2026-01"
    assert found.capabilities("capabilities") == ((7, 5), (8, 0))
    assert found.texts("names") == ("a",)
    assert found.texts("other") == ()
    assert found.text_or_none("other") is None
    assert found.source() == "https://example.org/page"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("checked = ", "not TOML"),
        ("", "checked must be text"),
        ('checked = "yesterday"', "checked must be YYYY-MM-DD"),
        ('checked = "2026-02-30"', "checked must be YYYY-MM-DD"),
    ],
)
def test_a_malformed_file_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=rf"some\.toml: {complaint}"):
        tables.parse(text, "some.toml")


@pytest.mark.parametrize(
    ("before", "after", "ask"),
    [
        ('version = "1.2"', "version = 1.2", lambda found: found.text("version")),
        ('version = "1.2"', 'version = ""', lambda found: found.text("version")),
        ('"2026-01"', '"January 2026"', lambda found: found.month("released")),
        ('"2026-01"', '"2026-13"', lambda found: found.month("released")),
        ('"7.5 8.0"', '"8.0 7.5"', lambda found: found.capabilities("capabilities")),
        ('"7.5 8.0"', '" "', lambda found: found.capabilities("capabilities")),
        ('"7.5 8.0"', '"sm_75"', lambda found: found.capabilities("capabilities")),
        ('"7.5 8.0"', '"75"', lambda found: found.capability("capabilities")),
        ('["a"]', "[1]", lambda found: found.texts("names")),
        ('["a"]', '"a"', lambda found: found.texts("names")),
        ("https://", "http://", lambda found: found.source()),
        ('["a"]', '["a"]', lambda found: found.rows("names")),
        ('["a"]', '["a"]', lambda found: found.row("names")),
    ],
)
def test_a_malformed_field_is_refused_with_its_place(before, after, ask) -> None:  # type: ignore[no-untyped-def]
    text = GOOD.replace(before, after)
    with pytest.raises(ValueError, match=r"some\.toml release"):
        ask(row(text))


@given(st.text(max_size=30))
def test_no_text_is_a_crash(written: str) -> None:
    tables.minor(written)
    tables.number(written)


def test_versions_that_do_not_rise_are_refused() -> None:
    tables.ordered(("2.9", "2.10"), "some.toml")
    with pytest.raises(ValueError, match=r"2\.9 must not come after 2\.10"):
        tables.ordered(("2.10", "2.9"), "some.toml")
    with pytest.raises(ValueError, match="must not come after"):
        tables.ordered(("2.9", "2.9"), "some.toml")
