from __future__ import annotations

from diagnosing.machine.asking import commands, findings, only
from flatout.nouns.finding import Severity
from machines.healthy import a100, changed, laptop, windows, workstation, wsl

ID = "persistence-mode-off"
OFF = {"gpus__all__persistence_mode": False}


def test_on_a_server_it_is_a_warning() -> None:
    finding = only(ID, changed(a100(), **OFF))
    assert (finding.code, finding.severity) == ("HW010", Severity.WARNING)
    assert "8 GPUs (0-7)" in finding.title
    assert "sudo systemctl enable --now nvidia-persistenced" in commands(finding)


def test_on_a_workstation_without_screen_it_is_a_note() -> None:
    assert only(ID, changed(workstation(), **OFF)).severity is Severity.NOTE


def test_silent_where_it_does_not_matter() -> None:
    assert findings(ID, changed(workstation(), gpus__0__display=True, **OFF)) == ()
    assert findings(ID, changed(laptop(), gpus__0__display=False, **OFF)) == ()
    assert findings(ID, changed(wsl(), gpus__0__display=False, **OFF)) == ()
    assert findings(ID, changed(windows(), gpus__0__display=False, **OFF)) == ()


def test_the_service_of_ubuntu_is_completed() -> None:
    machine = changed(a100(), gpus__all__persistence_mode=False)
    line = only(ID, machine).cure.commands[1]
    assert "ExecStartPost=+-/usr/bin/nvidia-smi -pm 1" in line and line.startswith("sudo sh -c ")
    elsewhere = {"system__distribution": "rocky", "system__distribution_like": ("rhel",)}
    assert "ExecStartPost" not in commands(only(ID, changed(machine, **elsewhere)))
