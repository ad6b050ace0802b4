"""Heads: strict, so that no proxy before the server understands another request than it does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout_programs.serving.heads import head
from flatout_programs.serving.saying import HttpRefusal


def lines(*rows: str) -> bytes:
    return "\r\n".join([*rows, "", ""]).encode("latin-1")


def test_a_head_is_read() -> None:
    found = head(
        lines("POST /v2/x?a=b HTTP/1.1", "Host: h:1", "Content-Length:  12\t", "A: 1", "a: 2")
    )
    assert (found.method, found.path, found.keep) == ("POST", "/v2/x", True)
    assert found.number("content-length") == 12
    assert found.number("inference-header-content-length") is None
    assert found.headers["a"] == "1, 2"
    assert not head(lines("GET / HTTP/1.1", "Connection: Close")).keep
    assert not head(lines("GET / HTTP/1.0")).keep


@pytest.mark.parametrize(
    "rows",
    [
        ["GET / HTTP/2"],
        ["GET /"],
        ["GET  / HTTP/1.1"],
        ["GET http://other/ HTTP/1.1"],
        ["GET / HTTP/1.1", "no colon"],
        ["GET / HTTP/1.1", "Content-Length : 1"],
        ["GET / HTTP/1.1", " folded: 1"],
        ["GET / HTTP/1.1", "a: 1\nContent-Length: 5"],
        ["GET / HTTP/1.1", "a: \0"],
        ["GET / HTTP/1.1", "Content-Length: 1", "content-length: 1"],
        ["GET / HTTP/1.1", "Transfer-Encoding: chunked", "Transfer-Encoding: identity"],
        ["GET / HTTP/1.1", "Host: a", "Host: b"],
    ],
)
def test_what_two_readers_might_read_differently_is_refused(rows: list[str]) -> None:
    with pytest.raises(HttpRefusal) as caught:
        head(lines(*rows))
    assert caught.value.status == 400


@pytest.mark.parametrize("length", ["-1", "+1", "1.0", "0x1", "", "1 2", "²", "9" * 20, "1, 1"])
def test_a_length_is_digits(length: str) -> None:
    with pytest.raises(HttpRefusal):
        head(lines("GET / HTTP/1.1", f"Content-Length: {length}")).number("content-length")


def test_a_head_that_was_too_long_is_431() -> None:
    with pytest.raises(HttpRefusal) as caught:
        head(b"")
    assert caught.value.status == 431


@given(st.binary(max_size=200))
def test_whatever_comes_ends_in_a_head_or_a_refusal(raw: bytes) -> None:
    try:
        found = head(raw + b"\r\n\r\n")
    except HttpRefusal as refused:
        assert refused.status in (400, 431)
    else:
        assert found.path.startswith("/")
