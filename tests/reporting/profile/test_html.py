"""The page of a profile as text: self-contained, escaped, with everything that was found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flatout.nouns.anatomy import Kind
from flatout.reporting.html import TEMPLATES
from flatout.reporting.profile import html
from reporting import profiled_examples as examples
from reporting.test_html import Page, assert_closed


def page(name: str) -> Page:
    return Page(html.render(getattr(examples, name)(), Path("/nowhere")))


@pytest.mark.parametrize("name", examples.ALL)
def test_the_page_is_closed(name: str) -> None:
    assert_closed(page(name))


def test_hostile_text_is_text() -> None:
    document = page("hostile")
    shown = " ".join(document.words)
    assert shown.count(examples.XSS) > 15
    assert "{{ 7*7 }}" in shown and "49" not in shown
    assert not any(tag == "img" for tag, _ in document.tags)
    assert not set(document.scripts[0]) & set("<>&\u2028\u2029")
    assert json.loads(document.scripts[0])["timeline"]["names"] == [examples.XSS]


def test_each_kind_that_occurs_has_a_name_a_meaning_and_a_colour() -> None:
    style = (TEMPLATES / "profile.css").read_text(encoding="utf-8")
    light, dark = style.split("@media (prefers-color-scheme: dark)")[:2]
    for kind in Kind:
        assert f"--k-{kind}:" in light and f"--k-{kind}:" in dark
        assert html.words.MEANINGS[kind]
        assert len(html.words.kind(kind)) <= 24


def test_the_licences_of_what_is_vendored_lie_beside_it() -> None:
    folder = TEMPLATES / "vendored"
    licences = (folder / "LICENSES.txt").read_text(encoding="utf-8")
    for name in (
        "d3-flame-graph 5.0.0",
        "uPlot 1.6.32",
        "Apache License",
        "ISC License",
        "BSD 3-Clause",
        "MIT License",
    ):
        assert name in licences
    assert [path.name for path in sorted(folder.glob("*.js"))] == ["d3-flame-graph.js", "uPlot.js"]
