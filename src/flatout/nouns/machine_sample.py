"""MachineSample: what one machine and its devices do at one moment. Unknown values are None."""

from __future__ import annotations

from dataclasses import dataclass

from flatout.nouns.gpu import Vendor


@dataclass(frozen=True)
class GpuUse:
    """What one process uses of a GPU."""

    pid: int
    memory_bytes: int | None = None
    utilization: float | None = None
    """Share of the time in which one of its kernels ran, 0 to 1."""
    alive: bool | None = None
    """Whether the process still exists, or None if the driver counts others' pids."""
    computes: bool = True
    """As `GpuProcess.computes`."""


@dataclass(frozen=True)
class GpuSample:
    """One accelerator now. Slow facts (processes, fan, PCIe, ECC) may be up to 10 s old."""

    index: int
    vendor: Vendor
    name: str | None = None
    uuid: str | None = None
    utilization: float | None = None
    """Share of the time in which any kernel ran, 0 to 1."""
    sm_active: float | None = None
    """Share of the multiprocessors at work, 0 to 1 (NVIDIA: GPM; only while shown)."""
    tensor_active: float | None = None
    """Share of the tensor cores' time at work, 0 to 1 (NVIDIA: GPM; only while shown)."""
    memory_used_bytes: int | None = None
    memory_bytes: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    power_limit_default_w: float | None = None
    temperature_c: float | None = None
    clock_mhz: float | None = None
    """Clock of the multiprocessors."""
    clock_max_mhz: float | None = None
    throttles: tuple[str, ...] | None = None
    """Reasons by NVML's names, as in `nouns.throttles`."""
    fan: float | None = None
    """Fan speed, 0 to 1."""
    pcie_received_bytes_per_s: float | None = None
    pcie_sent_bytes_per_s: float | None = None
    ecc_uncorrected: int | None = None
    """Count since the driver was loaded."""
    remap_pending: bool | None = None
    """Whether rows wait for a reset to be remapped, or pages for a reboot to be retired."""
    xids: tuple[int, ...] = ()
    """The driver's errors since sampling began, in order."""
    processes: tuple[GpuUse, ...] | None = None


@dataclass(frozen=True)
class DiskSample:
    """One file system."""

    path: str
    """The path asked about: a job's folder, /dev/shm."""
    bytes: int
    free_bytes: int


@dataclass(frozen=True)
class MachineSample:
    """One machine at one moment; rates are since the previous sample."""

    time_s: float
    """Unix time."""
    hostname: str
    gpus: tuple[GpuSample, ...] = ()
    cores: float | None = None
    """Cores that this process may use, by affinity and cgroup quota."""
    cpu_cores: float | None = None
    """Mean number of those cores used by all programs, or by the container if it has a quota.
    """
    cpu_steal: float | None = None
    """Share of the cores' time that the hypervisor gave to others, 0 to 1."""
    cpu_throttled: float | None = None
    """Share of the cgroup's periods in which its quota ran out, 0 to 1."""
    load: float | None = None
    """Mean number of runnable processes in the last minute."""
    memory_bytes: int | None = None
    """The machine's memory, or the container's limit."""
    memory_used_bytes: int | None = None
    swap_in_bytes_per_s: float | None = None
    swap_used_bytes: int | None = None
    disk_read_bytes_per_s: float | None = None
    disk_written_bytes_per_s: float | None = None
    network_received_bytes_per_s: float | None = None
    network_sent_bytes_per_s: float | None = None
    disks: tuple[DiskSample, ...] = ()
