from __future__ import annotations

from diagnosing.machine.asking import commands, findings, only
from diagnosing.machine.env.software_facts import broken

CHECK = "torch-installed-twice"
NAME = "torch-from-conda-and-pip"


def test_both_copies_go_and_one_comes() -> None:
    finding = only(CHECK, broken(NAME))
    assert "pytorch 2.5.1" in finding.evidence
    assert "torch 2.9.1" in finding.evidence
    text = commands(finding)
    assert (
        text.index("conda remove") < text.index("pip uninstall -y torch") < text.rindex("install")
    )


def test_one_copy_and_other_packages_do_not_count() -> None:
    copies = broken(NAME).interpreter.duplicates
    assert not findings(CHECK, broken(NAME, interpreter__duplicates=copies[:1]))
    other = tuple(type(copy)("numpy", "2.0", copy.location, "pip") for copy in copies)
    assert not findings(CHECK, broken(NAME, interpreter__duplicates=other))
