"""Put what the commands print now into the guides: each has one block without a language.

    python docs/screens.py

Nothing is measured for these screens: they show a composed machine, a signature's log and a trace.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from flatout.knowledge import signatures

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from machines import composed  # noqa: E402

BLOCK = re.compile(r"^```(\w*)\n.*?^```$", re.MULTILINE | re.DOTALL)
TRACE = ROOT / "tests/traces/a100_train.json.gz"
SIGNATURE = "label-out-of-range"
"""Its log is explained."""


def screen(folder: Path, *arguments: str) -> str:
    """What the command prints on a terminal of 80 columns."""
    command = [sys.executable, "-m", "flatout", *arguments]
    environment = {**os.environ, "COLUMNS": "80", "LC_ALL": "C.UTF-8"}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout, done.stderr
    return done.stdout.partition("\nreport ")[0].rstrip()


def screens(folder: Path) -> dict[str, str]:
    """Guide -> what its command prints."""
    log = next(item.log for item in signatures.every() if item.id == SIGNATURE)
    (folder / "train.log").write_text(log, encoding="utf-8")
    machine = composed.write("kernel-updated", folder)
    return {
        "guide-doctor.md": screen(folder, "doctor", "--machine", str(machine)),
        "guide-explain.md": screen(folder, "explain", "train.log"),
        "guide-profile.md": screen(folder, "profile", str(TRACE)),
    }


def with_screen(page: str, text: str) -> str:
    """The page with this text in its block without a language."""
    assert [match[1] for match in BLOCK.finditer(page)].count("") == 1
    return BLOCK.sub(lambda match: match[0] if match[1] else f"```\n{text}\n```", page)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        printed = screens(Path(folder))
    for name, text in printed.items():
        guide = ROOT / "docs" / name
        page = with_screen(guide.read_text(encoding="utf-8"), text)
        guide.write_text(page, encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
