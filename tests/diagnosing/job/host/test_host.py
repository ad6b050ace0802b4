"""HOST: launching, threads and cores that hold a step up."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from diagnosing.job import made
from diagnosing.job.host import sampled
from diagnosing.job.host.sampled import STEP_MS
from diagnosing.job.telling import JobTold, each_of, told
from flatout.nouns.anatomy import Kind
from flatout.nouns.finding import Severity
from flatout.nouns.host_time import HostKind, HostThread
from flatout.nouns.profile import Gap, Place, Profile
from flatout_agent.wire import CallSeen, CoresSeen

NEXT = Place("train.py", 92, "train_epoch", "loss.backward()")


def small_model(**changes: Any) -> Profile:
    """A step of 20 ms in which 900 kernels of 7 us take 6 ms, and the rest is launching."""
    parts = {
        Kind.TENSOR_CORES: 3.0,
        Kind.ELEMENTWISE: 2.0,
        Kind.NORMALISATION: 1.0,
        Kind.REDUCTION: 0.0,
        Kind.OPTIMIZER: 0.3,
        Kind.CONVERSION: 0.0,
        Kind.OTHER: 0.0,
        Kind.COPY: 0.0,
        Kind.WAIT_DATA: 0.0,
        Kind.WAIT_SYNC: 0.0,
        Kind.WAIT_OTHER: 0.0,
        Kind.WAIT_HOST: 13.7,
    }
    gaps = (Gap(Kind.WAIT_HOST, 13.7, 800.0, "aten::mm", NEXT),)
    small = made.changed(
        made.profile(parts),
        gaps=gaps,
        anatomy__parts__0__launches=0.0,
        anatomy__parts__1__launches=300.0,
        anatomy__parts__2__launches=600.0,
        job__models__0__compiled=False,
    )
    changed: Profile = made.changed(small, **changes)
    return changed


LAUNCHES, COLLECTED, BUSY = "HOST001", "HOST003", "HOST007"
TOO_MANY, TOO_FEW = "HOST004", "HOST005"
WAITS, HOLDS = "HOST012", "HOST013"
SHARED, NARROWED = "HOST014", "HOST015"


ONE_THREAD = {"job__threads": 1, "seen__main_cpu_s": 0.33, "job__cores": 16}


def test_cores_without_hyper_threads_are_counted_and_the_line_is_named() -> None:
    """Two cores with one thread each: the half of the cores would be one."""
    slow = made.cpu_profile(job__threads=1, job__cores=2)
    assert slow.seen is not None
    cores = CoresSeen(cores=2, physical=2, machine=2, threads_where="train.py:3")
    seen = dataclasses.replace(slow.seen, main_cpu_s=slow.seen.step_s, cores=cores)
    finding = made.only(TOO_FEW, dataclasses.replace(slow, seen=seen))
    assert finding.where == "train.py:3"
    assert "set at train.py:3" in finding.evidence
    assert "torch.set_num_threads(2)" in made.changes(finding)
    hyper = dataclasses.replace(seen, cores=dataclasses.replace(cores, physical=1))
    assert made.findings(TOO_FEW, dataclasses.replace(slow, seen=hyper)) == ()


@pytest.mark.parametrize(
    ("callee", "title", "cure"),
    [
        ("time.sleep(0.01)", "thread sleeps", "Remove the pause"),
        ("os.fsync(file.fileno())", "for files", "every 50 steps"),
        ("subprocess.run(...)", "for another process", "once"),
        ("connection.commit()", "for a database", "connection open"),
        ("results.wait_here", "waits:", "thread of its own"),
    ],
)
def test_for_what_it_waits(callee: str, title: str, cure: str) -> None:
    profile = sampled.profile(
        sampled.line(50, HostKind.WAITING, 0.2 * STEP_MS, callee=callee, samples=40)
    )
    finding = made.only(WAITS, profile)
    assert (finding.code, finding.where) == ("HOST012", "train.py:50")
    assert title in finding.title
    assert cure in finding.cure.text


def test_where_waiting_cannot_be_told_from_running_nothing_is_said() -> None:
    profile = sampled.profile(sampled.line(50, HostKind.WAITING, 60.0))
    assert profile.host is not None
    blind = dataclasses.replace(profile, host=dataclasses.replace(profile.host, idle_known=False))
    assert made.findings(WAITS, blind) == ()


@pytest.mark.parametrize(
    ("package", "callee", "title", "cure"),
    [
        ("urllib", "self.opener.open(request)", "over the network (urllib)", "in the background"),
        ("requests", "session.post(url)", "over the network (requests)", "one request"),
        ("mlflow", "mlflow.log_metric(name, x)", "over the network (mlflow)", "queue"),
        ("", "client.recv(4096)", "over the network", "queue"),
        ("sqlite3", "rows.write(x)", "for a database", "connection open"),
        ("shutil", "shutil.copy(a, b)", "for files", "every 50 steps"),
    ],
)
def test_what_it_calls_tells_for_what(package: str, callee: str, title: str, cure: str) -> None:
    line = sampled.line(
        50, HostKind.WAITING, 0.2 * STEP_MS, callee=callee, package=package, samples=40
    )
    finding = made.only(WAITS, sampled.profile(line))
    assert title in finding.title
    assert cure in finding.cure.text


def watched(cpu: float, waited: float, where: Place | None = None) -> Profile:
    """Another thread takes and the training's waits for these shares of a step."""
    thread = HostThread("watcher", cpu * STEP_MS, where, "" if where else "threading")
    return sampled.profile(threads=(thread,), waited_ms=waited * STEP_MS)


def test_a_writer_is_told_with_the_calls_that_give_it_its_work() -> None:
    thread = HostThread("Thread-1", 0.5 * STEP_MS, None, "tensorboard")
    calls = [
        sampled.line(
            number, HostKind.LIBRARY, 0.1 * STEP_MS, package="tensorboard", callee=f"{call}(...)"
        )
        for number, call in ((20, "writer.add_histogram"), (21, "writer.add_histogram"))
    ]
    profile = sampled.profile(*calls, threads=(thread,), waited_ms=0.2 * STEP_MS)
    assert made.findings(HOLDS, profile) == ()
    finding = made.only("library-called-in-step", profile)
    assert finding.title.startswith("reporting whole tensors in tensorboard")
    assert '"Thread-1"' in finding.evidence
    assert finding.where == "train.py:20"
    assert made.saved_ms(finding, profile) == pytest.approx(0.36 * STEP_MS, rel=0.01)
    other = sampled.profile(threads=(thread,), waited_ms=0.2 * STEP_MS)
    assert made.only(HOLDS, other).where is None


def sharing(**fields: Any) -> Profile:
    """A healthy one on eight cores, with this use of them."""
    base = made.cpu_profile()
    assert base.seen is not None
    cores = CoresSeen(cores=8, physical=8, machine=8, **fields)
    return dataclasses.replace(base, seen=dataclasses.replace(base.seen, cores=cores))


ALONE = sharing(queued_s=0.1, others_cores=0.0)


def bound_to_two(**fields: Any) -> Profile:
    """Bound to two of eight cores, both of them busy."""
    base = made.changed(made.cpu_profile(), job__threads=2, job__cores=2)
    assert base.seen is not None
    bound = {"cores": 2, "physical": 2, "machine": 8, "affinity_where": "train.py:4"}
    seen = dataclasses.replace(
        base.seen, cores=CoresSeen(**{**bound, **fields}), main_cpu_s=2 * base.seen.step_s
    )
    return dataclasses.replace(base, seen=seen)


LONG = (Gap(Kind.WAIT_HOST, 9.0, 1.0, "aten::mul", NEXT),)
SHORT = (Gap(Kind.WAIT_HOST, 13.0, 60.0, "aten::mul", NEXT),)
PAUSE = (Gap(Kind.WAIT_HOST, 13.0, 1.0, "aten::mm", NEXT),)
SILENT = [
    (
        LAUNCHES,
        made.profile({Kind.WAIT_HOST: 30.0}, gaps=(), anatomy__parts__all__launches=2.0),
    ),
    (LAUNCHES, small_model(gaps=PAUSE)),
    (COLLECTED, made.profile({Kind.WAIT_HOST: 0.1, Kind.WAIT_OTHER: 0.1}, seen__gc_s=0.012)),
    (TOO_MANY, made.cpu_profile(job__threads=9)),
    (TOO_MANY, made.cpu_profile(job__threads=1, job__cores=1)),
    (TOO_MANY, made.profile(job__threads=128)),
    *(
        (TOO_FEW, made.cpu_profile(**{**ONE_THREAD, **facts}))
        for facts in (
            {"job__threads": 8},
            {"seen__main_cpu_s": 3.6},
            {"seen__main_cpu_s": None, "anatomy__cores_busy": None},
            {"anatomy__parts__all__launches": 0.0},
        )
    ),
    *(
        (BUSY, made.profile({Kind.WAIT_HOST: 13.0}, **facts))
        for facts in (
            {"gaps": SHORT},
            {"gaps": LONG, "trace_steps": False},
            {"gaps": LONG, "seen__gc_s": 0.0088},
        )
    ),
    (HOLDS, watched(0.05, waited=0.4)),
    (HOLDS, watched(0.8, waited=0.01)),
    (SHARED, sharing(queued_s=0.0001)),
    (SHARED, sharing()),
    (SHARED, made.changed(ALONE, job__threads=8, job__loaders=())),
    (SHARED, made.changed(sharing(queued_s=0.1), job__threads=24)),
    (NARROWED, bound_to_two(affinity_where=None)),
    (NARROWED, bound_to_two(machine=2)),
    (NARROWED, bound_to_two(quota=1.5)),
]


@pytest.mark.parametrize(("check", "profile"), SILENT)
def test_nothing_is_told(check: str, profile: Profile) -> None:
    assert made.findings(check, profile) == ()


TOLD = [
    told("launch bound", LAUNCHES, small_model(),
         "one launch every 20 us (this machine can do 6.1 us)", where="train.py:84",
         boost="cuda-graphs", severity=Severity.WARNING,
         saves=0.7 * (13.6 - sum(part.launches for part in small_model().anatomy.parts) / 1000)),
    told("launch bound where the boosts are on already", LAUNCHES,
         small_model(job__models__0__compiled=True), boost=None),
    told("garbage collection on a device counts where it waits", COLLECTED,
         made.profile({Kind.WAIT_HOST: 20.0}, seen__gc_s=0.012, seen__gc_runs=1.0),
         "1.00 collections and 12.0 ms a step", boost="gc-pause", saves=9.6),
    told("garbage collection on a cpu", COLLECTED,
         made.cpu_profile({Kind.PYTHON: 50.0}, seen__gc_s=0.04, seen__gc_runs=2.0), saves=32),
    told("garbage collection on a cpu: 2", COLLECTED,
         made.cpu_profile({Kind.PYTHON: 50.0}, seen__gc_s=0.04, seen__gc_runs=2.0,
             seen__calls=(CallSeen("gc.collect", 1.0, 0.04, "train.py:97"),)),
         where="train.py:97", boost=None),
    told("two processes share the cores", TOO_MANY,
         made.cpu_profile(job__threads=8, job__world_size=2), "on 4 cores"),
    told("threads too few", TOO_FEW, made.cpu_profile(**ONE_THREAD), "torch.set_num_threads(8)",
         saves=pytest.approx(7 / 8 * (0.7 * 205 + 0.35 * 80), abs=1)),
    told("a checkpoint that was written once is a note", WAITS,
         sampled.profile(sampled.line(50, HostKind.WAITING, 0.3 * STEP_MS, callee="os.fsync(f)",
             samples=80, steps=(4,))),
         "in 1 of 20 steps", severity=Severity.NOTE),
    told("the thread and its line", HOLDS,
         watched(0.8, waited=0.4, where=Place("train.py", 7, "poll")), '"watcher"',
         where="train.py:7", saves=0.36 * STEP_MS),
    told("what handing over more often relieved is part of the loss", HOLDS,
         dataclasses.replace(watched(0.2, waited=0.1, where=Place("train.py", 7, "poll")),
             host=dataclasses.replace(watched(0.2, waited=0.1, where=Place("train.py", 7,
             "poll")).host, step_ms=0.4 * STEP_MS)),
         "handed the interpreter over", saves=0.9 * 0.7 * STEP_MS),
    told("its own workers crowd the cores", SHARED, made.changed(ALONE, job__threads=8),
         "Use fewer loader workers"),
    told("the line that binds the process", NARROWED, bound_to_two(), "2 cores of 8",
         where="train.py:4"),
    # 288 ms in operators, a quarter of what 24.7 of 32.7 threads have no core for
    told("threads oversubscribed", TOO_MANY, made.cpu_profile(job__threads=32),
         "32 threads and 0.7 busy loader workers; 8 cores", "torch.set_num_threads(7)",
         boost="cpu-threads", saves=pytest.approx(288 * 0.25 * (1 - 8 / 32.67), abs=1)),
    # 0.1 ms is garbage collection
    told("main thread busy", BUSY,
         made.profile({Kind.WAIT_HOST: 13.0}, gaps=(Gap(Kind.WAIT_HOST, 9.0, 1.0, "aten::mul",
             NEXT), Gap(Kind.WAIT_HOST, 4.0, 60.0, "aten::copy_"))),
         "the longest before train.py:92", where="train.py:92", saves=8.9),
    told("main thread busy: 2", BUSY,
         made.profile({Kind.WAIT_HOST: 13.0}, gaps=(Gap(Kind.WAIT_HOST, 9.0, 1.0, "aten::mul",
             NEXT), Gap(Kind.WAIT_HOST, 4.0, 60.0, "aten::copy_")), seen__calls=(CallSeen("print",
             1.0, 0.008, "train.py:89"),)),
         "print takes 8.00 ms", where="train.py:89"),
    told("other programs are named", SHARED,
         sharing(queued_s=0.3 * STEP_MS / 1000, others_cores=1.4,
             others=("blender (77): 1.4 cores",)),
         "other programs take the cores", "blender (77)", "torch.set_num_threads(7)",
         saves=0.3 * STEP_MS),
    told("a quota that holds back", SHARED,
         sharing(throttled_s=0.4 * STEP_MS / 1000, queued_s=0.0, quota=2.0),
         "the CPU quota holds the process back", "torch.set_num_threads(2)"),
]  # fmt: skip


@each_of(TOLD)
def test_what_is_told(case: JobTold) -> None:
    case.holds()
