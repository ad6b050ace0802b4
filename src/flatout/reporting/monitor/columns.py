"""The columns of the monitor's tables for a GPU and a job."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from flatout.nouns.job_sample import JobSample
from flatout.nouns.machine_sample import GpuSample
from flatout.reporting import plain
from flatout.reporting.monitor import words
from flatout.reporting.monitor.curves import Curves

T = TypeVar("T")
SORTS: dict[str, Callable[[JobSample], float]] = {
    "begin": lambda job: job.began_s or 0.0,
    "step time": lambda job: -(job.step_s or 0.0),
    "waiting": lambda job: -(job.wait_share or 0.0),
    "memory": lambda job: -(job.memory_bytes or 0.0),
}


def ordered(jobs: Iterable[JobSample], sort: str) -> list[JobSample]:
    """Our running jobs in this order, then others', then ended ones, the last ended first."""
    every = sorted(jobs, key=SORTS[sort])
    ours = [job for job in every if job.state not in ("ended", "foreign")]
    others = [job for job in every if job.state == "foreign"]
    ended = [job for job in every if job.state == "ended"]
    return [*ours, *others, *sorted(ended, key=lambda job: -(job.ended_s or 0.0))]


@dataclass(frozen=True)
class TableColumn(Generic[T]):
    """One column; the least important ones are dropped if there is no room."""

    heading: str
    text: Callable[[T], str]
    importance: int
    left: bool = False
    least: int = 0
    """The least number of letters it may be cut to, or 0 for never."""
    latest: bool = False
    """Whether a cut text keeps its end, as a curve does."""


def of_gpus(host: str, curves: Curves) -> list[TableColumn[GpuSample]]:
    """The GPUs of one machine."""

    def last(gpu: GpuSample) -> str:
        values = curves.of(f"{host} GPU {gpu.index}", "utilization")
        return words.curve(values, 20, 0.0, 1.0)

    return [
        TableColumn("GPU", lambda gpu: str(gpu.index), 9),
        TableColumn("name", _gpu_name, 3, left=True, least=8),
        TableColumn("busy", lambda gpu: words.share(gpu.utilization), 9),
        TableColumn("last 20 s", last, 5, left=True, least=9, latest=True),
        TableColumn("memory", _gpu_memory, 8),
        TableColumn("temp", _temperature, 7),
        TableColumn("power", words.power, 6),
        TableColumn("clock", _clock, 4),
        TableColumn("SMs", lambda gpu: words.share(gpu.sm_active), 3),
        TableColumn("tensor", lambda gpu: words.share(gpu.tensor_active), 2),
        TableColumn("slowed by", words.slowed, 7, left=True, least=9),
    ]


def of_jobs(curves: Curves, several_hosts: bool) -> list[TableColumn[JobSample]]:
    """The jobs."""
    host = TableColumn[JobSample]("host", lambda job: job.hostname, 8, left=True, least=6)

    def losses(job: JobSample) -> str:
        return words.curve(curves.of(job.id, "loss"), 12)

    columns = [
        TableColumn[JobSample]("job", words.program, 10, left=True, least=24),
        TableColumn("state", words.state, 8, left=True),
        TableColumn("step", words.steps, 7),
        TableColumn("time", lambda job: words.milliseconds(job.step_s), 9),
        TableColumn("samples/s", lambda job: words.number(job.samples_per_s), 6),
        TableColumn("wait", lambda job: words.share(job.wait_share), 8),
        TableColumn("loss", lambda job: words.number(job.loss), 8),
        TableColumn("loss curve", losses, 5, left=True, least=10, latest=True),
        TableColumn("memory", lambda job: words.size(job.memory_bytes), 6),
        TableColumn("GPUs", lambda job: words.gpus(job.gpus), 5),
        TableColumn("GPU mem", lambda job: words.size(job.gpu_memory_bytes), 4),
        TableColumn("cores", lambda job: words.cores(job.cpu_cores), 3),
        TableColumn("left", lambda job: words.left(job.left_s), 5),
    ]
    return [host, *columns] if several_hosts else columns


def _gpu_name(gpu: GpuSample) -> str:
    """Without the well-known maker."""
    return plain.one_line(gpu.name or "-").removeprefix("NVIDIA ")


def _gpu_memory(gpu: GpuSample) -> str:
    return f"{words.size(gpu.memory_used_bytes)}/{words.size(gpu.memory_bytes)}"


def _temperature(gpu: GpuSample) -> str:
    return words.UNKNOWN if gpu.temperature_c is None else f"{gpu.temperature_c:.0f} °C"


def _clock(gpu: GpuSample) -> str:
    return words.UNKNOWN if gpu.clock_mhz is None else f"{gpu.clock_mhz:.0f} MHz"
