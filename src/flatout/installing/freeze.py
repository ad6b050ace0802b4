"""The exact present environment as a file from which it can be made again elsewhere."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion, Version

from flatout.installing import shell
from flatout.knowledge.compat import pytorch
from flatout.nouns.listing import CondaPackage, InstalledPackage, Listing

LEFT_OUT = ("pip",)
"""It is what reads the file."""
BUILD = re.compile(r"cpu|cu\d{3}|rocm\d+(\.\d+)*|xpu")
PLATFORM = re.compile(r"/(noarch|(linux|osx|win|emscripten|wasi)-\w+)/?$")
CHANNEL = re.compile(r"https?://[^/]+/(?:pkgs/)?([\w.-]+)")
SECRET = re.compile(r"(?<=//)[^/@]+@|(?<=/)t/[^/]+/")
"""A user with a password, or a token, in an address: the file is made to be given away."""


def file_name(listing: Listing) -> str:
    """requirements.txt; of a conda environment, environment.yml."""
    return "requirements.txt" if listing.conda is None else "environment.yml"


def text(listing: Listing) -> str:
    """The file: requirements for pip, or a conda environment."""
    lines = _requirements(listing) if listing.conda is None else _environment(listing)
    return "\n".join(lines) + "\n"


def _requirements(listing: Listing) -> list[str]:
    minor = ".".join(listing.python.split(".")[:2])
    packages = [item for item in listing.packages if item.name.lower() not in LEFT_OUT]
    return [
        shell.remark(f"Python {listing.python} on {listing.system} {listing.machine}"),
        shell.remark(f"make again: python{minor} -m venv .venv"),
        shell.remark("then: .venv/bin/python -m pip install --no-deps -r requirements.txt"),
        *_indexes(packages),
        *(_entry(item).text for item in packages),
    ]


def _indexes(packages: list[InstalledPackage]) -> list[str]:
    """Where the wheels with a build in their version come from."""
    builds = sorted({build for item in packages if (build := _build(item)) is not None})
    return [f"--extra-index-url {pytorch.index_url(build)}" for build in builds]


def _build(package: InstalledPackage) -> str | None:
    """The cu128 of 2.9.1+cu128; None: no index of PyTorch's holds it."""
    local = package.version.partition("+")[2]
    return local if package.url is None and BUILD.fullmatch(local) else None


@dataclass(frozen=True)
class Entry:
    """What the file says of one package."""

    text: str
    """A requirement, or the remark that it cannot be had elsewhere."""
    wanted: bool = True
    """It is a requirement."""


def _entry(package: InstalledPackage) -> Entry:
    name, url = package.name, SECRET.sub("", package.url or "")
    if package.vcs and url and package.commit:
        return _valid(f"{name} @ {package.vcs}+{url}@{package.commit}", package)
    if package.folder or package.editable or url.startswith("file:"):
        kind = "editable, from" if package.editable else "from"
        where = url or "a folder here"
        return _remark(f"{name} {package.version}: {kind} {where}; take it along by hand")
    if url:
        return _valid(f"{name} @ {url}", package)
    if "+" in package.version and _build(package) is None:
        told = f"{name} {package.version}: built by hand or by a distribution; no index holds it"
        return _remark(told)
    return _valid(f"{name}=={package.version}", package)


def _valid(line: str, package: InstalledPackage) -> Entry:
    try:
        Requirement(line)
        Version(package.version)
        accepted = line.isprintable()
    except (InvalidRequirement, InvalidVersion):
        accepted = False
    if not accepted:
        return _remark(f"{package.name} {package.version}: not a version that pip accepts")
    return Entry(line)


def _remark(text: str) -> Entry:
    return Entry(shell.remark(text), wanted=False)


def _environment(listing: Listing) -> list[str]:
    installed = listing.conda or ()
    own = {item.name.lower().replace("_", "-") for item in installed}
    by_pip = [
        item
        for item in listing.packages
        if item.installer != "conda"
        and item.name.lower() not in LEFT_OUT
        and item.name.lower().replace("_", "-") not in own
    ]
    entries = [_entry(item) for item in by_pip]
    channels = _channels(installed)
    lines = [
        shell.remark(f"Python {listing.python} on {listing.system} {listing.machine}"),
        shell.remark("make again: conda env create -f environment.yml"),
        *(entry.text for entry in entries if not entry.wanted),
        "name: training",
        "channels:",
        *(f"  - {json.dumps(channel)}" for channel in channels),
        *(() if "defaults" in channels else ("  - nodefaults",)),
        "dependencies:",
        *(f"  - {json.dumps(f'{item.name}={item.version}={item.build}')}" for item in installed),
    ]
    wanted = [entry.text for entry in entries if entry.wanted]
    if wanted:
        pins = [*_indexes(by_pip), *wanted]
        lines += ["  - pip:", *(f"      - {json.dumps(line)}" for line in pins)]
    return lines


def _channels(installed: tuple[CondaPackage, ...]) -> list[str]:
    """The channels by name, the one with the most packages first."""
    names: dict[str, int] = {}
    for item in installed:
        name = _channel(item.channel)
        names[name] = names.get(name, 0) + 1
    return sorted(names, key=lambda name: (-names[name], name)) or ["conda-forge"]


def _channel(address: str) -> str:
    """conda-forge of its address with the platform's folder; defaults' parts as defaults."""
    plain = PLATFORM.sub("", SECRET.sub("", address))
    found = CHANNEL.fullmatch(plain)
    name = found[1] if found else plain
    return "defaults" if name in ("main", "r", "msys2") else name
