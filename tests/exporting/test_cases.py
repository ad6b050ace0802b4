"""Real builds that went wrong as users of other exporters report, and what must hold here.

A small residual network is exported by ONNX Runtime and OpenVINO, and its files are then damaged as
others have seen them: an ONNX model that is never right (pytorch#169178), a convolution with
another one's bias (pytorch#166797), batch 1 baked in (pytorch#133653, #151582), results that differ
for other shapes than the traced ones (pytorch#147475), a package of AOTInductor that compiles again
when it is loaded (pytorch#191715), torch 50 times as slow after ONNX Runtime in its process
(onnxruntime#13808), bfloat16 or halved weights that OpenVINO takes by itself (openvino#28032), and
OpenVINO half as fast as ONNX Runtime (openvino#21048).
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from onnx import numpy_helper
from torch import nn

import exported
from flatout.exporting import candidates, choosing, worker
from flatout.exporting.choosing import Contender
from flatout.exporting.export import Export, read
from flatout.exporting.worker import Broken
from flatout.nouns.exported import BuildState, ExportCandidate, ExportSettings, Goal
from flatout_agent.capture.calls import SeenCall
from flatout_agent.capture.capture import Wanted, capture


class Residual(nn.Module):
    """A block and the stem of a ResNet."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
        self.block = nn.Sequential(
            nn.Conv2d(16, 16, 3, padding=1, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Conv2d(16, 16, 3, padding=1, bias=False),
            nn.BatchNorm2d(16),
        )
        self.head = nn.Linear(16, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.stem(images)
        return self.head((x + self.block(x)).relu().mean((2, 3)))


SHAPES = ((32, 12, 12), (32, 12, 12), (7, 16, 20), (5, 9, 12))


def network() -> nn.Module:
    torch.manual_seed(0)
    model = Residual()
    for _ in range(4):  # statistics that are not 0 and 1
        model(torch.randn(16, 3, 12, 12) * 2 + 1)
    return model.eval()


@dataclass
class BuiltOnce:
    """An export on its way, with its verified builds."""

    run: Export
    folder: Path
    processes: ExitStack

    def row(self, name: str) -> ExportCandidate:
        return self.run.rows[name]

    def build(self, name: str) -> Path:
        return self.run.folder / "candidates" / name

    def damaged(self, name: str, damage: Callable[[Path], None]) -> ExportCandidate:
        """The row of a build whose files are damaged before it is verified."""
        copy = self.run.folder / "damaged"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(self.build(name), copy)
        damage(copy)
        plan = next(p for p in candidates.plans(self.run.settings) if p.id == name)
        sound = self.run.rows[name]
        self.run.rows[name] = replace(sound, state=BuildState.FAILED)
        try:
            self.run._verify(plan, self.run.rows[name], copy, self.processes)
            return self.run.rows[name]
        except Broken as reason:
            return replace(self.run.rows[name], reason=str(reason))
        finally:
            self.run.rows[name] = sound


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BuiltOnce]:
    folder = tmp_path_factory.mktemp("cases")
    images = [torch.randn(rows, 3, height, width) for rows, height, width in SHAPES]
    calls = [SeenCall((x,), {}) for x in images]
    capture(network(), calls, Wanted(str(folder / "capture"), "evaluation"))
    only = ("eager", "onnxruntime", "openvino")
    settings = ExportSettings(sys.executable, folder / "kept", exact=True, only=only, threads=1)
    run = Export(folder / "capture", read(folder / "capture"), settings, print, folder / "run")
    with ExitStack() as processes:
        run.prepare()
        for plan in candidates.plans(settings):
            run.attempt(plan, processes)
        yield BuiltOnce(run, folder, processes)


def model_of(folder: Path) -> Any:
    return onnx.load(folder / "model.onnx")


def saved(folder: Path, model: Any) -> None:
    for path in folder.glob("model.onnx*"):
        path.unlink()
    onnx.save(model, folder / "model.onnx")


def initializers(model: Any) -> dict[str, Any]:
    return {item.name: item for item in model.graph.initializer}


def changed(tensor: Any, change: Callable[[Any], Any]) -> None:
    values = change(numpy_helper.to_array(tensor)).astype("float32")
    tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))


def never_right(folder: Path) -> None:
    """The last layer's weights have the wrong sign."""
    model = model_of(folder)
    last = [node for node in model.graph.node if node.op_type in ("Gemm", "MatMul")][-1]
    changed(initializers(model)[last.input[1]], lambda values: -values)
    saved(folder, model)


def wrong_bias(folder: Path) -> None:
    """The bias of the last convolution is that of the one before."""
    model = model_of(folder)
    biased = [node for node in model.graph.node if node.op_type == "Conv" and len(node.input) > 2]
    own, other = (initializers(model)[node.input[2]] for node in (biased[-1], biased[-2]))
    changed(own, lambda values: numpy_helper.to_array(other))
    saved(folder, model)


def halved_weights(folder: Path) -> None:
    """Weights that went through float16."""
    model = model_of(folder)
    for tensor in model.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            changed(tensor, lambda values: values.astype("float16"))
    saved(folder, model)


@pytest.mark.slow
def test_every_seen_shape_is_compared_and_a_damaged_build_refused(built: BuiltOnce) -> None:
    for name in ("eager", "onnxruntime", "openvino"):
        row = built.row(name)
        assert row.state is BuildState.VERIFIED, row.reason
        assert row.guard.batch_sizes == (1, 5, 7, 32)
        assert row.guard.samples == 76
    assert built.run.captured["inputs"][0]["shape"] == [None, 3, None, None]
    assert_refused(built, never_right)


def assert_refused(built: BuiltOnce, damage: Callable[[Path], None]) -> None:
    row = built.damaged("onnxruntime", damage)
    assert row.state is BuildState.REFUSED, row.reason
    assert "is allowed" in row.reason
    assert not row.guard.passed


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("damage", [wrong_bias, halved_weights])
def test_less_damage_is_refused_too(built: BuiltOnce, damage: Callable[[Path], None]) -> None:
    assert_refused(built, damage)


@pytest.mark.thorough
@pytest.mark.slow
def test_batch_1_baked_in_is_no_build(built: BuiltOnce) -> None:
    def baked_in(folder: Path) -> None:
        model = model_of(folder)
        model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
        saved(folder, model)

    row = built.damaged("onnxruntime", baked_in)
    assert row.state is BuildState.FAILED
    assert "imensions" in row.reason, row.reason  # ONNX Runtime's own words


@pytest.mark.thorough
@pytest.mark.slow
def test_openvino_keeps_float32_where_exact_was_promised(built: BuiltOnce) -> None:
    import openvino

    folder = built.build("openvino")
    weights = sum(item.numel() for item in network().parameters())
    # Batch norms are folded into convolutions: their 4 x 32 values are gone, no value is halved.
    assert (folder / "model.bin").stat().st_size >= 4 * (weights - 4 * 48)
    order = {"INFERENCE_PRECISION_HINT": "f32"}
    compiled = openvino.Core().compile_model(str(folder / "model.xml"), "CPU", order)
    assert compiled.get_property("INFERENCE_PRECISION_HINT").to_string() == "f32"
    text = (folder / "manifest.json").read_text(encoding="utf-8")
    assert '"precision": "f32"' in text
    guard = built.row("openvino").guard
    assert guard.relative_error is not None
    assert guard.relative_error <= 1e-5  # bfloat16 would be off by a thousand times that


@pytest.mark.slow
def test_builds_share_no_process_and_torch_is_not_in_theirs(built: BuiltOnce) -> None:
    pids = {attempt.timed.worker._talk.pid for attempt in built.run.verified}
    assert len(pids) == len(built.run.verified) >= 3
    for attempt in built.run.verified:
        answer = attempt.timed.worker.ask({"do": "load"}, 60.0)
        assert answer["torch"] == (attempt.plan.id == "eager")


@pytest.mark.thorough
@pytest.mark.slow
def test_a_build_that_does_not_end_or_takes_too_much_is_a_row(built: BuiltOnce) -> None:
    run = built.run
    plan = next(p for p in candidates.plans(run.settings) if p.id == "openvino")
    for name, limits, says in (
        ("hangs", {"build_limit_s": 0.05}, "it took longer than 0 s"),
        ("grows", {"memory_bytes": 1 << 20}, "1.0 MiB is the limit"),
    ):
        other = replace(run, settings=replace(run.settings, **limits), folder=built.folder / name)
        other.rows, other.prepared = {}, run.prepared
        with ExitStack() as processes:
            other.attempt(plan, processes)
        row = other.rows["openvino"]
        assert (row.state, says in row.reason) == (BuildState.FAILED, True), row.reason


@pytest.mark.parametrize(("ort", "openvino"), [(5.0, 10.0), (10.0, 5.0)])
def test_the_faster_runtime_is_kept_whichever_it_is(ort: float, openvino: float) -> None:
    found = [
        Contender(name, (rank, 0), name, ms, (ms,) * 12)
        for name, rank, ms in (
            ("eager", 0, 12.0),
            ("onnxruntime", 4, ort),
            ("openvino", 5, openvino),
        )
    ]
    choice = choosing.choose(found, Goal.LATENCY)
    assert choice[0] == ("onnxruntime" if ort < openvino else "openvino")


NO_COMPILER = """
import os, sys
sys.path.insert(0, sys.argv[1])
import load, numpy, subprocess
started = []
def watched(event, args):
    if event in ("subprocess.Popen", "os.exec", "os.posix_spawn"):
        started.append(str(args[:2]))
sys.addaudithook(watched)
model = load.load(threads=1)
print(model(numpy.zeros((3, 3, 12, 12), "float32"))["y0"].shape, started)
"""


@pytest.mark.slow
@pytest.mark.thorough
def test_a_package_of_aotinductor_loads_without_a_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is compiled again, and nothing is started to see whether it could be."""

    monkeypatch.chdir(tmp_path)
    captured = exported.capture(tmp_path / "capture", network(), exported.images(32, 7))
    settings = ExportSettings(sys.executable, tmp_path / "kept", only=("aoti",), exact=True)
    run = Export(captured, read(captured), replace(settings, threads=1), print, tmp_path / "run")
    with ExitStack() as processes:
        run.prepare()
        for plan in candidates.plans(run.settings):
            run.attempt(plan, processes)
    assert run.rows["aoti"].state is BuildState.VERIFIED, run.rows["aoti"].reason
    empty = tmp_path / "empty"
    empty.mkdir()
    variables = {"PATH": str(empty), "CXX": "no-compiler", "HOME": str(empty)}
    done = subprocess.run(
        [sys.executable, "-c", NO_COMPILER, str(run.folder / "candidates/aoti")],
        env={**worker.environment({"threads": 1}), **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.stdout.strip() == "(3, 10) []", done.stdout + done.stderr
