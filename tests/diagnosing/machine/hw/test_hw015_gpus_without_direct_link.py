from __future__ import annotations

import pytest

from diagnosing.machine.asking import commands, findings, only
from flatout.nouns.finding import Severity
from flatout.nouns.gpu import GpuPair
from machines.healthy import changed, h100, workstation

ID = "gpus-without-direct-link"


def test_across_processors() -> None:
    pairs = (GpuPair(0, 1, "nvlink"), GpuPair(0, 2, "system"), GpuPair(1, 2, "node"))
    finding = only(ID, changed(h100(), gpu_pairs=pairs))
    assert (finding.code, finding.severity) == ("HW015", Severity.NOTE)
    assert "2 of 3 pairs" in finding.title
    assert "1 by nvlink, 1 by system, 1 by node" in finding.evidence
    assert commands(finding) == "nvidia-smi topo -m"


@pytest.mark.parametrize("link", ["nvlink", "internal", "single", "multiple", "hostbridge"])
def test_silent_where_the_way_is_short(link: str) -> None:
    assert findings(ID, changed(workstation(), gpu_pairs=(GpuPair(0, 1, link),))) == ()
