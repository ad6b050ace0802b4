"""The vendor's driver on a Target: per distribution, on Windows, in WSL."""

from __future__ import annotations

from flatout.installing import nvidia_linux, shell, system_packages
from flatout.installing.system_packages import sudo
from flatout.installing.target import Target

INTEL_PAGE = "https://dgpu-docs.intel.com/driver/installation.html"
WINDOWS_PAGES = {
    "nvidia": nvidia_linux.DOWNLOAD_PAGE,
    "amd": "https://www.amd.com/en/support/download/drivers.html",
    "intel": "https://www.intel.com/content/www/us/en/download-center/home.html",
}
AMD_PAGE = "https://rocm.docs.amd.com/projects/install-on-linux/en/latest/"
JETPACK_PAGE = "https://developer.nvidia.com/embedded/jetpack"
HOLDERS = "nvidia-dcgm nvidia-fabricmanager nvidia-persistenced"
"""Services that keep NVIDIA's kernel module in use."""
VGPU_PAGE = "https://docs.nvidia.com/vgpu/latest/"
TOOLKIT_PAGE = "https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/"
TOOLKIT = "https://nvidia.github.io/libnvidia-container"
KEYRING = "/usr/share/keyrings/nvidia-container-toolkit-keyring.gpg"
VENDOR_NAMES = {"nvidia": "NVIDIA", "amd": "AMD", "intel": "Intel", "apple": "Apple"}


def commands(target: Target, at_least: str | None = None) -> tuple[str, ...]:
    """Lines that install or update the GPU's driver to `at_least` (None: the newest that fits).

    In a container or WSL: comments on what to do on the host. Ends with a reboot if needed.
    """
    vendor = target.vendor or "nvidia"
    name = VENDOR_NAMES.get(vendor, vendor)
    page = WINDOWS_PAGES.get(vendor, nvidia_linux.DOWNLOAD_PAGE)
    version = f", version {at_least} or newer" if at_least else ""
    last = nvidia_linux.last_branch(target) if vendor == "nvidia" else None
    if last is not None:
        version = f" of branch {last}, the last one for this GPU"
    if target.system == "Darwin":
        return (shell.remark("the GPU's driver is part of macOS: update macOS"),)
    if target.wsl:
        where = f"on Windows, not in WSL: install {name}'s Windows driver{version}: {page}"
        return (
            shell.remark(where),
            shell.remark("never install a Linux driver inside WSL: it hides the Windows driver"),
            shell.remark("then in PowerShell: wsl --update; wsl --shutdown"),
        )
    if target.container:
        return (
            shell.remark(f"on the host, not in this container: install {name}'s driver{version}"),
            shell.remark("there, flatout env install prints the lines; then start this again"),
        )
    if target.virtual_gpu:
        return (
            shell.remark(
                f"{target.gpu} is a slice that a host gives this machine (vGPU): it needs"
            ),
            shell.remark(
                f"NVIDIA's vGPU guest driver{version} that fits the host's, never another;"
            ),
            shell.remark(f"the host's administrator or provider has it: {VGPU_PAGE}"),
        )
    if target.jetson:
        text = f"on a Jetson the driver comes with JetPack: {JETPACK_PAGE}"
        return (shell.remark(text), *system_packages.install(target, "nvidia-jetpack"))
    if target.system == "Windows":
        return (
            shell.why(f"{name} offers its Windows drivers only on its own page{version}"),
            f"Start-Process '{page}'",
            "Restart-Computer -Confirm",
        )
    if vendor == "nvidia":
        return nvidia_linux.commands(target, at_least)
    return _amd_linux(target) if vendor == "amd" else _intel_linux(target)


def reload_commands(target: Target) -> tuple[str, ...]:
    """Lines that reload the installed NVIDIA module, without a reboot if possible."""
    if target.wsl:
        return (shell.remark("on Windows, in PowerShell: wsl --shutdown, then start WSL again"),)
    if target.container:
        return (shell.remark("on the host, not in this container: reload the driver"),)
    if target.system == "Windows":
        return ("Restart-Computer",)
    modules = "nvidia_uvm nvidia_drm nvidia_modeset nvidia_peermem nvidia"
    unload = " && ".join(f"(! lsmod | grep -q ^{name} || rmmod {name})" for name in modules.split())
    load = f"{unload} && modprobe nvidia && modprobe nvidia_uvm"
    return (
        shell.remark("stop the programs that use the GPU first (a desktop is one)"),
        sudo(target, f"systemctl stop {HOLDERS} || true"),
        sudo(target, f"sh -c '{load}' && nvidia-smi"),
        f"for unit in {HOLDERS}; do systemctl is-enabled -q $unit 2>/dev/null && "
        f"{sudo(target, 'systemctl start $unit')} || true; done",
        shell.remark(f"if the module is in use: {sudo(target, 'reboot')}"),
    )


def container_toolkit_commands(target: Target) -> tuple[str, ...]:
    """Lines that install NVIDIA's container toolkit on the host and check that it works."""
    if target.container:
        return (
            shell.remark(f"on the host, not in this container: {TOOLKIT_PAGE}install-guide.html"),
            shell.remark("then there: sudo nvidia-ctk runtime configure --runtime=docker"),
            shell.remark("and: sudo systemctl restart docker"),
            shell.remark("start the container again with: docker run --gpus all ..."),
        )
    proof = "docker run --rm --gpus all ubuntu nvidia-smi"
    if target.system == "Windows":
        text = "Docker Desktop on WSL 2 has the toolkit: update it, and choose the WSL 2 engine"
        return (
            shell.remark(text),
            "winget install --exact --id Docker.DockerDesktop",
            "wsl --update",
            proof,
        )
    if target.system == "Darwin":
        return (shell.remark("containers on macOS have no access to the GPU"),)
    return (
        *_toolkit(target),
        sudo(target, "nvidia-ctk runtime configure --runtime=docker"),
        sudo(target, "systemctl restart docker"),
        sudo(target, proof),
    )


def boot_image_commands(target: Target) -> tuple[str, ...]:
    """Lines that rebuild the boot image (update-initramfs, dracut, mkinitcpio)."""
    lines = {
        "apt": "update-initramfs -u",
        "dnf": "dracut --force",
        "zypper": "dracut --force",
        "pacman": "mkinitcpio -P",
        "apk": "mkinitfs",
    }
    line = lines.get(system_packages.package_manager(target) or "")
    if line is None:
        return (shell.remark("rebuild the boot image (update-initramfs -u or dracut --force)"),)
    return (sudo(target, line),)


def _toolkit(target: Target) -> tuple[str, ...]:
    family = system_packages.package_manager(target)
    repository = f"{TOOLKIT}/stable/rpm/nvidia-container-toolkit.repo"
    package = system_packages.install(target, "nvidia-container-toolkit")
    if family == "apt":
        sign = f"sed 's#deb https://#deb [signed-by={KEYRING}] https://#g'"
        source = "/etc/apt/sources.list.d/nvidia-container-toolkit.list"
        key = sudo(target, f"gpg --batch --yes --dearmor -o {KEYRING}")
        download = f"curl -fsSL {TOOLKIT}/stable/deb/nvidia-container-toolkit.list"
        return (
            f"curl -fsSL {TOOLKIT}/gpgkey | {key}",
            f"{download} | {sign} | {sudo(target, f'tee {source}')}",
            *package,
        )
    if family == "dnf":
        file = "/etc/yum.repos.d/nvidia-container-toolkit.repo"
        return (f"curl -fsSL {repository} | {sudo(target, f'tee {file}')}", *package)
    if family == "zypper":
        return (sudo(target, f"zypper addrepo --refresh {repository}"), *package)
    if family == "pacman":
        return package
    return (shell.remark(f"install NVIDIA's container toolkit: {TOOLKIT_PAGE}install-guide.html"),)


def _groups(target: Target) -> str:
    """The line that adds the user to the groups of AMD's and Intel's device files."""
    return sudo(target, 'usermod -aG render,video "$USER"')


def _amd_linux(target: Target) -> tuple[str, ...]:
    return (
        shell.why("the kernel's own amdgpu drives it, and PyTorch's wheels include ROCm;"),
        shell.remark(f"for AMD's own module (recommended on Instinct) see {AMD_PAGE}"),
        *(
            system_packages.install(target, f"linux-modules-extra-{system_packages.RUNNING}")
            if target.distribution == "ubuntu"
            else ()
        ),
        sudo(target, "modprobe amdgpu"),
        _groups(target),
        sudo(target, "reboot"),
    )


def _intel_linux(target: Target) -> tuple[str, ...]:
    family = system_packages.package_manager(target)
    packages = {
        "apt": ("libze-intel-gpu1", "libze1", "intel-opencl-icd"),
        "dnf": ("intel-compute-runtime", "oneapi-level-zero"),
        "pacman": ("intel-compute-runtime", "level-zero-loader"),
    }.get(family or "")
    if packages is None:
        return (shell.remark(f"install Intel's compute runtime: {INTEL_PAGE}"), _groups(target))
    archive: tuple[str, ...] = ()
    if target.distribution == "ubuntu":
        tool = system_packages.install(target, "software-properties-common")
        add = sudo(target, "add-apt-repository -y ppa:kobuk-team/intel-graphics")
        archive = (shell.why("Intel's own archive for Ubuntu"), *tool, add)
    return (
        *archive,
        *system_packages.install(target, *packages),
        _groups(target),
        sudo(target, "reboot"),
    )
