from __future__ import annotations

from flatout.diagnosing.machine.env import env016_fabric_manager_not_running as checked
from flatout.nouns.finding import Severity
from machines import broken_driver
from machines.healthy import a100, changed, h100, workstation


def test_error_802() -> None:
    (found,) = checked.check(broken_driver.no_fabric())
    assert found.severity is None
    assert "8 GPU(s) in_progress" in found.evidence
    assert "does not run" in found.evidence
    assert "802" in found.evidence
    assert any("nvidia-fabricmanager-580" in line for line in found.cure.commands)
    assert any("systemctl" in line for line in found.cure.commands)


def test_a100_tells_no_state_of_its_fabric() -> None:
    stopped = changed(
        a100(), kernel__fabric_manager=False, interpreter__torch__cuda_available=False
    )
    assert len(list(checked.check(stopped))) == 1


def test_a_warning_where_torch_has_its_gpus() -> None:
    works = changed(broken_driver.no_fabric(), interpreter__torch__cuda_available=True)
    assert [found.severity for found in checked.check(works)] == [Severity.WARNING]


def test_silent_where_the_fabric_is_complete_or_not_known() -> None:
    silent = [
        workstation(),
        h100(),
        changed(h100(), kernel__fabric_manager=False),
        changed(h100(), kernel__fabric_manager=None, gpus__all__nvlink_fabric=None),
        changed(a100(), kernel__fabric_manager=False, container__kind="docker"),
        changed(a100(), kernel__fabric_manager=False, gpus=None),
    ]
    assert [list(checked.check(machine)) for machine in silent] == [[]] * len(silent)
