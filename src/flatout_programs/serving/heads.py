"""Heads of HTTP/1.1: the only part of a request that is read before its length is known."""

from __future__ import annotations

import re
from dataclasses import dataclass
from reprlib import repr as shown

from flatout_programs.serving.saying import HttpRefusal

TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
ONCE = {"content-length", "transfer-encoding", "host", "inference-header-content-length"}


@dataclass
class Head:
    method: str
    path: str
    headers: dict[str, str]
    keep: bool
    """Whether the connection stays open."""
    complete: bool = False
    """Whether its body has been read."""

    def number(self, name: str) -> int | None:
        text = self.headers.get(name)
        if text is None:
            return None
        if not (text.isascii() and text.isdigit() and len(text) < 16):
            raise HttpRefusal(400, f"{name}: {shown(text)} is no length")
        return int(text)


def head(raw: bytes) -> Head:
    """A head up to its empty line. What two readers might understand differently is refused."""
    if not raw:
        raise HttpRefusal(431, "the headers are too long")
    first, *lines = raw.decode("latin-1")[:-4].split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or words[2] not in ("HTTP/1.0", "HTTP/1.1") or not words[1].startswith("/"):
        raise HttpRefusal(400, "this is no request of HTTP/1.1")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        key, value = name.lower(), value.strip(" \t")
        if not colon or not TOKEN.fullmatch(name) or any(sign in value for sign in "\r\n\0"):
            raise HttpRefusal(400, "a header is malformed")
        if key in headers and key in ONCE:
            raise HttpRefusal(400, f"{key} stands there twice")
        headers[key] = f"{headers[key]}, {value}" if key in headers else value
    keep = words[2] == "HTTP/1.1" and "close" not in headers.get("connection", "").lower()
    return Head(words[0], words[1].partition("?")[0], headers, keep)
