"""The table of how boosts have fared is that of the committed results."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from flatout_agent.boosts import names
from flatout_agent.live import candidates, records


@pytest.fixture
def made(root: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(root / "benchmarks"))
    monkeypatch.delitem(sys.modules, "expected", raising=False)
    import expected as benchmark

    yield benchmark
    sys.modules.pop("expected", None)


def test_the_table_is_that_of_the_results(made, root: Path) -> None:
    committed = Path(records.__file__).read_text(encoding="utf-8")
    assert made.table(made.cases(root / "benchmarks" / "results")) == committed
    assert {boost for device in records.RECORDS.values() for boost in device} <= set(names())


def test_kept_and_slower_count_and_what_was_refused_does_not(made, tmp_path: Path) -> None:
    tried = {"": ["kept", None], "tf32": ["kept", 1.5], "compile": ["different", None]}
    rows = {"one": {"tried": tried}, "two": {"tried": {"tf32": ["slower", 0.8]}}}
    (tmp_path / "hand-60s.json").write_text(json.dumps({"figures": {"rows": rows}}))
    (tmp_path / "gpu").mkdir()
    (tmp_path / "gpu" / "tried.json").write_text(json.dumps({"scripts": {}}))
    found = made.cases(tmp_path)
    assert found["cpu"] == {"tf32": [(True, 1.5), (False, 0.8)]}
    assert '"tf32": Record(2, 0.50, 0.117),' in made.table(found)


def test_what_was_never_tried_is_neither_praised_nor_blamed() -> None:
    assert candidates.record_of("never", "cpu") == candidates.USUAL
    assert candidates.record_of("tf32", "xpu") == candidates.record_of("tf32", "cuda")
