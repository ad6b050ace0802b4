import base64
import dataclasses
import hashlib
import itertools
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given, settings

from flatout.nouns.tuned import Tuned
from flatout.reporting import charts, html
from flatout.reporting.chart import BarChart, CurveChart
from reporting import tuned_examples
from reporting.strategies import TUNED


class Page(HTMLParser):
    """Elements, visible text and scripts of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.words: list[str] = []
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts.append(data)
        elif self._inside != "style":
            self.words.append(data)


def assert_closed(page: Page) -> None:
    """It asks for nothing outside itself, and only its own script may run."""
    for tag, attributes in page.tags:
        loads = attributes.get("src") or (tag == "link" and attributes.get("href")) or ""
        assert loads in ("", "data:,"), (tag, attributes)
        address = attributes.get("href") or ""
        ours = address.startswith(("#", "./")) or address in ("", "data:,")
        assert ours or address == "https://ui.perfetto.dev"
        assert not any(name.startswith("on") for name in attributes)
    policy = next(a["content"] for _, a in page.tags if a.get("http-equiv")) or ""
    assert policy.startswith("default-src 'none'")
    assert "unsafe-eval" not in policy and "http" not in policy
    kinds = [attributes.get("type") for tag, attributes in page.tags if tag == "script"]
    assert kinds == ["application/json", None]
    named = re.search(r"script-src ([^;]*)", policy)
    hashed = base64.b64encode(hashlib.sha256(page.scripts[1].encode()).digest()).decode()
    assert named is not None and named[1].split() == [f"'sha256-{hashed}'"]


@pytest.mark.parametrize("name", tuned_examples.ALL)
def test_a_page_is_closed_and_small_and_its_loss_curves_end_together(name: str) -> None:
    tuned = tuned_examples.ALL[name]()
    text = html.render(tuned, Path("/nowhere"))
    assert_closed(Page(text))
    assert len(text.encode()) < 1_000_000
    losses = charts.charts(tuned).get("losses")
    assert isinstance(losses, CurveChart | None)
    assert len({curve.x[-1] for curve in losses.curves} if losses else ()) <= 1


def test_hostile_text_is_text() -> None:
    page = Page(html.render(tuned_examples.hostile(), Path("/nowhere")))
    shown = " ".join(page.words)
    assert shown.count(tuned_examples.XSS) > 10
    assert "{{ 7*7 }}" in shown and "49" not in shown
    assert "&amp;" in shown  # the program's own "&amp;" is not decoded
    assert not any(tag == "img" for tag, _ in page.tags)
    assert not set(page.scripts[0]) & set("<>&\u2028\u2029")


def test_a_rate_that_only_one_side_has_stands_beside_no_unknown(tmp_path: Path) -> None:
    tuned = tuned_examples.good()
    untouched = dataclasses.replace(tuned.baseline, samples_per_s=None)
    tuned = dataclasses.replace(tuned, baseline=untouched, confirmation=None)
    html.write_report(tuned, tmp_path / "report.html")
    words = " ".join(Page((tmp_path / "report.html").read_text(encoding="utf-8")).words)
    assert "unknown →" not in words and "→ unknown" not in words


def test_the_waterfall_adds_up() -> None:
    chart = charts.charts(tuned_examples.good())["waterfall"]
    assert isinstance(chart, BarChart)
    first, *changes, last = chart.bars
    assert (first.begin, first.end, last.begin) == (0, 1514, 0)
    for above, below in itertools.pairwise([first, *changes]):
        assert above.end == below.begin
    assert changes[-1].end == pytest.approx(last.end) == pytest.approx(412)
    assert chart.place(last.begin, last.end) == "left: 0.00%; width: 27.21%"


@pytest.mark.slow
@given(TUNED)
def test_no_bar_is_longer_than_the_axis(tuned: Tuned) -> None:
    for chart in charts.charts(tuned).values():
        if isinstance(chart, BarChart):
            low, high = chart.shown
            assert all(low <= end <= high for bar in chart.bars for end in (bar.begin, bar.end))


@pytest.mark.slow
@settings(deadline=None, max_examples=8)
@given(TUNED)
def test_any_tuned_gives_a_page(tuned: Tuned) -> None:
    assert html.render(tuned, Path()).startswith("<!doctype html>")


def test_a_log_beside_the_report_is_linked_and_any_other_is_not(tmp_path: Path) -> None:
    assert html.beside(str(tmp_path / "trials" / "a b.log"), tmp_path) == "./trials/a%20b.log"
    assert html.beside(str(tmp_path / "javascript:x"), tmp_path) == "./javascript%3Ax"
    assert html.beside(str(tmp_path.parent / "other.log"), tmp_path) is None
    assert html.beside("javascript:alert(1)", tmp_path) is None


def test_a_report_is_written_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "deep" / "report.html"
    html.write_report(tuned_examples.nothing(), path)
    before = path.read_bytes()

    def full(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="No space"):
        html.write_report(tuned_examples.good(), path)
    assert path.read_bytes() == before
    assert [item.name for item in path.parent.iterdir()] == ["report.html"]
