"""The operating system: its name and version, the C library, secure boot, administrator rights."""

from __future__ import annotations

import os
import platform
import re
import sys
from pathlib import Path

from flatout.nouns.machine import System
from flatout.probing import reading
from flatout.probing.program_answer import Ask, ProgramAnswer, ask

FIRMWARE = Path("/sys/firmware")
LIBRARIES = Path("/lib")
LIMIT_S = 1.0
SECURE_BOOT = "SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"

FIRST_BUILD_OF_11 = 22000
SERVERS = {14393: "2016", 17763: "2019", 20348: "2022", 25398: "23H2", 26100: "2025"}
"""Windows Server by build: Microsoft's table of releases."""


def windows_version(build: int, server: bool) -> str | None:
    """10 or 11, which only the build distinguishes, or a server's year."""
    if server:
        return SERVERS.get(build)
    if build < 10240:  # the first build of Windows 10
        return None
    return "11" if build >= FIRST_BUILD_OF_11 else "10"


def windows_name(product: str | None, version: str | None) -> str | None:
    """The display name: the registry of Windows 11 still says "Windows 10 Pro"."""
    if product and version == "11":
        return product.replace("Windows 10", "Windows 11")
    return product


def firmware_secure_boot(firmware: Path) -> bool | None:
    """Secure Boot as the firmware reports it; a machine without EFI has none."""
    present = reading.entries(firmware)
    if not present:  # container engines hide the folder's contents
        return None
    if all(entry.name != "efi" for entry in present):
        return False
    try:
        variable = (firmware / "efi" / "efivars" / SECURE_BOOT).read_bytes()
    except (OSError, ValueError):
        return None
    if len(variable) != 5 or variable[4] > 1:  # 4 bytes of attributes, 1 of value
        return None
    return variable[4] == 1


def musl(output: str) -> str | None:
    """The version that musl's loader prints when started without a program."""
    match = re.search(r"^musl libc.*\nVersion ([0-9]+\.[0-9]+(?:\.[0-9]+)?)", output, re.MULTILINE)
    return f"musl {match[1]}" if match else None


def libc(runner: Ask = ask) -> str | None:
    """The C library that this Python runs on: glibc 2.36, musl 1.2.4."""
    confstr = getattr(os, "confstr", None)
    try:
        version = confstr("CS_GNU_LIBC_VERSION") if confstr else None
    except (OSError, ValueError):
        version = None
    if version:
        return str(version)
    loader = next(iter(sorted(LIBRARIES.glob("ld-musl-*.so.1"))), None)
    return musl(runner([str(loader)], LIMIT_S).errors) if loader else None


def linux_distribution() -> dict[str, str]:
    """The assignments of the os-release file, or none if it cannot be read."""
    try:
        return platform.freedesktop_os_release()
    except (OSError, ValueError):
        return {}


if sys.platform == "win32":

    def system(runner: Ask = ask) -> System:
        """Facts about Windows."""
        windows = sys.getwindowsversion()
        version = windows_version(windows.build, server=windows.product_type != 1)
        secure_boot = _registry(
            r"SYSTEM\CurrentControlSet\Control\SecureBoot\State", "UEFISecureBootEnabled"
        )
        return System(
            name="Windows",
            release=f"{windows.major}.{windows.minor}.{windows.build}",
            architecture=platform.machine() or None,
            distribution="windows",
            distribution_version=version,
            distribution_name=windows_name(_registry(_CURRENT, "ProductName"), version),
            secure_boot=secure_boot == "1" if secure_boot in ("0", "1") else None,
            root=_administrator(),
        )

    _CURRENT = r"SOFTWARE\Microsoft\Windows NT\CurrentVersion"

    def _registry(path: str, name: str) -> str | None:
        import winreg

        try:
            with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, path) as key:
                return str(winreg.QueryValueEx(key, name)[0])
        except OSError:
            return None

    def _administrator() -> bool | None:
        import ctypes

        try:
            return bool(ctypes.windll.shell32.IsUserAnAdmin())
        except (AttributeError, OSError):
            return None

elif sys.platform == "darwin":

    def system(runner: Ask = ask) -> System:
        """Facts about macOS."""
        version = platform.mac_ver()[0] or None
        translated = runner(["/usr/sbin/sysctl", "-n", "sysctl.proc_translated"], LIMIT_S)
        return System(
            name="Darwin",
            release=platform.release() or None,
            architecture=platform.machine() or None,
            distribution="macos",
            distribution_version=version,
            distribution_name=f"macOS {version}" if version else None,
            root=os.geteuid() == 0,
            rosetta=rosetta(translated),
        )

else:

    def system(runner: Ask = ask) -> System:
        """Facts about this Linux system."""
        distribution = linux_distribution()
        return System(
            name=platform.system() or None,
            release=platform.release() or None,
            architecture=platform.machine() or None,
            distribution=distribution.get("ID"),
            distribution_like=tuple(distribution.get("ID_LIKE", "").split()),
            distribution_version=distribution.get("VERSION_ID"),
            distribution_name=distribution.get("PRETTY_NAME"),
            libc=libc(runner),
            secure_boot=firmware_secure_boot(FIRMWARE),
            root=os.geteuid() == 0,
        )


def rosetta(translated: ProgramAnswer) -> bool | None:
    """Whether `sysctl -n sysctl.proc_translated` says so; Intel Macs do not have that name."""
    if translated.code != 0:
        return False if "unknown oid" in translated.errors else None
    return {"0": False, "1": True}.get(translated.text.strip())
