"""`flatout profile` from end to end: what it prints, its files and its exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from commands.called import Flatout, process

pytestmark = pytest.mark.slow

TRACES = Path(__file__).parent.parent / "traces"
COLLECTS = """
import gc, pathlib, sys, torch
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 2))
optimizer = torch.optim.AdamW(model.parameters())
optimizer.zero_grad()
gc.collect()
gc.freeze()  # torch's own objects would make each collection last a quarter of a second
objects = [[] for _ in range(400_000)]
print("sees a terminal", sys.stdout.isatty())
for step in range({steps}):
    model(torch.randn(32, 64)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    gc.collect()  # COLLECT
print("ended by itself")
"""
UNTIL_RECORDED = COLLECTS.format(steps=100_000).replace(
    "# COLLECT",
    """# COLLECT
    if step % 20 == 0 and any(pathlib.Path(".flatout").rglob("detail-*")):
        break""",
)
"""Ends soon after the last of its steps was recorded."""


ENCODER = """
import torch
from torch import nn
from torch.nn import functional as F

WIDTH, HEADS, BATCH, LENGTH = 1024, 16, 16, 512

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.mixed, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.body = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x):
        mixed = self.mixed(self.norm(x)).view(BATCH, LENGTH, 3, HEADS, WIDTH // HEADS)
        query, key, value = mixed.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(query, key, value)
        x = x + self.out(y.transpose(1, 2).reshape(BATCH, LENGTH, WIDTH))
        return x + self.body(x)

model = nn.Sequential(*(Block() for _ in range(4))).to("cuda")
optimizer = torch.optim.AdamW(model.parameters())
for step in range(100_000):
    x = torch.randn(BATCH, LENGTH, WIDTH, device="cuda")
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
"""Bound by the device: some 2.5 TFLOP of products a step, in float32 without TF32."""


def argv(*words: str) -> list[str]:
    return [sys.executable, "-m", "flatout", "profile", *words]


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return process("profile", *words, folder=folder, OMP_NUM_THREADS="1", COLUMNS="120")


def steps_recorded(folder: Path) -> int:
    """Those since the recording of times began, as the agent's records tell."""
    indices = []
    for path in folder.rglob("*.jsonl"):
        for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
            record = json.loads(line) if line.endswith("\n") else {}
            if record.get("phase") == "record":
                indices.append(record["index"])
    return max(indices, default=0) - min(indices, default=0)


def test_json_findings_files_and_exit_code(flat: Flatout, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(UNTIL_RECORDED)
    done = run(tmp_path, "--no-bench", "--json", "train.py")
    assert done.returncode == 1, done.stderr
    document = json.loads(done.stdout)
    assert document["schema"] == "flatout.profile/1"
    (line,) = [n for n, t in enumerate(COLLECTS.splitlines(), 1) if t.endswith("# COLLECT")]
    places = {(found["code"], found["where"]): found["gain"] for found in document["findings"]}
    assert places["HOST003", f"train.py:{line}"]["predicted"] > 1
    assert sum(part["ms"] for part in document["anatomy"]) == pytest.approx(
        document["step_ms"], rel=0.01
    )
    assert "ended by itself" in done.stderr
    (folder,) = (tmp_path / ".flatout" / "runs").iterdir()
    assert json.loads((folder / "profile.json").read_text()) == document
    assert "<html" in (folder / "report.html").read_text()
    same = flat("compare", str(folder), str(folder / "profile.json"))
    assert same.returncode == 0, same.stderr
    assert same.stdout


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_ctrl_c_reports_what_there_is(tmp_path: Path) -> None:
    """The terminal sends it to both: to the whole process group."""
    (tmp_path / "train.py").write_text(COLLECTS.format(steps=100_000))
    profiling = subprocess.Popen(
        argv("--no-bench", "--steps", "4000", "train.py"),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    deadline = time.monotonic() + 240
    while steps_recorded(tmp_path) < 20:
        assert profiling.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)
    os.killpg(profiling.pid, signal.SIGINT)
    out, err = profiling.communicate(timeout=120)
    assert "the program ended early" in " ".join(out.split()), out + err
    assert profiling.returncode in (0, 1)


def test_a_trace_is_known_by_what_it_holds(flat: Flatout, tmp_path: Path) -> None:
    (tmp_path / "recording").write_bytes((TRACES / "v100_train.json.gz").read_bytes())
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "x.pt.trace.json.gz").write_bytes(
        (TRACES / "v100_train.json.gz").read_bytes()
    )
    by_content = flat("profile", "--json", "recording", folder=tmp_path)
    by_folder = flat("profile", "log", "--json", folder=tmp_path)
    steps = [json.loads(done.stdout)["step_ms"] for done in (by_content, by_folder)]
    assert steps[0] == steps[1] > 0


@pytest.mark.few(2)
@pytest.mark.parametrize(("threshold", "code"), [("1%", 1), ("50%", 0), ("0.01", 1)])
def test_threshold(flat: Flatout, tmp_path: Path, threshold: str, code: int) -> None:
    trace = str(TRACES / "a100_train.json.gz")
    done = flat("profile", "--fail-above", threshold, trace, folder=tmp_path)
    assert done.returncode == code, done.stderr


def test_its_guide_shows_what_it_prints(flat: Flatout, tmp_path: Path, root: Path) -> None:
    done = flat("profile", str(TRACES / "a100_train.json.gz"), folder=tmp_path)
    screen = done.stdout.partition("\nreport ")[0].rstrip()
    assert f"```\n{screen}\n```" in (root / "docs/guide-profile.md").read_text(encoding="utf-8")


@pytest.mark.gpu
def test_what_bfloat16_gains_is_predicted_from_all_kinds_of_kernels(tmp_path: Path) -> None:
    """From matrix products alone, 4.0x was promised where an H200 gave 5.9x, and 2.3x."""
    (tmp_path / "train.py").write_text(ENCODER)
    done = run(tmp_path, "--no-bench", "--stop", "--json", "--fail-above", "100%", "train.py")
    assert done.returncode == 0, done.stderr
    findings = json.loads(done.stdout)["findings"]
    (found,) = [finding for finding in findings if finding["code"] == "KERN003"]
    assert found["boost"] == "bf16-autocast"
    gain = found["gain"]
    for kernels in ("matrix products", "fused attention kernels", "elementwise kernels"):
        assert f"{kernels} take " in gain["reason"]
    assert 1 < gain["low"] <= gain["predicted"] <= 3, "no ceilings were measured"
