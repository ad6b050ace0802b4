"""What people write after an option: times."""

from __future__ import annotations

import pytest

from flatout.commands import duration
from flatout.nouns.errors import UserError


@pytest.mark.parametrize(
    ("text", "value"),
    [("60s", 60), ("2m", 120), ("0s", 0), ("1.5h", 5400), ("1 min 27 s", 87), ("1m44s", 104)],
)
def test_times(text: str, value: float) -> None:
    assert duration("--skip", text, zero=True) == value


@pytest.mark.parametrize("text", ["", "soon", "-5", "nan", "1e9s%", "0"])
def test_no_times(text: str) -> None:
    with pytest.raises(UserError, match=r"--budget .* is not a time"):
        duration("--budget", text)
