from __future__ import annotations

from typing import Any

import pytest

from diagnosing.job import made
from diagnosing.job.host import sampled
from flatout.nouns.host_time import HostKind
from flatout.nouns.profile import Profile
from flatout_agent import wire

CHECK = "single-samples-loaded"


def flow(batches: float = 64, calls: float = 1) -> wire.FlowSeen:
    return wire.FlowSeen(
        steps=2, operators=300, operators_s=0.3, batches=batches, training_calls=calls
    )


def profile(share: float = 0.3, **changes: Any) -> Profile:
    """The loader's own code takes this share of a step of 64 single samples."""
    step_ms = made.cpu_profile().anatomy.step_ms
    line = sampled.line(
        48, HostKind.TORCH, share * step_ms, callee="for x, y in loader:...", loading=True,
        collating=True,
    )  # fmt: skip
    fields: dict[str, Any] = {
        "job__loaders__0__num_workers": 0,
        "job__loaders__0__batch_size": 1,
        "job__models__0__input_shapes": ("64x3x32x32",),
        "seen__flow": flow(),
        "seen__samples": 64.0,
        "seen__wait_s": 2 * share * step_ms / 1000,
    }
    return made.changed(sampled.profile(line), **(fields | changes))


def test_samples_are_joined_by_hand() -> None:
    job = profile()
    finding = made.only(CHECK, job)
    assert (finding.code, finding.where) == ("DATA012", "train.py:48")
    assert "64 a step" in finding.title
    assert made.saved_ms(finding, job) == pytest.approx(0.8 * 0.3 * 300, rel=0.02)
    assert "batch_size=64" in made.changes(finding)
    named = profile(seen__single_loader_where="train.py:40")
    assert made.only(CHECK, named).where == "train.py:40"


def test_without_the_data_flow_by_the_samples() -> None:
    assert made.findings(CHECK, profile(seen__flow=None))
    two = profile(seen__flow=None)
    assert two.job is not None
    loaders = (*two.job.loaders, two.job.loaders[0])
    assert made.findings(CHECK, made.changed(two, job__loaders=loaders)) == (), "whose are they?"


def test_a_dataset_of_single_samples_without_batches() -> None:
    assert made.findings(CHECK, profile(job__loaders__0__batch_size=None))
    stream = profile(job__loaders__0__batch_size=None, job__loaders__0__iterable=True)
    assert made.findings(CHECK, stream) == ()


@pytest.mark.parametrize(
    "changes",
    [
        {"job__loaders__0__batch_size": 64},
        {"seen__flow": flow(batches=1), "seen__samples": 1.0},
        {"seen__flow": flow(calls=64)},
        {"job__micro_steps": 64.0},
        {"job__models__0__input_shapes": ("1x3x32x32",)},
    ],
    ids=["batches", "one sample a step", "a call for each", "accumulated", "one by one"],
)
def test_other_loops(changes: dict[str, Any]) -> None:
    assert made.findings(CHECK, profile(**changes)) == ()


def test_too_quick_to_matter() -> None:
    assert made.findings(CHECK, profile(0.005)) == ()
