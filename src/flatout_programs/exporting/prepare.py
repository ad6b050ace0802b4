"""Prepare a capture: calls as arrays, the model's results in eager float32, and its own error.

Raises Unfit if the capture cannot serve as a reference.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from flatout_programs.exporting.calls import Writer
from flatout_programs.exporting.captured import unguarded

SINGLE_ROWS = 64
CALIBRATION_ROWS = 128
LEAST_CALIBRATION = 8
REPEATS = 1e-4
"""Relative error up to which the program agrees with the script's model, as kernels differ."""
BATCH_SPREAD = 1e-3
"""Relative error up to which a row alone agrees with the same row in its batch."""


class Unfit(Exception):  # noqa: N818 - the answer, with its reason
    """The capture cannot be exported; the message says why."""


def prepare(capture: Path, folder: Path, threads: int) -> dict[str, Any]:
    """Write `prepared.json` and the calls; returns the facts."""
    import torch

    torch.set_num_threads(threads)
    captured = json.loads((capture / "capture.json").read_text(encoding="utf-8"))
    samples = torch.load(capture / "samples.pt", weights_only=True)
    program = torch.export.load(capture / "model.pt2")
    run = Eager(unguarded(program))
    folder.mkdir(parents=True, exist_ok=True)
    ready = Preparation(captured, samples, run, Writer(folder))
    facts = ready.facts()
    facts["own_errors"] = own_errors(program, ready.calls, len(captured["outputs"]))
    facts.update(machine(), threads=threads)
    ready.writer.close()
    (folder / "prepared.json").write_text(json.dumps(facts), encoding="utf-8")
    return facts


class Eager:
    """The program in eager float32."""

    def __init__(self, module: Any) -> None:
        self.module = module

    def __call__(self, inputs: Any) -> list[Any]:
        import torch

        with torch.inference_mode():
            outputs = self.module(*[item.clone() for item in inputs])
        return [item.clone() for item in outputs]


class Preparation:
    """The calls of one capture, checked and written."""

    def __init__(
        self, captured: dict[str, Any], samples: dict[str, Any], run: Any, writer: Writer
    ) -> None:
        self.captured, self.run, self.writer = captured, run, writer
        calls = list(zip(samples["inputs"], samples["outputs"], samples["targets"]))
        if not calls:
            raise Unfit("the capture holds no call of the model")
        self.calls: list[Any] = calls
        self.dynamic = bool(captured["batch_dynamic"])
        self.input_axes = axes(captured["inputs"], [call[0] for call in calls], captured)
        self.output_axes = axes(captured["outputs"], [call[1] for call in calls], captured)
        for item in [*self.captured["inputs"], *self.captured["outputs"]]:
            if item["dtype"] in ("bfloat16", "complex32") or item["dtype"].startswith("float8"):
                raise Unfit(
                    f"{item['name']} is {item['dtype']}, which numpy has not: convert it to float32"
                    " outside the model"
                )

    def facts(self) -> dict[str, Any]:
        """Verify that the model repeats itself, write every group, and return the findings."""
        references = [self._reference(at) for at in range(len(self.calls))]
        rows = [self.rows(call) for call in self.calls]
        for (inputs, _, target), outputs, count in zip(self.calls, references, rows):
            self.writer.add("seen", count, inputs, outputs, target)
        alone = self._singles()
        self._split(references, rows)
        place, axis = self._classes(references)
        return {
            "output_names": [item["name"] for item in self.captured["outputs"]],
            "input_axes": self.input_axes,
            "output_axes": self.output_axes,
            "class_output": place,
            "class_axis": axis,
            "rows": sum(rows),
            "batch_sizes": sorted(set(rows)),
            "singles": len(self.writer.index["single"]),
            "single_rows": 1 if self.dynamic else min(rows),
            "batch_matters": alone,
        }

    def rows(self, call: Any) -> int:
        """Rows of a call: the size of the batch dimension."""
        for item, axis in zip(call[0], self.input_axes):
            if axis is not None:
                return int(item.shape[axis])
        sizes = self.captured["batch_sizes"]
        return int(sizes[0]) if sizes else 1

    def _reference(self, at: int) -> list[Any]:
        inputs, given, _ = self.calls[at]
        outputs: list[Any] = self.run(inputs)
        again = self.run(inputs)
        if len(outputs) != len(given):
            raise Unfit(f"the exported program has {len(outputs)} outputs, the model {len(given)}")
        names = [item["name"] for item in self.captured["outputs"]]
        for name, found, second, wanted in zip(names, outputs, again, given):
            if found.shape != wanted.shape:
                raise Unfit(
                    f"{name} of the exported program has the shape {tuple(found.shape)}, that of"
                    f" the model {tuple(wanted.shape)}"
                )
            for other, what in ((second, "at the second call"), (wanted, "in the script")):
                error = difference(found, other)
                if not error <= REPEATS:
                    raise Unfit(
                        f"{name} is not what it was {what} (relative error {error:.1e}): the model"
                        " draws random numbers, or keeps a state between calls"
                    )
        return outputs

    def _singles(self) -> bool:
        """Write calls of one row; returns whether a row alone gives something else than in its
        batch.
        """
        if not self.dynamic:
            for (inputs, _, target), at in zip(self.calls[:SINGLE_ROWS], range(SINGLE_ROWS)):
                del at
                self.writer.add("single", self.rows((inputs,)), inputs, self.run(inputs), target)
            return False
        matters, each = False, max(1, SINGLE_ROWS // len(self.calls))
        for inputs, given, _ in self.calls[:SINGLE_ROWS]:
            count = self.rows((inputs,))
            for row in range(0, count, max(1, count // each)):
                one = cut(inputs, self.input_axes, row, row + 1)
                outputs = self.run(one)
                for found, whole, axis in zip(outputs, given, self.output_axes):
                    if axis is not None and axis < whole.dim() and found.is_floating_point():
                        part = whole.narrow(axis, row, 1)
                        matters |= part.shape != found.shape or not (
                            difference(found, part) <= BATCH_SPREAD
                        )
                self.writer.add("single", 1, one, outputs)
        return matters

    def _split(self, references: list[Any], rows: list[int]) -> None:
        """Rows for calibration, and calls without them for judging."""
        total = sum(rows)
        wanted = max(LEAST_CALIBRATION, min(CALIBRATION_ROWS, total // 4, max(0, total - 300)))
        taken = 0
        for at in reversed(range(len(rows))):
            inputs, _, target = self.calls[at]
            count, spare = rows[at], min(rows[at], wanted - taken)
            if not self.dynamic and spare:
                spare = count if at else 0
            taken += spare
            left = count - spare
            if spare:
                self._calibrate(inputs, references[at], left, count)
            if not left:
                continue
            if left == count:
                self.writer.add("unseen", count, inputs, references[at], target)
                continue
            part = cut(inputs, self.input_axes, 0, left)
            labels = None if target is None or target.shape[:1] != (count,) else target[:left]
            self.writer.add("unseen", left, part, self.run(part), labels)

    def _calibrate(self, inputs: Any, outputs: Any, first: int, last: int) -> None:
        if not self.dynamic:
            self.writer.add("calibration", last - first, inputs, outputs)
            return
        for row in range(first, last):
            one = cut(inputs, self.input_axes, row, row + 1)
            self.writer.add("calibration", 1, one, [])

    def _classes(self, references: list[Any]) -> tuple[int | None, int]:
        """The output with a value for each class, and its axis of classes."""
        _, _, target = self.calls[0]
        first = references[0]
        labels = None if target is None or target.is_floating_point() else target
        for place, output in enumerate(first):
            if not output.is_floating_point() or output.dim() < 2:
                continue
            if labels is not None:
                for axis in (1, output.dim() - 1):
                    shape = [*output.shape[:axis], *output.shape[axis + 1 :]]
                    if list(labels.shape) == shape and output.shape[axis] > 1:
                        return place, axis
            elif output.dim() == 2 and output.shape[1] > 1 and self.output_axes[place] == 0:
                return place, 1
            elif "logits" in self.captured["outputs"][place]["name"] and output.shape[-1] > 1:
                return place, output.dim() - 1
        return None, -1


def axes(specs: list[dict[str, Any]], calls: list[Any], captured: dict[str, Any]) -> list[Any]:
    """The batch axis of each tensor: the first free one that has the batch sizes."""
    sizes = set(captured["batch_sizes"])
    found = []
    for place, item in enumerate(specs):
        if not captured["batch_dynamic"]:
            there = calls[0][place].shape
            found.append(0 if len(there) and there[0] in sizes else None)
            continue
        free = [at for at, size in enumerate(item["shape"]) if size is None]
        fitting = [
            at for at in free if all(call[place].shape[at] in sizes or not sizes for call in calls)
        ]
        found.append(next(iter(fitting or free), None))
    return found


def cut(tensors: Any, places: list[Any], first: int, last: int) -> list[Any]:
    """Rows of a call; tensors without a batch axis whole."""
    return [
        item if axis is None else item.narrow(axis, first, last - first).contiguous()
        for item, axis in zip(tensors, places)
    ]


def difference(found: Any, wanted: Any) -> float:
    """Relative L2 error, 0 where both are the same to the bit; infinite for another shape."""
    import torch

    if found.shape != wanted.shape:
        return float("inf")
    if torch.equal(found, wanted) or not found.numel():
        return 0.0
    if not found.is_floating_point() and not found.is_complex():
        return float((found != wanted).float().mean())
    left, right = (
        torch.nan_to_num(item.to(torch.complex128))
        if item.is_complex()
        else torch.nan_to_num(item.double())
        for item in (found, wanted)
    )
    norm = float(right.abs().pow(2).sum().sqrt())
    off = float((left - right).abs().pow(2).sum().sqrt())
    return off / norm if norm else (0.0 if off == 0 else float("inf"))


def own_errors(program: Any, calls: list[Any], outputs: int) -> list[float | None]:
    """Error of each output of eager float32 against float64, or None if float64 is impossible."""
    import torch

    try:
        wide = Eager(unguarded(program).double())
        inputs = calls[0][0]
        exact = wide([item.double() if item.dtype == torch.float32 else item for item in inputs])
        narrow = calls[0][1]
        return [
            difference(found.double(), wanted) if wanted.dtype == torch.float64 else None
            for found, wanted in zip(narrow, exact)
        ]
    except Exception:  # a constant of the graph may insist on float32
        return [None] * outputs


def machine() -> dict[str, Any]:
    """The facts that the builds depend on."""
    import platform

    import numpy
    import torch

    cuda = torch.cuda.is_available()
    return {
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "python": platform.python_version(),
        "system": platform.system(),
        "architecture": platform.machine(),
        "isa": torch.backends.cpu.get_cpu_capability(),
        "device": torch.cuda.get_device_name(0) if cuda else "cpu",
        "cuda": cuda,
    }
