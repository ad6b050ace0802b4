from __future__ import annotations

from pathlib import Path

import pytest

from flatout.launching import tails
from flatout.nouns.launched import LogLine


def test_lines_of_files_that_grow_appear_and_begin_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(tails.time, "monotonic", lambda: now[0])
    first, second = tmp_path / "0.log", tmp_path / "1.log"
    lines = tails.follow(lambda: {first: "node 0", second: "node 1"})

    def there() -> list[LogLine]:
        return list(iter(lambda: next(lines), None))

    assert there() == []
    first.write_bytes(b"one\r\ntwo\nthr")
    assert there() == [LogLine("node 0", "one"), LogLine("node 0", "two")]
    second.write_bytes(b"\xff\n")
    with first.open("ab") as file:
        file.write(b"ee\nno end")
    assert there() == [LogLine("node 0", "three"), LogLine("node 1", "�")]
    now[0] = 5.0
    assert there() == [LogLine("node 0", "no end")]
    first.write_bytes(b"new\n")
    assert there() == [LogLine("node 0", "new")]


def test_the_end_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "log"
    assert tails.end_of(path) == ""
    path.write_text("abcdef")
    assert (tails.end_of(path, 3), tails.end_of(path)) == ("def", "abcdef")
