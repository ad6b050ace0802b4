"""The demo's speed-up and the time that tuning takes, on each of the three examples."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import record

from tuning import summary, tune

EXAMPLES = Path(__file__).parent.parent / "examples"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budget", default="210s", help="of each tuning, as in `make demo`")
    parser.add_argument("--only", choices=("images", "text", "bert"))
    arguments = parser.parse_args()
    figures = {}
    for name in [arguments.only] if arguments.only else ["images", "text", "bert"]:
        with tempfile.TemporaryDirectory() as folder:
            script = str(EXAMPLES / name / "train.py")
            document = tune([script], Path(folder), "--budget", arguments.budget)
        figures[name] = summary(document)
    record.write(
        "-".join(filter(None, ("examples", arguments.only, arguments.budget))),
        {"budget": arguments.budget, **figures},
    )


if __name__ == "__main__":
    main()
