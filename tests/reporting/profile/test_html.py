"""The page of a profile as text: self-contained, escaped, with everything that was found."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path

import pytest

from flatout.nouns.anatomy import Kind
from flatout.reporting.html import TEMPLATES
from flatout.reporting.profile import html
from reporting import profiled_examples as examples
from reporting.test_html import Page


def page(name: str) -> Page:
    return Page(html.render(getattr(examples, name)(), Path("/nowhere")))


def words(name: str) -> str:
    return " ".join(" ".join(page(name).words).split())


@pytest.mark.parametrize("name", examples.ALL)
def test_the_page_asks_for_nothing_outside_itself(name: str) -> None:
    for tag, attributes in page(name).tags:
        loads = attributes.get("src") or (tag == "link" and attributes.get("href")) or ""
        assert loads in ("", "data:,"), (tag, attributes)
        address = attributes.get("href") or ""
        ours = address.startswith(("#", "./")) or address == "data:,"
        assert not address or ours or address == "https://ui.perfetto.dev"
    policy = next(a["content"] for _, a in page(name).tags if a.get("http-equiv"))
    assert policy is not None and policy.startswith("default-src 'none'")
    assert "unsafe-eval" not in policy and "http" not in policy


@pytest.mark.parametrize("name", examples.ALL)
def test_only_the_script_of_the_page_may_run(name: str) -> None:
    document = page(name)
    kinds = [attributes.get("type") for tag, attributes in document.tags if tag == "script"]
    assert kinds == ["application/json", None]
    policy = next(a["content"] for _, a in document.tags if a.get("http-equiv")) or ""
    named = re.search(r"script-src ([^;]*)", policy)
    hashed = base64.b64encode(hashlib.sha256(document.scripts[1].encode()).digest()).decode()
    assert named is not None and named[1].split() == [f"'sha256-{hashed}'"]
    assert not any(name.startswith("on") for _, attributes in document.tags for name in attributes)


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


def test_it_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "runs" / "profile.html"
    html.write_report(examples.bare(), path)
    before = path.read_text(encoding="utf-8")
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        html.write_report(examples.naive(), path)
    assert path.read_text(encoding="utf-8") == before
    assert [item.name for item in path.parent.iterdir()] == ["profile.html"]


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
