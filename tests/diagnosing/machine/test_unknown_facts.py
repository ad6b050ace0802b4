"""Whatever cannot be read: no check fails, and nothing is claimed that the facts do not say."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.diagnosing import checks
from flatout.diagnosing.diagnose import diagnose
from flatout.nouns.finding import Finding, Severity
from flatout.nouns.machine import Machine
from machines import composed
from machines.forgetting import forgotten, may_be_unknown
from machines.healthy import HEALTHY, changed

CHECKS = checks.MACHINE.every()
BROKEN = {name: machine for name, (machine, codes) in composed.machines().items() if codes}
SHARES = st.sampled_from([0.02, 0.1, 0.3, 0.6, 0.95])
SEEDS = st.integers(0, 2**32)
TEXT = st.text(max_size=30)
VARIABLES = st.sampled_from(
    [
        "CONDA_PREFIX",
        "CUDA_HOME",
        "CUDA_VISIBLE_DEVICES",
        "LD_LIBRARY_PATH",
        "LD_PRELOAD",
        "NCCL_DEBUG",
        "NVIDIA_TF32_OVERRIDE",
        "OMP_NUM_THREADS",
        "PYTORCH_ALLOC_CONF",
        "PYTORCH_CUDA_ALLOC_CONF",
        "TORCH_LOGS",
        "VIRTUAL_ENV",
    ]
)


def facts(noun: Any, path: str = "") -> Iterator[str]:
    """The path of every fact that may be unknown and is known; of equal items the first two."""
    if isinstance(noun, tuple):
        for index, item in enumerate(noun[:2]):
            yield from facts(item, f"{path}{index}__")
    elif dataclasses.is_dataclass(noun) and not isinstance(noun, type):
        for item in dataclasses.fields(noun):
            value = getattr(noun, item.name)
            if item.name == "compiler":
                continue  # its None, once it was looked for, is an answer
            if value is not None and item.name in may_be_unknown(type(noun)):
                yield f"{path}{item.name}"
            yield from facts(value, f"{path}{item.name}__")


def assert_sound(found: tuple[Finding, ...]) -> None:
    """No check failed, and what is told is whole."""
    for item in found:
        told = f"{item.title} {item.evidence} {item.cure.text} {' '.join(item.cure.commands)}"
        assert item.severity is not Severity.UNCHECKED, told
        assert "None" not in told
        assert 10 <= len(item.title) <= 100, told
        assert "\n" not in item.title + item.evidence
        assert item.cure.commands or item.severity is not Severity.ERROR, told


@pytest.mark.parametrize("name", sorted(HEALTHY))
def test_each_single_fact_less_is_no_finding(name: str) -> None:
    machine = HEALTHY[name]()
    paths = list(facts(machine))
    assert len(paths) > 50
    for path in paths:
        assert diagnose(changed(machine, **{path: None}), CHECKS) == (), path


@given(st.sampled_from(sorted(HEALTHY)), SEEDS, SHARES)
def test_of_a_healthy_machine_nothing_is_invented(name: str, seed: int, share: float) -> None:
    machine = forgotten(HEALTHY[name](), Random(seed), share)
    assert diagnose(machine, CHECKS) == ()


@given(st.sampled_from(sorted(BROKEN)), SEEDS, SHARES)
def test_no_check_fails_where_facts_are_missing(name: str, seed: int, share: float) -> None:
    assert_sound(diagnose(forgotten(BROKEN[name], Random(seed), share), CHECKS))


@given(st.sampled_from(sorted(BROKEN)), st.dictionaries(VARIABLES, TEXT), TEXT, TEXT)
def test_no_check_fails_on_garbage(
    name: str, variables: dict[str, str], version: str, error: str
) -> None:
    machine: Machine = changed(
        BROKEN[name], environment=variables, system__libc=version, system__release=version
    )
    if machine.drivers:
        machine = changed(machine, drivers__all__version=version, drivers__all__cuda=version)
    if machine.gpus:
        machine = changed(machine, gpus__all__name=version, gpus__all__pci_id=error)
    if machine.torch is not None:
        machine = changed(
            machine,
            interpreter__version=version,
            interpreter__torch__version=version,
            interpreter__torch__cuda=version,
            interpreter__torch__imported=False,
            interpreter__torch__import_error=error,
        )
    found = diagnose(machine, CHECKS)
    assert [item for item in found if item.severity is Severity.UNCHECKED] == []
