"""The page in a browser: wide and narrow, by keyboard, and after a lost connection."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from flatout.nouns.frame import Frame
from flatout.reporting.monitor.web.publisher import Publisher
from flatout.reporting.monitor.web.server import serving
from reporting.monitor import frames
from reporting.test_browser import browser  # noqa: F401
from reporting.test_browser import pytestmark as pytestmark

LIMIT_S = 120.0
EVIL = "<img src=x onerror=\"document.title='broken into'\">"


def frame(number: int, **job: Any) -> Frame:
    """The machine with eight GPUs a few seconds later."""
    shown = frames.eight_gpus()
    first = replace(shown.jobs[0], loss=3.0 - number / 100, step=1000 + number, **job)
    return replace(shown, time_s=shown.time_s + number, jobs=(first, *shown.jobs[1:]))


def until(holds: Callable[[], Any]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def text(browser: Any, part: str) -> str:  # noqa: F811
    return str(browser.execute_script(f"return document.getElementById('{part}').innerText"))


@pytest.mark.few(1)
@pytest.mark.parametrize("width", [1200, 400])
def test_what_it_shows(browser: Any, width: int) -> None:  # noqa: F811
    publisher = Publisher()
    for number in range(30):
        publisher.put(frame(number))
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    with serving(publisher) as server:
        browser.get(server.url)
        until(lambda: "1,029" in text(browser, "jobs"))
        assert "#" not in browser.current_url  # the secret is gone from the address
        until(lambda: "the job waits for its data" in text(browser, "alerts"))
        until(lambda: "flatout run --live S" in text(browser, "alerts"))
        until(lambda: "NVIDIA H100" in text(browser, "machines"))
        until(lambda: "exit code 1" in text(browser, "jobs"))
        drawn = "return document.querySelectorAll('canvas').length"
        until(lambda: browser.execute_script(drawn) > 5)
        wide = "return document.documentElement.scrollWidth <= window.innerWidth"
        assert browser.execute_script(wide)
        publisher.put(frame(40))
        until(lambda: "1,040" in text(browser, "jobs"))
        publisher.put(frame(41, program=EVIL))  # what comes from a program is text
        until(lambda: EVIL in text(browser, "jobs"))
        assert "broken" not in browser.title
    assert [line for line in browser.get_log("browser") if "Security" in line["message"]] == []


@pytest.mark.thorough
def test_a_lost_connection_comes_back_and_the_gap_is_filled(browser: Any) -> None:  # noqa: F811
    publisher = Publisher()
    publisher.put(frame(1))
    with serving(publisher) as server:
        browser.get(server.url)
        until(lambda: "1,001" in text(browser, "jobs"))
        browser.execute_cdp_cmd("Network.enable", {})
        offline = {"offline": True, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
        browser.execute_cdp_cmd("Network.emulateNetworkConditions", offline)
        for reader in list(publisher._readers):
            reader.put(None)  # the stream ends; the browser asks again, in vain
        until(lambda: "reconnecting" in text(browser, "state"))
        for number in range(2, 6):
            publisher.put(frame(number))
        online = {**offline, "offline": False}
        browser.execute_cdp_cmd("Network.emulateNetworkConditions", online)
        until(lambda: "1,005" in text(browser, "jobs"))
