"""Terminal escape sequences: colours, cursor movements, titles and links that a program printed."""

from __future__ import annotations

import re


def _shape(of_a_title: str) -> str:
    """CSI (colours, movements), OSC (titles, links; of limited length), and those of two bytes."""
    return (
        r"\x1b(?:\[[0-?]*[ -/]*[@-~]"
        rf"|\][^\x07\x1b]{of_a_title}(?:\x07|\x1b\\)?"
        r"|[@-Z\\-_])"
    )


TEXT = re.compile(_shape("*"))
BYTES = re.compile(_shape("{0,400}").encode())
"""Of logs, in which a title without an end must not hide all that follows."""


def removed(text: str) -> str:
    """`text` without escape sequences."""
    return TEXT.sub("", text)
