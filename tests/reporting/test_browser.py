"""The report in a real browser: nothing breaks, nothing leaves, nothing hostile runs, all fits."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flatout.reporting import html
from flatout.reporting.chart import BarChart
from reporting import tuned_examples

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
from selenium.common.exceptions import NoAlertPresentException  # noqa: E402
from selenium.webdriver.chrome.service import Service  # noqa: E402
from selenium.webdriver.common.action_chains import ActionChains  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.support.ui import WebDriverWait  # noqa: E402

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
# Both are named by path, so that selenium has nothing to find or fetch by itself.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not BROWSER or not DRIVER,
        reason="needs chromium (or google-chrome) and chromedriver on PATH",
    ),
]
FLAGS = [
    "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
]  # fmt: skip


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for flag in [*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SE_OFFLINE", "true")
        driver = webdriver.Chrome(options=options, service=Service(DRIVER))
        # Without it a window that another one covers sends no focus events.
        driver.execute_cdp_cmd("Emulation.setFocusEmulationEnabled", {"enabled": True})
        yield driver
        driver.quit()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("reports")


def opened(browser: Any, folder: Path, name: str, width: int = 1200, scheme: str = "light") -> str:
    path = folder / f"{name}.html"
    if not path.exists():
        html.write_report(tuned_examples.ALL[name](), path)
    return visited(browser, path, width, scheme)


def visited(browser: Any, path: Path, width: int = 1200, scheme: str = "light") -> str:
    """Its address, once it is drawn."""
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    wanted = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": wanted})
    browser.get_log("browser")
    browser.get_log("performance")
    browser.get(path.as_uri())
    drawn = "return document.documentElement.hasAttribute('data-drawn')"
    WebDriverWait(browser, 120).until(lambda it: it.execute_script(drawn))
    return path.as_uri()


def requests(browser: Any) -> set[str]:
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    sent = (e["params"] for e in events if e["method"] == "Network.requestWillBeSent")
    return {params["request"]["url"] for params in sent}


def drawn(browser: Any, chart: str, colours: list[str]) -> set[str]:
    """Which of these colours of the style sheet the curves of a chart show."""
    return set(
        browser.execute_script(
            "const canvas = document.querySelector(`#chart-${arguments[0]} canvas`);"
            "const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);"
            "const seen = new Set(new Uint32Array(data.data.buffer));"
            "const one = document.createElement('canvas').getContext('2d');"
            "const style = getComputedStyle(document.documentElement);"
            "return arguments[1].filter(name => {"
            " one.fillStyle = style.getPropertyValue('--' + name); one.fillRect(0, 0, 1, 1);"
            " return seen.has(new Uint32Array(one.getImageData(0, 0, 1, 1).data.buffer)[0]); })",
            chart,
            colours,
        )
    )


OWN = ("data:", "blob:", "chrome://", "chrome-untrusted://")
"""What the page holds itself, and the browser's own first tab."""


def assert_drawn(browser: Any, folder: Path, name: str, scheme: str = "light") -> None:
    """Without an error or a request."""
    address = opened(browser, folder, name, scheme=scheme)
    assert browser.get_log("browser") == []
    urls = {url for url in requests(browser) if not url.startswith(OWN)}
    assert urls == {address}
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0
    charts = html.charts.charts(tuned_examples.ALL[name]())
    places = browser.execute_script(
        "return [...document.querySelectorAll('figure[id]')].map(place => place.id)"
    )
    assert {place.removeprefix("chart-") for place in places} == set(charts)
    for chart in charts.values():
        if isinstance(chart, BarChart):
            bars = f"return document.querySelectorAll('#chart-{chart.id} li').length"
            assert browser.execute_script(bars) == len(chart.bars)
        else:
            colours = [curve.colour for curve in chart.curves]
            assert colours[-1] in drawn(browser, chart.id, colours)


def test_a_page_is_drawn_and_hostile_text_is_shown_and_never_run(
    browser: Any, folder: Path
) -> None:
    assert_drawn(browser, folder, "good")
    opened(browser, folder, "hostile")
    with pytest.raises(NoAlertPresentException):
        _ = browser.switch_to.alert
    shown = browser.execute_script("return document.body.innerText")
    assert shown.count(tuned_examples.XSS) > 10
    assert browser.execute_script("return document.querySelectorAll('img').length") == 0
    bars = browser.execute_script("return document.querySelector('#chart-waterfall').textContent")
    assert tuned_examples.XSS in bars
    links = browser.execute_script("return [...document.links].map(a => a.href)")
    assert all(link.startswith("file:") for link in links)


@pytest.mark.thorough
@pytest.mark.parametrize("name", [name for name in tuned_examples.ALL if name != "good"])
def test_every_page_is_drawn(browser: Any, folder: Path, name: str) -> None:
    assert_drawn(browser, folder, name)


@pytest.mark.thorough
def test_a_dark_page_is_drawn_in_its_own_colours(browser: Any, folder: Path) -> None:
    assert_drawn(browser, folder, "good", scheme="dark")


@pytest.mark.thorough
def test_the_policy_stops_what_escaping_might_miss(browser: Any, folder: Path) -> None:
    """A second lock behind the first: a script that did get into the page would not run."""
    opened(browser, folder, "good")
    browser.execute_script(
        "const s = document.createElement('script'); s.textContent = 'window.ran = 1';"
        "document.body.append(s);"
        "const d = document.createElement('div');"
        "d.innerHTML = '<img src=x onerror=\"window.ran = 2\">'; document.body.append(d);"
    )
    assert (
        browser.execute_async_script("setTimeout(() => arguments[0](window.ran ?? null), 300)")
        is None
    )
    assert any(
        "Content Security Policy" in entry["message"] for entry in browser.get_log("browser")
    )


@pytest.mark.thorough
@pytest.mark.parametrize("width", [320, 400, 800, 1600])
@pytest.mark.parametrize("name", ["good", "hostile"])
def test_nothing_runs_over_the_edge(browser: Any, folder: Path, name: str, width: int) -> None:
    opened(browser, folder, name, width)
    inside = browser.execute_script(
        "return [document.documentElement.scrollWidth,"
        " Math.max(...[...document.querySelectorAll('main *:not(svg *)')]"
        "   .map(e => e.getBoundingClientRect().right))]"
    )
    assert max(inside) <= width


def pointed(browser: Any, chart: str, share: float) -> list[str]:
    """What a chart tells at that share of its width."""
    over = browser.find_element(By.CSS_SELECTOR, f"#chart-{chart} .u-over")
    into_view = "arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})"
    browser.execute_script(into_view, over)
    x = round((share - 0.5) * over.size["width"])
    ActionChains(browser).move_to_element_with_offset(over, x, 0).perform()
    rows = f"return [...document.querySelectorAll('#chart-{chart} .tip div')].map(d => d.innerText)"
    return [row.strip() for row in browser.execute_script(rows)]


@pytest.mark.thorough
def test_a_curve_tells_its_numbers_and_zooms(browser: Any, folder: Path) -> None:
    opened(browser, folder, "good")
    whole = ["step: 27", "as written: 0.962", "with the plan: 0.946"]
    assert pointed(browser, "losses", 0.999)[:3] == whole
    pointed(browser, "losses", 0.1)
    over = browser.find_element(By.CSS_SELECTOR, "#chart-losses .u-over")
    drag = ActionChains(browser).click_and_hold()
    drag.move_by_offset(round(0.4 * over.size["width"]), 0).release().perform()
    assert pointed(browser, "losses", 0.999)[0] in ("step: 13", "step: 14")
    ActionChains(browser).double_click(over).perform()
    assert pointed(browser, "losses", 0.999)[:3] == whole
