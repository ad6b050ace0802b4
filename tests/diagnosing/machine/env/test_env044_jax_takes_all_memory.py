from __future__ import annotations

import pytest

from diagnosing.machine.asking import commands, findings, only
from diagnosing.machine.env.software_facts import broken
from flatout.nouns.finding import Severity

CHECK = "jax-takes-all-memory"
NAME = "jax-beside-torch"


def test_beside_torch_it_is_a_warning() -> None:
    finding = only(CHECK, broken(NAME))
    assert finding.severity is Severity.WARNING
    assert "XLA_PYTHON_CLIENT_PREALLOCATE=false" in commands(finding)


def test_alone_it_is_a_note() -> None:
    assert only(CHECK, broken(NAME, interpreter__torch=None)).severity is Severity.NOTE


@pytest.mark.parametrize("name", ["XLA_PYTHON_CLIENT_PREALLOCATE", "XLA_CLIENT_MEM_FRACTION"])
def test_nothing_once_it_is_chosen(name: str) -> None:
    assert not findings(CHECK, broken(NAME, environment={name: ".4"}))


def test_nothing_where_the_environment_is_unknown() -> None:
    assert not findings(CHECK, broken(NAME, environment=None))
