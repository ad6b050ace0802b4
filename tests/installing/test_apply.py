"""Lines are shown, then run one by one; a file is never written over."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flatout.installing import apply
from flatout.installing.target import Target
from flatout.nouns.errors import UserError

pytestmark = pytest.mark.skipif(os.name != "posix", reason="bash")
HERE = Target()


def test_each_line_is_shown_before_it_runs(tmp_path: Path) -> None:
    shown: list[str] = []
    file = tmp_path / "out"

    def show(line: str) -> None:
        shown.append(f"{line} | {file.read_text() if file.exists() else ''}")

    apply.run(HERE, ["# why: so", f"printf 1 >> {file}", f"printf 2 >> {file}"], show)
    assert file.read_text() == "12"
    assert shown == ["# why: so | ", f"$ printf 1 >> {file} | ", f"$ printf 2 >> {file} | 1"]


def test_it_stops_at_the_first_that_fails_and_says_which(tmp_path: Path) -> None:
    file = tmp_path / "out"
    with pytest.raises(UserError, match="exit code 3: exit 3") as caught:
        apply.run(HERE, ["true", "exit 3", f"touch {file}"], lambda line: None)
    assert caught.value.exit_code == 1
    assert not file.exists()


def test_the_restart_is_left_to_the_user() -> None:
    shown: list[str] = []
    apply.run(HERE, ["sudo reboot", "true"], shown.append)
    assert shown == ["$ true", "# restart when convenient: sudo reboot"]


def test_no_shell_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UserError, match="pwsh or powershell"):
        apply.run(Target(shell="powershell"), ["true"], lambda line: None)


@pytest.mark.slow
def test_after_ctrl_c_the_line_may_tidy_up(tmp_path: Path) -> None:
    done, ready = tmp_path / "tidied", tmp_path / "ready"
    tidy = f"sleep 0.5; touch {done}; kill $child; exit 1"
    line = f"sleep 20 & child=$!; trap '{tidy}' INT; touch {ready}; wait"
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from flatout.installing import apply\n"
        "from flatout.installing.target import Target\n"
        "from flatout.nouns.errors import UserError\n"
        f"try: apply.run(Target(), [{line!r}, 'touch {tmp_path}/after'], print)\n"
        "except UserError as error: raise SystemExit(error.exit_code)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    until = time.monotonic() + 120
    while not ready.exists() and time.monotonic() < until:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(timeout=120) == 130
    assert done.exists() and not (tmp_path / "after").exists()


def test_a_file_is_written_and_never_over_another(tmp_path: Path) -> None:
    path = tmp_path / "new" / "Dockerfile"
    apply.write(path, "FROM x\n")
    assert path.read_text() == "FROM x\n"
    with pytest.raises(UserError, match="Dockerfile already exists"):
        apply.write(path, "FROM y\n")
    assert path.read_text() == "FROM x\n"
    apply.write(path, "FROM y\n", force=True)
    assert path.read_text() == "FROM y\n"
    with pytest.raises(UserError, match="cannot write into"):
        apply.write(path / "below" / "Dockerfile", "")
