"""A capture folder as backends see it: the program, its inputs, and calls to try and calibrate."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import List

    Call = List[Any]  # arrays of numpy, one for each input

TYPICAL_CALLS = 2


class Captured:
    """A capture that `prepare` has made ready."""

    def __init__(self, capture: Path, prepared: Path) -> None:
        from flatout_programs.exporting import calls

        self.folder = capture
        self.facts = json.loads((capture / "capture.json").read_text(encoding="utf-8"))
        self.prepared = json.loads((prepared / "prepared.json").read_text(encoding="utf-8"))
        self._calls = calls.CallFiles(prepared)

    @property
    def input_names(self) -> list[str]:
        return [item["name"] for item in self.facts["inputs"]]

    @property
    def output_names(self) -> list[str]:
        return [item["name"] for item in self.facts["outputs"]]

    @property
    def batch_dynamic(self) -> bool:
        return bool(self.facts["batch_dynamic"])

    def program(self) -> Any:
        """The exported program, loaded again each time, as backends change it."""
        import torch

        return torch.export.load(self.folder / "model.pt2")

    def module(self) -> Any:
        """The exported program as a torch module, loaded again each time."""
        return unguarded(self.program())

    def copy_program(self, path: Path) -> None:
        """The exported program as a file."""
        shutil.copyfile(self.folder / "model.pt2", path)

    def single_calls(self) -> list[Call]:
        """Calls of one row each, or of the only batch size there is."""
        return [self._calls.inputs("single", at) for at in range(self._calls.count("single"))]

    def typical_calls(self) -> list[Call]:
        """A few calls of different batch sizes, the largest first."""
        found = [self._calls.inputs("seen", at) for at in range(self._calls.count("seen"))]
        found.sort(key=lambda call: -max(item.size for item in call))
        return [found[0], *self.single_calls()[:1]][:TYPICAL_CALLS]

    def calibration_calls(self) -> list[Call]:
        """Calls that the guard does not see. Raises RuntimeError if there are none."""
        count = self._calls.count("calibration")
        if not count:
            raise RuntimeError(
                "too few samples were captured to calibrate on some and judge by the others"
            )
        return [self._calls.inputs("calibration", at) for at in range(count)]

    def dynamic_shapes(self) -> tuple[dict[int, Any], ...]:
        """The dimensions that may change, for `torch.export.export`."""
        import torch

        dynamic = torch.export.Dim.DYNAMIC
        return tuple(
            {at: dynamic for at, size in enumerate(item["shape"]) if size is None}
            for item in self.facts["inputs"]
        )

    def tensors(self, call: Call) -> tuple[Any, ...]:
        """The inputs of a call as torch tensors."""
        import torch

        return tuple(torch.from_numpy(item.copy()) for item in call)

    def autocast_program(self) -> Any:
        """The program with its products in bfloat16 and unchanged inputs and outputs."""
        import torch

        inner = self.module()
        dtypes = [getattr(torch, item["dtype"]) for item in self.facts["outputs"]]

        class InBfloat16(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner = inner

            def forward(self, *inputs: Any) -> tuple[Any, ...]:
                device = "cuda" if inputs and inputs[0].is_cuda else "cpu"
                with torch.autocast(device, torch.bfloat16):
                    outputs = self.inner(*inputs)
                return tuple(item.to(dtype) for item, dtype in zip(outputs, dtypes))

        sample = self.tensors(self.typical_calls()[0])
        with torch.no_grad():
            return torch.export.export(
                InBfloat16(), sample, dynamic_shapes=(self.dynamic_shapes(),)
            )


def unguarded(program: Any) -> Any:
    """The program as a module that does not check the shapes of its inputs again."""
    try:
        return program.module(check_guards=False)
    except TypeError:  # torch before 2.9
        return program.module()
