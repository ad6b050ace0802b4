from __future__ import annotations

from flatout.diagnosing.machine.env import env004_driver_library_mismatch as checked
from machines import broken_driver
from machines.healthy import changed, container, workstation, wsl


def test_after_an_update_without_restart() -> None:
    (found,) = checked.check(broken_driver.driver_updated())
    assert "570.195.03" in found.title
    assert "580.95.05" in found.title
    assert "module on disk 580.95.05" in found.evidence
    assert "mismatch" in found.evidence
    assert any("rmmod" in line for line in found.cure.commands)


def test_on_disk_they_differ_too_so_a_restart_does_not_help() -> None:
    broken = changed(broken_driver.driver_updated(), drivers__0__installed_version="570.195.03")
    (found,) = checked.check(broken)
    assert "restart does not help" in found.cure.text
    assert any("install" in line for line in found.cure.commands)


def test_versions_alone_where_nvml_fails_otherwise() -> None:
    broken = changed(
        broken_driver.driver_updated(),
        drivers__0__nvml_error="Unknown Error",
        drivers__0__smi_error=None,
        interpreter__torch__cuda_error=None,
    )
    assert len(list(checked.check(broken))) == 1
    assert not list(checked.check(changed(broken, drivers__0__nvml_error=None)))
    assert not list(checked.check(changed(broken, drivers__0__library_version=None)))


def test_a_forward_compatibility_library_is_no_mismatch() -> None:
    assert not list(checked.check(changed(workstation(), drivers__0__library_version="590.44.01")))


def test_cuda_itself_says_so() -> None:
    said = "Error 803: system has unsupported display driver / cuda driver combination"
    (found,) = checked.check(changed(container(), interpreter__torch__cuda_error=said))
    assert found.title == "NVIDIA's module and library differ"
    assert "803" in found.evidence
    assert found.cure.commands[0].startswith("# On the host:")


def test_wsl_has_no_module() -> None:
    assert not list(checked.check(changed(wsl(), drivers__0__nvml_error="version mismatch")))
