"""Terminal escape sequences that a program printed: colours, cursor movements, titles, links."""

from __future__ import annotations

import re


def _shape(of_a_title: str) -> str:
    """CSI (colours, movements), OSC (titles, links; limited in length), and two-byte sequences."""
    return (
        r"\x1b(?:\[[0-?]*[ -/]*[@-~]"
        rf"|\][^\x07\x1b]{of_a_title}(?:\x07|\x1b\\)?"
        r"|[@-Z\\-_])"
    )


TEXT = re.compile(_shape("*"))
BYTES = re.compile(_shape("{0,400}").encode())
"""For logs: an unterminated title must not hide everything after it."""


def removed(text: str) -> str:
    """`text` without escape sequences."""
    return TEXT.sub("", text)
