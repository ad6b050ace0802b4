"""Which wheels fit, where the tables know less than everything."""

from __future__ import annotations

import pytest

from flatout.installing import description, pytorch, wheels
from flatout.installing.wheels import Wheel
from flatout.knowledge.compat.pytorch import TorchBuild, TorchRelease
from flatout.nouns.errors import UserError

BUILD = TorchBuild(
    "cu128",
    ("linux-x86_64", "linux-aarch64", "windows-x86_64"),
    cuda="12.8",
    arch_list=("sm_75", "sm_80", "sm_90", "sm_120", "compute_120"),
)
RELEASE = TorchRelease("9.9", "9.9.1", "2026-01", ("3.12",), (BUILD,), "2.28", None, "a test")
WHEEL = Wheel(RELEASE, BUILD)


def test_a_list_that_is_not_recorded_is_that_of_linux_and_said_to_be() -> None:
    assert WHEEL.inferred("windows-x86_64") and not WHEEL.inferred("linux-x86_64")
    assert WHEEL.arch_list("windows-x86_64") == BUILD.arch_list
    assert WHEEL.arch_list("linux-aarch64") == ("sm_90", "sm_120", "compute_120")
    assert WHEEL.arch_list("macos-arm64") == ()
    old = pytorch.choose(description.read("gpu=rtx3090,driver=572.16,os=windows,python=3.9"))
    assert (old.version, old.build) == ("2.8.0", "cu128")
    assert any("windows-x86_64 is not recorded" in reason for reason in old.why)


def test_older_gpus_on_arm_have_no_wheel() -> None:
    with pytest.raises(UserError, match="linux-aarch64"):
        pytorch.choose(description.read("gpu=t4,arch=arm64,driver=580.95.05,python=3.12"))
    thor = description.read("gpu=jetson-thor,driver=580.95.05,python=3.12")
    assert pytorch.choose(thor).build.startswith("cu13")


def test_a_driver_older_than_the_gpu_does_not_count() -> None:
    here = description.read("gpu=rtx5090,driver=550.54.14,os=ubuntu24.04")
    assert not wheels.at_least(here.driver, wheels.minimum_driver(here, WHEEL))
    old_gpu = description.read("gpu=a100,driver=550.54.14,os=ubuntu24.04")
    assert wheels.at_least(old_gpu.driver, wheels.minimum_driver(old_gpu, WHEEL))


@pytest.mark.parametrize(
    ("gpu", "system", "needed"),
    [
        ("b200", "ubuntu24.04", "570.26"),
        ("b300", "ubuntu24.04", "575.51.03"),
        ("b300", "windows", "576.02"),
        ("rtx5090", "windows", "570.65"),
        ("rtx4090", "ubuntu24.04", "525.60.13"),
    ],
)
def test_the_first_driver_is_that_of_the_cuda_that_names_the_gpu(
    gpu: str, system: str, needed: str
) -> None:
    """12.8 builds for 12.0, which is higher than 10.3, and still not for 10.3."""
    here = description.read(f"gpu={gpu},os={system}")
    assert wheels.minimum_driver(here, WHEEL) == needed
