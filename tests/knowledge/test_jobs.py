"""JobFacts as short plain values, and back without loss."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.knowledge import jobs
from flatout.nouns.identity import GpuIdentity, Identity
from flatout_agent import wire

JOBS = st.builds(
    wire.JobFacts,
    loaders=st.lists(st.from_type(wire.LoaderFacts), max_size=2).map(tuple),
    models=st.lists(st.from_type(wire.ModelFacts), max_size=2).map(tuple),
    optimizers=st.lists(st.from_type(wire.OptimizerFacts), max_size=2).map(tuple),
    bf16=st.sampled_from([None, True, False]),
    capability=st.sampled_from([None, (9, 0)]),
    step_s=st.sampled_from([None, 0.25]),
)


@given(JOBS)
def test_there_and_back(job: wire.JobFacts) -> None:
    short = jobs.values(job)
    assert jobs.facts(short) == job
    assert jobs.facts(dataclasses.asdict(job)) == job


def test_short_is_short() -> None:
    job = wire.JobFacts(torch="2.13.0", python="3.11.2", system="linux", device="cpu", cores=2)
    assert jobs.values(job) == {
        "torch": "2.13.0",
        "python": "3.11.2",
        "system": "linux",
        "device": "cpu",
        "cores": 2,
    }


@pytest.mark.parametrize(
    ("values", "missing"),
    [
        ({"torch": "2", "python": "3", "system": "linux"}, "job.device"),
        (
            {"torch": "2", "python": "3", "system": "linux", "device": "cpu", "loaders": [{}]},
            r"job\.loaders\[0\]\.dataset",
        ),
    ],
)
def test_what_is_missing_is_named(values: dict[str, Any], missing: str) -> None:
    with pytest.raises(ValueError, match=missing):
        jobs.facts(values)


def test_a_job_of_which_only_the_machine_is_known() -> None:
    assert jobs.unseen(None).device == "cpu"
    machine = Identity("Linux", None, 8, None, (GpuIdentity("NVIDIA H200"),), torch="2.13.0")
    found = jobs.unseen(machine)
    assert (found.device, found.cores, found.torch) == ("cuda", 8, "2.13.0")
