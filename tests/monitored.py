"""A frame with something of everything, for the tests of what draws and sends frames."""

from __future__ import annotations

from flatout.nouns.alert import Alert
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.frame import Frame
from flatout.nouns.job_sample import JobSample, PulseStep, RankSample
from flatout.nouns.machine_sample import (
    DiskSample,
    GpuSample,
    GpuUse,
    MachineSample,
)

ALERT = Alert(
    code="NAN001",
    id="loss-not-finite",
    severity=Severity.ERROR,
    state="firing",
    since_s=1000.0,
    fired_s=1001.0,
    title="the loss is NaN",
    evidence="2 losses in a row",
    cure=Cure("Lower the learning rate.", ("flatout explain NAN001",)),
    hostname="node1",
    job="7-1",
    subject='rank "0"\n',
    where="train.py:12",
)
GPU = GpuSample(
    index=0,
    vendor="nvidia",
    name='NVIDIA "H100" \\ 80GB',
    uuid="GPU-1",
    utilization=0.9,
    sm_active=0.6,
    tensor_active=0.3,
    memory_used_bytes=40 << 30,
    memory_bytes=80 << 30,
    power_w=600.0,
    power_limit_w=700.0,
    power_limit_default_w=700.0,
    temperature_c=61.0,
    clock_mhz=1900.0,
    clock_max_mhz=1980.0,
    throttles=("sw_power_cap",),
    fan=0.4,
    pcie_received_bytes_per_s=1e9,
    pcie_sent_bytes_per_s=2e9,
    ecc_uncorrected=3,
    remap_pending=True,
    xids=(79, 31, 79),
    processes=(GpuUse(7, 40 << 30, 0.9),),
)
MACHINE = MachineSample(
    time_s=1002.0,
    hostname="node1",
    gpus=(GPU,),
    cores=16.0,
    cpu_cores=3.5,
    cpu_steal=0.01,
    cpu_throttled=0.02,
    load=4.0,
    memory_bytes=64 << 30,
    memory_used_bytes=20 << 30,
    swap_in_bytes_per_s=0.0,
    swap_used_bytes=0,
    disk_read_bytes_per_s=1e8,
    disk_written_bytes_per_s=2e7,
    network_received_bytes_per_s=3e6,
    network_sent_bytes_per_s=4e6,
    disks=(DiskSample("/dev/shm", 32 << 30, 30 << 30),),
)
RANK = RankSample(0, 7, 120, 0.05, 0.2, 640.0, 0.7, 1001.9, 1.5, 3 << 30, (0,), 40 << 30, "cuda")
JOB = JobSample(
    id="7-1",
    state="training",
    hostname="node1",
    program="train.py --epochs 10",
    pid=7,
    user="ada",
    began_s=990.0,
    step=120,
    steps_expected=1000,
    step_s=0.05,
    samples_per_s=640.0,
    wait_share=0.2,
    loss=0.7,
    left_s=44.0,
    cpu_cores=1.5,
    memory_bytes=3 << 30,
    gpu_memory_bytes=40 << 30,
    gpus=(0,),
    ranks=(RANK,),
    recent_steps=(
        PulseStep(119, 1001.85, 0.05, 0.01, 0.71, 32),
        PulseStep(120, 1001.9, 0.05, 0.01, None, 32),
    ),
)
FRAME = Frame(1002.0, (MACHINE,), (JOB,), (ALERT,))
