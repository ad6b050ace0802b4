"""System packages by purpose; each distribution has its own names."""

from __future__ import annotations

from flatout.installing import shell
from flatout.installing.target import Target

FAMILIES = {
    "apt": ("debian", "ubuntu"),
    "dnf": ("fedora", "rhel", "centos", "amzn", "rocky", "almalinux", "ol"),
    "zypper": ("suse", "opensuse", "sles", "sled", "opensuse-leap", "opensuse-tumbleweed"),
    "pacman": ("arch", "archlinux", "manjaro"),
    "apk": ("alpine",),
}
"""Package manager -> the distributions (ID or ID_LIKE) that use it."""

INSTALL = {
    "apt": "apt-get install -y",
    "dnf": "dnf install -y",
    "zypper": "zypper --non-interactive install",
    "pacman": "pacman -S --needed --noconfirm",
    "apk": "apk add",
}
RUNNING = "$(uname -r)"
PACKAGES: dict[str, dict[str, tuple[str, ...]]] = {
    "compiler": {
        "apt": ("build-essential",),
        "dnf": ("gcc", "gcc-c++", "make"),
        "zypper": ("gcc", "gcc-c++", "make"),
        "pacman": ("base-devel",),
        "apk": ("build-base",),
    },
    "kernel-headers": {
        "apt": (f"linux-headers-{RUNNING}",),
        "dnf": (f"kernel-devel-{RUNNING}", "kernel-headers"),
        "zypper": ("kernel-default-devel",),
        "pacman": ("linux-headers",),
    },
    "dkms": {"apt": ("dkms",), "dnf": ("dkms",), "zypper": ("dkms",), "pacman": ("dkms",)},
    "infiniband": {
        "apt": ("rdma-core", "ibverbs-utils", "infiniband-diags"),
        "dnf": ("rdma-core", "libibverbs-utils", "infiniband-diags"),
        "zypper": ("rdma-core", "libibverbs-utils", "infiniband-diags"),
        "pacman": ("rdma-core",),
    },
}
FOR_PEOPLE = {
    "compiler": "a C and C++ compiler",
    "python-headers": "the headers of Python (Python.h)",
    "kernel-headers": "the headers of the running kernel",
    "dkms": "dkms",
    "infiniband": "rdma-core with its tools",
    "fabric-manager": "NVIDIA's fabric manager of exactly the driver's version",
}
BUILD_TOOLS = (
    "winget install --id Microsoft.VisualStudio.2022.BuildTools --override "
    '"--wait --passive --add Microsoft.VisualStudio.Workload.VCTools --includeRecommended"'
)


def commands(target: Target, *kinds: str) -> tuple[str, ...]:
    """Lines that install packages of these `kinds`, with the distribution's package manager.

    For an unknown distribution, a comment says what to install. Windows: winget; macOS:
    xcode-select.
    """
    if target.system != "Linux":
        headers = "Python's own installer includes its headers: reinstall Python from python.org"
        known = {
            "compiler": BUILD_TOOLS if target.system == "Windows" else "xcode-select --install",
            "python-headers": shell.remark(headers),
        }
        none = "there is no {} on {}, and none is needed"
        return tuple(
            known.get(kind) or shell.remark(none.format(FOR_PEOPLE[kind], target.system))
            for kind in kinds
        )
    family = package_manager(target)
    names = {kind: _names(target, family, kind) for kind in kinds}
    packages = list(
        dict.fromkeys(name for kind_packages in names.values() for name in kind_packages)
    )
    has_no_dkms = target.distribution in ("rhel", "rocky", "almalinux", "centos")
    lines = list(epel(target)) if "dkms" in kinds and has_no_dkms else []
    if packages:
        lines += install(target, *packages)
    for kind in kinds:
        if not names[kind]:
            lines.append(shell.remark(f"install {FOR_PEOPLE[kind]} with your package manager"))
    if names.get("fabric-manager"):
        lines.append(sudo(target, "systemctl enable --now nvidia-fabricmanager"))
    return tuple(lines)


def package_manager(target: Target) -> str | None:
    """apt, dnf, zypper, pacman or apk; None if not Linux or an unknown distribution."""
    if target.system != "Linux":
        return None
    for name in (target.distribution, *target.distribution_like):
        for family, members in FAMILIES.items():
            if name in members:
                return family
    return None


def install(target: Target, *packages: str) -> tuple[str, ...]:
    """Lines that install packages under the names of the Target's own package manager."""
    family = package_manager(target)
    if family is None:
        return (shell.remark(f"install with your package manager: {' '.join(packages)}"),)
    first = (sudo(target, "apt-get update"),) if family == "apt" else ()
    return (*first, sudo(target, f"{INSTALL[family]} {' '.join(packages)}"))


def sudo(target: Target, line: str) -> str:
    """The line, with sudo if this user is not the administrator."""
    return line if target.root or target.system == "Windows" else f"sudo {line}"


def variable(target: Target, name: str, value: str | None) -> tuple[str, ...]:
    """Lines that set an environment variable in this and later shells; None unsets it."""
    if shell.is_powershell(target):
        text = "$null" if value is None else "'" + value.replace("'", "''") + "'"
        return (
            f"Remove-Item Env:{name} -ErrorAction SilentlyContinue"
            if value is None
            else f"$env:{name} = {text}",
            f"[Environment]::SetEnvironmentVariable('{name}', {text}, 'User')",
        )
    file = "~/.zshrc" if target.system == "Darwin" else "~/.bashrc"
    if value is None:
        where = "~/.profile ~/.bash_profile /etc/environment"
        return (
            f"unset {name}",
            f"sed -i.bak '/^export {name}=/d' {file}",
            shell.remark(f"set elsewhere too? grep -n {name} {where}"),
        )
    line = f"export {name}={shell.quote(target, value)}"
    quoted_line = line.replace("'", "'\"'\"'")
    return (line, f"echo '{quoted_line}' >> {file}")


def _names(target: Target, family: str | None, kind: str) -> tuple[str, ...]:
    if family is None:
        return ()
    if kind == "python-headers":
        minor = ".".join(target.python.split(".")[:2]) if target.python else "3"
        # On Red Hat and Amazon the names of all but the first Python have the version.
        major = (target.distribution_version or "").partition(".")[0]
        first_python = {"8": "3.6", "9": "3.9", "10": "3.12", "2023": "3.9"}.get(major)
        has_version = minor != "3" and first_python is not None and minor != first_python
        return {
            "apt": (f"python{minor}-dev",),
            "dnf": (f"python{minor}-devel",) if has_version else ("python3-devel",),
            "zypper": (f"python{minor.replace('.', '')}-devel",),
            "pacman": ("python",),
            "apk": ("python3-dev",),
        }[family]
    if kind == "fabric-manager":  # of exactly the driver's version
        if target.driver is None:
            return ()
        branch = target.driver.partition(".")[0]
        return {
            "apt": (f"nvidia-fabricmanager-{branch}",),
            # older branches have another hyphen in the name
            "dnf": (f"'nvidia-fabric*manager-{target.driver}'",),
            "zypper": (f"nvidia-fabricmanager={target.driver}",),
        }.get(family, ())
    return PACKAGES[kind].get(family, ())


def epel(target: Target) -> tuple[str, ...]:
    """Lines that add EPEL on Red Hat's relatives."""
    if target.distribution != "rhel":
        return (sudo(target, "dnf install -y epel-release"),)
    major = (target.distribution_version or "9").partition(".")[0]
    address = "https://dl.fedoraproject.org/pub/epel/epel-release-latest"
    return (sudo(target, f"dnf install -y {address}-{major}.noarch.rpm"),)
