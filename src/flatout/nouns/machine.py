"""Machine: facts about the hardware and software here.

A fact that could not be read is None, never 0 and never a guess. A tuple is None if it could not be
read, and empty if it was read and is empty. Units are in the names (`_bytes`, `_c` degrees Celsius,
`_w` watts, `_mhz`, `_mib_per_s`); versions are text as the software itself writes them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from flatout.nouns.gpu import Driver, Gpu, GpuPair
from flatout.nouns.interpreter import Interpreter, Torch


@dataclass(frozen=True)
class DeviceFile:
    """One file in /dev through which a GPU is reached."""

    path: str
    exists: bool
    readable: bool | None = None
    writable: bool | None = None
    group: str | None = None
    mode: str | None = None
    """Octal: "0666"."""


@dataclass(frozen=True)
class Xid:
    """One error that the NVIDIA driver wrote into the kernel's log."""

    number: int
    pci_address: str | None = None
    count: int = 1
    text: str | None = None
    """Message of the last line with this error."""


@dataclass(frozen=True)
class System:
    """The operating system."""

    name: str | None = None
    """Linux, Windows or Darwin."""
    release: str | None = None
    """Kernel release: 6.8.0-45-generic; Windows: 10.0.22631; macOS: its Darwin release."""
    architecture: str | None = None
    """x86_64, aarch64, AMD64, arm64."""
    distribution: str | None = None
    """ID of /etc/os-release: ubuntu, debian, rhel, fedora, arch, sles; macOS: macos; windows."""
    distribution_like: tuple[str, ...] = ()
    """ID_LIKE of /etc/os-release."""
    distribution_version: str | None = None
    """22.04; macOS: 15.1; Windows: 11."""
    distribution_name: str | None = None
    """Full name: Ubuntu 22.04.5 LTS."""
    libc: str | None = None
    """glibc 2.35, musl 1.2.4."""
    secure_boot: bool | None = None
    root: bool | None = None
    """Whether this process may act as administrator."""
    rosetta: bool | None = None
    """macOS: whether this process runs as x86-64 under Rosetta."""


@dataclass(frozen=True)
class LinuxKernel:
    """What the Linux kernel reports about itself."""

    modules: tuple[str, ...] | None = None
    """Relevant loaded modules: nvidia, nvidia_uvm, nvidia_peermem, nouveau, amdgpu, i915, xe,
    gdrdrv, mlx5_core, ib_core, vfio_pci."""
    nvidia_module_on_disk: bool | None = None
    """Whether there is an nvidia.ko for the running kernel release."""
    nvidia_module_for: tuple[str, ...] | None = None
    """Kernel releases on disk that have an nvidia.ko."""
    headers: bool | None = None
    """Whether the headers of the running kernel are installed."""
    dkms: bool | None = None
    """Whether the dkms command exists."""
    iommu: bool | None = None
    """Whether an IOMMU translates (groups exist and it is not in passthrough)."""
    numa_nodes: int | None = None
    """Nodes with processors."""
    fabric_manager: bool | None = None
    """Whether nvidia-fabricmanager runs, or None if unknown or without an NVSwitch."""
    device_files: tuple[DeviceFile, ...] | None = None
    """Those of /dev/nvidia*, /dev/kfd, /dev/dri/render*, /dev/dxg that exist or should."""
    user_groups: tuple[str, ...] | None = None
    """Groups of this user."""
    xids: tuple[Xid, ...] | None = None
    """Errors in the kernel's log since boot, or None if it may not be read."""


@dataclass(frozen=True)
class Limits:
    """The most that this process may use; -1 is unlimited."""

    open_files: int | None = None
    open_files_hard: int | None = None
    locked_memory_bytes: int | None = None
    processes: int | None = None


@dataclass(frozen=True)
class Cpu:
    """The processor."""

    name: str | None = None
    architecture: str | None = None
    cores: int | None = None
    """Whole cores that this process may use, by affinity and cgroup quota."""
    logical_cores: int | None = None
    """Hardware threads of the machine."""
    physical_cores: int | None = None
    affinity_cores: int | None = None
    """Hardware threads that affinity leaves to this process."""
    quota_cores: float | None = None
    """The cgroup's CPU quota, or None without a quota (or outside Linux)."""
    governor: str | None = None
    """performance, powersave, schedutil, ..."""
    scaling_driver: str | None = None
    """intel_pstate, amd-pstate-epp or acpi-cpufreq. With the first two, `powersave` is the usual
    governor and is not slow."""


@dataclass(frozen=True)
class Memory:
    """Main memory."""

    total_bytes: int | None = None
    available_bytes: int | None = None
    limit_bytes: int | None = None
    """The cgroup's limit, or None without a limit."""
    swap_total_bytes: int | None = None
    swap_used_bytes: int | None = None
    shm_bytes: int | None = None
    """Size of /dev/shm."""
    shm_free_bytes: int | None = None


@dataclass(frozen=True)
class Disk:
    """The file system of one folder that matters."""

    path: str
    """The folder asked about."""
    use: str
    """work (the current folder), temporary (TMPDIR) or cache (torch's and compiler caches)."""
    total_bytes: int | None = None
    free_bytes: int | None = None
    file_system: str | None = None
    """ext4, xfs, nfs4, lustre, overlay, tmpfs, 9p (Windows drive in WSL), drvfs, apfs, NTFS."""
    network: bool | None = None


@dataclass(frozen=True)
class Container:
    """The container or virtual machine, if any, that this process runs in."""

    kind: str | None = None
    """docker, podman, kubernetes, lxc, singularity, containerd, or None outside a container."""
    wsl: int | None = None
    """1 or 2, or None outside WSL."""
    gpu_passed_through: bool | None = None
    """Whether NVIDIA's or AMD's device files or /dev/dxg are visible in the container."""
    virtual_machine: str | None = None
    """kvm, vmware, microsoft, xen, virtualbox, or None if bare metal or unknown."""


@dataclass(frozen=True)
class Library:
    """One shared library that the loader may find: cudnn, nccl, cublas, cudart, cuda."""

    name: str
    path: str
    version: str | None = None
    """Version in the file's name or header: 9.1.0."""
    source: str | None = None
    """library_path (LD_LIBRARY_PATH), loader (ld.so cache or standard folders)."""


@dataclass(frozen=True)
class NetworkPort:
    """One InfiniBand or RoCE port."""

    name: str
    """mlx5_0/1."""
    state: str | None = None
    """active, down, init, armed."""
    rate_gbit_per_s: float | None = None
    link_layer: str | None = None
    """infiniband or ethernet."""


@dataclass(frozen=True)
class Machine:
    """All facts together."""

    system: System = field(default_factory=System)
    cpu: Cpu = field(default_factory=Cpu)
    memory: Memory = field(default_factory=Memory)
    limits: Limits = field(default_factory=Limits)
    kernel: LinuxKernel = field(default_factory=LinuxKernel)
    container: Container = field(default_factory=Container)
    gpus: tuple[Gpu, ...] | None = None
    """Every accelerator that a driver or the bus shows, or None if neither could be asked."""
    gpu_pairs: tuple[GpuPair, ...] | None = None
    drivers: tuple[Driver, ...] | None = None
    """One driver per vendor of which a trace was found."""
    disks: tuple[Disk, ...] | None = None
    network_ports: tuple[NetworkPort, ...] | None = None
    libraries: tuple[Library, ...] | None = None
    interpreter: Interpreter | None = None
    """The user's Python, or None if none was found."""
    environment: dict[str, str] | None = None
    """Relevant variables that are set."""
    unread: tuple[str, ...] = ()
    """Sources that could not be read because of an error in flatout, with that error."""
    recorded: str | None = None
    """Date of the recording, YYYY-MM-DD."""

    def gpus_of(self, vendor: str) -> tuple[Gpu, ...]:
        """The GPUs of one vendor: nvidia, amd, intel, apple."""
        return tuple(gpu for gpu in self.gpus or () if gpu.vendor == vendor)

    def driver(self, vendor: str) -> Driver | None:
        """The vendor's driver, or None without a trace of it."""
        return next((driver for driver in self.drivers or () if driver.vendor == vendor), None)

    @property
    def torch(self) -> Torch | None:
        """Torch in the user's interpreter, or None if unknown or not installed."""
        return self.interpreter.torch if self.interpreter else None

    @property
    def torch_missing(self) -> bool:
        """Whether the interpreter was asked and has no torch installed."""
        was_read = self.interpreter is not None and self.interpreter.packages is not None
        return was_read and self.torch is None
