from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from flatout_agent.boost import Declined
from flatout_agent.boosts import allocator as boost
from flatout_agent.job import Job
from flatout_agent.wire import JobFacts

SOURCE = Path(__file__).resolve().parents[3] / "src"
CPU = JobFacts("2.13.0", "3.11", "linux", "cpu")
CUDA = dataclasses.replace(CPU, device="cuda")
KEEP = {"malloc": "glibc-keep"}
on_glibc = pytest.mark.skipif(not boost._glibc(), reason="mallopt's parameters are glibc's")


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    names = (*boost.CONF_NAMES, "LD_PRELOAD", "GLIBC_TUNABLES", "MALLOC_CONF")
    for name in (*names, "MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"):
        monkeypatch.delenv(name, raising=False)


STEPS = """
import json, resource
import torch
from flatout_agent.boosts import allocator
from flatout_agent.job import Job

def faults(steps=5):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(steps):
        tensor = torch.zeros(64 << 20, dtype=torch.uint8) + 1
        del tensor
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

torch.set_num_threads(1)
faults(1)
said = {"before": faults()}
applied = allocator.apply(Job(), torch, {})
faults(1)
# The least of three: the heap may grow once more, or the system may take idle pages away.
said.update(kept=min(faults() for _ in range(3)), engaged=applied.engaged())
applied.undo()
said["undone"] = faults(2)
print(json.dumps(said))
"""
PRELOADED = """
import json
import torch
from flatout_agent.boost import Declined
from flatout_agent.boosts import allocator
from flatout_agent.job import Job

engaged = allocator.apply(Job(), torch, {"malloc": "jemalloc"}).engaged()
try:
    allocator.apply(Job(), torch, {"malloc": "glibc-keep"})
except Declined as reason:
    print(json.dumps([engaged, str(reason)]))
"""


def _child(program: str, **environ: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        env={**os.environ, "PYTHONPATH": str(SOURCE), **environ},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
@on_glibc
def test_a_large_tensor_no_longer_faults_in_its_pages_each_step() -> None:
    said = _child(STEPS)
    assert said["before"] > 500, "the system's huge pages: at least 64 of them a step otherwise"
    assert said["kept"] < said["before"] / 20
    # Two steps of five; one of the two tensors may fit into a hole that the heap has kept.
    assert said["undone"] > said["before"] / 10
    assert said["engaged"] == [True, "glibc keeps freed memory"]


@on_glibc
@pytest.mark.parametrize(
    ("name", "setting", "reason"),
    [
        ("GLIBC_TUNABLES", "glibc.malloc.mmap_max=8", "GLIBC_TUNABLES sets malloc already"),
        ("MALLOC_MMAP_MAX_", "8", "MALLOC_MMAP_MAX_ is set already"),
    ],
)
def test_the_users_own_malloc_settings_stay(
    name: str, setting: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, setting)
    with pytest.raises(Declined, match=f"^{reason}$"):
        boost.apply(Job(), torch, KEEP)


@pytest.mark.skipif(sys.platform != "linux", reason="LD_PRELOAD")
def test_a_library_that_is_not_loaded_is_declined() -> None:
    with pytest.raises(Declined, match="jemalloc is not loaded"):
        boost.apply(Job(), torch, {"malloc": "jemalloc"})


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None or sys.platform != "linux", reason="needs cc")
def test_a_preloaded_library_is_seen(tmp_path: Path) -> None:
    library = tmp_path / "libjemalloc.so.2"
    (tmp_path / "a.c").write_text("int flatout_test;\n")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, tmp_path / "a.c"], check=True)
    engaged, declined = _child(PRELOADED, LD_PRELOAD=str(library))
    assert engaged == [True, "jemalloc is loaded"]
    assert "already loads jemalloc" in declined


def test_a_library_in_the_usual_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boost, "_loader_cache", lambda: "")
    assert boost.find_library("jemalloc", (str(tmp_path),)) is None
    (tmp_path / "x86_64-linux-gnu").mkdir()
    library = tmp_path / "x86_64-linux-gnu/libjemalloc.so.2"
    library.touch()
    assert boost.find_library("jemalloc", (str(tmp_path),)) == str(library)


def test_a_library_in_the_loaders_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    line = "\tlibtcmalloc_minimal.so.4 (libc6,x86-64) => /opt/lib/libtcmalloc_minimal.so.4\n"
    monkeypatch.setattr(boost, "_loader_cache", lambda: "2 libs found\n" + line)
    assert boost.find_library("tcmalloc", ()) == "/opt/lib/libtcmalloc_minimal.so.4"


def test_environment_preloads_in_front_of_the_users_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boost, "find_library", lambda malloc: "/lib/libjemalloc.so.2")
    monkeypatch.setenv("LD_PRELOAD", "/opt/mine.so")
    monkeypatch.setenv("MALLOC_CONF", "mine:1")
    found = boost.environment(CPU, {"malloc": "jemalloc"})
    assert found == {"LD_PRELOAD": "/lib/libjemalloc.so.2:/opt/mine.so"}
    assert boost.environment(CPU, KEEP) == {}


def test_the_variable_is_called_as_this_torch_calls_it(monkeypatch: pytest.MonkeyPatch) -> None:
    old = dataclasses.replace(CUDA, torch="2.8.0+cu128")
    new = dataclasses.replace(CUDA, torch="2.11.0+cu130")
    assert boost.environment(old, KEEP) == {"PYTORCH_CUDA_ALLOC_CONF": boost.EXPAND}
    assert boost.environment(new, KEEP) == {"PYTORCH_ALLOC_CONF": boost.EXPAND}
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:512")
    assert boost.environment(new, KEEP) == {
        "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:512," + boost.EXPAND
    }


@pytest.mark.parametrize(
    ("facts", "params", "reason"),
    [
        (CUDA, KEEP, None),
        (CUDA, {"malloc": "jemalloc"}, "for jobs on a CPU"),
        (dataclasses.replace(CUDA, hip=True), KEEP, "ROCm"),
        (dataclasses.replace(CUDA, system="win32"), KEEP, "Windows"),
        (dataclasses.replace(CPU, system="darwin"), KEEP, "darwin"),
        (dataclasses.replace(CPU, device="mps"), KEEP, "mps"),
    ],
)
def test_applies(facts: JobFacts, params: Any, reason: str | None) -> None:
    said = boost.applies(facts, params)
    assert said is None if reason is None else reason in (said or "")


@pytest.mark.parametrize("conf", ["expandable_segments:False", "backend:cudaMallocAsync"])
def test_the_users_own_cuda_settings_stay(monkeypatch: pytest.MonkeyPatch, conf: str) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", conf)
    assert "PYTORCH_CUDA_ALLOC_CONF sets" in (boost.applies(CUDA, KEEP) or "")
    assert boost.environment(CUDA, KEEP) == {}


def test_other_c_libraries_are_declined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boost, "_glibc", lambda: False)
    assert boost.applies(CPU, KEEP) == "the C library is not glibc"


def test_missing_libraries_are_declined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boost, "find_library", lambda malloc: None)
    reason = boost.applies(CPU, {"malloc": "tcmalloc"})
    assert reason == "tcmalloc is not installed on this machine"


def test_the_driver_is_not_initialized_before_the_script_chooses_its_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The driver reads CUDA_VISIBLE_DEVICES once, when it is first asked for its devices."""
    asked: list[str] = []
    monkeypatch.setattr(
        torch._C, "_cuda_getDeviceCount", lambda: asked.append("driver") or 1, raising=False
    )
    monkeypatch.setattr(torch.cuda, "_device_count_nvml", lambda: 1)
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.delenv("PYTORCH_NVML_BASED_CUDA_CHECK", raising=False)
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", boost.EXPAND)
    applied = boost.apply(Job(), torch, KEEP)
    assert applied.engaged() == (False, "the program did not use CUDA")
    assert asked == []


@pytest.mark.gpu
def test_segments_expand_on_a_gpu() -> None:
    script = (
        "import torch; from flatout_agent.boosts import allocator; from flatout_agent.job import "
        "Job; a = allocator.apply(Job(), torch, {}); torch.ones(1 << 20, device='cuda'); "
        "print(a.engaged())"
    )
    environ = boost.environment(dataclasses.replace(CUDA, torch=torch.__version__), KEEP)
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(SOURCE), **environ},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "(True, 'segments expand')"
