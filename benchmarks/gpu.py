"""The examples at sizes for a data-centre GPU: the plan against the program as written."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import record

from tuning import summary, tune

EXAMPLES = Path(__file__).parent.parent / "examples"
RUNS = {
    "images": ["--model", "resnet50", "--size", "224", "--batch-size", "128", "--synthetic"],
    "text": ["--layers", "12", "--heads", "12", "--width", "768", "--context", "1024"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=record.RESULTS)
    parser.add_argument("--budget", default="150s")
    arguments = parser.parse_args()
    figures = {}
    for name, options in RUNS.items():
        script = [str(EXAMPLES / name / "train.py"), *options]
        with tempfile.TemporaryDirectory() as folder:
            try:
                document = tune(script, Path(folder), "--budget", arguments.budget)
            except SystemExit as error:
                sys.stderr.write(f"{name}: {error}\n")
                figures[name] = {"failed": str(error)[-2000:]}
                continue
        figures[name] = summary(document)
    record.write("gpu", figures, arguments.out)


if __name__ == "__main__":
    main()
