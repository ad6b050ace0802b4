"""COPY: copies between host and device that cost time, with their line and its change."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from diagnosing.job import made
from diagnosing.job.host import sampled
from diagnosing.job.telling import JobTold, each_of, told
from flatout.nouns.anatomy import Kind
from flatout.nouns.finding import Severity
from flatout.nouns.host_time import HostKind
from flatout.nouns.profile import Copy, Operator, Place, Profile, Sync
from flatout_agent.wire import CallSeen, FlowSeen

COPYING = {Kind.COPY: 18.8}
PLAIN = Place("train.py", 81, "train_epoch", "images = images.to(device)")
KWARG = Place("train.py", 81, "train_epoch", "images = images.to(device, non_blocking=True)")


def at(line: int, source: str) -> Place:
    return Place("train.py", line, "train_epoch", source)


def job(copies: tuple[Copy, ...], syncs: tuple[Sync, ...] = (), **changes: Any) -> Profile:
    return made.profile(COPYING, copies=copies, syncs=syncs, **changes)


BATCH = Copy("HtoD", 2.0, 154.1e6, 18.8, pinned=False, exposed_ms=18.8, where=PLAIN)
PINNED = dataclasses.replace(BATCH, pinned=True, ms=6.2, exposed_ms=6.2)
WAITS = Sync("aten::to", 1.0, 6.4, idle_ms=1.5, where=PLAIN)

PAGEABLE, PINNED_ONES = "COPY001", "COPY002"
BUILT, OUTPUTS = "COPY004", "COPY007"
UNPINNED = {"job__loaders__0__pin_memory": False}
PARTS = Copy(
    "HtoD", 1.0, 80e6, 9.8, pinned=False, exposed_ms=9.8, where=at(90, "y = torch.cat(p).cuda()")
)
MASK = at(88, "mask = torch.ones(batch, length, length).tril().to(device)")
MASK_COPY = Copy("HtoD", 1.0, 67e6, 8.2, pinned=False, exposed_ms=8.2, where=MASK)
LOGITS = at(90, "outputs.append(logits.cpu().numpy())")
LOGITS_COPY = Copy("DtoH", 1.0, 131e6, 19.0, pinned=False, exposed_ms=19.0, where=LOGITS)
LOGITS_WAIT = Sync("aten::to", 1.0, 60.0, idle_ms=4.0, where=LOGITS)


def test_batches_not_pinned() -> None:
    profile = job((BATCH,), **UNPINNED)
    finding = made.only(PAGEABLE, profile)
    assert (finding.code, finding.severity) == ("COPY001", Severity.WARNING)
    assert finding.title == "batches of 147 MiB are copied from memory that is not pinned"
    assert (finding.where, finding.boost) == ("train.py:81", "loader-pin-memory")
    assert "147 MiB a step from pageable memory" in finding.evidence
    assert "pinned 24.8 GB/s" in finding.evidence
    assert "+ images = images.to(device, non_blocking=True)" in made.changes(finding)
    assert made.saved_ms(finding, profile) == pytest.approx(18.8 - 154.1 / 24.8, abs=0.05)
    assert "COPY001" in made.codes(profile)


def test_pageable_memory_of_the_script() -> None:
    profile = job((PARTS,))
    finding = made.only(PAGEABLE, profile)
    assert (finding.code, finding.where) == ("COPY001", "train.py:90")
    assert "+ y = torch.cat(p).pin_memory().cuda(non_blocking=True)" in made.changes(finding)
    assert made.saved_ms(finding, profile) == pytest.approx(9.8 - 80 / 24.8, abs=0.05)
    table = dataclasses.replace(PARTS, where=at(90, "rows = self.table.to(device)"))
    both = made.findings(PAGEABLE, job((BATCH, table), **UNPINNED))
    assert {finding.where for finding in both} == {"train.py:81", "train.py:90"}


def test_outputs_copied_to_the_host() -> None:
    profile = job((LOGITS_COPY,), (LOGITS_WAIT,))
    finding = made.only(OUTPUTS, profile)
    assert (finding.code, finding.where) == ("COPY007", "train.py:90")
    assert made.saved_ms(finding, profile) == pytest.approx(23)
    assert "SYNC001" not in made.codes(profile)
    small = dataclasses.replace(LOGITS_COPY, bytes=4.0, exposed_ms=0.01)
    changed = made.changed(profile, copies=(small,))
    assert made.findings(OUTPUTS, changed) == ()
    assert "SYNC001" in made.codes(changed)


def test_tensor_built_on_the_host() -> None:
    profile = job(
        (MASK_COPY,),
        (Sync("aten::to", 1.0, 8.3, idle_ms=2.0, where=MASK),),
        operators=(Operator("aten::tril", Kind.OTHER, 1.0, 21.0, where=MASK),),
    )
    finding = made.only(BUILT, profile)
    assert (finding.code, finding.where) == ("COPY004", "train.py:88")
    assert "21.0 ms on the host" in finding.evidence
    assert "device=device" in made.changes(finding)
    assert made.saved_ms(finding, profile) == pytest.approx(10.2)
    assert "COPY001" not in made.codes(profile)


def test_tensors_made_in_each_step_on_a_cpu() -> None:
    mask = Place("model.py", 40, "forward", "mask = torch.tril(torch.ones(n, n))")
    operators = (
        Operator("aten::ones", Kind.ELEMENTWISE, 12.0, 4.0, where=mask),
        Operator("aten::tril", Kind.ELEMENTWISE, 12.0, 9.0, where=mask),
    )
    calls = (CallSeen("torch.tensor", 1.0, 0.020, "train.py:70", "cpu"),)
    profile = made.cpu_profile(operators=operators, seen__calls=calls)
    first, second = made.findings(BUILT, profile)
    assert (first.where, second.where) == ("train.py:70", "model.py:40")
    assert made.saved_ms(first, profile) == pytest.approx(20)
    assert made.saved_ms(second, profile) == pytest.approx(13)


HIDDEN = dataclasses.replace(PINNED, exposed_ms=0.2)
ON_DEVICE = dataclasses.replace(MASK, source="mask = torch.ones(9, device=device)")
SILENT = [
    (PAGEABLE, job((dataclasses.replace(BATCH, pinned=None),), **UNPINNED)),
    (PAGEABLE, job((dataclasses.replace(BATCH, exposed_ms=0.4),), **UNPINNED)),
    (PAGEABLE, job((dataclasses.replace(BATCH, bytes=2e4),), **UNPINNED)),
    (PAGEABLE, job((), **UNPINNED)),
    (PAGEABLE, job((dataclasses.replace(PARTS, pinned=True),))),
    *((PINNED_ONES, job((dataclasses.replace(HIDDEN, where=where),))) for where in (PLAIN, KWARG)),
    (OUTPUTS, job((dataclasses.replace(LOGITS_COPY, calls=0.02),))),
    (BUILT, job((dataclasses.replace(MASK_COPY, where=ON_DEVICE),))),
    # samples and random tensors are made anew by design on a cpu
    (
        BUILT,
        made.cpu_profile(
            operators=tuple(
                Operator("aten::ones", Kind.OTHER, 64.0, 30.0, where=place)
                for place in (
                    Place("data.py", 9, "__getitem__", "return torch.tensor(row)"),
                    Place("model.py", 44, "forward", "x = x + torch.randn(n, n)"),
                )
            ),
            seen__calls=(CallSeen("torch.randn", 1.0, 0.02, "model.py:44", "cpu"),),
        ),
    ),
]


@pytest.mark.parametrize(("check", "profile"), SILENT)
def test_nothing_is_told(check: str, profile: Profile) -> None:
    assert made.findings(check, profile) == ()


TOLD = [
    told("batches not pinned where nothing was measured", PAGEABLE,
         job((BATCH,), **UNPINNED, ceilings=()), saves=9.4),
    told("where the loader pins the line is to blame", PAGEABLE, job((BATCH,)),
         "147 MiB a step are copied from memory that is not pinned", boost=None),
    told("copies block the host", PINNED_ONES, job((PINNED,), (WAITS,)),
         "+ images = images.to(device, non_blocking=True)", where="train.py:81", saves=7.7),
    told("copies hold up computing", PINNED_ONES,
         job((dataclasses.replace(PINNED, where=KWARG),)), "stream = torch.cuda.Stream()",
         saves=6.2),
    told("values that change are kept in arrays and half of the time stays", BUILT,
         made.cpu_profile(operators=(Operator("aten::lift_fresh", Kind.OTHER, 1.0, 0.1,
             where=Place("train.py", 70, "rollout",
             "s = torch.tensor([e.state for e in envs])")),), seen__calls=(CallSeen("torch.tensor",
             1.0, 0.02, "train.py:70", "cpu"),), seen__flow=FlowSeen(2, 100, 0.1)),
         "from_numpy", saves=10),
    told("what evaluation takes on the line is no part of the step", BUILT,
         made.changed(sampled.profile(sampled.line(10, HostKind.TORCH, 12.0)),
             seen__calls=(CallSeen("torch.tensor", 8.0, 0.08, "train.py:10", "cpu"),)),
         saves=pytest.approx(12, rel=0.02)),
]  # fmt: skip


@each_of(TOLD)
def test_what_is_told(case: JobTold) -> None:
    case.holds()
