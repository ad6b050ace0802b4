r"""A Machine without anything that identifies its owner.

Hidden are names of users, hosts and their groups, personal paths, network addresses (IPv4,
IPv6, MAC), serial numbers and UUIDs.

The same name becomes the same stand-in everywhere, so that the checks still see which paths are
equal. System paths (/usr, /dev, C:\Windows, ...) identify nobody and stay.
"""

from __future__ import annotations

import dataclasses
import getpass
import re
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

from flatout.nouns.machine import Machine
from flatout.nouns.selftest import SelfTest

T = TypeVar("T")
UNIX = "bin boot dev etc lib lib32 lib64 proc run sbin sys usr var Applications Library System"
KNOWN = (
    "/opt/rocm",
    "/opt/cuda",
    "/opt/conda",
    "/opt/homebrew",
    "c:\\windows",
    "c:\\program files",
)
ANYBODYS = ("/", "/tmp", "/var/tmp", "/dev/shm")
"""The folders themselves identify nobody, but the paths in them may."""
SYSTEM = (*(f"/{name}" for name in UNIX.split()), *KNOWN)
PATH = re.compile(
    r"""(?:(?<![\w.:/\\~]) | (?<=:)(?=~?/[^/]))(?:  # not //, as in an address; /a:/b are two
      [A-Za-z]:[\\/](?:[^\\/:*?"'<>|;\r\n]+[\\/])*[^\s\\/:*?"'<>|;,]*  # with spaces
    | (?:~?/|\\\\)[^\s:;,'"|<>()=]*
    )""",
    re.VERBOSE,
)
ONE_PATH = re.compile(r"""~?/(?:(?! /)[^:;'"|<>\n])*""")
"""A text that is only a path, with or without spaces."""
TELLING_NOTHING = re.compile(
    r"""python[\w.]*(\.exe)? | (site|dist)-packages | conda-meta | nvcc | bin | lib(64)?
    | lib[\w+-]*\.(so|dylib)[\w.]* | [\w.+-]+\.(so|dll|pyd) | cuda[\d.-]*""",
    re.VERBOSE | re.I,
)
"""Last parts of paths that may stay, as they only name the software."""
SERIAL = re.compile(
    r"\b(?:(GPU|MIG)-[0-9a-fA-F]{6,}(?:-[0-9a-fA-F]+)*|[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12})\b"
)
"""Serial numbers, also in CUDA_VISIBLE_DEVICES' short form: GPU-8932f937."""
ADDRESS = re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}\b")
MAC = re.compile(r"(?<![\w:-])[0-9a-fA-F]{2}(?:[:-][0-9a-fA-F]{2}){5,7}(?![\w:-])")
IPV6 = re.compile(r"(?<![\w:])(?:[23f][0-9a-fA-F]{3}:)[0-9a-fA-F:]*:[0-9a-fA-F]*(?:%\w+)?(?![\w:])")
"""Addresses that identify a network begin with 2, 3 or f; ::1 identifies nothing."""
SERIAL_FIELDS = ("uuid", "serial")
GROUP_FIELDS = ("group", "user_groups")
GROUPS = """
adm admin audio cdrom dialout dip disk docker everyone floppy input kvm libvirt lpadmin lxd netdev
nobody nogroup nvidia plugdev podman render root sambashare staff sudo systemd-journal users video
wheel
"""
"""The system's own groups."""
NAMES_A_HOST = re.compile(r"ADDR|HOST|NODELIST|ENDPOINT|PROXY|URL")


def redacted(machine: Machine, words: Iterable[str] | None = None) -> Machine:
    """The Machine with stand-ins. words: the names to hide, or None for this user's and host's."""
    return _Redactor(list(_own_names() if words is None else words)).noun(machine)


def with_tests(
    machine: Machine, tests: tuple[SelfTest, ...]
) -> tuple[Machine, tuple[SelfTest, ...]]:
    """The Machine and its self-tests, with the same stand-ins."""
    redactor = _Redactor(list(_own_names()))
    return redactor.noun(machine), tuple(map(redactor.noun, tests))


def _own_names() -> Iterable[str]:
    for source in (getpass.getuser, socket.gethostname, socket.getfqdn, lambda: Path.home().name):
        try:
            yield source()
        except (OSError, KeyError, ImportError, RuntimeError):
            continue


class _Redactor:
    def __init__(self, words: list[str]) -> None:
        names = sorted({word for word in words if len(word) > 1 and word != "root"}, key=len)
        pattern = "|".join(re.escape(word) for word in reversed(names))
        self.words = re.compile(rf"(?<![\w-])(?:{pattern})(?![\w-])", re.I) if pattern else None
        self.stand_ins: dict[str, str] = {}

    def noun(self, noun: T) -> T:
        """The same noun with every text in it redacted."""
        values = {
            field.name: self.field(field.name, getattr(noun, field.name))
            for field in dataclasses.fields(noun)  # type: ignore[arg-type]
        }
        return dataclasses.replace(noun, **values)  # type: ignore[type-var]

    def field(self, name: str, value: Any) -> Any:
        if value is not None and name in SERIAL_FIELDS:
            return self.stand_in("serial", str(value))
        if name in GROUP_FIELDS and isinstance(value, str):
            return value if value in GROUPS.split() else self.stand_in("group", value)
        if name in GROUP_FIELDS and isinstance(value, tuple):
            return tuple(self.field(name, element) for element in value)
        return self.value(value)

    def value(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, tuple):
            return tuple(self.value(element) for element in value)
        if isinstance(value, dict):
            return {key: self.variable(key, element) for key, element in value.items()}
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return self.noun(value)
        return value

    def variable(self, name: str, value: str) -> str:
        return self.stand_in("host", value) if NAMES_A_HOST.search(name) else self.text(value)

    def text(self, text: str) -> str:
        if ONE_PATH.fullmatch(text):
            text = self.path(text)
        else:
            text = PATH.sub(lambda match: self.path(match[0]), text)
        text = SERIAL.sub(lambda match: self.stand_in(match[1] or "serial", match[0]), text)
        text = MAC.sub(lambda match: self.stand_in("address", match[0]), text)
        text = IPV6.sub(lambda match: self.stand_in("address", match[0]), text)
        if not text.replace(".", "").isdigit():
            text = ADDRESS.sub(lambda match: self.stand_in("address", match[0]), text)
        return self.words.sub("redacted", text) if self.words else text

    def path(self, path: str) -> str:
        lower = path.lower()
        is_shared = any(_below(lower, top) for top in ANYBODYS[1:])
        is_systems = not is_shared and any(_below(lower, top.lower()) for top in SYSTEM)
        if lower in ANYBODYS or is_systems:
            return path
        separator = "\\" if "\\" in path else "/"
        folder, _, last = path.rstrip("/\\").rpartition(separator)
        if not TELLING_NOTHING.fullmatch(last):
            return separator + self.stand_in("path", path)
        return f"{separator}{self.stand_in('path', folder)}{separator}{last}"

    def stand_in(self, kind: str, text: str) -> str:
        return self.stand_ins.setdefault(text, f"{kind}-{len(self.stand_ins) + 1}")


def _below(path: str, top: str) -> bool:
    return path == top or path.startswith((f"{top}/", f"{top}\\"))
