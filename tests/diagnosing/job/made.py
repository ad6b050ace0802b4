"""Profiles of jobs in which nothing is wrong: on a GPU, on eight of them, on a CPU.

The faulty ones are these, changed. No check of any family may find anything here.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import flatout_agent
from diagnosing.job.made_parts import (
    BACKWARD,
    CPU_CEILINGS,
    FORWARD,
    GPU_CEILINGS,
    LOADER,
    STEP,
    TO_DEVICE,
    ceilings,
    cpu_operators,
    gpu_kernels,
    gpu_operators,
)
from flatout.diagnosing import checks
from flatout.diagnosing.diagnose import diagnose_profile
from flatout.nouns.anatomy import Anatomy, Kind, Part
from flatout.nouns.finding import Finding, Severity
from flatout.nouns.profile import (
    Collective,
    Copy,
    DeviceSample,
    Gap,
    MemoryPoint,
    Profile,
    RankSeen,
    Sync,
)
from flatout_agent import wire
from machines.healthy import changed

CALLS = Path(flatout_agent.__file__).parent / "watch" / "calls.py"
RECORDED = set(re.findall(r"\w+", CALLS.read_text(encoding="utf-8")))
"""The words in the names of the calls that the agent records, among others."""
GIB = 2**30
MIB = 2**20
KIB = 2**10

GPU_PARTS = {
    Kind.TENSOR_CORES: 52.0,
    Kind.ELEMENTWISE: 18.0,
    Kind.NORMALISATION: 17.0,
    Kind.REDUCTION: 3.0,
    Kind.OPTIMIZER: 1.5,
    Kind.CONVERSION: 1.5,
    Kind.COPY: 0.2,
    Kind.OTHER: 1.0,
    Kind.WAIT_DATA: 0.4,
    Kind.WAIT_HOST: 4.0,
    Kind.WAIT_SYNC: 0.3,
    Kind.WAIT_OTHER: 1.1,
}
"""One step of a compiled ResNet-50, batch 256, bfloat16 on an A100: 100 ms."""
CPU_PARTS = {
    Kind.MATMUL: 205.0,
    Kind.ELEMENTWISE: 30.0,
    Kind.NORMALISATION: 24.0,
    Kind.REDUCTION: 14.0,
    Kind.OPTIMIZER: 8.0,
    Kind.CONVERSION: 4.0,
    Kind.OTHER: 3.0,
    Kind.PYTHON: 8.0,
    Kind.WAIT_DATA: 2.0,
    Kind.WAIT_OTHER: 2.0,
}
"""One step of a compiled ResNet-18, batch 64, float32 on eight cores: 300 ms."""
LAUNCHES = {
    Kind.TENSOR_CORES: 161.0,
    Kind.MATMUL: 65.0,
    Kind.ELEMENTWISE: 110.0,
    Kind.NORMALISATION: 106.0,
    Kind.REDUCTION: 8.0,
    Kind.OPTIMIZER: 4.0,
    Kind.CONVERSION: 9.0,
    Kind.COPY: 2.0,
    Kind.OTHER: 6.0,
}


def anatomy(device: str, parts: Mapping[Kind, float], **facts: Any) -> Anatomy:
    """A step of these parts: their sum is the step, the largest is first."""
    made = [Part(kind, ms, LAUNCHES.get(kind, 0.0)) for kind, ms in parts.items() if ms > 0]
    made.sort(key=lambda part: -part.ms)
    base = Anatomy(device=device, step_ms=sum(parts.values()), parts=tuple(made), steps=6)
    return dataclasses.replace(base, **facts)


def with_parts(profile: Profile, parts: Mapping[Kind, float]) -> Profile:
    """`profile` with other milliseconds for these kinds; the step is longer or shorter by that."""
    old = profile.anatomy
    all_parts = {part.kind: part.ms for part in old.parts} | dict(parts)
    launches = {part.kind: part.launches for part in old.parts}
    new = anatomy(old.device, all_parts)
    named = [
        dataclasses.replace(part, launches=launches.get(part.kind, part.launches))
        for part in new.parts
    ]
    step = dataclasses.replace(old, step_ms=new.step_ms, parts=tuple(named))
    seen = profile.seen
    if seen is not None:
        wait = all_parts.get(Kind.WAIT_DATA, 0.0) / 1000
        seconds = new.step_ms / 1000
        seen = dataclasses.replace(seen, step_s=seconds, wait_s=max(seen.wait_s, wait))
    return dataclasses.replace(profile, anatomy=step, seen=seen)


def profile(parts: Mapping[Kind, float] | None = None, **changes: Any) -> Profile:
    """A healthy job on one A100; `parts` changes milliseconds, `a__b=value` reaches into `a`."""
    made: Profile = changed(with_parts(_gpu(), parts or {}), **changes)
    return made


def cpu_profile(parts: Mapping[Kind, float] | None = None, **changes: Any) -> Profile:
    """A healthy job on eight cores."""
    made: Profile = changed(with_parts(_cpu(), parts or {}), **changes)
    return made


def ddp_profile(parts: Mapping[Kind, float] | None = None, **changes: Any) -> Profile:
    """The GPU job on eight A100s, DistributedDataParallel, its all-reduce nearly hidden."""
    base = with_parts(_gpu(), {Kind.COMMUNICATION: 1.8, Kind.WAIT_RANKS: 0.6})
    base = changed(
        base,
        job__world_size=8,
        job__cores=128,
        job__models__0__wrapped="DistributedDataParallel",
        anatomy__hidden_communication_ms=7.0,
        collectives=(
            Collective("all_reduce", calls=5.0, ms=8.8, exposed_ms=1.8, bytes=102.2e6),
            Collective("broadcast", calls=0.1, ms=0.05, exposed_ms=0.0, bytes=2.0e4),
        ),
        ranks=tuple(
            RankSeen(rank, 102.4, 96.0 + 0.1 * rank, 8.8, 94.0 + 0.1 * rank) for rank in range(8)
        ),
    )
    made: Profile = changed(with_parts(base, parts or {}), **changes)
    return made


def findings(check: str, profile: Profile) -> tuple[Finding, ...]:
    """All that this one check finds; a check that fails is a failed test. check: its code or id.

    The job makes only calls that the agent records: on others the check would be deaf.
    """
    called = {call.name for call in profile.seen.calls} if profile.seen is not None else set()
    unheard = {name for name in called if not RECORDED.issuperset(re.findall(r"\w+", name))}
    assert unheard == set(), "flatout_agent/watch/calls.py does not record it"
    file = checks.find(check)
    assert file is not None, check
    found = diagnose_profile(profile, [checks.JOB.load(file.id)])
    assert all(item.severity is not Severity.UNCHECKED for item in found), found
    return found


def only(check: str, profile: Profile) -> Finding:
    """Its one finding."""
    (finding,) = findings(check, profile)
    return finding


def codes(profile: Profile) -> list[str]:
    """Codes of all that all checks find, the largest gain first."""
    return [finding.code for finding in diagnose_profile(profile)]


def saved_ms(finding: Finding, profile: Profile) -> float:
    """What it is predicted to save of a step."""
    assert finding.gain is not None
    return profile.anatomy.step_ms * (1 - 1 / finding.gain.ratio)


def flow(**rows: Any) -> wire.FlowSeen:
    """What the tensors of two steps showed."""
    return wire.FlowSeen(steps=2, operators=300, operators_s=0.3, **rows)


def changes(finding: Finding) -> str:
    """The lines to change, as one text."""
    return "\n".join(finding.cure.commands)


def _gpu() -> Profile:
    return Profile(
        command=("python", "train.py"),
        anatomy=anatomy(
            "cuda",
            GPU_PARTS,
            recording_ms=3.0,
            overlapped_copy_ms=6.0,
            flops=6.3e12,
            mfu=0.243,
            cores_busy=0.9,
            cores=32,
        ),
        operators=gpu_operators(),
        kernels=gpu_kernels(),
        gaps=(
            Gap(Kind.WAIT_HOST, ms=4.0, count=60.0, doing="aten::copy_", where=FORWARD),
            Gap(Kind.WAIT_OTHER, ms=1.1, count=20.0),
            Gap(Kind.WAIT_DATA, ms=0.4, count=1.0, doing="enumerate(DataLoader)", where=LOADER),
            Gap(Kind.WAIT_SYNC, ms=0.3, count=0.02, doing="aten::item"),
        ),
        syncs=(Sync("aten::item", calls=0.02, ms=0.6, idle_ms=0.3),),
        copies=(
            Copy(
                "HtoD",
                calls=2.0,
                bytes=154.1e6,
                ms=6.2,
                pinned=True,
                exposed_ms=0.2,
                where=TO_DEVICE,
            ),
        ),
        memory=tuple(MemoryPoint(10.0 * index, 48 * GIB) for index in range(11)),
        devices=(_sample(),),
        device_name="NVIDIA A100-SXM4-80GB",
        capability=(8, 0),
        ceilings=ceilings(GPU_CEILINGS, "cuda:0"),
        job=_gpu_job(),
        seen=_gpu_seen(),
    )


def _sample() -> DeviceSample:
    return DeviceSample(
        0,
        "NVIDIA A100-SXM4-80GB",
        utilisation=0.97,
        power_w=352.0,
        power_limit_w=400.0,
        clock_mhz=1395.0,
        clock_max_mhz=1410.0,
        temperature_c=61.0,
        memory_used_bytes=58 * GIB,
        memory_bytes=80 * GIB,
    )


def _gpu_job() -> wire.JobFacts:
    return wire.JobFacts(
        torch="2.9.1+cu128",
        python="3.12.3",
        system="linux",
        device="cuda",
        device_name="NVIDIA A100-SXM4-80GB",
        capability=(8, 0),
        bf16=True,
        cores=32,
        threads=16,
        loaders=(
            wire.LoaderFacts(
                dataset="ImageFolder",
                iterable=False,
                batch_size=256,
                batches=5004,
                num_workers=16,
                pin_memory=True,
                persistent_workers=True,
                start_method="fork",
                main_guard=True,
            ),
        ),
        models=(
            wire.ModelFacts(
                kind="ResNet",
                parameters=25_557_032,
                dtype="float32",
                device="cuda",
                conv2d=53,
                matmul=1,
                compiled=True,
                channels_last=True,
                input_shapes=("256x3x224x224",),
            ),
        ),
        optimizers=(
            wire.OptimizerFacts(
                kind="SGD",
                from_torch=True,
                parameters=25_557_032,
                tensors=161,
                dtype="float32",
                fused=True,
                foreach=None,
            ),
        ),
        autocast="bfloat16",
        matmul_precision="high",
        cudnn_benchmark=True,
        triton=True,
        compiler=True,
        step_s=0.1,
        wait_share=0.004,
    )


def _gpu_seen() -> wire.LoopSeen:
    return wire.LoopSeen(
        step_s=0.1,
        steps=6,
        samples=256.0,
        wait_s=0.0004,
        epochs=0,
        main_cpu_s=0.09,
        worker_cpu_s=1.06,
        gc_s=0.0001,
        gc_runs=0.2,
        memory_bytes=(9 * GIB,) * 12,
        memory_peak_bytes=52 * GIB,
        memory_total_bytes=80 * GIB,
        backward_where=str(BACKWARD),
        optimizer_where=str(STEP),
        model_where=str(FORWARD),
        loader_where=str(LOADER),
        flops=6.3e12,
    )


def _cpu() -> Profile:
    job = _gpu_job()
    facts: wire.JobFacts = changed(
        job,
        device="cpu",
        device_name=None,
        capability=None,
        bf16=False,
        torch="2.9.1+cpu",
        cores=8,
        threads=8,
        loaders__0__batch_size=64,
        loaders__0__batches=780,
        loaders__0__num_workers=2,
        loaders__0__pin_memory=False,
        models__0__device="cpu",
        models__0__conv2d=20,
        models__0__parameters=11_689_512,
        models__0__input_shapes=("64x3x112x112",),
        optimizers__0__parameters=11_689_512,
        optimizers__0__tensors=62,
        autocast=None,
        cudnn_benchmark=False,
        matmul_precision="highest",
        triton=False,
        step_s=0.3,
    )
    seen: wire.LoopSeen = changed(
        _gpu_seen(),
        step_s=0.3,
        samples=64.0,
        wait_s=0.002,
        main_cpu_s=2.1,
        worker_cpu_s=0.2,
        memory_bytes=(2 * GIB,) * 12,
        memory_peak_bytes=3 * GIB,
        memory_total_bytes=16 * GIB,
        flops=1.7e11,
    )
    return Profile(
        command=("python", "train.py"),
        anatomy=anatomy("cpu", CPU_PARTS, flops=1.7e11, mfu=0.9, cores_busy=7.0, cores=8),
        operators=cpu_operators(),
        gaps=(Gap(Kind.WAIT_DATA, 2.0, 1.0, "enumerate(DataLoader)", LOADER),),
        ceilings=ceilings(CPU_CEILINGS, "cpu"),
        memory=tuple(MemoryPoint(30.0 * index, 2 * GIB) for index in range(11)),
        job=facts,
        seen=seen,
    )
