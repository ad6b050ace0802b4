"""The calls used to verify and time builds, as arrays on the disk, readable without torch.

Groups: `seen`, as the script called the model; `single`, one row each; `calibration`, rows for
quantisation that are in no call judging it; `unseen`, calls without those rows.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

GROUPS = ("seen", "single", "unseen", "calibration")


class CallFiles:
    """Reads the calls written by `Writer`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "calls"
        self.index = json.loads((folder / "calls.json").read_text(encoding="utf-8"))

    def count(self, group: str) -> int:
        return len(self.index[group])

    def rows(self, group: str, at: int) -> int:
        return int(self.index[group][at]["rows"])

    def inputs(self, group: str, at: int) -> list[Any]:
        return [self._read(group, at, name) for name in self.index[group][at]["inputs"]]

    def outputs(self, group: str, at: int) -> list[Any]:
        """The model's outputs in eager float32."""
        return [self._read(group, at, name) for name in self.index[group][at]["outputs"]]

    def target(self, group: str, at: int) -> Any:
        """The script's labels of these rows, or None if unknown."""
        name = self.index[group][at]["target"]
        return None if name is None else self._read(group, at, name)

    def _read(self, group: str, at: int, name: str) -> Any:
        import numpy

        return numpy.load(self.folder / group / f"{at}-{name}.npy", allow_pickle=False)


class Writer:
    """Collects calls group by group."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.index: dict[str, list[dict[str, Any]]] = {group: [] for group in GROUPS}

    def add(
        self, group: str, rows: int, inputs: list[Any], outputs: list[Any], target: Any = None
    ) -> None:
        """One call; torch tensors."""
        at = len(self.index[group])
        names_in = [f"in{place}" for place in range(len(inputs))]
        names_out = [f"out{place}" for place in range(len(outputs))]
        for name, item in [*zip(names_in, inputs), *zip(names_out, outputs)]:
            self._write(group, at, name, item)
        if target is not None:
            self._write(group, at, "target", target)
        self.index[group].append(
            {
                "rows": rows,
                "inputs": names_in,
                "outputs": names_out,
                "target": None if target is None else "target",
            }
        )

    def close(self) -> None:
        """Write the index."""
        (self.folder / "calls.json").write_text(json.dumps(self.index), encoding="utf-8")

    def _write(self, group: str, at: int, name: str, tensor: Any) -> None:
        import numpy

        folder = self.folder / "calls" / group
        folder.mkdir(parents=True, exist_ok=True)
        numpy.save(folder / f"{at}-{name}.npy", tensor.detach().cpu().contiguous().numpy())
