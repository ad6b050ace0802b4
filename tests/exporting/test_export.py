"""From a capture to an artefact, with real processes; what goes wrong is a row or an answer."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
import torch
from torch import nn

import exported
import forked
from flatout.exporting import export
from flatout.nouns.errors import UserError
from flatout.nouns.exported import BuildState, ExportResult, ExportSettings, Goal
from flatout_programs import backends

BARE = """
import sys
sys.path.insert(0, "artefact")
import load
import numpy
model = load.load(check=True)
x = numpy.load("x.npy")
batch = model(x)
alone = model(x0=x[:1])
assert list(batch) == ["y0"], batch
numpy.save("y.npy", batch["y0"])
numpy.save("y1.npy", alone["y0"])
assert not any(name.startswith("flatout") for name in sys.modules)
for wrong in ((x[:, :2],), (x, x), (x.astype("complex64"),), ()):
    try:
        model(*wrong)
    except ValueError as error:
        print(error)
    else:
        raise AssertionError(wrong)
print("torch" in sys.modules)
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def settings(folder: Path, **options: object) -> ExportSettings:
    values = {"only": ("eager",), "measure_s": 0.3, "threads": 1, **options}
    return ExportSettings(forked.python(), folder / "artefact", **values)  # type: ignore[arg-type]


def run_bare(folder: Path, model: nn.Module) -> str:
    """Load the artefact where nothing of flatout can be found; what it printed."""
    x = exported.images(5)[0][0]
    numpy.save(folder / "x.npy", x.numpy())
    done = subprocess.run(
        [sys.executable, "-I", "-c", BARE.replace('"artefact"', repr(str(folder / "artefact")))],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    with torch.no_grad():
        wanted = model(x).numpy()
    assert numpy.allclose(numpy.load(folder / "y.npy"), wanted, atol=1e-4)
    assert numpy.allclose(numpy.load(folder / "y1.npy"), wanted[:1], atol=1e-4)
    return done.stdout


def ran(folder: Path, **options: object) -> tuple[nn.Module, ExportResult]:
    model = exported.small_cnn()
    captured = exported.capture(folder / "capture", model, exported.images(32, 32, 7))
    return model, export.run(captured, settings(folder, **options))


@pytest.mark.thorough
@pytest.mark.slow
def test_eager_alone(tmp_path: Path) -> None:
    model, result = ran(tmp_path)
    rows = {row.id: row for row in result.candidates}
    assert set(rows) == {"eager"}
    assert rows["eager"].guard.passed
    assert rows["eager"].guard.batch_sizes == (1, 7, 32)
    assert rows["eager"].latency is not None
    assert rows["eager"].speedup == 1.0
    assert result.chosen == "eager"
    assert [row.state for row in result.candidates].count(BuildState.CHOSEN) == 1
    manifest = json.loads((tmp_path / "artefact/manifest.json").read_text(encoding="utf-8"))
    assert manifest["schema"] == "flatout.artefact/1"
    assert set(manifest["files"]) >= {"load.py", "model.pt2"}
    assert {row["id"] for row in manifest["candidates"]} == set(rows)
    assert manifest["guard"]["passed"] is True
    assert "takes" in run_bare(tmp_path, model)
    # An artefact is replaced by the next one.
    captured = tmp_path / "capture"
    again = export.run(captured, settings(tmp_path, goal=Goal.SIZE))
    assert again.chosen == "eager"


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize(
    "backend",
    ["onnxruntime", "aoti", "compile", "openvino"],
)
def test_every_backend_gives_an_artefact_that_stands_alone(tmp_path: Path, backend: str) -> None:
    for package in (
        *backends.load(backend).BACKEND.building,
        *backends.load(backend).BACKEND.serving,
    ):
        pytest.importorskip(package.module)
    model, result = ran(tmp_path, only=(backend,), exact=True, goal=Goal.SIZE)
    row = next(row for row in result.candidates if row.id == backend)
    assert row.guard is not None, row.reason
    assert row.guard.passed, row.reason
    if result.chosen != backend:  # the same frame, another winner
        row = next(item for item in result.candidates if item.id == backend)
        (tmp_path / "artefact").rename(tmp_path / "kept")
        (result.run_folder / "candidates" / backend).rename(tmp_path / "artefact")
    said = run_bare(tmp_path, model)
    assert said.splitlines()[-1] == str(not backends.load(backend).BACKEND.torch_free)


@pytest.mark.slow
def test_a_model_that_draws_random_numbers_is_refused(tmp_path: Path) -> None:
    class Noisy(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.randn_like(x)

    captured = exported.capture(tmp_path / "capture", Noisy(), [(torch.randn(4, 3),)])
    with pytest.raises(UserError, match="random numbers, or keeps a state"):
        export.run(captured, settings(tmp_path))
    assert not (tmp_path / "artefact").exists()


@pytest.mark.thorough
@pytest.mark.slow
def test_a_capture_whose_outputs_are_another_models_is_refused(tmp_path: Path) -> None:
    captured = exported.capture(
        tmp_path / "capture",
        exported.small_cnn(),
        exported.images(8),
        outputs=lambda call: (torch.zeros(8, 10),),
    )
    with pytest.raises(UserError, match="is not what it was in the script"):
        export.run(captured, settings(tmp_path))


FILES = ("capture.json", "model.pt2", "samples.pt")


@pytest.mark.parametrize(
    ("files", "said"),
    [
        *((set(FILES) - {missing}, f"{missing} is missing") for missing in FILES),
        (set(FILES), r"another flatout \(flatout\.capture/9"),
    ],
)
def test_no_capture(tmp_path: Path, files: set[str], said: str) -> None:
    for name in files:
        (tmp_path / name).write_text('{"schema": "flatout.capture/9"}', encoding="utf-8")
    with pytest.raises(UserError, match=said):
        export.read(tmp_path)


@pytest.mark.slow
def test_files_of_the_user_are_left_alone(tmp_path: Path) -> None:
    model = exported.small_cnn()
    captured = exported.capture(tmp_path / "capture", model, exported.images(4))
    (tmp_path / "artefact").mkdir()
    kept = tmp_path / "artefact" / "notes.txt"
    kept.write_text("mine", encoding="utf-8")
    with pytest.raises(UserError, match=r"not an exported model's: notes\.txt"):
        export.run(captured, settings(tmp_path))
    assert kept.read_text(encoding="utf-8") == "mine"
