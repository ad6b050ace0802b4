"""A page of documentation on the terminal. Light to import: rich is imported to draw."""

from __future__ import annotations

import os
import sys

DRAWN = ("FORCE_COLOR", "TTY_COMPATIBLE")
"""Variables that can make rich take a pipe for a terminal."""


def show(markdown: str) -> None:
    """Draw it on a terminal; print it unchanged into a pipe."""
    if sys.stdout.isatty() or any(os.environ.get(name) for name in DRAWN):
        _draw(markdown)
    else:
        sys.stdout.write(f"{markdown.rstrip()}\n")


def _draw(markdown: str) -> None:
    from rich.console import Console
    from rich.markdown import Markdown

    console = Console()
    if console.is_terminal:
        console.print(Markdown(markdown, hyperlinks=False), width=min(console.width, 100))
    else:
        console.print(markdown.rstrip(), markup=False, highlight=False, emoji=False, soft_wrap=True)
