from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from flatout.launching import packing
from flatout.nouns.errors import UserError

SECRETS = (".env", ".env.local", "id_rsa", "id_ed25519", "key.pem", "credentials.json", ".netrc")
CODE = ("train.py", "package/model.py", ".env.example", "keys.py", "tokens.py", "secret_santa.py")


def fill(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")


def test_code_travels_and_secrets_history_and_environments_stay(tmp_path: Path) -> None:
    fill(tmp_path, *CODE, *SECRETS, "package/.env", ".git/config", ".venv/bin/python")
    fill(tmp_path, "env/pyvenv.cfg", "env/lib/a.py", "__pycache__/a.pyc", "b.pyc", ".aws/config")
    fill(tmp_path, "wandb/run.json", ".flatout/runs/a")
    packed = packing.select(tmp_path)
    assert packed.files == tuple(sorted(CODE))
    assert packed.size_bytes == len(CODE)
    reasons = {item.path: item.reason for item in packed.left_out}
    assert {reasons[name] for name in (*SECRETS, "package/.env", ".aws")} == {"secrets"}
    assert reasons["env"] == reasons[".venv"] == "an environment of this machine"
    assert reasons[".git"] == "history"
    assert reasons["wandb"] == "records of earlier runs"
    assert not {".flatout", "__pycache__", "b.pyc"} & reasons.keys()


def test_data_and_links_out_of_the_folder_stay(tmp_path: Path) -> None:
    folder = tmp_path / "code"
    fill(folder, "train.py")
    (folder / "data.bin").write_bytes(b"0" * 2000)
    (tmp_path / "outside.py").write_text("x")
    (folder / "outside.py").symlink_to(tmp_path / "outside.py")
    (folder / "inside.py").symlink_to(folder / "train.py")
    (folder / "broken.py").symlink_to(folder / "nothing")
    (folder / "home").symlink_to(tmp_path)
    os.mkfifo(folder / "pipe")
    packed = packing.select(folder, file_limit=1000)
    assert packed.files == ("inside.py", "train.py")
    reasons = {item.path: item.reason for item in packed.left_out}
    assert reasons == {
        "data.bin": "larger than code is",
        "outside.py": "a link that leads out of the folder",
        "broken.py": "not a file",
        "home": "a link to a folder",
        "pipe": "not a file",
    }


def test_a_folder_that_is_too_much_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path, "a.py", "b.py", "c.py")
    monkeypatch.setattr(packing, "MOST_FILES", 2)
    with pytest.raises(UserError, match="too much for a code folder"):
        packing.select(tmp_path)


def test_what_is_written_is_what_was_selected(tmp_path: Path) -> None:
    fill(tmp_path, "train.py", "package/model.py", ".env", "gone.py")
    (tmp_path / "link.py").symlink_to(tmp_path / "train.py")
    packed = packing.select(tmp_path)
    (tmp_path / "gone.py").unlink()
    target = io.BytesIO()
    packing.write(packed, target, "code/", {"token": b"abc"})
    with tarfile.open(fileobj=io.BytesIO(target.getvalue())) as archive:
        entries = {entry.name: entry for entry in archive}
        assert sorted(entries) == [
            "code/link.py",
            "code/package/model.py",
            "code/train.py",
            "token",
        ]
        assert all(
            entry.isfile() and entry.uid == 0 and not entry.uname for entry in entries.values()
        )
        token = archive.extractfile("token")
        assert token is not None
        assert (token.read(), entries["token"].mode) == (b"abc", 0o700)
