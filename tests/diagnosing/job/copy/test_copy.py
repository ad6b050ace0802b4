"""COPY: each fault of copying between host and device is found, with its line and figures."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from diagnosing.job import made
from flatout.nouns.anatomy import Kind
from flatout.nouns.finding import Severity
from flatout.nouns.profile import Copy, Operator, Place, Profile, Sync
from flatout_agent.wire import CallSeen

COPYING = {Kind.COPY: 18.8}
PLAIN = Place("train.py", 81, "train_epoch", "images = images.to(device)")
KWARG = Place("train.py", 81, "train_epoch", "images = images.to(device, non_blocking=True)")


def at(line: int, source: str) -> Place:
    return Place("train.py", line, "train_epoch", source)


def job(copies: tuple[Copy, ...], syncs: tuple[Sync, ...] = (), **changes: Any) -> Profile:
    return made.profile(COPYING, copies=copies, syncs=syncs, **changes)


BATCH = Copy("HtoD", 2.0, 154.1e6, 18.8, pinned=False, exposed_ms=18.8, where=PLAIN)
UNPINNED = {"job__loaders__0__pin_memory": False}


def test_batches_not_pinned() -> None:
    profile = job((BATCH,), **UNPINNED)
    finding = made.only("batches-not-pinned", profile)
    assert (finding.code, finding.severity) == ("COPY001", Severity.WARNING)
    assert (finding.where, finding.boost) == ("train.py:81", "loader-pin-memory")
    assert "147 MiB a step from pageable memory" in finding.evidence
    assert "pinned 24.8 GB/s" in finding.evidence
    assert "+ images = images.to(device, non_blocking=True)" in made.changes(finding)
    assert made.saved_ms(finding, profile) == pytest.approx(18.8 - 154.1 / 24.8, abs=0.05)


def test_batches_not_pinned_where_nothing_was_measured() -> None:
    profile = job((BATCH,), **UNPINNED, ceilings=())
    assert made.saved_ms(made.only("batches-not-pinned", profile), profile) == pytest.approx(9.4)


@pytest.mark.parametrize(
    "profile",
    [
        job((BATCH,)),  # the loader pins: another check's
        job((dataclasses.replace(BATCH, pinned=None),), **UNPINNED),
        job((dataclasses.replace(BATCH, exposed_ms=0.4),), **UNPINNED),
        job((dataclasses.replace(BATCH, bytes=2e4),), **UNPINNED),
        job((), **UNPINNED),
    ],
)
def test_batches_that_are_pinned_or_unknown(profile: Profile) -> None:
    assert made.findings("batches-not-pinned", profile) == ()


PINNED = dataclasses.replace(BATCH, pinned=True, ms=6.2, exposed_ms=6.2)
WAITS = Sync("aten::to", 1.0, 6.4, idle_ms=1.5, where=PLAIN)


def test_copies_block_the_host() -> None:
    profile = job((PINNED,), (WAITS,))
    finding = made.only("copies-block-the-host", profile)
    assert (finding.code, finding.where) == ("COPY002", "train.py:81")
    assert finding.boost == "device-prefetch"
    assert "+ images = images.to(device, non_blocking=True)" in made.changes(finding)
    assert made.saved_ms(finding, profile) == pytest.approx(7.7)
    assert made.findings("copies-hold-up-computing", profile) == ()


def test_copies_hold_up_computing() -> None:
    profile = job((dataclasses.replace(PINNED, where=KWARG),))
    finding = made.only("copies-hold-up-computing", profile)
    assert (finding.code, finding.boost) == ("COPY008", "device-prefetch")
    assert made.saved_ms(finding, profile) == pytest.approx(6.2)
    assert made.findings("copies-block-the-host", profile) == ()


def test_overlapped_copies_are_fine() -> None:
    hidden = dataclasses.replace(PINNED, exposed_ms=0.2)
    for place in (PLAIN, KWARG):
        profile = job((dataclasses.replace(hidden, where=place),))
        assert made.findings("copies-block-the-host", profile) == ()
        assert made.findings("copies-hold-up-computing", profile) == ()


def test_pageable_memory_of_the_script() -> None:
    place = at(90, "y = torch.cat(parts).cuda()")
    one = Copy("HtoD", 1.0, 80e6, 9.8, pinned=False, exposed_ms=9.8, where=place)
    profile = job((one,))
    finding = made.only("pageable-memory-copied", profile)
    assert (finding.code, finding.where) == ("COPY003", "train.py:90")
    assert "+ y = torch.cat(parts).pin_memory().cuda(non_blocking=True)" in made.changes(finding)
    assert made.saved_ms(finding, profile) == pytest.approx(9.8 - 80 / 24.8, abs=0.05)
    known = job((dataclasses.replace(one, pinned=True),))
    assert made.findings("pageable-memory-copied", known) == ()


def test_pageable_batches_are_told_once() -> None:
    codes = made.codes(job((BATCH,), **UNPINNED))
    assert "COPY001" in codes and "COPY003" not in codes


BUILT = at(88, "mask = torch.ones(batch, length, length).tril().to(device)")


def test_tensor_built_on_the_host() -> None:
    one = Copy("HtoD", 1.0, 67e6, 8.2, pinned=False, exposed_ms=8.2, where=BUILT)
    profile = job(
        (one,),
        (Sync("aten::to", 1.0, 8.3, idle_ms=2.0, where=BUILT),),
        operators=(Operator("aten::tril", Kind.OTHER, 1.0, 21.0, where=BUILT),),
    )
    finding = made.only("tensors-built-on-the-host", profile)
    assert (finding.code, finding.where) == ("COPY004", "train.py:88")
    assert "21.0 ms on the host" in finding.evidence
    assert "device=device" in made.changes(finding)
    assert made.saved_ms(finding, profile) == pytest.approx(10.2)
    assert {"COPY001", "COPY003"} & set(made.codes(profile)) == set()


def test_tensor_made_on_the_device() -> None:
    place = dataclasses.replace(BUILT, source="mask = torch.ones(9, device=device)")
    one = Copy("HtoD", 1.0, 67e6, 8.2, pinned=False, exposed_ms=8.2, where=place)
    assert made.findings("tensors-built-on-the-host", job((one,))) == ()


def test_tensors_made_in_each_step_on_a_cpu() -> None:
    mask = Place("model.py", 40, "forward", "mask = torch.tril(torch.ones(n, n))")
    operators = (
        Operator("aten::ones", Kind.ELEMENTWISE, 12.0, 4.0, where=mask),
        Operator("aten::tril", Kind.ELEMENTWISE, 12.0, 9.0, where=mask),
    )
    calls = (CallSeen("torch.tensor", 1.0, 0.020, "train.py:70", "cpu"),)
    profile = made.cpu_profile(operators=operators, seen__calls=calls)
    first, second = made.findings("tensors-built-on-the-host", profile)
    assert (first.where, second.where) == ("train.py:70", "model.py:40")
    assert made.saved_ms(first, profile) == pytest.approx(20)
    assert made.saved_ms(second, profile) == pytest.approx(13)


def test_samples_and_random_tensors_are_made_anew_by_design_on_a_cpu() -> None:
    sample = Place("data.py", 9, "__getitem__", "return torch.tensor(row)")
    noise = Place("model.py", 44, "forward", "x = x + torch.randn(n, n)")
    operators = tuple(
        Operator("aten::ones", Kind.OTHER, 64.0, 30.0, where=place) for place in (sample, noise)
    )
    calls = (CallSeen("torch.randn", 1.0, 0.020, "model.py:44", "cpu"),)
    profile = made.cpu_profile(operators=operators, seen__calls=calls)
    assert made.findings("tensors-built-on-the-host", profile) == ()


@pytest.mark.parametrize(
    ("source", "name", "change"),
    [
        ("x = (x - MEAN.to(device)) / 2", "MEAN", "+ x = (x - MEAN) / 2"),
        ("x = x + self.table.cuda()", "self.table", 'self.register_buffer("table"'),
    ],
)
def test_constant_copied_each_step(source: str, name: str, change: str) -> None:
    place = at(95, source)
    one = Copy("HtoD", 1.0, 12.0, 0.01, pinned=False, exposed_ms=0.01, where=place)
    profile = job((one,), (Sync("aten::to", 1.0, 12.0, idle_ms=3.0, where=place),))
    finding = made.only("constant-copied-each-step", profile)
    assert (finding.code, finding.where) == ("COPY005", "train.py:95")
    assert finding.title.startswith(name)
    assert change in made.changes(finding)
    assert made.saved_ms(finding, profile) == pytest.approx(3.01)


def test_batches_are_no_constants() -> None:
    profile = job((BATCH,), (dataclasses.replace(WAITS, idle_ms=4.0),))
    assert made.findings("constant-copied-each-step", profile) == ()
    once = Copy("HtoD", 0.1, 12.0, 0.01, pinned=False, exposed_ms=4.0, where=at(9, "A.to(0)"))
    assert made.findings("constant-copied-each-step", job((once,))) == ()


def test_small_copies() -> None:
    place = at(83, "lengths = [l.to(device) for l in lengths]")
    one = Copy("HtoD", 40.0, 40 * 64, 0.08, pinned=False, exposed_ms=0.08, where=place)
    profile = job((one,), (Sync("aten::to", 40.0, 1.2, idle_ms=5.0, where=place),))
    finding = made.only("copies-small-and-many", profile)
    assert (finding.code, finding.where) == ("COPY006", "train.py:83")
    assert made.saved_ms(finding, profile) == pytest.approx(5.08 * 39 / 40)
    few = dataclasses.replace(one, calls=4.0, bytes=256)
    assert made.findings("copies-small-and-many", made.changed(profile, copies=(few,))) == ()
    large = dataclasses.replace(one, bytes=40e6)
    assert made.findings("copies-small-and-many", made.changed(profile, copies=(large,))) == ()


def test_outputs_copied_to_the_host() -> None:
    place = at(90, "outputs.append(logits.cpu().numpy())")
    one = Copy("DtoH", 1.0, 131e6, 19.0, pinned=False, exposed_ms=19.0, where=place)
    profile = job((one,), (Sync("aten::to", 1.0, 60.0, idle_ms=4.0, where=place),))
    finding = made.only("outputs-copied-to-host", profile)
    assert (finding.code, finding.where) == ("COPY007", "train.py:90")
    assert made.saved_ms(finding, profile) == pytest.approx(23)
    assert "SYNC002" not in made.codes(profile)
    small = dataclasses.replace(one, bytes=4.0, exposed_ms=0.01)
    changed = made.changed(profile, copies=(small,))
    assert made.findings("outputs-copied-to-host", changed) == ()
    assert "SYNC002" in made.codes(changed)
    rare = dataclasses.replace(one, calls=0.02)
    assert made.findings("outputs-copied-to-host", job((rare,))) == ()
