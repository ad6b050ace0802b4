"""Frames as a monitor sees them."""

from __future__ import annotations

from flatout.nouns.alert import Alert
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.frame import Frame
from flatout.nouns.job_sample import JobSample, RankSample
from flatout.nouns.machine_sample import GpuSample, MachineSample

GIB = 2**30
TIME_S = 1_795_506_000.0


def alert(code: str = "WAIT001", severity: Severity = Severity.WARNING) -> Alert:
    return Alert(
        code=code,
        id="waits-for-data",
        severity=severity,
        state="firing",
        since_s=TIME_S,
        fired_s=TIME_S,
        title="the job waits for its data 41% of the time",
        evidence="82 ms of 200 ms a step, median of the last minute",
        cure=Cure("The boost loader-workers cures it without an edit.", ("flatout run --live S",)),
        hostname="node1",
        job="7-1",
        boost="loader-workers",
    )


def job(number: int = 0, **more: object) -> JobSample:
    settings: dict[str, object] = {
        "id": f"7-{number}",
        "state": "training",
        "hostname": "node1",
        "program": f"train.py --epochs {number}",
        "pid": 7 + number,
        "began_s": TIME_S - 100 - number,
        "step": 1234,
        "steps_expected": 20_000,
        "step_s": 0.2013,
        "samples_per_s": 1272.0,
        "wait_share": 0.41,
        "loss": 2.317,
        "left_s": 3777.0,
        "cpu_cores": 3.4,
        "memory_bytes": 11 * GIB,
        "gpu_memory_bytes": 61 * GIB,
        "gpus": (0, 1, 2, 3),
        "ranks": (RankSample(0, 7 + number, step=1234),),
    }
    return JobSample(**{**settings, **more})  # type: ignore[arg-type]


def gpu(index: int) -> GpuSample:
    return GpuSample(
        index,
        "nvidia",
        name="NVIDIA H100 80GB HBM3",
        utilization=0.5 + index / 20,
        memory_used_bytes=61 * GIB,
        memory_bytes=80 * GIB,
        power_w=512.0,
        power_limit_w=700.0,
        temperature_c=61.0,
        clock_mhz=1755.0,
        throttles=("sw_thermal_slowdown",) if index == 3 else (),
    )


def machine(hostname: str = "node1", gpus: int = 0) -> MachineSample:
    return MachineSample(
        TIME_S,
        hostname,
        gpus=tuple(map(gpu, range(gpus))),
        cores=16.0,
        cpu_cores=5.25,
        memory_bytes=128 * GIB,
        memory_used_bytes=31 * GIB,
        disk_read_bytes_per_s=3.1e8,
        disk_written_bytes_per_s=0.0,
        network_received_bytes_per_s=1.2e6,
        network_sent_bytes_per_s=9e3,
    )


def eight_gpus() -> Frame:
    jobs = (*map(job, range(5)), job(5, state="ended", exit_code=1))
    return Frame(TIME_S, (machine(gpus=8),), jobs, (alert("HANG001", Severity.ERROR), alert()))


def healthy() -> Frame:
    return Frame(TIME_S, (machine(),), (job(gpus=(), gpu_memory_bytes=None),))


def empty() -> Frame:
    return Frame(TIME_S, (MachineSample(TIME_S, "node1"),))
