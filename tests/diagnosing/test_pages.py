"""The page of a code, found by code or name."""

from __future__ import annotations

import pytest

from flatout.diagnosing import pages


@pytest.mark.parametrize(
    "wanted", ["ENV002", "env002", " Env002 ", "nouveau-in-the-way", "nouveau_in_the_way"]
)
def test_find(wanted: str) -> None:
    page = pages.find(wanted)
    assert page is not None
    assert (page.code, page.id, page.severity) == ("ENV002", "nouveau-in-the-way", "error")
    assert page.title.startswith("The nouveau driver holds")
    assert page.markdown.startswith("# ENV002: The nouveau driver")
    assert "## Cure" in page.body


def test_unknown() -> None:
    assert pages.find("ENV999") is None
    assert pages.find("") is None


@pytest.mark.parametrize(
    ("wanted", "near"), [("EVN002", "ENV002"), ("nouveau-in-way", "nouveau-in-the-way")]
)
def test_nearest(wanted: str, near: str) -> None:
    assert near in pages.nearest(wanted)


def test_a_part_of_a_name_leads_to_it() -> None:
    assert "nouveau-in-the-way" in pages.nearest("nouveau")
    assert pages.nearest("") == ()
