"""The page: one text with its scripts and styles, so that one request is enough."""

from __future__ import annotations

import functools

from flatout.reporting.html import TEMPLATES
from flatout.reporting.monitor.web import security


@functools.cache
def text() -> str:
    """The whole page. It holds nothing about the machine."""
    scripts, styles = _parts()
    page = _file("monitor.html")
    for name, part in zip(("@uplot.js@", "@monitor.js@"), scripts, strict=True):
        page = page.replace(name, part)
    for name, part in zip(("@uplot.css@", "@monitor.css@"), styles, strict=True):
        page = page.replace(name, part)
    return page


@functools.cache
def policy() -> str:
    """Its content security policy."""
    return security.policy(*_parts())


def _parts() -> tuple[list[str], list[str]]:
    """Scripts and styles, in the order of the page."""
    return (
        [_file("vendored/uPlot.js"), _file("monitor.js")],
        [_file("vendored/uPlot.css"), _file("monitor.css")],
    )


def _file(name: str) -> str:
    return (TEMPLATES / name).read_text(encoding="utf-8")
