from __future__ import annotations

from diagnosing.machine.asking import commands, findings, only
from diagnosing.machine.env.software_facts import broken
from flatout.nouns.finding import Severity
from machines.healthy import changed, windows, workstation

CHECK = "python-outside-environment"
NAME = "python-outside-environment"


def test_the_environments_own_python() -> None:
    finding = only(CHECK, broken(NAME))
    assert finding.severity is Severity.WARNING
    assert "VIRTUAL_ENV=/home/user/venv" in finding.evidence
    assert "/usr/bin/python3" in finding.evidence
    assert commands(finding).startswith("/home/user/venv/bin/python")


def test_another_environments_python_may_be_meant() -> None:
    machine = changed(workstation(), environment={"VIRTUAL_ENV": "/home/user/other"})
    assert only(CHECK, machine).severity is Severity.NOTE


def test_a_folder_whose_name_starts_alike_is_another() -> None:
    machine = changed(workstation(), environment={"VIRTUAL_ENV": "/home/user/ven"})
    assert findings(CHECK, machine)


def test_conda_base_under_an_environment_in_use_is_no_matter() -> None:
    base = {"CONDA_PREFIX": "/home/user/miniconda3"}
    assert not findings(CHECK, changed(workstation(), environment=base))
    assert findings(CHECK, broken(NAME, environment=base))


def test_inside_it_also_on_windows_with_its_ways_to_write_paths() -> None:
    inside = {"VIRTUAL_ENV": "c:/users/User/venv"}
    assert not findings(CHECK, changed(windows(), environment=inside))
    outside = {"VIRTUAL_ENV": "C:\\Users\\user\\other"}
    text = commands(only(CHECK, changed(windows(), environment=outside)))
    assert "C:\\Users\\user\\other\\Scripts\\python.exe" in text


def test_nothing_where_it_is_not_known() -> None:
    assert not findings(CHECK, broken(NAME, interpreter__executable=None))
    assert not findings(CHECK, broken(NAME, environment=None))
    assert not findings(CHECK, broken(NAME, interpreter__virtual_environment=None))
