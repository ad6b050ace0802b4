import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given, settings

from flatout.nouns.tuned import Tuned
from flatout.reporting import charts, html
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


@pytest.fixture(scope="module", params=tuned_examples.ALL)
def page(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Page:
    path = tmp_path_factory.mktemp("report") / "report.html"
    html.write_report(tuned_examples.ALL[request.param](), path)
    return Page(path.read_text(encoding="utf-8"))


def test_the_page_asks_for_nothing_outside_itself(page: Page) -> None:
    for tag, attributes in page.tags:
        address = attributes.get("src") or attributes.get("href") or ""
        assert not address or address == "data:," or address.startswith("./"), (tag, attributes)
    policy = next(a["content"] for _, a in page.tags if a.get("http-equiv"))
    assert policy is not None and policy.startswith("default-src 'none'")
    assert "unsafe-eval" not in policy and "http" not in policy


def test_only_the_two_scripts_of_the_page_may_run(page: Page) -> None:
    kinds = [attributes.get("type") for tag, attributes in page.tags if tag == "script"]
    assert kinds == ["application/json", None, None]
    policy = next(a["content"] for _, a in page.tags if a.get("http-equiv")) or ""
    named = re.search(r"script-src ([^;]*)", policy)
    assert named is not None
    hashed = [
        f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
        for text in page.scripts[1:]
    ]
    assert named[1].split() == hashed
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)


def test_hostile_text_is_text() -> None:
    page = Page(html.render(tuned_examples.hostile(), Path("/nowhere")))
    shown = " ".join(page.words)
    assert shown.count(tuned_examples.XSS) > 10
    assert "{{ 7*7 }}" in shown and "49" not in shown
    assert "&amp;" in shown  # the program's own "&amp;" is not decoded
    assert not any(tag == "img" for tag, _ in page.tags)
    data = page.scripts[0]
    assert not set(data) & set("<>&\u2028\u2029")
    assert json.loads(data)["waterfall"]["layout"]["yaxis"]["ticktext"][1].startswith("&lt;script")


def test_a_good_page_says_it_in_words() -> None:
    words = " ".join(" ".join(Page(html.render(tuned_examples.good(), Path())).words).split())
    assert "3.67× faster, and it learns the same" in words
    assert "95% interval 3.52× to 3.79×" in words
    assert "From 1514 ms to 412 ms per step: bf16-autocast 1.92× saves the most, 725 ms" in words
    assert "The loss curves coincide: gradient error 0.9% of batch noise" in words
    assert "All 5 A/B pairs were faster: median 3.67×" in words
    assert "5.0 → 2.9 GiB" in words
    assert "runs/events.out.tfevents.1763680449" in words
    assert "torch.OutOfMemoryError: CUDA out of memory" in words


def test_each_answer_has_its_own_headline() -> None:
    titles = {
        name: html.headline_words(html.outcome.headline(example()), example())
        for name, example in tuned_examples.ALL.items()
    }
    assert titles["nothing"] == titles["refuted"] == "Nothing faster was found"
    assert titles["unlike"] == "Nothing faster that learns the same"
    assert titles["statistical"] == "3.67× faster, no difference in the losses"
    assert titles["small"] == "1.03× faster, measured within one run"
    assert titles["interrupted"] == "2.81× faster, not confirmed"


def test_the_waterfall_adds_up() -> None:
    chart = charts.charts(tuned_examples.good())["waterfall"]
    bases, widths = chart.traces[0]["base"], chart.traces[0]["x"]
    assert bases[0] == bases[-1] == 0
    for above, below, width in zip(bases[1:-2], bases[2:-1], widths[2:-1], strict=True):
        assert above == pytest.approx(below + width)
    assert bases[1] + widths[1] == pytest.approx(widths[0]) == pytest.approx(1514)
    assert bases[-2] == pytest.approx(widths[-1]) == pytest.approx(412)


def test_every_chart_says_what_it_shows_and_in_what_unit() -> None:
    for example in tuned_examples.ALL.values():
        for chart in charts.charts(example()).values():
            assert re.search(r"\d|twice|as written", chart.title), chart.title
            assert chart.layout["xaxis"]["title"]["text"]
            rows = "ticktext" in chart.layout["yaxis"]
            assert rows or chart.layout["yaxis"]["title"]["text"]


@settings(deadline=None, max_examples=60)
@given(TUNED)
def test_any_tuned_can_be_drawn(tuned: Tuned) -> None:
    for chart in charts.charts(tuned).values():
        json.loads(html.script_json(chart.traces), parse_constant=pytest.fail)
        json.loads(html.script_json(chart.layout), parse_constant=pytest.fail)


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
