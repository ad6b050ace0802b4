"""The server as a child of `flatout export --serve`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from flatout.exporting import serving
from flatout.nouns.errors import UserError
from served import linear

SERVE = """
import sys
from pathlib import Path
from flatout.exporting import serving
sys.exit(serving.serve(Path(sys.argv[1]), port=0, options=sys.argv[2:]))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_as_its_server_does(tmp_path: Path, root: Path, number: signal.Signals) -> None:
    folder = linear(tmp_path / "a")
    (folder / "serve.py").unlink()  # written anew
    process = subprocess.Popen(
        [sys.executable, "-c", SERVE, str(folder)],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(root / "src")},
    )
    assert process.stderr is not None
    said = [process.stderr.readline(), process.stderr.readline()]
    assert "listening on http://127.0.0.1:" in said[0], said
    assert "ready" in said[1]
    process.send_signal(number)
    assert process.wait(60) == 0
    assert process.stderr.read() == "serve.py: ended\n"
    process.stderr.close()


def test_its_exit_code_is_passed_on(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = linear(tmp_path / "a")
    (folder / "weights.npy").unlink()
    assert serving.serve(folder, port=0) == 1
    assert "weights.npy is missing" in capfd.readouterr().err


def test_a_folder_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no exported model"):
        serving.serve(tmp_path)
