"""A Target described in words: "gpu=rtx4090,driver=535,os=windows,python=3.11"."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Callable
from typing import Any

from flatout.installing.target import MANAGERS, VENDORS, Target, architecture
from flatout.knowledge import gpus
from flatout.nouns.errors import UserError

EXAMPLE = "--for gpu=rtx4090,driver=535,os=ubuntu22.04,python=3.11"

DISTRIBUTIONS = {
    "ubuntu": ("debian",),
    "debian": (),
    "linuxmint": ("ubuntu", "debian"),
    "pop": ("ubuntu", "debian"),
    "fedora": (),
    "rhel": ("fedora",),
    "rocky": ("rhel", "centos", "fedora"),
    "almalinux": ("rhel", "centos", "fedora"),
    "centos": ("rhel", "fedora"),
    "ol": ("fedora",),
    "amzn": ("fedora",),
    "sles": ("suse",),
    "opensuse-leap": ("suse", "opensuse"),
    "opensuse-tumbleweed": ("suse", "opensuse"),
    "arch": (),
    "manjaro": ("arch",),
    "nixos": (),
}
"""ID -> ID_LIKE, as in /etc/os-release."""

OTHER_NAMES = {
    "alma": "almalinux",
    "amazon": "amzn",
    "amazonlinux": "amzn",
    "archlinux": "arch",
    "leap": "opensuse-leap",
    "mint": "linuxmint",
    "opensuse": "opensuse-leap",
    "oracle": "ol",
    "redhat": "rhel",
    "rockylinux": "rocky",
    "suse": "sles",
    "tumbleweed": "opensuse-tumbleweed",
}
SYSTEMS = {"windows": "Windows", "macos": "Darwin", "mac": "Darwin", "linux": "Linux"}
WITHOUT_GPU = ("none", "no", "cpu")
VERSION = re.compile(r"\d+(\.\d+)*")


def read(text: str) -> Target:
    """The Target that `text` describes. Raises UserError that names what is wrong."""
    target = Target()
    pairs = []
    for part in text.split(","):
        if not part.strip():
            continue
        key, separator, value = (word.strip() for word in part.partition("="))
        if key not in _READERS:
            matches = difflib.get_close_matches(key, _READERS, n=1)
            suggestion = f"; did you mean {matches[0]!r}?" if matches else ""
            message = f"{key!r} is not a key of a description{suggestion}"
            raise UserError(message, f"keys: {', '.join(_READERS)}")
        if not separator or not value:
            raise UserError(f"{key!r} has no value", f"write it as in {EXAMPLE}")
        pairs.append((key, value))
    words = dict(pairs)
    if not words:
        raise UserError("the description is empty", f"say what it is: {EXAMPLE}")
    for key in words:
        values = [value for name, value in pairs if name == key]
        if len(set(values)) > 1:
            contradiction = " and ".join(f"{key}={value}" for value in values)
            raise UserError(f"{contradiction} contradict each other", f"say one of them: {EXAMPLE}")
    for key, reader in _READERS.items():  # arch and os may override what the GPU implies
        if key in words:
            target = dataclasses.replace(target, **reader(words[key]))
    # What the rest implies: an ARM Mac has Apple's GPU; a named GPU counts as one.
    if target.system == "Darwin" and target.vendor is None and target.architecture == "arm64":
        target = dataclasses.replace(target, vendor="apple", gpu="Apple GPU")
    if target.vendor is not None and target.gpus == 0:
        target = dataclasses.replace(target, gpus=1)
    if target.vendor == "apple" and target.system != "Darwin":
        raise UserError("Apple's GPUs are only in Macs", "add os=macos")
    return target


def _gpu(value: str) -> dict[str, Any]:
    if value.lower() in WITHOUT_GPU:
        return {"vendor": None, "gpu": None}
    model = gpus.find(value)
    if model is not None:
        is_arm = model.kind == "jetson" or "nvlink_c2c" in model.features
        on_arm = {"architecture": "arm64"} if is_arm else {}
        mac = {"system": "Darwin", "architecture": "arm64"} if model.vendor == "apple" else {}
        return {
            "vendor": model.vendor,
            "gpu": model.name,
            "compute_capability": model.compute_capability,
            "gfx": model.gfx,
            **on_arm,
            **mac,
        }
    if value.lower() in VENDORS:
        return {"vendor": value.lower()}
    if re.fullmatch(r"gfx[0-9a-f]{3,5}", value.lower()):
        return {"vendor": "amd", "gpu": f"AMD GPU ({value.lower()})", "gfx": value.lower()}
    matches = gpus.nearest(value)[:4]
    alternative = "name its vendor instead: gpu=nvidia,capability=8.6 or gpu=amd or gpu=intel"
    hint = f"did you mean {' or '.join(matches)}?" if matches else alternative
    raise UserError(f"no GPU is known by the name {value!r}", hint)


def _capability(value: str) -> dict[str, Any]:
    match = re.fullmatch(r"(?:sm_)?(\d+)\.?(\d)", value)
    if not match:
        raise UserError(f"capability={value} is not one", "for example capability=8.6")
    return {"vendor": "nvidia", "compute_capability": (int(match[1]), int(match[2]))}


def _gpus(value: str) -> dict[str, Any]:
    if not value.isdecimal():
        raise UserError(f"gpus={value} is not a number of GPUs", "for example gpus=8")
    return {"gpus": int(value)}


def _version(key: str) -> Callable[[str], dict[str, Any]]:
    def read_version(value: str) -> dict[str, Any]:
        if value.lower() in WITHOUT_GPU:
            return {key: None}
        if not VERSION.fullmatch(value):
            raise UserError(f"{key}={value} is not a version", f"write it as in {EXAMPLE}")
        return {key: value}

    return read_version


def _python(value: str) -> dict[str, Any]:
    free_threaded = value.endswith("t")
    number = value.removesuffix("t")
    if not re.fullmatch(r"\d+\.\d+(\.\d+)?", number):
        raise UserError(f"python={value} is not a version of Python", "for example python=3.12")
    return {"python": number, "free_threaded": free_threaded}


def _system(value: str) -> dict[str, Any]:
    match = re.fullmatch(r"([a-z][a-z-]*?)[ -]?v?(\d[\d.]*)?", value.lower())
    name, number = match.groups() if match else (value.lower(), None)
    if name == "wsl":
        ubuntu = {"distribution": "ubuntu", "distribution_like": ("debian",)}
        return {"system": "Linux", "wsl": True, **ubuntu}
    if name in SYSTEMS:
        mac = {"architecture": "arm64"} if SYSTEMS[name] == "Darwin" else {}
        return {"system": SYSTEMS[name], "distribution_version": number, **mac}
    name = OTHER_NAMES.get(name, name)
    if name not in DISTRIBUTIONS:
        names = [*SYSTEMS, "wsl", *DISTRIBUTIONS, *OTHER_NAMES]
        matches = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {matches[0]}?" if matches else f"known: {', '.join(names)}"
        raise UserError(f"no operating system is known by the name {value!r}", hint)
    like = DISTRIBUTIONS[name]
    return {"distribution": name, "distribution_like": like, "distribution_version": number}


def _architecture(value: str) -> dict[str, Any]:
    name = architecture(value)
    if name not in ("x86_64", "arm64"):
        raise UserError(f"arch={value} is not known", "arch=x86_64 or arch=arm64")
    return {"architecture": name}


def _manager(value: str) -> dict[str, Any]:
    if value.lower() not in MANAGERS:
        raise UserError(f"manager={value} is not known", f"one of {', '.join(MANAGERS)}")
    return {"manager": value.lower()}


_READERS: dict[str, Callable[[str], dict[str, Any]]] = {
    "gpu": _gpu,
    "capability": _capability,
    "gpus": _gpus,
    "driver": _version("driver"),
    "rocm": _version("rocm"),
    "os": _system,
    "arch": _architecture,
    "python": _python,
    "manager": _manager,
    "libc": lambda value: {"libc": f"glibc {value}" if VERSION.fullmatch(value) else value},
}
"""Key -> the fields that its value sets; read in this order."""
