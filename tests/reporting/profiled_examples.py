"""Profiles as the reports get them: faulty, healthy, on a CPU, on many ranks, bare, hostile."""

from __future__ import annotations

import dataclasses
import itertools
import math

from diagnosing.job import made
from flatout.nouns.anatomy import WAITS, Anatomy, Kind, Part
from flatout.nouns.finding import Cure, Finding, Gain, Severity
from flatout.nouns.host_time import HostKind, HostLine, HostStack, HostThread, HostTime
from flatout.nouns.profile import (
    Gap,
    Kernel,
    MemoryPoint,
    Operator,
    Place,
    Profile,
    Profiled,
    RankSeen,
    Span,
    Sync,
)
from machines.healthy import changed

XSS = "</script><img src=x onerror=alert(1)>&amp;\"'`{{ 7*7 }}"
GIB = 2**30
LOADER = Place("train.py", 80, "train_epoch", "for images, labels in loader:")
CONV = Place("resnet.py", 33, "forward", "out = F.relu(self.bn1(self.conv1(x)))")
TUNED_PARTS = {
    Kind.TENSOR_CORES: 52.0,
    Kind.ELEMENTWISE: 18.0,
    Kind.NORMALISATION: 17.0,
    Kind.WAIT_HOST: 4.0,
    Kind.REDUCTION: 3.0,
    Kind.OPTIMIZER: 1.5,
    Kind.CONVERSION: 1.5,
    Kind.WAIT_OTHER: 1.1,
    Kind.OTHER: 1.0,
    Kind.WAIT_DATA: 0.4,
    Kind.WAIT_SYNC: 0.3,
    Kind.COPY: 0.2,
}
NAIVE_PARTS = {
    Kind.WAIT_DATA: 232.0,
    Kind.TENSOR_CORES: 61.0,
    Kind.WAIT_SYNC: 38.0,
    Kind.ELEMENTWISE: 24.0,
    Kind.NORMALISATION: 19.0,
    Kind.WAIT_HOST: 14.0,
    Kind.CONVERSION: 9.0,
    Kind.COPY: 8.5,
    Kind.OPTIMIZER: 3.5,
    Kind.REDUCTION: 2.1,
    Kind.OTHER: 0.6,
    Kind.WAIT_OTHER: 0.04,
}
NO_WORKERS = Finding(
    code="DATA001",
    id="no-loader-workers",
    severity=Severity.WARNING,
    title="the loader has no worker processes: the GPU waits while one process decodes",
    evidence="232 ms of 412 ms wait for the loader (num_workers=0); 16 cores, 1.0 of them busy",
    cure=Cure(
        "Let worker processes make the batches, and keep them from one epoch to the next.",
        ("loader = DataLoader(dataset, num_workers=8, persistent_workers=True)",),
    ),
    where="train.py:80",
    boost="loader-workers",
    gain=Gain(2.29, "412 ms less 232 ms that the device waits for data is 180 ms", 2.09, 2.54),
)
ITEM = Finding(
    code="SYNC001",
    id="item-each-step",
    severity=Severity.WARNING,
    title="loss.item() in each step lets the GPU run dry for 38 ms",
    evidence="1 call per step, the host waits 41 ms, the device runs dry for 38 ms after it",
    cure=Cure("Keep the loss as a tensor and read it every 50 steps."),
    where="train.py:88",
    gain=Gain(1.102, "412 ms less 38 ms"),
)
LAYOUT = Finding(
    code="KERN014",
    id="nchw-conversions",
    severity=Severity.NOTE,
    title="layout conversions around convolutions take 2% of the step",
    evidence="106 nchwToNhwc kernels, 9.0 ms",
    cure=Cure("model.to(memory_format=torch.channels_last)"),
    boost="channels-last",
    gain=Gain(1.022, "412 ms less 9 ms"),
)
KEPT = Finding(
    code="LOOP020",
    id="debug-variables",
    severity=Severity.NOTE,
    title="CUDA_LAUNCH_BLOCKING=1 is set",
    evidence="the environment has CUDA_LAUNCH_BLOCKING=1",
    cure=Cure("Unset it for training.", ("unset CUDA_LAUNCH_BLOCKING",)),
)


def naive() -> Profiled:
    """A ResNet whose loader has no workers and whose loop reads the loss in each step."""
    base = healthy().profile
    parts = tuple(Part(kind, ms, made.LAUNCHES.get(kind, 0.0)) for kind, ms in NAIVE_PARTS.items())
    reached = {
        Kind.TENSOR_CORES: {"flops": 6.3e12, "bytes": 4.1e10, "ceiling": 0.40},
        Kind.ELEMENTWISE: {"flops": 1.1e10, "bytes": 3.2e10, "ceiling": 0.81},
        Kind.NORMALISATION: {"flops": 2.2e10, "bytes": 2.4e10, "ceiling": 0.77},
        Kind.OPTIMIZER: {"bytes": 5.1e8, "ceiling": 0.09},
    }
    parts = tuple(dataclasses.replace(part, **reached.get(part.kind, {})) for part in parts)
    anatomy = dataclasses.replace(
        base.anatomy,
        step_ms=sum(NAIVE_PARTS.values()),
        parts=parts,
        flops=6.3e12,
        mfu=0.059,
        cores_busy=1.0,
        cores=16,
        overlapped_copy_ms=0.3,
    )
    item = Place("train.py", 88, "train_epoch", "running += loss.item()")
    profile = dataclasses.replace(
        base,
        anatomy=anatomy,
        gaps=(
            Gap(Kind.WAIT_DATA, 232.0, 1.0, "enumerate(DataLoader)#_SingleProcess", LOADER),
            Gap(Kind.WAIT_SYNC, 38.0, 1.0, "aten::item", item),
            *base.gaps,
        ),
        syncs=(Sync("aten::item", 1.0, 41.0, 38.0, item),),
        kernels=(*base.kernels, *LONG_KERNELS),
        operators=(*base.operators, Operator("aten::item", Kind.OTHER, 1.0, 41.0, where=item)),
        timeline=timeline(anatomy),
        memory=memory(),
        trace="/somewhere/else/trace-0.json.gz",
    )
    findings = (NO_WORKERS, ITEM, LAYOUT, KEPT)
    return Profiled(profile, findings, checks=46, wall_s=41.2, report_path="/runs/1/profile.html")


LONG_KERNELS = (
    Kernel(
        "void cudnn::ops::nchwToNhwcKernel<__nv_bfloat16, __nv_bfloat16, float, false, true, "
        "(cudnnKernelDataType_t)2>(cudnn::ops::nchw2nhwc_params_t<float>, __nv_bfloat16 const*, "
        "__nv_bfloat16*)",
        Kind.CONVERSION, 106.0, 9.0, "aten::cudnn_convolution", CONV, False, 0.62,
    ),
    Kernel(
        "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, "
        "std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>)",
        Kind.ELEMENTWISE, 32.0, 5.8, "aten::add_", CONV, False, 1.0,
    ),
)  # fmt: skip


def timeline(anatomy: Anatomy, spans_of_a_kind: int = 60) -> tuple[Span, ...]:
    """A step of these parts: they run one after the other, in pieces, on one stream or idle."""
    spans = [Span("host", "ProfilerStep#7", None, 0.0, anatomy.step_ms)]
    waits = [part for part in anatomy.parts if part.kind in WAITS]
    works = [part for part in anatomy.parts if part.kind not in WAITS]
    now = 0.0
    for part in waits:
        spans.append(Span("idle", part.kind.value, part.kind, now, part.ms))
        spans.append(Span("host", f"doing {part.kind}", part.kind, now, part.ms))
        now += part.ms
    for part, _ in itertools.product(works, range(spans_of_a_kind)):
        piece = part.ms / spans_of_a_kind
        stream = 20 if part.kind is Kind.COPY else 7
        kernel = f"kernel of {part.kind}"
        spans.append(Span(f"stream {stream}", kernel, part.kind, now, piece, stream))
        spans.append(Span("host", f"aten::{part.kind}", part.kind, now, 0.8 * piece))
        spans.append(Span("host", "cudaLaunchKernel", None, now + 0.2 * piece, 0.3 * piece))
        now += piece
    return tuple(spans)


def memory(points: int = 300) -> tuple[MemoryPoint, ...]:
    """Three steps: activations grow in the forward pass and shrink in the backward pass."""
    found = []
    for number in range(points):
        at = number * 1236 / points
        phase = (number % (points // 3)) / (points // 3)
        activations = int(24 * GIB * math.sin(math.pi * phase))
        found += [
            MemoryPoint(at, GIB // 2, "parameters"),
            MemoryPoint(at, GIB, "optimizer"),
            MemoryPoint(at, activations, "activations and gradients"),
        ]
        total = sum(point.bytes for point in found[-3:])
        found.append(MemoryPoint(at, total, "all"))
    return tuple(found)


def healthy() -> Profiled:
    """A tuned ResNet: nothing to find."""
    facts = {"overlapped_copy_ms": 6.0, "flops": 6.3e12, "mfu": 0.243, "recording_ms": 3.0}
    profile = changed(
        made.profile(),
        anatomy=made.anatomy("cuda", TUNED_PARTS, cores_busy=0.9, cores=32, **facts),
        device_name="NVIDIA A100-SXM4-80GB",
        seen__samples=256.0,
        job__autocast="bfloat16",
        job__loaders__0__num_workers=16,
    )
    return Profiled(profile, (), checks=46)


def cpu() -> Profiled:
    """On eight cores, with a finding that is small."""
    found = dataclasses.replace(NO_WORKERS, gain=Gain(1.03, "300 ms less 9 ms"))
    profile = made.cpu_profile()
    host = tuple(
        Span("host", item.name, item.kind, 10.0 * number, 9.0)
        for number, item in enumerate(profile.operators)
    )
    return Profiled(dataclasses.replace(profile, timeline=host), (found,), checks=46)


LONG = "a_function_whose_name_is_longer_than_any_column_of_a_table_or_a_frame_of_a_graph"
MASK = Place("train.py", 14, "mask", "m[i][j] = 1.0")
SCORE = Place("train.py", 21, "score", 'f1 = f1_score(y, p, average="macro")')
DEEP = Place(f"package/{'deeper/' * 9}models.py", 114, LONG, f"{LONG} = {LONG}({LONG})")
PAUSE = Place("train.py", 30, "train", "time.sleep(0.01)")
LOOP = Place("train.py", 40, "<module>", "train()")


def host_time() -> HostTime:
    """A mask built by a double loop, a metric each step, a pause, a thread that watches.

    The sampled steps take 110 ms, of which sampling takes 10: a step of 80 ms is at 0.8.
    """
    python, torch = HostKind.PYTHON, HostKind.TORCH
    library, waiting = HostKind.LIBRARY, HostKind.WAITING
    lines = (
        HostLine(MASK, python, 40.0, "m[i][j] = 1.0", chain=(LOOP, PAUSE), samples=400),
        HostLine(PAUSE, torch, 20.0, "loss.backward()", "torch", (LOOP,), samples=200),
        HostLine(SCORE, library, 15.0, "f1_score(...)", "sklearn", (LOOP,), samples=150),
        HostLine(PAUSE, waiting, 10.0, "time.sleep(0.01)", "time", (LOOP,), samples=100),
        HostLine(DEEP, library, 2.5, LONG, LONG, (LOOP,), samples=25, modelling=True),
        HostLine(LOADER, python, 5.0, "decode(path)", chain=(LOOP,), loading=True, samples=50),
    )
    own = ("train.py:40 <module>", "train.py:30 train")
    stacks = (
        HostStack((*own, "train.py:14 mask"), 40.0, kinds=(python, python, python)),
        HostStack((*own, "torch Tensor.backward"), 20.0, kinds=(python, python, torch)),
        HostStack((*own, "sklearn f1_score"), 15.0, kinds=(python, python, library)),
        HostStack((*own, "waiting in time.sleep(0.01)"), 10.0, kinds=(python, python, waiting)),
        HostStack((*own, LONG, LONG), 2.5, kinds=(python, python, python, library)),
        HostStack(("train.py:50 watch",), 4.0, "watcher", (python,)),
    )
    threads = (HostThread("watcher", 4.0, PAUSE), HostThread("pin", 1.0, package="torch"))
    decode = Place("train.py", 60, "__getitem__", "image = Image.open(path)")
    workers = (HostLine(decode, library, 120.0, "Image.open(path)", "PIL", samples=900),)
    return HostTime(
        20, 100.0, lines, stacks, threads, workers, worker_idle_ms=30.0,
        gc_ms=2.5, queued_ms=0.0, waited_ms=10.0, idle_known=True,
    )  # fmt: skip


def scripted() -> Profiled:
    """On a CPU, a step of 80 ms whose lines of the host are known."""
    parts = (
        Part(Kind.USER, 32.0),
        Part(Kind.MATMUL, 16.0, 12.0),
        Part(Kind.LIBRARY, 14.0),
        Part(Kind.BLOCKED, 8.0),
        Part(Kind.WAIT_DATA, 4.0),
        Part(Kind.DISPATCH, 4.0),
        Part(Kind.COLLECTING, 2.0),
    )
    profile = dataclasses.replace(
        cpu().profile, anatomy=Anatomy("cpu", 80.0, parts, steps=6), host=host_time(), timeline=()
    )
    return Profiled(profile, (NO_WORKERS,), checks=46)


def ranks() -> Profiled:
    """Eight ranks, of which one computes longer."""
    base = made.ddp_profile({Kind.WAIT_RANKS: 30.0, Kind.COMMUNICATION: 12.0})
    seen = tuple(
        RankSeen(rank, 142.0, 110.0, 12.0, 138.0 if rank == 5 else 96.0 + rank / 10)
        for rank in range(8)
    )
    return Profiled(dataclasses.replace(base, ranks=seen), (), ("ranks 6 and 7 left no trace",))


def bare() -> Profiled:
    """A trace without steps, of an unknown device: nothing but an anatomy."""
    parts = (Part(Kind.WAIT_OTHER, 80.0), Part(Kind.OTHER, 20.0))
    profile = Profile((), Anatomy("cuda", 100.0, parts, steps=1), trace_steps=False)
    return Profiled(profile, (), ("the trace has no stacks: no lines are known",))


def hostile() -> Profiled:
    """Names and paths that would break a page or a terminal that trusts them."""
    place = Place(f"{XSS}.py", 1, XSS, XSS)
    base = naive()
    stack = HostStack((XSS, XSS), 5.0, kinds=(HostKind.PYTHON, HostKind.LIBRARY))
    line = HostLine(place, HostKind.LIBRARY, 300.0, XSS, XSS, (place,))
    host = HostTime(1, 412.0, (line,), (stack,), (HostThread(XSS, 1.0, place),))
    profile = dataclasses.replace(
        base.profile,
        host=host,
        command=("python", XSS),
        device_name=XSS,
        trace=f"/runs/{XSS}.json",
        operators=(Operator(XSS, Kind.MATMUL, 1.0, 1.0, 2.0, (XSS,), (XSS,), place, flops=1e12),),
        kernels=(Kernel(XSS, Kind.MATMUL, 1.0, 2.0, XSS, place),),
        gaps=(Gap(Kind.WAIT_DATA, 1.0, 1.0, XSS, place),),
        syncs=(Sync(XSS, 1.0, 1.0, 1.0, place),),
        timeline=(Span("host", XSS, None, 0.0, 10.0), Span(XSS, XSS, Kind.MATMUL, 1.0, 5.0)),
        memory=(MemoryPoint(0.0, 1, XSS), MemoryPoint(1.0, 2, XSS)),
        devices=(dataclasses.replace(base.profile.devices[0], name=XSS, throttled=(XSS,)),),
    )
    finding = dataclasses.replace(
        NO_WORKERS,
        title=XSS,
        evidence=f"\x1b[31m{XSS}\x07",
        where=str(place),
        cure=Cure(XSS, (XSS,)),
        boost=XSS,
        gain=Gain(2.0, XSS),
    )
    return Profiled(profile, (finding,), (XSS,), run_folder=XSS, report_path=XSS)


def large() -> Profiled:
    """As many spans and kernels as a report ever gets."""
    base = naive()
    many = timeline(base.profile.anatomy, 180)
    kernels = tuple(
        Kernel(f"kernel_{number}<float, {number}>", Kind.ELEMENTWISE, 1.0, 1 / (number + 1))
        for number in range(1500)
    )
    profile = dataclasses.replace(base.profile, timeline=many, kernels=kernels)
    return dataclasses.replace(base, profile=profile)


ALL = {
    "naive": naive,
    "healthy": healthy,
    "cpu": cpu,
    "scripted": scripted,
    "ranks": ranks,
    "bare": bare,
    "hostile": hostile,
}
