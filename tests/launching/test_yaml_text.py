"""What is written is read back as it was, by a reader of YAML 1.1, whatever the texts hold."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from flatout.launching import yaml_text

# Lone surrogates are no text to a reader.
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
VALUES = st.recursive(
    TEXT | st.integers() | st.booleans(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(TEXT, VALUES, min_size=1, max_size=3))
def test_a_value_is_read_back(given: dict[str, object]) -> None:
    text = f"a: {yaml_text.value(given)}\nb:\n{yaml_text.items([given], '  ')}"
    assert yaml.safe_load(text) == {"a": given, "b": [given]}


@pytest.mark.parametrize(
    "text",
    ["yes", "No", "null", "~", "1e3", "0x1f", "12:30:45", "2024-01-01", ".5", ".inf", "=", "<<",
     "-", "a: b", "a #b", "#a", "a:", "@x", "`x", "%x", "*x", "&x", "!x", "|", ">", "'", '"', " x",
     "x ", "", "\x85", "\u2028", "\ufeff", "\x00", "\x7f", "a\nb", "a\n", "a\n\n", "\na", " a\nb",
     "a\n  b\n", "a\n\nb\n", "a\tb\nc\n", "a\r\nb\n", "\U0001f600", "a\n# b\n"],
)  # fmt: skip
def test_texts_stay_texts(text: str) -> None:
    document = (
        f"in:\n  key: {yaml_text.block(text, '    ')}\n{yaml_text.entries({'b': text}, '  ')}"
    )
    assert yaml.safe_load(document) == {"in": {"key": text, "b": text}}


def test_a_script_stands_there_unchanged() -> None:
    assert yaml_text.block("set -e\n\necho 'a: b'\n", "  ") == "|\n  set -e\n\n  echo 'a: b'"
    assert yaml_text.comment("a\nb\x85c") == "# a\n# b\n# c"
