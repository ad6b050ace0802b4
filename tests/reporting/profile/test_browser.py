"""The page of a profile in a real browser: it answers to mouse and keyboard, and stays at home."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flatout.nouns.profile import Profiled
from flatout.profiling.trace.analysing import analyse
from flatout.profiling.trace.reading import read
from flatout.reporting.profile import html
from reporting import profiled_examples as examples
from reporting.test_browser import OWN, browser, requests, visited  # noqa: F401
from reporting.test_browser import pytestmark as pytestmark

from selenium.webdriver.common.action_chains import ActionChains  # isort: skip
from selenium.webdriver.common.by import By  # isort: skip
from selenium.webdriver.common.keys import Keys  # isort: skip
from selenium.webdriver.support.ui import WebDriverWait  # isort: skip

TRACES = Path(__file__).parents[2] / "traces"
FRAME = "requestAnimationFrame(() => requestAnimationFrame(arguments[0]))"
INTO_VIEW = "arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})"
TIP = "const t = document.getElementById('tip'); return t.hidden ? null : t.textContent"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("profiles")


@pytest.fixture
def show(browser: Any, folder: Path) -> Iterator[Any]:  # noqa: F811
    def of(name: str, width: int = 1200) -> Any:
        path = folder / f"{name}.html"
        if not path.exists():
            html.write_report(getattr(examples, name)(), path)
        visited(browser, path, width)
        return browser

    yield of
    assert browser.get_log("browser") == []


def column(page: Any, table: str, number: int) -> list[str]:
    """The cells of one column whose rows are shown."""
    script = (
        "return [...document.querySelectorAll('#table-' + arguments[0] + ' tbody tr')]"
        ".filter(r => !r.hidden).map(r => r.cells[arguments[1]].textContent.trim())"
    )
    found: list[str] = page.execute_script(script, table, number)
    return found


def over(page: Any, lane: str, at_ms: float, row: int = 0) -> None:
    """Move the mouse to that place of the timeline."""
    canvas = page.find_element(By.CSS_SELECTOR, "#timeline canvas")
    page.execute_script(INTO_VIEW, canvas)
    page.execute_async_script(FRAME)  # scrolling hides the words
    y = page.execute_script(
        "const lane = page.data.timeline.lanes.find(l => l.name === arguments[0]);"
        "return lane.top + 18 + 17 * arguments[1] + 8",
        lane,
        row,
    )
    begin, end = (float(canvas.get_attribute(f"data-{name}")) for name in ("from", "to"))
    wide, high = canvas.size["width"], canvas.size["height"]
    x = (at_ms - begin) / (end - begin) * wide
    ActionChains(page).move_to_element_with_offset(canvas, x - wide / 2, y - high / 2).perform()


def press(page: Any, words: str) -> None:
    button = page.find_element(By.XPATH, f"//button[normalize-space()='{words}']")
    page.execute_script("arguments[0].click()", button)
    page.execute_async_script(FRAME)


def shown(page: Any) -> tuple[float, float]:
    canvas = page.find_element(By.CSS_SELECTOR, "#timeline canvas")
    return float(canvas.get_attribute("data-from")), float(canvas.get_attribute("data-to"))


@pytest.mark.thorough
@pytest.mark.parametrize("name", [*examples.ALL, "large"])
def test_every_page_is_drawn_without_an_error_or_a_request(
    show: Any, folder: Path, name: str
) -> None:
    page = show(name)
    urls = {url for url in requests(page) if not url.startswith(OWN)}
    assert urls == {(folder / f"{name}.html").as_uri()}
    assert page.execute_script("return performance.getEntriesByType('resource').length") == 0
    figures = html.page_figures(getattr(examples, name)().profile)
    marks = "return document.querySelectorAll('#memory path').length"
    assert (page.execute_script(marks) > 0) == bool(figures["memory"])


@pytest.mark.thorough
@pytest.mark.parametrize("trace", ["a100_train", "mi250_toy", "sampled_rank0"])
def test_real_traces_are_drawn(browser: Any, folder: Path, trace: str) -> None:  # noqa: F811
    profile = analyse(read([TRACES / f"{trace}.json.gz"])[0])
    path = folder / f"{trace}.html"
    html.write_report(Profiled(profile, ()), path)
    assert path.stat().st_size < 5_000_000
    visited(browser, path)
    assert browser.get_log("browser") == []
    parts = column(browser, "anatomy", 0)
    assert len(parts) == sum(part.ms > 0 for part in profile.anatomy.parts) + 1


def test_hostile_text_is_shown_and_never_run(show: Any) -> None:
    page = show("hostile")
    text = page.execute_script("return document.body.innerText")
    assert text.count(examples.XSS) > 12
    assert page.execute_script("return document.querySelectorAll('img').length") == 0
    over(page, "host", 5.0)
    assert examples.XSS in page.execute_script(TIP)
    assert page.execute_script("return document.querySelectorAll('img').length") == 0


@pytest.mark.thorough
@pytest.mark.parametrize("width", [320, 400, 800, 1600])
@pytest.mark.parametrize("name", ["naive", "scripted", "hostile"])
def test_nothing_runs_over_the_edge(show: Any, name: str, width: int) -> None:
    page = show(name, width)
    right = page.execute_script(
        "return Math.max(document.documentElement.scrollWidth,"
        " ...[...document.querySelectorAll('header *, main *:not(svg *)')]"
        "   .filter(e => !e.closest('.wide table')).map(e => e.getBoundingClientRect().right))"
    )
    assert right <= width


@pytest.mark.thorough
def test_tables_sort(show: Any) -> None:
    page = show("naive")
    heads = page.find_elements(By.CSS_SELECTOR, "#table-kernels th button")
    calls = next(head for head in heads if head.text.strip() == "Calls")
    head = "return arguments[0].parentElement.getAttribute('aria-sort')"
    numbers = sorted((item.calls for item in examples.naive().profile.kernels), reverse=True)
    page.execute_script("arguments[0].click()", calls)
    assert [float(text) for text in column(page, "kernels", 4)] == numbers
    assert page.execute_script(head, calls) == "descending"
    calls.send_keys(Keys.ENTER)
    assert [float(text) for text in column(page, "kernels", 4)] == numbers[::-1]
    assert page.execute_script(head, calls) == "ascending"
    sorted_ = page.execute_script(
        "return document.querySelectorAll('#table-kernels [aria-sort]').length"
    )
    assert sorted_ == 1
    page.execute_script("arguments[0].click()", heads[0])
    names = column(page, "kernels", 0)
    assert names == sorted(names, key=str.lower)


@pytest.mark.thorough
def test_the_timeline_tells_what_lies_under_the_mouse(show: Any) -> None:
    page = show("naive")
    over(page, "idle", 100.0)
    assert page.execute_script(TIP) == "wait-data\n232 ms, waiting for data\nidle, from 0.00 ms"
    over(page, "stream 7", 300.0)
    assert page.execute_script(TIP).startswith("kernel of matmul-tensor-cores\n")
    over(page, "stream 20", 100.0)
    assert page.execute_script(TIP) is None


@pytest.mark.thorough
def test_the_timeline_zooms_moves_and_comes_back(show: Any) -> None:
    page = show("naive")
    whole = shown(page)
    assert whole == (0.0, pytest.approx(411.74))
    press(page, "Zoom in")
    begin, end = shown(page)
    assert end - begin == pytest.approx(411.74 / 2)
    press(page, "Later")
    assert shown(page)[0] == pytest.approx(begin + (end - begin) / 4)
    for _ in range(5):
        press(page, "Earlier")
    assert shown(page)[0] == 0.0
    over(page, "idle", 10.0)
    canvas = page.find_element(By.CSS_SELECTOR, "#timeline canvas")
    ActionChains(page).drag_and_drop_by_offset(canvas, -200, 0).perform()
    page.execute_async_script(FRAME)
    assert shown(page)[0] == pytest.approx((end - begin) * 200 / canvas.size["width"], rel=0.05)
    wheel = (
        "const c = document.querySelector('#timeline canvas'), r = c.getBoundingClientRect();"
        "return c.dispatchEvent(new WheelEvent('wheel', {deltaY: -100, ctrlKey: arguments[0],"
        " clientX: r.left + r.width / 2, clientY: r.top + 60, cancelable: true}))"
    )
    before = shown(page)
    assert page.execute_script(wheel, False), "the page scrolls"
    assert not page.execute_script(wheel, True), "the page stays"
    page.execute_async_script(FRAME)
    assert shown(page)[1] - shown(page)[0] < before[1] - before[0]
    press(page, "Whole step")
    assert shown(page) == whole


def frame(page: Any, name: str) -> Any:
    """The frame of the flame graph whose name begins so."""
    found = page.find_elements(By.CSS_SELECTOR, f"#flames g.frame[name^='{name}']")
    return found[0]


def share_of_the_step(page: Any, name: str, wanted: float) -> None:
    """Wait until the frame is as wide as this share of the step: it grows for a moment."""
    script = "return arguments[0].querySelector('rect').getBoundingClientRect().width"

    def reached(page: Any) -> bool:
        width, whole = (page.execute_script(script, frame(page, it)) for it in (name, "step"))
        return bool(whole > 100 and abs(width / whole - wanted) < 0.01)

    WebDriverWait(page, 120).until(reached, f"{name} is not drawn as {wanted} of the step")


@pytest.mark.thorough
def test_the_flame_graph_is_used_by_keyboard(show: Any) -> None:
    page = show("scripted")
    reachable = "return document.querySelectorAll('#flames [tabindex=\"0\"]').length"
    name = "return document.activeElement.getAttribute('name')"
    assert page.execute_script(reachable) == 1
    page.execute_script("document.querySelector('#flames [tabindex=\"0\"]').focus()")
    assert page.execute_script(TIP) == "step\n80.0 ms"
    names = []
    keys = (Keys.ARROW_DOWN, Keys.ARROW_DOWN, Keys.ARROW_DOWN, Keys.ARROW_RIGHT, Keys.ARROW_UP)
    for key in keys:
        page.switch_to.active_element.send_keys(key)
        names.append(page.execute_script(name))
    assert names == [
        "train.py:40 <module>",
        "train.py:30 train",
        "train.py:14 mask",
        "torch Tensor.backward",
        "train.py:30 train",
    ]
    page.switch_to.active_element.send_keys(Keys.ARROW_DOWN)
    assert "32.0 ms, 40% of the step" in page.execute_script(TIP)
    page.switch_to.active_element.send_keys(Keys.ENTER)
    share_of_the_step(page, "train.py:14 mask", 1.0)
    assert page.execute_script(name) == "train.py:14 mask"
    assert page.execute_script(reachable) == 1


@pytest.mark.thorough
def test_everything_that_can_be_used_has_a_name(show: Any) -> None:
    page = show("naive")
    tree = page.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    used = {"button", "link", "searchbox", "combobox", "image", "region", "table", "article"}
    named = [
        (node["role"]["value"], node.get("name", {}).get("value", ""))
        for node in tree
        if not node.get("ignored") and node.get("role", {}).get("value") in used
    ]
    assert len(named) > 40
    assert [role for role, name in named if not name.strip()] == []
    assert any(role == "image" and "waiting for data 232 ms" in name for role, name in named)
