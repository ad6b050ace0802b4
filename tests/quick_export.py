"""The command line, with exports that are made of two builds and timed for a moment.

Started as a program: `python -P quick_export.py export train.py`.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from flatout.__main__ import main
from flatout.exporting import export

whole = export.run


def quick(folder: Path, settings: Any, tell: Any = None) -> Any:
    few = dataclasses.replace(settings, only=("eager", "onnxruntime"), measure_s=0.3, threads=1)
    return whole(folder, few, tell)


if __name__ == "__main__":
    export.run = quick
    main()
