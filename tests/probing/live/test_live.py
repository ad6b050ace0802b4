"""The machine sampled: rates, limits, GPUs of a fake driver; odd files are not known facts."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.nouns.gpu import Vendor
from flatout.nouns.machine_sample import GpuSample, GpuUse, MachineSample
from flatout.probing.live import linux_host, pids
from flatout.probing.live import sampler as live_sampler
from flatout.probing.live.amd import AmdSampler
from flatout.probing.live.foreign import ForeignJobs
from flatout.probing.live.sampler import MachineSampler
from flatout.probing.live.trees import TreeUse, waits_for_input
from flatout.probing.nvml.live import NvidiaSampler
from flatout.probing.nvml.questions import Questions
from flatout.watching.observing import JobsObserver
from probing.nvml.fake import h100_node
from probing.nvml.fake_gpm import GpmNvml
from probing.planted import plant as planted
from running.waiting import until

MOUNTS = "30 25 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
STAT = "cpu  {busy} 0 0 {idle} 0 0 0 {steal} 0 0\n"


def plant(root: Path, **files: str) -> None:
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_rates_of_a_planted_machine(tmp_path: Path) -> None:
    plant(tmp_path, proc__stat=STAT.format(busy=0, idle=0, steal=0), proc__vmstat="pswpin 0\n")
    plant(tmp_path, proc__meminfo="MemTotal: 1000 kB\nMemAvailable: 400 kB\n")
    with MachineSampler(tmp_path) as sampler:
        first = sampler.sample()
        assert first.cpu_cores is None  # a rate needs two
        assert (first.memory_bytes, first.memory_used_bytes) == (1_024_000, 614_400)
        plant(tmp_path, proc__stat=STAT.format(busy=600, idle=200, steal=200))
        plant(tmp_path, proc__vmstat="pswpin 256\n")
        time.sleep(0.1)
        second = sampler.sample()
    assert second.cpu_steal == pytest.approx(0.2)
    assert second.cpu_cores is not None
    assert second.cpu_cores > 0
    assert (second.swap_in_bytes_per_s or 0) > 0
    assert second.network_received_bytes_per_s is None


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="affinity, control groups")
def test_only_the_cores_that_may_be_used_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {1, 3})
    core = "cpu{} {} 0 0 0 0 0 0 0 0 0\n"
    busy = [9000, 100, 8000, 200, 7000]
    cores = "".join(core.format(number, ticks) for number, ticks in enumerate(busy))
    plant(tmp_path, proc__stat=f"cpu  24300 0 0 0 0 0 0 0 0 0\n{cores}intr 1\n")
    assert linux_host.counters(tmp_path)["cpu_busy_s"] == 3.0
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3, 4})
    assert linux_host.counters(tmp_path)["cpu_busy_s"] == 243.0
    plant(tmp_path, proc__self__cgroup="0::/\n", proc__self__mountinfo=MOUNTS)
    plant(tmp_path, sys__fs__cgroup__cpu_stat="usage_usec 5000000\nuser_usec 1\n")
    group = tmp_path / "sys/fs/cgroup"
    (group / "cpu_stat").rename(group / "cpu.stat")
    assert linux_host.counters(tmp_path)["cpu_busy_s"] == 243.0  # the group has no quota
    (group / "cpu.max").write_text("200000 100000\n")
    assert linux_host.counters(tmp_path)["cpu_busy_s"] == 5.0
    assert linux_host.counters(tmp_path)["cpu_all_s"] == 243.0


def test_this_machine() -> None:
    with MachineSampler() as sampler:
        sampler.sample((str(Path.cwd()),))
        time.sleep(0.1)
        sample = sampler.sample((str(Path.cwd()),))
    assert sample.cpu_cores is not None
    assert (sample.cores or 0) >= 1
    assert 0 < (sample.memory_used_bytes or 0) <= (sample.memory_bytes or 0)
    assert sample.disks[0].free_bytes <= sample.disks[0].bytes


@given(
    name=st.sampled_from(["stat", "vmstat", "diskstats", "net/dev", "meminfo", "loadavg"]),
    text=st.one_of(st.text(max_size=80), st.just(STAT.format(busy="x", idle=1, steal=-5))),
)
def test_odd_files_are_not_known(
    name: str, text: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("root")
    (root / "proc/net").mkdir(parents=True)
    (root / "proc" / name).write_bytes(text.encode("utf-8", "surrogatepass"))
    linux_host.counters(root)
    linux_host.levels(root)


# NVIDIA -------------------------------------------------------------------------------------------


class Counted:
    """A fake library that counts what is asked, and refuses nothing of its own."""

    def __init__(self, library: Any) -> None:
        self.library = library
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("nvml"):
            self.calls.append(name)
        return getattr(self.library, name)


def test_dear_questions_are_asked_seldom() -> None:
    library = Counted(h100_node())
    sampler = NvidiaSampler(Questions(library))
    (gpu, *_) = sampler.sample(100.0)
    assert gpu.vendor == "nvidia"
    assert gpu.name is not None
    assert gpu.utilization is not None
    assert gpu.memory_bytes
    library.calls.clear()
    sampler.sample(101.0)
    dear = {"nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetFanSpeed", "nvmlDeviceGetName"}
    assert not dear & set(library.calls)
    sampler.sample(111.0)
    assert dear & set(library.calls)
    sampler.close()


def test_shares_of_processes_are_those_of_late() -> None:
    asked = []

    class WithShares(Counted):
        def nvmlDeviceGetProcessUtilization(self, handle: Any, since_us: int) -> Any:  # noqa: N802
            asked.append(since_us)
            found = [(1, 80, 3), (1, 40, 4), (2, 4_000_000, 5)]
            return [SimpleNamespace(pid=p, smUtil=u, timeStamp=t) for p, u, t in found]

        def nvmlDeviceGetComputeRunningProcesses(self, handle: Any) -> Any:  # noqa: N802
            return [SimpleNamespace(pid=pid, usedGpuMemory=7) for pid in (1, 2, 3)]

    (gpu, *_) = NvidiaSampler(Questions(WithShares(h100_node()))).sample(100.0)
    shares = {use.pid: use.utilization for use in gpu.processes or ()}
    assert (shares[1], shares[2], shares[3]) == (0.4, 1.0, None)
    assert all(9 <= time.time() - since_us / 1e6 <= 70 for since_us in asked)


def test_the_driver_tells_of_errors() -> None:
    fake = h100_node()
    waiting = [79]

    class WithEvents(Counted):
        def nvmlEventSetCreate(self) -> str:  # noqa: N802
            return "set"

        def nvmlDeviceRegisterEvents(self, *arguments: Any) -> None: ...  # noqa: N802

        def nvmlEventSetFree(self, events: str) -> None: ...  # noqa: N802

        def nvmlEventSetWait_v2(self, events: str, ms: int) -> Any:  # noqa: N802
            assert ms == 0
            if not waiting:
                raise RuntimeError("timeout")
            handle = fake.nvmlDeviceGetHandleByIndex(1)
            return SimpleNamespace(device=handle, eventData=waiting.pop())

    sampler = NvidiaSampler(Questions(WithEvents(fake)))
    gpus = sampler.sample(1.0)
    assert [gpu.xids for gpu in gpus[:3]] == [(), (79,), ()]
    assert sampler.sample(2.0)[1].xids == (79,)
    sampler.close()


def test_no_driver() -> None:
    with MachineSampler(library=SimpleNamespace()) as sampler:
        assert all(gpu.vendor != "nvidia" for gpu in sampler.sample().gpus)


# AMD ----------------------------------------------------------------------------------------------


def radeon(root: Path, place: str = "devices/card") -> Path:
    """A card that amdgpu drives; its folder."""
    facts = {
        "vendor": "0x1002",
        "gpu_busy_percent": "87",
        "mem_info_vram_used": "1000",
        "mem_info_vram_total": "4000",
        "hwmon/hwmon3/power1_average": "250000000",
        "hwmon/hwmon3/temp1_input": "61000",
    }
    links = {"sys/class/drm/card1/device": place, f"{place}/driver": "drivers/amdgpu"}
    planted(root, {f"{place}/{name}": f"{text}\n" for name, text in facts.items()}, links)
    return root / place


def test_amd(tmp_path: Path) -> None:
    card = radeon(tmp_path)
    (gpu,) = AmdSampler(tmp_path).samples(100.0, 2)
    assert (gpu.index, gpu.utilization, gpu.power_w, gpu.temperature_c) == (2, 0.87, 250.0, 61.0)
    assert (gpu.memory_used_bytes, gpu.memory_bytes, gpu.clock_mhz) == (1000, 4000, None)
    with MachineSampler(tmp_path, SimpleNamespace()) as sampler:
        assert sampler.sample().gpus == (replace(gpu, index=0),)
    assert gpu.processes is None  # there is no compute driver
    (card / "vendor").write_text("0x10de\n")
    with MachineSampler(tmp_path, SimpleNamespace()) as sampler:
        assert sampler.sample().gpus == ()


def test_a_card_that_sleeps_is_not_woken(tmp_path: Path) -> None:
    radeon(tmp_path)
    planted(tmp_path, {"devices/card/power/runtime_status": "suspended\n"})
    (gpu,) = AmdSampler(tmp_path).samples(1.0)
    assert (gpu.utilization, gpu.power_w, gpu.temperature_c) == (0.0, None, None)
    assert gpu.memory_bytes == 4000


def test_who_computes_on_a_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    radeon(tmp_path, "sys/devices/0000:c3:00.0")
    kfd, place = tmp_path / "sys/class/kfd/kfd", f"domain 0\nlocation_id {0xC300}\n"
    files = {
        "topology/nodes/0/properties": f"cpu_cores_count 8\n{place}",
        "topology/nodes/0/gpu_id": "0\n",
        "topology/nodes/1/properties": f"simd_count 304\n{place}",
        "topology/nodes/1/gpu_id": "28851\n",
        "proc/4711/vram_28851": "5000\n",
        "proc/4712/vram_28851": "0\n",
        "proc/4713/vram_9": "7\n",
    }
    planted(kfd, files)
    monkeypatch.setattr("flatout.probing.live.amd.alive", lambda pid: True)
    sampler = AmdSampler(tmp_path)
    (gpu,) = sampler.samples(1.0)
    assert gpu.processes == (GpuUse(4711, 5000, alive=True),)
    (kfd / "proc/4711/vram_28851").write_text("6000\n")
    assert sampler.samples(10.0)[0].processes == gpu.processes  # asked every ten seconds
    assert sampler.samples(11.0)[0].processes == (GpuUse(4711, 6000, alive=True),)


# All vendors --------------------------------------------------------------------------------------


def test_vendors_one_after_the_other(tmp_path: Path) -> None:
    radeon(tmp_path)
    library = GpmNvml()
    with MachineSampler(tmp_path, library) as sampler:
        sampler.gpm_wanted = True
        gpus = sampler.sample().gpus
        assert library.samples
    assert [gpu.vendor for gpu in gpus] == ["nvidia", "nvidia", "amd"]
    assert [gpu.index for gpu in gpus] == [0, 1, 2]
    assert library.samples == {}


@pytest.mark.parametrize(
    ("broken", "left"),
    [
        ("nvidia", [("amd", 2)]),
        ("amd", [("nvidia", 0), ("nvidia", 1)]),
    ],
)
def test_an_error_of_one_vendor_costs_no_other(
    broken: Vendor, left: list[tuple[str, int]], tmp_path: Path
) -> None:
    radeon(tmp_path)

    def fails(now_s: float, first_index: int) -> Any:
        raise RuntimeError("a bug")

    with MachineSampler(tmp_path, GpmNvml()) as sampler:
        assert len(sampler.sample().gpus) == 3
        sampler._vendors[broken] = fails
        assert [(gpu.vendor, gpu.index) for gpu in sampler.sample().gpus] == left


def test_a_vendor_that_cannot_begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    radeon(tmp_path)

    def fails(*arguments: Any) -> Any:
        raise RuntimeError("a bug")

    monkeypatch.setattr(live_sampler, "NvidiaSampler", fails)
    with MachineSampler(tmp_path, GpmNvml()) as sampler:
        assert [gpu.vendor for gpu in sampler.sample().gpus] == ["amd"]


def test_a_mac(monkeypatch: pytest.MonkeyPatch) -> None:
    class Fake:
        def samples(self, now_s: float, first_index: int) -> tuple[GpuSample, ...]:
            return (GpuSample(first_index, "apple"),)

    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(live_sampler, "AppleSampler", Fake)
    with MachineSampler(library=SimpleNamespace()) as sampler:
        assert [gpu.vendor for gpu in sampler.sample().gpus] == ["apple"]


# Processes ----------------------------------------------------------------------------------------


def test_a_process_with_what_it_started() -> None:
    child = "import time\nwhile True: time.sleep(0.001)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    process = subprocess.Popen([sys.executable, "-c", parent])
    tree = TreeUse(process.pid)
    seen: list[tuple[float | None, int | None, frozenset[int]]] = []

    def both_run() -> bool:
        tree._family_s = None
        seen.append(tree.read())
        return len(seen[-1][2]) == 2 and seen[-1][0] is not None

    try:
        until(both_run)
        assert (seen[-1][1] or 0) > 2**20
    finally:
        for pid in seen[-1][2] - {process.pid}:
            os.kill(pid, 9)
        process.kill()
        process.wait()
    tree._family_s = None
    assert tree.read()[2] == frozenset()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="pid namespaces")
def test_whether_a_process_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    own = Path("/proc/self/ns/pid").stat().st_ino & 0xFFFFFFFF
    monkeypatch.setattr(pids, "MACHINES_OWN", own)
    assert pids.alive(os.getpid()) is True
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert pids.alive(process.pid) is True
        process.kill()
        until(lambda: pids.alive(process.pid) is False)  # a zombie
    assert pids.alive(process.pid) is False
    monkeypatch.setattr(pids, "MACHINES_OWN", own + 1)  # as inside a container
    assert pids.alive(os.getpid()) is None
    assert pids.alive(process.pid) is None


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc")
@pytest.mark.parametrize("code", ["breakpoint()", "import readline; input()", "input()"])
def test_a_program_in_a_terminal_that_waits_for_its_user(code: str) -> None:
    import pty  # not on every system

    main, terminal = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=terminal, stdout=terminal, stderr=terminal
    ) as process:
        os.close(terminal)
        until(lambda: waits_for_input(process.pid))
        process.kill()
    os.close(main)


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc")
def test_a_process_that_waits_for_its_user() -> None:
    def sleeps(pid: int) -> bool:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "S"

    for code, expected in (("input()", True), ("import time; time.sleep(600)", False)):
        command = [sys.executable, "-c", code]
        with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
            until(lambda pid=process.pid: sleeps(pid))  # it waits for something
            until(lambda pid=process.pid, is_it=expected: waits_for_input(pid) == is_it)
            process.kill()
    assert not waits_for_input(process.pid)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="control groups")
def test_the_share_of_periods_in_which_a_quota_ran_out(tmp_path: Path) -> None:
    group = {"proc__self__cgroup": "0::/\n", "proc__self__mountinfo": MOUNTS}
    stat = "nr_periods {}\nnr_throttled {}\nthrottled_usec 900000000\n"
    plant(tmp_path, proc__stat=STAT.format(busy=0, idle=0, steal=0), **group)
    plant(tmp_path, sys__fs__cgroup__cpu_stat=stat.format(100, 10))
    file = tmp_path / "sys/fs/cgroup/cpu_stat"
    file.rename(file.with_name("cpu.stat"))
    with MachineSampler(tmp_path) as sampler:
        sampler.sample()
        (tmp_path / "sys/fs/cgroup/cpu.stat").write_text(stat.format(140, 20))
        time.sleep(0.1)
        assert sampler.sample().cpu_throttled == pytest.approx(0.25)


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc")
def test_a_job_that_flatout_did_not_start() -> None:
    code = "import os, torch, sys; print(os.getpid(), flush=True); sys.stdin.read()"
    # One process in between that has no torch: this one may have it, and would be its job.
    between = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {code!r}])"
    process = subprocess.Popen(
        [sys.executable, "-c", between], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        pid = int(process.stdout.readline())
        found = {job.pid: job for job in ForeignJobs().find(())}
        assert "import os, torch" in found[pid].command
        assert pid not in {job.pid for job in ForeignJobs().find({pid})}
        assert pid not in {job.pid for job in ForeignJobs().find({os.getpid()})}  # it started it
    finally:
        process.communicate("")  # the end of its input ends both


@pytest.mark.parametrize(("system", "jobs"), [("win32", [12]), ("linux", [11, 12])])
def test_what_is_listed_on_a_gpu_is_a_job_but_the_desktop_on_windows_is_none(
    system: str, jobs: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def process(pid: int, name: str) -> SimpleNamespace:
        told = {"cmdline": [name], "parents": [], "username": "me", "cwd": "/", "name": name}
        answers = {key: lambda value=value: value for key, value in told.items()}
        answers |= {"create_time": lambda: float(pid), "ppid": lambda: 1}
        return SimpleNamespace(pid=pid, info={"name": name}, **answers)

    running = [process(11, "explorer.exe"), process(12, "python.exe"), process(13, "notepad.exe")]
    monkeypatch.setattr(psutil, "process_iter", lambda names: iter(running))
    monkeypatch.setattr(sys, "platform", system)
    assert [job.pid for job in ForeignJobs().find((), {11, 12})] == jobs


def test_what_only_draws_is_no_foreign_job() -> None:
    asked: list[int] = []
    uses = (GpuUse(1, computes=False), GpuUse(2))
    finds: Any = SimpleNamespace(find=lambda own, on_gpu: asked.extend(on_gpu) or [])
    observer = JobsObserver(SimpleNamespace())
    observer._foreign = finds
    gpus = (GpuSample(0, "nvidia", processes=uses),)
    observer._foreign_jobs(MachineSample(1.0, "node", gpus=gpus))
    assert asked == [2]


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc")
def test_what_flatout_starts_itself_is_no_foreign_job(tmp_path: Path) -> None:
    """Workers of an export have torch too, and so have the processes that compile for them."""
    worker = tmp_path / "flatout_programs" / "worker.py"
    worker.parent.mkdir()
    compiler = "import os, torch, sys; print(os.getpid(), flush=True); sys.stdin.read()"
    worker.write_text(
        f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {compiler!r}])"
    )
    other = tmp_path / "worker.py"
    other.write_text(worker.read_text())
    between = "import subprocess, sys; subprocess.run([sys.executable, sys.argv[1]])"
    started = [
        subprocess.Popen(
            [sys.executable, "-c", between, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for path in (worker, other)
    ]
    try:
        pids = [int(process.stdout.readline()) for process in started if process.stdout]
        found = {job.pid for job in ForeignJobs().find(())}
        assert [pid in found for pid in pids] == [False, True]
    finally:
        for process in started:
            process.communicate(b"")
