"""Memory: the machine's, and what its groups leave of it."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from flatout.probing import memory

GIB = 2**30


def group(tmp_path: Path, membership: str, files: dict[str, str]) -> int | None:
    (tmp_path / "membership").write_text(membership)
    for name, text in files.items():
        path = tmp_path / "root" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return memory.cgroup_limit(tmp_path / "membership", tmp_path / "root")


@pytest.mark.parametrize(
    ("membership", "files", "limit"),
    [
        ("0::/job\n", {"job/memory.max": f"{2 * GIB}\n"}, 2 * GIB),
        ("0::/job/step\n", {"job/memory.max": f"{GIB}\n", "job/step/memory.max": "max\n"}, GIB),
        ("0::/job\n", {"job/memory.max": "max\n"}, None),
        ("0::/../other\n", {"memory.max": f"{GIB}\n"}, GIB),
        ("4:memory:/docker/abc\n", {"memory/memory.limit_in_bytes": f"{GIB}\n"}, GIB),
        ("4:cpu,cpuacct:/docker\n", {"memory/memory.limit_in_bytes": f"{GIB}\n"}, None),
        ("0::/job\n", {}, None),
        ("", {}, None),
    ],
)
def test_cgroup_limit(
    membership: str, files: dict[str, str], limit: int | None, tmp_path: Path
) -> None:
    assert group(tmp_path, membership, files) == limit


def test_no_groups(tmp_path: Path) -> None:
    assert memory.cgroup_limit(tmp_path / "absent", tmp_path) is None


def test_the_smaller_one_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory.sys, "platform", "linux")
    monkeypatch.setattr(memory, "cgroup_limit", lambda membership, root: 123)
    assert memory.usable_bytes() == 123
    monkeypatch.setattr(memory, "cgroup_limit", lambda membership, root: 2**63)
    assert memory.usable_bytes() == psutil.virtual_memory().total
    monkeypatch.setattr(memory, "cgroup_limit", lambda membership, root: None)
    assert memory.usable_bytes() == psutil.virtual_memory().total


def test_memory_that_cannot_be_read_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise OSError(13, "no")

    monkeypatch.setattr(psutil, "virtual_memory", refuse)
    assert memory.usable_bytes() is None
