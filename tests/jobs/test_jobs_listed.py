"""The README lists each script; tests/agent/test_transparency.py runs all of them."""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).resolve().parent


def test_every_script_is_listed() -> None:
    listed = (HERE / "README.md").read_text(encoding="utf-8")
    scripts = {path.name for path in HERE.glob("*.py")} - {Path(__file__).name}
    assert scripts
    for name in scripts | {"pkg_module"}:
        assert f"`{name}`" in listed
