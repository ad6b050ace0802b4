from __future__ import annotations

from diagnosing.machine.asking import commands, findings, only
from diagnosing.machine.env.software_facts import broken

CHECK = "python-headers-missing"
NAME = "no-python-headers"


def test_the_package_of_this_python() -> None:
    finding = only(CHECK, broken(NAME))
    assert "3.12.3" in finding.title
    assert "python3.12-dev" in commands(finding)


def test_nothing_where_it_is_not_known_or_not_needed() -> None:
    assert not findings(CHECK, broken(NAME, interpreter__headers=None))
    assert not findings(CHECK, broken(NAME, interpreter__torch=None))
    assert not findings(CHECK, broken(NAME, interpreter__torch__version="1.13.1"))
