"""The operating system, from its files and as it is here."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.probing import system
from flatout.probing.program_answer import ProgramAnswer
from probing.planted import plant

MUSL = "musl libc (x86_64)\nVersion 1.2.4\nDynamic Program Loader\nUsage: ld-musl ...\n"


@pytest.mark.parametrize(
    ("build", "server", "version"),
    [
        (22631, False, "11"),
        (26100, False, "11"),
        (22000, False, "11"),
        (19045, False, "10"),
        (9600, False, None),
        (20348, True, "2022"),
        (26100, True, "2025"),
        (12345, True, None),
    ],
)
def test_windows_version(build: int, server: bool, version: str | None) -> None:
    assert system.windows_version(build, server) == version


def test_windows_name() -> None:
    assert system.windows_name("Windows 10 Pro", "11") == "Windows 11 Pro"
    assert system.windows_name("Windows 10 Home", "10") == "Windows 10 Home"
    assert system.windows_name(None, "11") is None


@pytest.mark.parametrize(
    ("variable", "secure"),
    [
        (b"\x06\x00\x00\x00\x01", True),
        (b"\x06\x00\x00\x00\x00", False),
        (b"\x06\x00\x00\x00\x07", None),
        (b"\x01", None),
        (b"", None),
    ],
)
def test_secure_boot(variable: bytes, secure: bool | None, tmp_path: Path) -> None:
    plant(tmp_path, {f"efi/efivars/{system.SECURE_BOOT}": variable, "acpi/tables/APIC": ""})
    assert system.firmware_secure_boot(tmp_path) is secure


def test_secure_boot_without_efi(tmp_path: Path) -> None:
    assert system.firmware_secure_boot(tmp_path / "absent") is None
    (tmp_path / "hidden").mkdir()  # as container engines leave it
    assert system.firmware_secure_boot(tmp_path / "hidden") is None
    assert system.firmware_secure_boot(plant(tmp_path / "bios", {"acpi/APIC": ""})) is False
    assert system.firmware_secure_boot(plant(tmp_path / "efi", {"efi/systab": ""})) is None


@given(st.binary(max_size=8))
def test_secure_boot_of_garbage(variable: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        plant(Path(folder), {f"efi/efivars/{system.SECURE_BOOT}": variable})
        found = system.firmware_secure_boot(Path(folder))
    assert found is None or (len(variable) == 5 and variable[4] == found)


def test_musl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Sequence[str]] = []

    def loader(command: Sequence[str], limit_s: float) -> ProgramAnswer:
        asked.append(command)
        return ProgramAnswer("", 1, errors=MUSL)

    def unknown(name: str) -> str:
        raise ValueError(name)

    monkeypatch.setattr(os, "confstr", unknown, raising=False)
    monkeypatch.setattr(system, "LIBRARIES", tmp_path)
    assert system.libc(loader) is None
    assert asked == []
    (tmp_path / "ld-musl-x86_64.so.1").touch()
    assert system.libc(loader) == "musl 1.2.4"
    assert system.libc(lambda command, limit_s: ProgramAnswer("", None, "not found")) is None
    assert system.musl("Version 3") is None


@pytest.mark.parametrize(
    ("answer", "rosetta"),
    [
        (ProgramAnswer("1\n", 0, errors=""), True),
        (ProgramAnswer("0\n", 0, errors=""), False),
        (ProgramAnswer("", 1, errors="sysctl: unknown oid 'sysctl.proc_translated'"), False),
        (ProgramAnswer("", 1, errors="sysctl: no permission"), None),
        (ProgramAnswer("what", 0, errors=""), None),
        (ProgramAnswer("", None, "not found"), None),
    ],
)
def test_rosetta(answer: ProgramAnswer, rosetta: bool | None) -> None:
    assert system.rosetta(answer) is rosetta


def test_here() -> None:
    found = system.system()
    assert found.name == platform.system()
    assert found.architecture == platform.machine()
    assert found.release


@pytest.mark.skipif(sys.platform != "linux", reason="other programs that know the same")
def test_here_as_other_programs_say() -> None:
    found = system.system()
    assert found.release == subprocess.check_output(["uname", "-r"], text=True).strip()
    assert found.root is (subprocess.check_output(["id", "-u"], text=True).strip() == "0")
    read = 'set -a; . /etc/os-release; printf \'%s|%s|%s\' "$ID" "$VERSION_ID" "$PRETTY_NAME"'
    said = subprocess.check_output(["sh", "-c", read], text=True).split("|")
    told = [found.distribution, found.distribution_version, found.distribution_name]
    assert [value or "" for value in told] == said
    if platform.libc_ver()[0] == "glibc":
        assert found.libc == " ".join(platform.libc_ver())
