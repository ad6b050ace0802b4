"""Who takes the cores while steps are watched: this machine's real counters."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from flatout_agent.watch.profile import sharing
from flatout_agent.watch.profile.sharing import CoreSharing

linux = pytest.mark.skipif(sys.platform != "linux", reason="Linux alone has these counters")
LONGEST_S = 120.0


@pytest.mark.slow
@linux
def test_another_program_that_computes_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "OTHERS", 10_000)  # others may be busier here
    other = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        shared, began = CoreSharing(), time.monotonic()
        shared.start()
        used_s = 0.0
        while used_s < 0.4:  # however little of a core it gets
            time.sleep(0.05)
            used_s = sharing._processes()[other.pid][1]
            assert time.monotonic() - began < LONGEST_S
        shared.stop()
    finally:
        other.kill()
        other.wait()
    # Over so short a time that what it used is much of it.
    seen = shared.summary(steps=10, wall_s=1.0, own_pids=())
    assert any(f"({other.pid})" in text for text in seen.others)
    assert seen.others_cores is not None and seen.others_cores > 0.2
    unnamed = shared.summary(steps=10, wall_s=1.0, own_pids=(other.pid,))
    assert not any(f"({other.pid})" in text for text in unnamed.others)


@linux
def test_what_this_process_may_use() -> None:
    shared = CoreSharing()
    shared.start()
    shared.stop()
    seen = shared.summary(steps=1, wall_s=1.0, own_pids=())
    assert 1 <= seen.cores <= seen.machine
    assert seen.physical is None or 1 <= seen.physical <= seen.machine
    assert seen.queued_s is None or seen.queued_s >= 0


def test_elsewhere_it_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    shared = CoreSharing()
    shared.start()
    shared.stop()
    seen = shared.summary(steps=1, wall_s=1.0, own_pids=())
    assert (seen.queued_s, seen.others_cores, seen.physical) == (None, None, None)


def test_variables_that_set_the_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in sharing.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert CoreSharing().summary(1, 1.0, ()).variables == ("OMP_NUM_THREADS=1",)
