"""NVIDIA's driver on Linux: how each distribution installs it.

The distribution's own packages are used if they are new enough, because they are built for its
kernels; otherwise NVIDIA's network repository is used.
"""

from __future__ import annotations

from collections.abc import Callable

from packaging.version import Version

from flatout.installing import shell, system_packages
from flatout.installing.system_packages import sudo
from flatout.installing.target import Target
from flatout.knowledge import gpus
from flatout.knowledge.compat import cuda

REPOSITORIES = "https://developer.download.nvidia.com/compute/cuda/repos"
RPM_FUSION = "https://mirrors.rpmfusion.org"
DOWNLOAD_PAGE = "https://www.nvidia.com/drivers"
GUIDE = "https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/"

FIRST_OPEN = (7, 5)
"""Turing: open kernel modules do not support older GPUs."""
ONLY_OPEN = (9, 0)
"""From Grace Hopper and Blackwell on, the open modules are required (Hopper runs with both)."""

UBUNTU_BRANCH = 580
"""The newest branch that stays in Ubuntu's own archive for years."""
UBUNTU_RELEASES = ("22.04", "24.04")
"""Ubuntu releases whose archive has this branch, and 470 for old GPUs."""
DEBIAN_BRANCHES = {"12": 535, "13": 550}
"""The branch in Debian's own non-free section, by release."""


def commands(target: Target, at_least: str | None) -> tuple[str, ...]:
    """Lines that install or update the driver, with the restart at the end."""
    family = (target.distribution, *target.distribution_like)
    base = next((name for name in family if name in ("ubuntu", "debian")), None)
    recipes: dict[str | None, Callable[[Target, str | None], list[str]]] = {
        "apt": _debian if base == "debian" else _ubuntu,
        "dnf": _fedora if target.distribution == "fedora" else _red_hat,
        "zypper": _suse,
        "pacman": _arch,
    }
    recipe = recipes.get(system_packages.package_manager(target), _unknown)
    if target.distribution == "nixos":
        recipe = _nixos
    lines = recipe(target, at_least)
    if target.secure_boot:
        text = "Secure Boot is on: choose a password when asked, and enroll the key (MOK) with it"
        lines.append(shell.why(f"{text} in the blue screen at the restart"))
    return (*lines, sudo(target, "reboot"), shell.remark("after the restart: nvidia-smi"))


def last_branch(target: Target) -> str | None:
    """The newest branch that still drives this GPU, or None for any."""
    capability = target.compute_capability
    return cuda.last_driver_branch(capability) if capability else None


def open_modules(target: Target) -> bool:
    """Whether the open kernel modules are the right ones: from Turing on."""
    capability = target.compute_capability
    return capability is None or capability >= FIRST_OPEN


def _ubuntu(target: Target, at_least: str | None) -> list[str]:
    last = last_branch(target)
    # 999: the archive holds the newest release of each branch
    is_new_enough = at_least is None or Version(f"{UBUNTU_BRANCH}.999") >= Version(at_least)
    archive_has_one = last is not None or is_new_enough
    if not archive_has_one and target.distribution == "ubuntu" and target.distribution_version:
        return [
            *_network_repository_apt(target, f"ubuntu{target.distribution_version}"),
            sudo(target, f"apt-get install -y {_network_packages(target)}"),
        ]
    if target.distribution_version not in UBUNTU_RELEASES and target.distribution == "ubuntu":
        return [
            shell.why("ubuntu-drivers knows which driver this release of Ubuntu has"),
            *system_packages.install(target, "ubuntu-drivers-common", _headers()),
            sudo(target, "ubuntu-drivers install"),
        ]
    branch = int(last or UBUNTU_BRANCH)
    flavour = "-server" if gpus.kind(target.gpu) == "server" else ""
    flavour += "-open" if open_modules(target) and branch >= 535 else ""
    why = f"Ubuntu's archive keeps branch {branch}"
    if flavour.endswith("-open"):
        why += "; the open kernel modules are NVIDIA's default from Turing on"
    package = f"nvidia-driver-{branch}{flavour}"
    return [shell.why(why), *system_packages.install(target, _headers(), package)]


def _headers() -> str:
    return system_packages.PACKAGES["kernel-headers"]["apt"][0]


def _debian(target: Target, at_least: str | None) -> list[str]:
    version = (target.distribution_version or "").partition(".")[0]
    archive_branch = DEBIAN_BRANCHES.get(version)
    minimum = Version(at_least) if at_least else None
    new_enough = archive_branch is not None and (
        minimum is None or Version(f"{archive_branch}.999") >= minimum
    )
    too_new = archive_branch is not None and int(last_branch(target) or 9999) < archive_branch
    headers = f"linux-headers-{'arm64' if target.architecture == 'arm64' else 'amd64'}"
    if archive_branch is None and version:
        return _unknown(target, at_least)
    wanted = "main contrib non-free non-free-firmware"
    sources = "/etc/apt/sources.list"
    # Both formats of Debian's source lists; a missing file is ignored.
    new_format = f"'s/^Components: .*/Components: {wanted}/' {sources}.d/debian.sources || true"
    old_format = f"'s/^(deb .*) main.*$/\\1 {wanted}/' {sources} || true"
    sections = [
        shell.why("the driver is not free software, so Debian keeps it in non-free"),
        sudo(target, f"sed -i {new_format}"),
        sudo(target, f"sed -i -E {old_format}"),
    ]
    is_blackwell = (target.compute_capability or (0, 0)) > ONLY_OPEN
    if (new_enough or not version) and not too_new and not is_blackwell:
        packages = system_packages.install(
            target, headers, "nvidia-driver", "firmware-misc-nonfree"
        )
        return [*sections, *packages]
    return [
        *sections,
        *_network_repository_apt(target, f"debian{version}"),
        sudo(target, f"apt-get install -y {headers} {_network_packages(target)}"),
    ]


def _network_architecture(target: Target) -> str:
    return "sbsa" if target.architecture == "arm64" else "x86_64"


def _network_packages(target: Target) -> str:
    """The driver's package in NVIDIA's repository."""
    last = last_branch(target)
    return "nvidia-open" if last is None else f"cuda-drivers-{last}"


def _network_repository_apt(target: Target, release: str) -> list[str]:
    folder = f"{REPOSITORIES}/{release.replace('.', '')}/{_network_architecture(target)}"
    return [
        shell.why("the distribution's own driver is too old; NVIDIA's repository has newer ones"),
        *system_packages.install(target, "curl", "ca-certificates"),
        f"curl -fsSLo /tmp/cuda-keyring.deb {folder}/cuda-keyring_1.1-1_all.deb",
        sudo(target, "dpkg -i /tmp/cuda-keyring.deb"),
        sudo(target, "apt-get update"),
    ]


def _fedora(target: Target, at_least: str | None) -> list[str]:
    last = last_branch(target)
    suffix = f"-{last}xx" if last else ""
    free, nonfree = (
        f"{RPM_FUSION}/{kind}/fedora/rpmfusion-{kind}-release-$(rpm -E %fedora).noarch.rpm"
        for kind in ("free", "nonfree")
    )
    return [
        shell.why("RPM Fusion builds the driver for Fedora's kernels"),
        sudo(target, f"dnf install -y {free} {nonfree}"),
        sudo(
            target,
            f"dnf install -y kernel-devel akmod-nvidia{suffix} xorg-x11-drv-nvidia{suffix}-cuda",
        ),
        sudo(target, "akmods --force"),
    ]


def _red_hat(target: Target, at_least: str | None) -> list[str]:
    """RHEL, Rocky, Alma, Oracle and Amazon Linux: NVIDIA's repository."""
    major = (target.distribution_version or "").partition(".")[0]
    amazon = target.distribution == "amzn"
    if not major or (amazon and major != "2023") or (not amazon and major not in ("8", "9", "10")):
        return _unknown(target, at_least)
    release = f"amzn{major}" if amazon else f"rhel{major}"
    address = f"{REPOSITORIES}/{release}/{_network_architecture(target)}/cuda-{release}.repo"
    repository = () if amazon else system_packages.epel(target)
    modules = ("kernel-modules-extra",) if amazon else ()
    headers = (*system_packages.PACKAGES["kernel-headers"]["dnf"], *modules)
    last = last_branch(target)
    lines = [
        shell.why("NVIDIA's own repository, built for this release"),
        *repository,
        *system_packages.install(target, *headers, "'dnf-command(config-manager)'"),
        sudo(target, f"dnf config-manager --add-repo {address}"),
    ]
    if major == "10":  # without module streams
        return [*lines, sudo(target, f"dnf install -y {_network_packages(target)}")]
    stream = "open-dkms" if last is None else f"{last}-dkms"
    package = "nvidia-open" if last is None else "cuda-drivers"
    return [
        *lines,
        sudo(target, "dnf module reset -y nvidia-driver"),
        sudo(target, f"dnf module enable -y nvidia-driver:{stream}"),
        sudo(target, f"dnf install -y {package}"),
    ]


def _suse(target: Target, at_least: str | None) -> list[str]:
    major = (target.distribution_version or "15").partition(".")[0]
    if target.distribution == "opensuse-tumbleweed":
        return _unknown(target, at_least)
    name = "sles" if target.distribution in ("sles", "sled") else "opensuse"
    release = f"{name}{major}"
    address = f"{REPOSITORIES}/{release}/{_network_architecture(target)}/cuda-{release}.repo"
    return [
        shell.why("NVIDIA's own repository, built for this release"),
        sudo(target, f"zypper addrepo --refresh {address}"),
        sudo(target, "zypper --gpg-auto-import-keys refresh"),
        *system_packages.install(target, "kernel-default-devel", _network_packages(target)),
    ]


def _arch(target: Target, at_least: str | None) -> list[str]:
    last = last_branch(target)
    if last is not None:
        return [
            shell.why(f"this GPU needs branch {last}, which Arch keeps in the AUR"),
            *system_packages.install(target, "base-devel", "git", "linux-headers"),
            f"git clone https://aur.archlinux.org/nvidia-{last}xx-utils.git",
            f"cd nvidia-{last}xx-utils && makepkg -si",
        ]
    update = sudo(target, "pacman -Syu --needed --noconfirm linux-headers nvidia-open-dkms")
    return [
        shell.why("the open modules, built for whichever kernel is installed"),
        f"{update} nvidia-utils",
    ]


def _nixos(target: Target, at_least: str | None) -> list[str]:
    """NixOS generates /etc from its configuration, so the configuration must change."""
    is_open = "true" if open_modules(target) else "false"
    last = last_branch(target)
    settings = [
        "nixpkgs.config.allowUnfree = true;",
        "hardware.graphics.enable = true;",
        'services.xserver.videoDrivers = [ "nvidia" ];',
        f"hardware.nvidia.open = {is_open};",
    ]
    if last is not None:
        package = f"config.boot.kernelPackages.nvidiaPackages.legacy_{last}"
        settings.append(f"hardware.nvidia.package = {package};")
    return [
        shell.why("NixOS builds the system from /etc/nixos/configuration.nix; add there:"),
        *(shell.remark(setting) for setting in settings),
        sudo(target, "nixos-rebuild boot"),
    ]


def _unknown(target: Target, at_least: str | None) -> list[str]:
    last = last_branch(target)
    wanted = f"branch {last}" if last else f"{at_least} or newer" if at_least else "the newest"
    name = target.distribution or "this distribution"
    return [
        shell.remark(f"NVIDIA's driver ({wanted}) for {name}: by its own packages if it has them,"),
        shell.remark(f"else as described in {GUIDE} or with the installer from {DOWNLOAD_PAGE}"),
    ]
