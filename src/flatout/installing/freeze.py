"""The exact present environment as a file, to rebuild it elsewhere."""

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
"""pip itself reads the file."""
BUILD = re.compile(r"cpu|cu\d{3}|rocm\d+(\.\d+)*|xpu")
PLATFORM = re.compile(r"/(noarch|(linux|osx|win|emscripten|wasi)-\w+)/?$")
CHANNEL = re.compile(r"https?://[^/]+/(?:pkgs/)?([\w.-]+)")
SECRET = re.compile(r"(?<=//)[^/@]+@|(?<=/)t/[^/]+/")
"""A user with a password, or a token, in an address: the file is meant to be shared."""


def file_name(listing: Listing) -> str:
    """requirements.txt, or for a conda environment environment.yml."""
    return "requirements.txt" if listing.conda is None else "environment.yml"


def text(listing: Listing) -> str:
    """The file: requirements for pip, or a conda environment."""
    lines = _requirements(listing) if listing.conda is None else _environment(listing)
    return "\n".join(lines) + "\n"


def _requirements(listing: Listing) -> list[str]:
    minor = ".".join(listing.python.split(".")[:2])
    packages = [package for package in listing.packages if package.name.lower() not in LEFT_OUT]
    return [
        shell.remark(f"Python {listing.python} on {listing.system} {listing.machine}"),
        shell.remark(f"rebuild: python{minor} -m venv .venv"),
        shell.remark("then: .venv/bin/python -m pip install --no-deps -r requirements.txt"),
        *_indexes(packages),
        *(_entry(package).text for package in packages),
    ]


def _indexes(packages: list[InstalledPackage]) -> list[str]:
    """Index options for the wheels with a build in their version."""
    builds = sorted({build for package in packages if (build := _build(package)) is not None})
    return [f"--extra-index-url {pytorch.index_url(build)}" for build in builds]


def _build(package: InstalledPackage) -> str | None:
    """cu128 for 2.9.1+cu128, or None if it is not from a PyTorch index."""
    local = package.version.partition("+")[2]
    return local if package.url is None and BUILD.fullmatch(local) else None


@dataclass(frozen=True)
class Entry:
    """The file's line for one package."""

    text: str
    """A requirement, or a comment saying that it cannot be installed elsewhere."""
    is_requirement: bool = True
    """Whether it is a requirement rather than a comment."""


def _entry(package: InstalledPackage) -> Entry:
    name, url = package.name, SECRET.sub("", package.url or "")
    if package.vcs and url and package.commit:
        return _valid(f"{name} @ {package.vcs}+{url}@{package.commit}", package)
    if package.folder or package.editable or url.startswith("file:"):
        kind = "editable, from" if package.editable else "from"
        where = url or "a folder here"
        return _remark(f"{name} {package.version}: {kind} {where}; copy it by hand")
    if url:
        return _valid(f"{name} @ {url}", package)
    if "+" in package.version and _build(package) is None:
        note = f"{name} {package.version}: built by hand or by a distribution; no index has it"
        return _remark(note)
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
    return Entry(shell.remark(text), is_requirement=False)


def _environment(listing: Listing) -> list[str]:
    conda_packages = listing.conda or ()
    conda_names = {package.name.lower().replace("_", "-") for package in conda_packages}
    by_pip = [
        package
        for package in listing.packages
        if package.installer != "conda"
        and package.name.lower() not in LEFT_OUT
        and package.name.lower().replace("_", "-") not in conda_names
    ]
    entries = [_entry(package) for package in by_pip]
    channels = _channels(conda_packages)
    lines = [
        shell.remark(f"Python {listing.python} on {listing.system} {listing.machine}"),
        shell.remark("rebuild: conda env create -f environment.yml"),
        *(entry.text for entry in entries if not entry.is_requirement),
        "name: training",
        "channels:",
        *(f"  - {json.dumps(channel)}" for channel in channels),
        *(() if "defaults" in channels else ("  - nodefaults",)),
        "dependencies:",
        *(
            f"  - {json.dumps(f'{package.name}={package.version}={package.build}')}"
            for package in conda_packages
        ),
    ]
    requirements = [entry.text for entry in entries if entry.is_requirement]
    if requirements:
        pins = [*_indexes(by_pip), *requirements]
        lines += ["  - pip:", *(f"      - {json.dumps(line)}" for line in pins)]
    return lines


def _channels(installed: tuple[CondaPackage, ...]) -> list[str]:
    """The channels by name, the one with the most packages first."""
    names: dict[str, int] = {}
    for package in installed:
        name = _channel(package.channel)
        names[name] = names.get(name, 0) + 1
    return sorted(names, key=lambda name: (-names[name], name)) or ["conda-forge"]


def _channel(address: str) -> str:
    """conda-forge from its address with the platform's folder; parts of defaults as defaults."""
    plain = PLATFORM.sub("", SECRET.sub("", address))
    match = CHANNEL.fullmatch(plain)
    name = match[1] if match else plain
    return "defaults" if name in ("main", "r", "msys2") else name
