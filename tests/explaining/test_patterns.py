"""Patterns forgive what happens to a message on its way, and take time linear in the text."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.explaining.patterns import PatternSet, any_of, compiled, tolerant

WORDS = st.lists(st.text("abcdef", min_size=1, max_size=6), min_size=1, max_size=6)


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("can't", "can't"),  # quotes may differ or be lost
        ("can't", 'can"t'),
        ("can't", "cant"),
        ("can't", "can`t"),
        (r"[ab c]d", " d"),  # a space in a class stays one
        (r"a\ b", "a b"),
        (r"a\\ b", "a\\\n b"),
        (r"[^']x", "yx"),
        ("CUDA Error", "cuda ERROR"),
        ("a ?b", "ab"),  # a space that may lack
        ("a *b", "a \n b"),
        ("a {0,2}b", "ab"),
    ],
)
def test_quotes_classes_escapes_and_case(pattern: str, text: str) -> None:
    assert compiled(pattern).search(text.encode()) is not None


def test_patterns_may_name_groups_alike_and_a_malformed_one_is_told() -> None:
    assert any_of((r"(?P<n>\d)a", r"(?P<n>\d)b")).search(b"1b") is not None
    with pytest.raises(ValueError, match="lookahead"):
        compiled("lookahead(?=x)")


@given(WORDS, st.text("abcdef \n'", max_size=60))
def test_any_of_finds_what_one_of_them_finds(words: list[str], text: str) -> None:
    alone = any(compiled(word).search(text.encode()) for word in words)
    assert (any_of(tuple(words)).search(text.encode()) is not None) == alone
    patterns = PatternSet(tuple(words))
    found = [place for place, word in enumerate(words) if word in text]
    assert patterns.search(text.encode()) == found


@given(st.integers(0, 3), st.integers(0, 9), st.text("ab", max_size=12))
def test_loosened_patterns_find_all_that_the_strict_ones_find(
    least: int, more: int, text: str
) -> None:
    pattern = f"a[ab]{{{least},{least + more}}}b"
    if compiled(pattern).search(text.encode()) is not None:
        assert any_of((pattern,)).search(text.encode()) is not None
        assert PatternSet((pattern,)).search(text.encode()) == [0]


def test_a_pattern_that_makes_others_run_away_does_not() -> None:
    pattern, text = "(a+)+b", "a" * 200_000
    began = time.process_time()
    assert compiled(pattern).search(text.encode()) is None
    assert time.process_time() - began < 5
    assert re.fullmatch(r"\(a\+\)\+b", tolerant(pattern))
