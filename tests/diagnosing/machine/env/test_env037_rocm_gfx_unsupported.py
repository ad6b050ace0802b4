from __future__ import annotations

from diagnosing.machine.asking import commands, findings, only
from diagnosing.machine.env.software_facts import broken
from machines.healthy import changed, rocm

CHECK = "rocm-gfx-unsupported"
NAME = "radeon-without-kernels"


def test_a_relatives_kernels_can_be_run() -> None:
    finding = only(CHECK, broken(NAME))
    assert "is gfx1031; this torch holds gfx1030" in finding.evidence
    assert "HSA_OVERRIDE_GFX_VERSION=10.3.0" in commands(finding)


def test_without_a_relative_another_torch() -> None:
    machine = broken(NAME, interpreter__torch__arch_list=("gfx942",))
    assert "HSA_OVERRIDE" not in commands(only(CHECK, machine))


def test_features_behind_the_name_and_families_count() -> None:
    features = broken(NAME, gpus__0__gfx="gfx90a:sramecc+:xnack-")
    assert not findings(CHECK, holding(features, "gfx90a"))
    assert not findings(CHECK, holding(broken(NAME), "gfx10-3-generic"))
    assert findings(CHECK, holding(broken(NAME), "gfx11-generic"))


def holding(machine: object, arch: str) -> object:
    return changed(machine, interpreter__torch__arch_list=(arch,))


def test_nothing_once_overridden_or_unknown() -> None:
    assert not findings(CHECK, broken(NAME, environment={"HSA_OVERRIDE_GFX_VERSION": "10.3.0"}))
    assert not findings(CHECK, broken(NAME, gpus__0__gfx=None))
    assert not findings(CHECK, rocm())
