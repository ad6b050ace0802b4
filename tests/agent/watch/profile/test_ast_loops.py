"""Which loops repeat a line."""

from __future__ import annotations

from pathlib import Path

import pytest

from flatout_agent.watch.profile.ast_loops import loops_around

SCRIPT = """\
for epoch in range(3):
    rows = [make(x) for x in range(4)]
    for batch in loader:
        while wanted():
            step(
                batch,
            )
        def helper(x):
            return x + 1
    total = 0
else:
    done = True
values = {
    key: turn(key)
    for key in names
}
"""


@pytest.mark.parametrize(
    ("line", "loops"),
    [(1, []), (2, [2, 1]), (3, [1]), (4, [3, 1]), (6, [4, 3, 1]), (9, []), (10, [1]), (12, []),
     (14, [13])],
)  # fmt: skip
def test_loops_of_a_line(line: int, loops: list[int], tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    assert [loop.line for loop in loops_around(str(path), line)] == loops


def test_a_file_that_is_no_python(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text("for for")
    assert loops_around(str(path), 1) == ()
    assert loops_around(str(tmp_path / "missing.py"), 1) == ()


def test_an_expression_deeper_than_calls_can_nest(tmp_path: Path) -> None:
    path = tmp_path / "deep.py"
    path.write_text("for x in y:\n    f(" + " + ".join("x" * 2000) + ")\n")
    assert [loop.line for loop in loops_around(str(path), 2)] == [1]
