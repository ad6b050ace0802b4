from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from flatout_agent.boost import Declined
from flatout_agent.boosts import allocator as boost
from flatout_agent.job import Job
from flatout_agent.wire import JobFacts

SOURCE = Path(__file__).resolve().parents[3] / "src"
CPU = JobFacts("2.13.0", "3.11", "linux", "cpu")
CUDA = dataclasses.replace(CPU, device="cuda")
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


def _said(program: str, **environ: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        env={**os.environ, "PYTHONPATH": str(SOURCE), **environ},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.slow
@on_glibc
def test_a_large_tensor_no_longer_faults_in_its_pages_each_step() -> None:
    said = json.loads(_said(STEPS))
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
        ("LD_PRELOAD", "/usr/lib/libjemalloc.so.2", "LD_PRELOAD loads jemalloc"),
    ],
)
def test_the_users_own_malloc_stays(
    name: str, setting: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, setting)
    with pytest.raises(Declined, match=f"^{reason}$"):
        boost.apply(Job(), torch, {})


@on_glibc
def test_another_malloc_that_is_loaded_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boost, "PRELOADED", ("libc.so",))
    with pytest.raises(Declined, match="another malloc than glibc's"):
        boost.apply(Job(), torch, {})


def test_the_variable_is_called_as_this_torch_calls_it(monkeypatch: pytest.MonkeyPatch) -> None:
    old = dataclasses.replace(CUDA, torch="2.8.0+cu128")
    new = dataclasses.replace(CUDA, torch="2.11.0+cu130")
    assert boost.environment(CPU, {}) == {}
    assert boost.environment(old, {}) == {"PYTORCH_CUDA_ALLOC_CONF": boost.EXPAND}
    assert boost.environment(new, {}) == {"PYTORCH_ALLOC_CONF": boost.EXPAND}
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:512")
    assert boost.environment(new, {}) == {
        "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:512," + boost.EXPAND
    }


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        (CUDA, None),
        (dataclasses.replace(CUDA, hip=True), "ROCm"),
        (dataclasses.replace(CUDA, system="win32"), "Windows"),
        (dataclasses.replace(CPU, system="darwin"), "darwin"),
        (dataclasses.replace(CPU, device="mps"), "mps"),
    ],
)
def test_applies(facts: JobFacts, reason: str | None) -> None:
    said = boost.applies(facts, {})
    assert said is None if reason is None else reason in (said or "")


@pytest.mark.parametrize("conf", ["expandable_segments:False", "backend:cudaMallocAsync"])
def test_the_users_own_cuda_settings_stay(monkeypatch: pytest.MonkeyPatch, conf: str) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", conf)
    assert "PYTORCH_CUDA_ALLOC_CONF sets" in (boost.applies(CUDA, {}) or "")
    assert boost.environment(CUDA, {}) == {}


def test_other_c_libraries_are_declined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boost, "_glibc", lambda: False)
    assert boost.applies(CPU, {}) == "the C library is not glibc"


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
    applied = boost.apply(Job(), torch, {})
    assert applied.engaged() == (False, "the program did not use CUDA")
    assert asked == []


@pytest.mark.gpu
def test_segments_expand_on_a_gpu() -> None:
    script = (
        "import torch; from flatout_agent.boosts import allocator; from flatout_agent.job import "
        "Job; a = allocator.apply(Job(), torch, {}); torch.ones(1 << 20, device='cuda'); "
        "print(a.engaged())"
    )
    environ = boost.environment(dataclasses.replace(CUDA, torch=torch.__version__), {})
    assert _said(script, **environ) == "(True, 'segments expand')"
