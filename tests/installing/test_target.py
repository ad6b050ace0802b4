"""A Target as the Machine has it, and as it is described."""

from __future__ import annotations

import pytest

from flatout.installing import description, target
from flatout.installing.target import Target
from flatout.nouns.errors import UserError
from flatout.nouns.gpu import Gpu
from flatout.nouns.machine import Machine
from machines.healthy import HEALTHY, changed, workstation


def test_the_workstation() -> None:
    here = target.of(workstation())
    assert here == Target(
        system="Linux",
        architecture="x86_64",
        distribution="ubuntu",
        distribution_like=("debian",),
        distribution_version="24.04",
        libc="glibc 2.39",
        python="3.12.3",
        executable="/home/user/venv/bin/python",
        manager="pip",
        virtual_environment=True,
        vendor="nvidia",
        gpu="NVIDIA GeForce RTX 4090",
        gpus=1,
        compute_capability=(8, 9),
        driver="580.95.05",
        secure_boot=False,
        root=False,
        user_has_torch="2.9.1+cu128",
    )


def test_each_healthy_machine() -> None:
    found = {name: target.of(make()) for name, make in HEALTHY.items()}
    vendors = {name: here.vendor for name, here in found.items()}
    assert vendors["laptop"] == "nvidia"  # beside an Intel GPU
    assert vendors["rocm-node"] == "amd" and found["rocm-node"].gfx == "gfx942"
    assert vendors["mac"] == "apple" and found["mac"].platform == "macos-arm64"
    assert vendors["cpu-server"] is None and found["cpu-server"].gpus == 0
    assert found["windows"].platform == "windows-x86_64"
    assert found["wsl"].wsl and found["container"].container
    assert found["h100-node"].gpus == 8


def test_the_oldest_nvidia_gpu_decides() -> None:
    new = workstation()
    old = Gpu(vendor="nvidia", name="Tesla V100-SXM2-16GB")
    both: Machine = changed(new, gpus=(*(new.gpus or ()), old))
    here = target.of(both)
    assert (here.gpu, here.compute_capability, here.gpus) == (old.name, (7, 0), 2)


def test_nothing_known_is_a_target_too() -> None:
    assert target.of(Machine()) == Target()


@pytest.mark.parametrize(
    ("facts", "manager"),
    [({"conda": True}, "conda"), ({"managed_by": "uv"}, "uv"), ({"managed_by": "system"}, "pip")],
)
def test_the_manager(facts: dict[str, object], manager: str) -> None:
    named = {f"interpreter__{name}": value for name, value in facts.items()}
    assert target.of(changed(workstation(), **named)).manager == manager
    assert target.of(changed(workstation(), **named), "pip").manager == "pip"


@pytest.mark.parametrize(
    ("text", "system", "distribution", "version"),
    [
        ("ubuntu22.04", "Linux", "ubuntu", "22.04"),
        ("Debian 12", "Linux", "debian", "12"),
        ("rocky9", "Linux", "rocky", "9"),
        ("amazon2023", "Linux", "amzn", "2023"),
        ("opensuse-leap15.6", "Linux", "opensuse-leap", "15.6"),
        ("windows11", "Windows", None, "11"),
        ("macos15", "Darwin", None, "15"),
        ("arch", "Linux", "arch", None),
    ],
)
def test_systems_by_their_names(
    text: str, system: str, distribution: str | None, version: str | None
) -> None:
    here = description.read(f"os={text}")
    assert (here.system, here.distribution) == (system, distribution)
    assert here.distribution_version == version


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("gpu=rtx4090,gpus=2", {"vendor": "nvidia", "compute_capability": (8, 9), "gpus": 2}),
        ("driver=535,os=windows,python=3.11", {"driver": "535", "python": "3.11"}),
        ("os=windows,manager=uv", {"system": "Windows", "manager": "uv"}),
        ("gpu=gh200", {"architecture": "arm64"}),
        ("arch=x86_64,gpu=gh200", {"architecture": "x86_64"}),
        ("os=macos", {"vendor": "apple"}),
        ("os=wsl", {"wsl": True}),
        ("python=3.13t", {"python_minor": "3.13t"}),
        ("gpu=none", {"vendor": None}),
        ("gpu=gfx1100", {"gfx": "gfx1100"}),
        ("gpu=jetson-orin", {"jetson": True}),
    ],
)
def test_a_description_and_what_follows_from_it(text: str, facts: dict[str, object]) -> None:
    here = description.read(text)
    assert {name: getattr(here, name) for name in facts} == facts


@pytest.mark.parametrize(
    ("text", "said", "hint"),
    [
        ("", "empty", "--for"),
        ("gpus=4090x", "not a number", "gpus=8"),
        ("gpu", "has no value", "--for"),
        ("grafik=rtx4090", "not a key", "keys: gpu"),
        ("drivr=535", "did you mean 'driver'", "keys"),
        ("gpu=rtx4909", "no GPU is known", "rtx-4090"),
        ("gpu=quux", "no GPU is known", "capability"),
        ("capability=x", "capability=x", "8.6"),
        ("driver=new", "driver=new is not a version", "--for"),
        ("python=three", "not a version of Python", "3.12"),
        ("os=templeos", "no operating system", "ubuntu"),
        ("os=ubunto22.04", "no operating system", "ubuntu"),
        ("arch=riscv64", "arch=riscv64", "arm64"),
        ("manager=poetry", "manager=poetry", "pip"),
        ("gpu=m3,os=windows", "only in Macs", "os=macos"),
    ],
)
def test_what_is_wrong_is_named(text: str, said: str, hint: str) -> None:
    with pytest.raises(UserError) as caught:
        description.read(text)
    assert said in caught.value.message
    assert hint in (caught.value.next_step or "")


def test_what_contradicts_itself_is_refused() -> None:
    with pytest.raises(UserError, match="gpu=rtx4090 and gpu=none contradict"):
        description.read("gpu=rtx4090,gpu=none")
    assert description.read("gpu=t4,gpu=t4").gpu == description.read("gpu=t4").gpu
