"""Capture folders of small models, as the agent writes them, for tests of what comes after."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

import forked

QUICK = str(Path(__file__).with_name("quick_export.py"))
"""A program: the command line, with exports of two builds that take seconds."""
BARE = """
import sys
import numpy
sys.path.insert(0, sys.argv[1])
import load

model, calls = load.load(check=True, threads=1), numpy.load(sys.argv[2])
for name in calls.files:
    numpy.savez(sys.argv[3] + "/" + name, **model(calls[name]))
assert not any(name.startswith("flatout") for name in sys.modules)
"""


def quick(folder: Path, command: str, *words: str) -> subprocess.CompletedProcess[str]:
    """The command line in that folder, with exports of two builds."""
    return subprocess.run(
        [sys.executable, "-P", QUICK, command, "--python", forked.python(), *words],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )


def answers(artefact: Path, inputs: Sequence[torch.Tensor]) -> list[dict[str, torch.Tensor]]:
    """What an exported model gives for each input, in a process without anything of flatout."""
    import numpy

    with tempfile.TemporaryDirectory() as place:
        calls = Path(place, "calls.npz")
        numpy.savez(calls, *(item.numpy() for item in inputs))
        command = [sys.executable, "-I", "-c", BARE, str(artefact), str(calls), place]
        subprocess.run(command, check=True, timeout=240)
        files = [numpy.load(Path(place, f"arr_{at}.npz")) for at in range(len(inputs))]
        return [{name: torch.from_numpy(file[name]) for name in file.files} for file in files]


class Flat(nn.Module):
    """A model whose outputs are always a tuple."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        outputs = self.inner(*inputs)
        return outputs if isinstance(outputs, tuple) else (outputs,)


def small_cnn(classes: int = 10) -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()]
    layers += [nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(128, classes)]
    model = nn.Sequential(*layers)
    model.train()
    for _ in range(3):
        model(torch.randn(16, 3, 12, 12))  # statistics of the batch norm that are not 0 and 1
    return model.eval()


def images(*sizes: int) -> list[tuple[torch.Tensor, ...]]:
    torch.manual_seed(1)
    return [(torch.randn(size, 3, 12, 12),) for size in sizes]


def capture(
    folder: Path,
    model: nn.Module,
    calls: Sequence[tuple[torch.Tensor, ...]],
    targets: Sequence[torch.Tensor | None] | None = None,
    *,
    dynamic: bool = True,
    outputs: Callable[[tuple[torch.Tensor, ...]], tuple[torch.Tensor, ...]] | None = None,
    **facts: Any,
) -> Path:
    """Write a capture folder; outputs: other ones than the model's."""
    folder.mkdir(parents=True, exist_ok=True)
    flat = Flat(model).eval()
    largest = max(calls, key=lambda call: call[0].shape[0])
    free = {0: torch.export.Dim.DYNAMIC} if dynamic else {}
    with torch.no_grad():
        shapes = (tuple(free for _ in largest),)
        program = torch.export.export(flat, largest, dynamic_shapes=shapes)
        given = [(outputs or (lambda call: flat(*call)))(call) for call in calls]
    torch.export.save(program, folder / "model.pt2")
    samples = {"inputs": list(calls), "outputs": given, "targets": targets or [None] * len(calls)}
    torch.save(samples, folder / "samples.pt")
    described: dict[str, Any] = {
        "schema": "flatout.capture/1",
        "model": type(model).__name__,
        "source": "evaluation",
        "parameters": sum(item.numel() for item in model.parameters()),
        "torch": torch.__version__,
        "inputs": _described("x", largest, dynamic),
        "outputs": _described("y", given[0], dynamic),
        "batch_sizes": sorted({call[0].shape[0] for call in calls}),
        "batch_dynamic": dynamic,
        "weights": "trained",
        "metric": None,
        "notes": [],
    }
    (folder / "capture.json").write_text(json.dumps({**described, **facts}), encoding="utf-8")
    return folder


def _described(letter: str, tensors: Sequence[torch.Tensor], dynamic: bool) -> list[dict[str, Any]]:
    return [
        {
            "name": f"{letter}{place}",
            "dtype": str(tensor.dtype).removeprefix("torch."),
            "shape": [None if dynamic else tensor.shape[0], *tensor.shape[1:]],
        }
        for place, tensor in enumerate(tensors)
    ]
