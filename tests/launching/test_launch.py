from __future__ import annotations

import re
import time
from importlib import metadata
from pathlib import Path

import pytest

import flatout
from flatout.launching import contract, engines, folders, launch
from flatout.nouns.errors import UserError
from flatout.nouns.launched import LaunchRequest, SubmittedJob

REQUEST = LaunchRequest("slurm", ("train.py",), "train", Path("/code"))


@pytest.fixture(autouse=True)
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train.py").write_text("")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def request(code: Path, engine: str = "slurm", **more: object) -> LaunchRequest:
    values: dict[str, object] = {"argv": ("train.py",), "name": "train", "folder": code, **more}
    return LaunchRequest(engine, **values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("engine", "more", "message"),
    [
        ("slum", {}, "did you mean slurm"),
        ("slurm", {"hosts": ("a",)}, "Slurm has no --hosts"),
        ("ssh", {"hosts": ("a",), "image": "x"}, "ssh has no --image"),
        ("ssh", {"hosts": ("a",), "options": (("qos", "high"),)}, "has no setting 'qos'"),
        ("slurm", {"name": "My Job"}, "not every engine accepts --name"),
        ("slurm", {"name": "-x"}, "not every engine accepts --name"),
        ("slurm", {"variables": (("A-B", "1"),)}, "does not name a variable"),
        ("slurm", {"gpus": 2, "ranks": 2}, "--ranks is for nodes without GPUs"),
        ("slurm", {"argv": ()}, "there is nothing to launch"),
        ("slurm", {"argv": ("trian.py",)}, "no such script: trian.py"),
        ("slurm", {"argv": ("-m",)}, "-m needs the name of a module"),
        ("slurm", {"argv": ("--lr", "1")}, "--lr is not an option of flatout launch"),
        ("ssh", {"hosts": ("a",), "argv": ("/bin/../etc/x.py",)}, "no such script"),
        ("ssh", {"hosts": ()}, "no hosts are named"),
        ("ssh", {"hosts": ("a", "a")}, "a host is named twice"),
        ("ssh", {"hosts": ("-oProxyCommand=x",)}, "is no host"),
        ("ssh", {"hosts": ("a b",)}, "is no host"),
        ("ssh", {"hosts": ("a",), "options": (("port", "80"),)}, "port=80 is no port"),
    ],
)
def test_what_needs_no_engine_to_be_seen(
    code: Path, engine: str, more: dict[str, object], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        launch.prepare(request(code, engine, **more))
    assert not (code / ".flatout").exists()


def test_a_script_that_is_not_sent_is_an_error(code: Path) -> None:
    outside = code.parent / f"{code.name}-outside.py"
    outside.write_text("")
    with pytest.raises(UserError, match="is outside "):
        launch.prepare(request(code, "ssh", hosts=("a",), argv=(str(outside),)))
    (code / "secrets").mkdir()
    (code / "secrets/train.py").write_text("")
    with pytest.raises(UserError, match="is not sent to the nodes"):
        launch.prepare(request(code, "ssh", hosts=("a",), argv=("secrets/train.py",)))


def test_a_dry_run_shows_the_files_where_the_engine_is_not(
    code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(code))
    with pytest.raises(UserError, match="sbatch is not installed here"):
        launch.prepare(request(code, gpus=4))
    prepared = launch.prepare(request(code, gpus=4, time_s=90061.0), dry=True)
    (file,) = prepared.files
    assert "#SBATCH --gpus-per-node=4" in file.text
    assert "#SBATCH --time=1-01:01:01" in file.text
    assert "sbatch is not installed here" in prepared.warnings[0]
    assert prepared.costs.gpu_hours == pytest.approx(4 * 90061 / 3600)
    with pytest.raises(UserError, match="can be counted only where Slurm is"):
        launch.prepare(request(code, gpus="all"), dry=True)
    assert not (code / ".flatout").exists()


@pytest.mark.parametrize(
    ("origin", "source"),
    [
        (
            '{"url": "https://git.example.org/f", "vcs_info": {"vcs": "git", "commit_id": "a1"}}',
            "flatout @ git+https://git.example.org/f@a1",
        ),
        ('{"url": "file:///code", "dir_info": {}}', f"flatout=={flatout.__version__}"),
        (None, f"flatout=={flatout.__version__}"),
    ],
)
def test_nodes_get_flatout_from_where_it_came(
    monkeypatch: pytest.MonkeyPatch, origin: str | None, source: str
) -> None:
    class Installed:
        def read_text(self, name: str) -> str | None:
            return origin

    monkeypatch.setattr(metadata, "distribution", lambda name: Installed())
    assert contract.own_requirement() == source
    assert contract.only_here() == ("file:///code" if "dir_info" in str(origin) else None)


@pytest.mark.parametrize("engine", engines.names())
def test_a_dry_run_with_nothing_but_a_script_gives_files_or_says_what_is_missing(
    code: Path, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    monkeypatch.setenv("PATH", str(code))
    try:
        prepared = launch.prepare(request(code, engine), dry=True)
    except UserError as error:
        assert error.next_step
        assert "--dry-run" not in error.next_step
        return
    assert prepared.files
    assert not re.search(r"docker build -t *\.", "".join(f.text for f in prepared.files))
    assert "--dry-run" not in "".join(prepared.warnings)


def test_files_are_the_owners_alone_and_the_job_is_found_again(
    code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = launch.prepare(request(code, lock="torch==2.13.0\n", variables=(("T", "s3"),)), True)

    def submit(asked: LaunchRequest, folder: Path) -> SubmittedJob:
        return SubmittedJob("slurm", "4711", asked.name, str(folder), time.time(), 2, {"a": "b"})

    monkeypatch.setattr(engines.load("slurm"), "submit", submit)
    job = launch.submit(prepared)
    folder = Path(job.folder)
    assert folder == prepared.request.launch_folder
    assert {path.name for path in folder.iterdir()} == {"job.sbatch", "environment.txt", "job.json"}
    for path in (folder, *folder.iterdir()):
        assert path.stat().st_mode & 0o077 == 0
    assert (code / ".flatout/.gitignore").read_text() == "*\n"
    for word in ("4711", "train", "last", folder.name, str(folder)):
        assert folders.find(word, code) == job
    with pytest.raises(UserError, match=r"no job 'x' was launched .* there are train \(4711\)"):
        folders.find("x", code)


def test_names_of_jobs() -> None:
    assert folders.default_name(("train.py", "--name", "x.py")) == "train"
    assert folders.default_name(("-m", "package.My_Train")) == "package-my-train"
    assert folders.default_name(("torchrun", "--nproc-per-node", "2", "a/b.py")) == "b"
    assert launch.NAME.fullmatch(folders.default_name(("x" * 80 + ".py",)))
