"""Values in a text that is otherwise YAML as a person writes it, with comments."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

LINE = re.compile(r"[\t\x20-\x7e\xa0-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]*")
"""The characters that a line of a block may contain unchanged."""
ESCAPED = re.compile("[\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")


def value(given: object) -> str:
    """A text, number, list or mapping on one line: JSON, which readers of YAML understand."""
    text = json.dumps(given, ensure_ascii=False)
    return ESCAPED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def block(text: str, margin: str) -> str:
    """A text whose lines stand unchanged below its key, or quoted if YAML cannot hold them so."""
    lines = text.removesuffix("\n").split("\n")
    fits = text.endswith("\n") and not text.endswith("\n\n") and text[:1] not in "\n\t "
    if not fits or not all(map(LINE.fullmatch, lines)):
        return value(text)
    return "\n".join(["|", *(f"{margin}{line}" if line else "" for line in lines)])


def entries(given: Mapping[str, Any], margin: str) -> str:
    """A line for each entry of a mapping that is not None."""
    lines = (f"{margin}{key}: {value(one)}\n" for key, one in given.items() if one is not None)
    return "".join(lines)


def items(given: Iterable[object], margin: str) -> str:
    """A line for each item of a list."""
    return "".join(f"{margin}- {value(one)}\n" for one in given)


def comment(text: str) -> str:
    """The text as comment lines; its line breaks are kept."""
    return "\n".join(f"# {line}".rstrip() for line in text.splitlines())
