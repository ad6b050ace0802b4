"""The page of a profile as text: self-contained, escaped, with everything that was found."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import re
from pathlib import Path

import pytest

from flatout.nouns.anatomy import Kind
from flatout.nouns.profile import Gap
from flatout.reporting.html import TEMPLATES
from flatout.reporting.profile import cells, html, tables
from machines.healthy import changed
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


@pytest.mark.slow
def test_the_bar_of_the_anatomy_adds_up() -> None:
    for name in examples.ALL:
        styles = [a.get("style") or "" for tag, a in page(name).tags if tag == "i"]
        widths = [re.search(r"--k-[\w-]+\); width: ([\d.]+)%", style) for style in styles]
        assert sum(float(found[1]) for found in widths if found) == pytest.approx(100, abs=0.01)


def test_each_kind_that_occurs_has_a_name_a_meaning_and_a_colour() -> None:
    style = (TEMPLATES / "profile.css").read_text(encoding="utf-8")
    light, dark = style.split("@media (prefers-color-scheme: dark)")[:2]
    for kind in Kind:
        assert f"--k-{kind}:" in light and f"--k-{kind}:" in dark
        assert html.words.MEANINGS[kind]
        assert len(html.words.kind(kind)) <= 24


def test_the_trace_is_linked_where_it_lies_beside_the_page(tmp_path: Path) -> None:
    trace = tmp_path / "traces" / "rank 0.json.gz"
    profiled = changed(examples.naive(), profile__trace=str(trace))
    text = html.render(profiled, tmp_path)
    assert 'href="./traces/rank%200.json.gz" download' in text
    elsewhere = html.render(profiled, tmp_path / "traces" / "deeper")
    assert "download" not in elsewhere and "rank 0.json.gz" in elsewhere


def test_what_a_table_leaves_out_is_told() -> None:
    table = tables.kernels(examples.large().profile)
    assert len(table.rows) == cells.AT_MOST
    assert table.note.startswith("Per step. 1,100 more, 1.32 ms together")
    times = [row.ms for row in table.rows]
    assert times == sorted(times, reverse=True)


def test_small_tables_stay_small_and_leave_out_empty_columns() -> None:
    gaps = tuple(Gap(Kind.WAIT_HOST, 1.0, 1.0) for _ in range(40))
    (table, *_) = tables.waits(changed(examples.bare().profile, gaps=gaps))
    assert len(table.rows) == cells.FEW
    assert "28 smaller ones are in the JSON" in table.note
    assert table.columns == ("Cause", "Time", "Of the step", "Gaps")
    assert {len(row.cells) for row in table.rows} == {4}


def test_the_rank_that_computes_longer_is_marked() -> None:
    table = tables.ranks(examples.ranks().profile)
    marked = [row.cells[0].text for row in table.rows if row.cells[3].style == "slow"]
    assert marked == ["5"]


def test_it_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "runs" / "profile.html"
    html.write_report(examples.bare(), path)
    before = path.read_text(encoding="utf-8")
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        html.write_report(examples.naive(), path)
    assert path.read_text(encoding="utf-8") == before
    assert [item.name for item in path.parent.iterdir()] == ["profile.html"]


def test_odd_bytes_in_a_path_do_not_break_the_page(tmp_path: Path) -> None:
    odd = dataclasses.replace(examples.ITEM, boost="\udcff")
    profiled = dataclasses.replace(examples.naive(), findings=(odd,), run_folder="/runs/\udcff")
    html.write_report(profiled, tmp_path / "profile.html")
    assert "\\udcff" in (tmp_path / "profile.html").read_text(encoding="utf-8")


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
