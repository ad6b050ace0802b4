"""Findings from checks: sorted, consequences left out; a check that fails is a finding."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from diagnosing.job.made import cpu_profile
from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.diagnose import diagnose, diagnose_profile, problems
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.machine import Machine
from flatout.nouns.profile import Profile
from machines.healthy import workstation


def fake(
    code: str, severity: Severity = Severity.ERROR, hides: tuple[str, ...] = (), finds: int = 1
) -> Any:
    def check(machine: Machine) -> Iterator[Diagnosis]:
        for number in range(finds):
            yield Diagnosis(f"{code} number {number}", "seen", Cure("Do it."))

    name = f"flatout.diagnosing.machine.env.{code.lower()}_fake_problem"
    return SimpleNamespace(
        __name__=name, __doc__="", CHECK=Check(code, severity, "0.2.0", hides), check=check
    )


def crashing(code: str, hides: tuple[str, ...] = ()) -> Any:
    module = fake(code, hides=hides)

    def check(machine: Machine) -> Iterator[Diagnosis]:
        yield Diagnosis("half a finding", "seen", Cure("Do it."))
        raise ZeroDivisionError("no GPU to divide by")

    module.check = check
    return module


def codes(*modules: Any) -> list[str]:
    return [finding.code for finding in diagnose(workstation(), modules)]


def test_the_worst_comes_first() -> None:
    note, error = fake("HW001", Severity.NOTE), fake("HW002")
    warning = fake("ENV001", Severity.WARNING)
    assert codes(note, warning, error) == ["HW002", "ENV001", "HW001"]


def test_a_consequence_is_left_out() -> None:
    assert codes(fake("ENV001", hides=("ENV002",)), fake("ENV002"), fake("ENV003")) == [
        "ENV001",
        "ENV003",
    ]


def job_check(code: str, where: str, saves_ms: float, **fields: Any) -> Any:
    module = fake(code)

    def check(profile: Profile) -> Iterator[Diagnosis]:
        yield Diagnosis(code, "", Cure("Do it."), where=where, saves_ms=saves_ms, **fields)

    module.check = check
    return module


def found(*modules: Any) -> set[str]:
    return {finding.code for finding in diagnose_profile(cpu_profile(), modules)}


def test_the_time_of_lines_is_told_once() -> None:
    whole = job_check("HOST010", "a.py:1", 60.0, covers=("a.py:1", "a.py:2"))
    assert found(whole, job_check("HOST011", "a.py:2", 80.0)) == {"HOST010"}
    assert found(whole, job_check("HOST011", "a.py:2", 200.0)) == {"HOST010", "HOST011"}
    assert found(whole, job_check("HOST011", "a.py:3", 30.0)) == {"HOST010", "HOST011"}
    assert found(whole, job_check("LOOP008", "a.py:2", 30.0)) == {"HOST010", "LOOP008"}
    called = job_check("HOST011", "a.py:9", 30.0, covers=("a.py:9", "a.py:2"))
    assert found(whole, called) == {"HOST010"}


def test_how_needless_work_is_done_does_not_matter() -> None:
    needless = job_check("HOST017", "a.py:1", 60.0, covers=("a.py:1", "a.py:2"), needless=True)
    assert found(needless, job_check("HOST011", "a.py:2", 250.0, covers=("a.py:1",))) == {"HOST017"}


def test_what_was_not_found_hides_nothing() -> None:
    assert codes(fake("ENV001", hides=("ENV002",), finds=0), fake("ENV002")) == ["ENV002"]


def test_one_check_may_find_several() -> None:
    assert codes(fake("HW001", finds=3)) == ["HW001"] * 3


def test_a_check_that_crashes_is_a_finding_and_hides_nothing() -> None:
    found = diagnose(workstation(), [crashing("ENV001", hides=("ENV002",)), fake("ENV002")])
    assert [finding.code for finding in found] == ["ENV002", "ENV001"]
    crashed = found[1]
    assert crashed.severity is Severity.UNCHECKED
    assert crashed.title == "could not be checked: fake-problem"
    assert crashed.evidence == "ZeroDivisionError: no GPU to divide by"
    assert problems(found) == found[:1]


def test_the_id_is_the_file_name() -> None:
    assert diagnose(workstation(), [fake("ENV001")])[0].id == "fake-problem"


def test_of_a_machine_of_which_nothing_is_known_nothing_is_said() -> None:
    assert diagnose(Machine()) == ()
