"""Packages by what they are for; variables that stay."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from flatout.installing import description, system_packages
from flatout.installing.system_packages import FOR_PEOPLE
from flatout.installing.target import Target
from installing import grammar

SYSTEMS = ["ubuntu22.04", "debian12", "fedora41", "rhel9", "rocky9", "amzn2023", "sles15", "arch"]
SYSTEMS += ["linux", "windows", "macos"]


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_kind_has_an_answer_everywhere(system: str) -> None:
    for python in ("", ",python=3.11"):
        here = description.read(f"os={system},driver=580.95.05{python}")
        for kind in FOR_PEOPLE:
            found = system_packages.commands(here, kind)
            assert found, kind
            (grammar.powershell if here.system == "Windows" else grammar.bash)(found)
        assert system_packages.commands(here, *FOR_PEOPLE)
        assert system_packages.commands(here) == ()


@pytest.mark.parametrize(
    ("text", "kinds", "expected"),
    [
        ("os=ubuntu22.04", "compiler", "apt-get install -y build-essential"),
        ("os=ubuntu22.04,python=3.11.7", "python-headers", "apt-get install -y python3.11-dev"),
        ("os=rhel9,python=3.11", "python-headers", "dnf install -y python3.11-devel"),
        ("os=rhel9,python=3.9", "python-headers", "dnf install -y python3-devel"),
        ("os=fedora41,python=3.13", "python-headers", "dnf install -y python3-devel"),
        (
            "os=sles15,python=3.11",
            "python-headers",
            "zypper --non-interactive install python311-devel",
        ),
        (
            "os=ubuntu22.04",
            "kernel-headers dkms",
            "apt-get install -y linux-headers-$(uname -r) dkms",
        ),
        (
            "os=ubuntu22.04,driver=570",
            "fabric-manager",
            "apt-get install -y nvidia-fabricmanager-570",
        ),
        ("os=arch", "compiler", "pacman -S --needed --noconfirm base-devel"),
    ],
)
def test_the_line(text: str, kinds: str, expected: str) -> None:
    lines = system_packages.commands(description.read(text), *kinds.split())
    assert f"sudo {expected}" in lines


def test_the_compiler_of_macos() -> None:
    lines = system_packages.commands(description.read("os=macos"), "compiler")
    assert lines == ("xcode-select --install",)


def test_dkms_comes_from_epel_on_red_hat() -> None:
    assert "sudo dnf install -y epel-release" in system_packages.commands(
        description.read("os=rocky9"), "dkms"
    )
    first, second = system_packages.commands(description.read("os=rhel9"), "dkms")
    assert "epel-release-latest-9" in first and second == "sudo dnf install -y dkms"


def test_the_fabric_manager_is_of_the_drivers_version_or_not_named() -> None:
    unknown = system_packages.commands(description.read("os=ubuntu22.04"), "fabric-manager")
    assert len(unknown) == 1 and unknown[0].startswith("# ")


def test_an_unknown_distribution_is_told_what_to_install() -> None:
    found = system_packages.commands(Target(distribution="nixos"), "compiler", "dkms")
    assert found == (
        "# install a C and C++ compiler with your package manager",
        "# install dkms with your package manager",
    )


def test_derived_distributions_are_known_by_what_they_are_like() -> None:
    pop = Target(distribution="pop", distribution_like=("ubuntu", "debian"))
    assert system_packages.package_manager(pop) == "apt"
    assert system_packages.package_manager(Target(system="Darwin")) is None


def test_sudo_only_where_it_is_needed() -> None:
    assert system_packages.sudo(Target(), "true") == "sudo true"
    assert system_packages.sudo(Target(root=True), "true") == "true"
    assert system_packages.sudo(Target(system="Windows"), "true") == "true"


@pytest.mark.skipif(os.name != "posix", reason="bash")
def test_a_variable_is_set_now_and_later_and_gone_when_unset(tmp_path: Path) -> None:
    value = "it's $HOME, 1"

    def run(lines: tuple[str, ...], then: str) -> str:
        script = "\n".join([*lines, then])
        environment = {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}
        return subprocess.run(
            [grammar.BASH, "-c", script],
            env=environment,
            text=True,
            capture_output=True,
            check=True,
        ).stdout

    shown = 'printf "%s" "${NCCL_X-unset}"'
    assert run(system_packages.variable(Target(), "NCCL_X", value), shown) == value
    later = ("source ~/.bashrc",)
    assert run(later, shown) == value
    assert run((*later, *system_packages.variable(Target(), "NCCL_X", None)), shown) == "unset"
    assert run(later, shown) == "unset"


def test_a_variable_in_powershell() -> None:
    windows = Target(system="Windows")
    lines = system_packages.variable(windows, "OMP_NUM_THREADS", "8")
    assert lines == (
        "$env:OMP_NUM_THREADS = '8'",
        "[Environment]::SetEnvironmentVariable('OMP_NUM_THREADS', '8', 'User')",
    )
    grammar.powershell((*lines, *system_packages.variable(windows, "OMP_NUM_THREADS", None)))
