"""COMM: communication that holds up the step is found, with figures."""

from __future__ import annotations

from diagnosing.job import made


def test_a_healthy_job_on_eight_gpus() -> None:
    assert made.codes(made.ddp_profile()) == []
