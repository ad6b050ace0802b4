"""What a saving is worth: bound by what binds next, with an interval."""

from __future__ import annotations

import dataclasses

import pytest

from diagnosing.job import made
from flatout.diagnosing import diagnose
from flatout.diagnosing.checks import Diagnosis
from flatout.nouns.anatomy import Kind
from flatout.nouns.finding import Cure, Gain
from flatout.nouns.profile import Profile


def saving(ms: float | None, uncertainty: float | None = None) -> Diagnosis:
    return Diagnosis("title", "evidence", Cure("cure"), saves_ms=ms, uncertainty=uncertainty)


def gain(code: str, ms: float, profile: Profile, uncertainty: float | None = None) -> Gain:
    found = diagnose.gain(code, saving(ms, uncertainty), profile)
    assert found is not None
    return found


def gpu(host_ms: float | None = None) -> Profile:
    """A step of 100 ms: 60 of products, the rest waiting for launches."""
    kinds = dict.fromkeys(made.GPU_PARTS, 0.0)
    kinds |= {Kind.TENSOR_CORES: 60.0, Kind.WAIT_HOST: 40.0}
    profile = made.profile(kinds)
    assert profile.anatomy.step_ms == pytest.approx(100)
    anatomy = dataclasses.replace(profile.anatomy, host_ms=host_ms)
    return dataclasses.replace(profile, anatomy=anatomy)


def test_a_saving_without_a_figure_is_not_predicted() -> None:
    assert diagnose.gain("SYNC001", saving(None), gpu()) is None


def test_a_measured_saving_is_ten_percent_off_a_modelled_one_forty() -> None:
    measured, modelled = gain("SYNC001", 20.0, gpu()), gain("KERN007", 20.0, gpu())
    assert measured.ratio == modelled.ratio == pytest.approx(100 / 80)
    assert (measured.low, measured.high) == pytest.approx((100 / 82, 100 / 78))
    assert (modelled.low, modelled.high) == pytest.approx((100 / 88, 100 / 72))


def test_a_check_may_say_how_sure_it_is() -> None:
    found = gain("KERN007", 20.0, gpu(), uncertainty=0.5)
    assert (found.low, found.high) == pytest.approx((100 / 90, 100 / 70))


def test_no_more_is_saved_than_there_is() -> None:
    diagnosis = dataclasses.replace(saving(20.0), most_ms=22.0)
    found = diagnose.gain("KERN010", diagnosis, gpu())
    assert found is not None and found.high == pytest.approx(100 / 78)
    low = dataclasses.replace(saving(20.0), most_ms=10.0)
    bound = diagnose.gain("KERN010", low, gpu())
    assert bound is not None and bound.high == bound.ratio


def test_time_of_the_host_leaves_the_devices_own_work() -> None:
    found = gain("HOST007", 90.0, gpu())
    assert found.ratio == pytest.approx(100 / 60)
    assert "60.0 ms remain: the device's own work" in found.reason


def test_time_of_the_device_leaves_the_hosts_own_work() -> None:
    found = gain("KERN003", 50.0, gpu(host_ms=80.0))
    # Recorded it takes 80 ms; without recording three quarters of that at least.
    assert found.ratio == pytest.approx(100 / 60) and found.low == pytest.approx(100 / 80)
    assert "the host's own work" in found.reason
    assert gain("KERN003", 10.0, gpu(host_ms=80.0)).ratio == pytest.approx(100 / 90)


def test_on_a_cpu_the_loaders_workers_bind() -> None:
    profile = made.cpu_profile()
    assert profile.job is not None and profile.job.loaders[0].num_workers >= 1
    workers = profile.job.loaders[0].num_workers
    step = profile.anatomy.step_ms
    slow = made.cpu_profile(seen__worker_cpu_s=0.8 * workers * step / 1000)
    found = gain("KERN004", 0.5 * step, slow)
    assert found.ratio == pytest.approx(1 / 0.8) and "workers" in found.reason


def test_nothing_becomes_slower_and_nothing_infinitely_fast() -> None:
    late = gain("KERN003", 50.0, gpu(host_ms=200.0))
    assert (late.ratio, late.low) == pytest.approx((1.0, 1.0))
    all_of_it = gain("LOOP001", 100.0, gpu())
    assert all_of_it.ratio == pytest.approx(20.0) and all_of_it.bounds


def test_above_five_times_it_is_a_bound() -> None:
    assert gain("LOOP001", 81.0, gpu()).bounds and not gain("LOOP001", 79.0, gpu()).bounds
