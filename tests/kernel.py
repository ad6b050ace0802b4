"""Cells executed by a real kernel, which needs ipykernel and nbclient."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

LIMIT_S = 240
"""For one cell: reached by one that hangs."""


def outputs(cells: Sequence[str], folder: Path, **variables: str) -> list[list[Any]]:
    """The outputs of each cell, all executed by one kernel in `folder`; skips without a kernel.

    A cell that fails has an output of its type "error", and the next one is executed.
    """
    pytest.importorskip("ipykernel")
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in cells])
    client = nbclient.NotebookClient(
        notebook,
        timeout=LIMIT_S,
        allow_errors=True,
        resources={"metadata": {"path": str(folder)}},
        kernel_name="python3",
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    client.execute(env={**environment, "IPYTHONDIR": str(folder / ".ipython"), **variables})
    return [cell.outputs for cell in notebook.cells]


def printed(cell: Sequence[Any], name: str = "stdout") -> str:
    """What a cell has printed."""
    return "".join(part.text for part in cell if part.output_type == "stream" and part.name == name)


def kinds(cell: Sequence[Any]) -> list[str]:
    """The types of its outputs."""
    return [part.output_type for part in cell]
