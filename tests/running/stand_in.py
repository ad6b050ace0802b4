"""A stand-in for the agent: reports that it started, and lets a test program write records."""

import json
import os
import subprocess
import sys
from pathlib import Path

SITECUSTOMIZE = """
import json, os, sys
path = os.environ.get("FLATOUT_ORDERS")
if path:
    with open(path) as file:
        orders = json.load(file)
    out = open(os.path.join(orders["records"], f"{os.getpid()}.jsonl"), "a", buffering=1)
    sys.flatout_record = lambda **record: out.write(json.dumps(record) + "\\n")
    sys.flatout_record(
        kind="started", pid=os.getpid(), argv=sys.orig_argv, python="3", executable=sys.executable,
        rank=int(os.environ.get("FLATOUT_RANK") or os.environ.get("RANK", "0")),
    )
"""
DRIVER = """
import sys
from pathlib import Path
from flatout.running.one import environment
environment.INJECT = Path(sys.argv.pop(1))
from flatout.__main__ import main
main()
"""
TRAINED = """
import sys
sys.flatout_record(kind="torch", version="9.9")
sys.flatout_record(kind="ended", reason="program", steps=40, samples=400, train_s=2.0, wait_s=0.5,
                   peak_bytes=1000)
"""
"""A program that trained, as far as the records tell."""


def inject(folder: Path) -> Path:
    """A folder to put on PYTHONPATH in place of the agent's."""
    made = folder / "inject"
    made.mkdir()
    (made / "sitecustomize.py").write_text(SITECUSTOMIZE, encoding="utf-8")
    return made


class Flatout:
    """`flatout` as a process of its own, in a working folder, with the stand-in for the agent."""

    def __init__(self, folder: Path, inject_folder: Path) -> None:
        self.folder = folder
        self.prefix = [sys.executable, "-c", DRIVER, str(inject_folder)]

    def script(self, text: str, name: str = "train.py") -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def argv(self, *words: str) -> list[str]:
        return [*self.prefix, *words]

    def start(self, *words: str, **options: object) -> subprocess.Popen[bytes]:
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        return subprocess.Popen(self.argv(*words), cwd=self.folder, **{**pipes, **options})

    def run(self, *words: str, **options: object) -> subprocess.CompletedProcess[bytes]:
        options = {"capture_output": True, "timeout": 120, "cwd": self.folder, **options}
        return subprocess.run(self.argv(*words), **options)

    def runs(self) -> list[Path]:
        return sorted((self.folder / ".flatout" / "runs").glob("*"))


def environment_of(text: bytes) -> dict[str, str]:
    return json.loads(text)


def python_path(*entries: Path) -> str:
    return os.pathsep.join(str(entry) for entry in entries)
