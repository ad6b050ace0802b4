import re
from pathlib import Path

import pytest

from flatout.running.one import folder


def test_runs_lie_side_by_side_and_out_of_git(tmp_path: Path) -> None:
    made = [folder.fresh("tune", tmp_path) for _ in range(3)]
    assert len(set(made)) == 3
    for path in made:
        assert path.is_dir()
        assert path.parent == tmp_path / ".flatout" / "runs"
        assert re.fullmatch(r"\d{8}T\d{6}Z-tune(-\d)?", path.name)
    assert (tmp_path / ".flatout" / ".gitignore").read_text() == "*\n"


def test_the_working_folder_is_where_they_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert tmp_path in folder.fresh("run").parents


def test_elsewhere_when_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / ".flatout").write_text("in the way")
    made = folder.fresh("run", tmp_path)
    assert made.is_dir()
    assert tmp_path not in made.parents
    made.rmdir()


def test_an_ignore_file_of_the_users_own_stays(tmp_path: Path) -> None:
    (tmp_path / ".flatout").mkdir()
    (tmp_path / ".flatout" / ".gitignore").write_text("runs/\n")
    folder.fresh("run", tmp_path)
    assert (tmp_path / ".flatout" / ".gitignore").read_text() == "runs/\n"
