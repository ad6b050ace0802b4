"""The end of a throw-away program: its loader's workers go without a word."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

PROGRAM = """
    import time, torch
    from torch.utils.data import DataLoader, Dataset
    from flatout_agent.tell.recorder import Recorder
    from flatout_agent.watch.ending import end_process

    class Slow(Dataset):
        def __len__(self):
            return 100
        def __getitem__(self, index):
            time.sleep(0.01)
            return torch.zeros(2)

    class Slowly(Recorder):
        def safely(self, where, action, *args):  # the handler has time to run
            time.sleep(1.0)
            return super().safely(where, action, *args)

    if __name__ == "__main__":
        batches = iter(DataLoader(Slow(), batch_size=4, num_workers=2))
        next(batches)
        end_process(Slowly({folder!r}))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_workers_that_are_killed_raise_nothing(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(PROGRAM.replace("{folder!r}", repr(str(tmp_path)))))
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "killed by signal" not in done.stderr
