from __future__ import annotations

import pytest

from diagnosing.machine.asking import commands, findings, only
from flatout.nouns.finding import Severity
from machines.healthy import a100, changed

ID = "memory-rows-failing"


def test_waiting_for_a_reset() -> None:
    finding = only(ID, changed(a100(), gpus__5__retirement_pending=True))
    assert (finding.code, finding.severity) == ("HW007", Severity.WARNING)
    assert "wait for a reset" in finding.evidence
    assert finding.cure.commands == ("sudo nvidia-smi -i 5 --gpu-reset",)


@pytest.mark.parametrize(
    "facts", [{"gpus__2__row_remap_failed": True}, {"gpus__2__retired_pages": 62}]
)
def test_beyond_repair(facts: dict[str, object]) -> None:
    finding = only(ID, changed(a100(), gpus__2__retirement_pending=True, **facts))
    assert finding.severity is Severity.ERROR
    assert "GPU 2" in finding.title
    assert "nvidia-bug-report.sh" in commands(finding)


def test_some_retired_pages_are_ordinary() -> None:
    assert findings(ID, changed(a100(), gpus__2__retired_pages=3)) == ()
