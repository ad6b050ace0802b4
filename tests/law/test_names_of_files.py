"""Every file is named after what it owns."""

from __future__ import annotations

from law.sources import FILES, name


def test_no_drawers_for_odds_and_ends() -> None:
    forbidden = {"utils", "util", "common", "helpers", "misc", "tools", "other", "base"}
    assert [name(path) for path in FILES if forbidden & set(path.with_suffix("").parts)] == []
