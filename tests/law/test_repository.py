"""The repository as a whole: nothing of one machine in it, nothing stale."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import flatout

# Split here and below, so that this file does not name them itself.
REGISTRIES = [
    "py" + "pi.org",
    "python" + "hosted.org",
    "download.py" + "torch.org",
    "ana" + "conda.org",
]
MACHINE_PATHS = re.compile(
    r"(?<![\w.])/(?:home|Users)/(?!user\b|you\b|me\b)[\w-]+/|(?<![\w.])/(?:root|work|opt/py)/"
)


def tracked(root: Path) -> list[Path]:
    if shutil.which("git") is None or not (root / ".git").exists():
        pytest.skip("not a git checkout")
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout
    return [root / item for item in listed.split("\0") if item and (root / item).is_file()]


def texts(root: Path) -> dict[str, str]:
    found = {}
    for path in tracked(root):
        try:
            found[path.relative_to(root).as_posix()] = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
    return found


# The one place that knows where PyTorch keeps the wheels of each build.
WHEELS = "src/flatout/knowledge/compat/pytorch.toml"


def test_no_registry_and_no_path_of_a_machine(root: Path) -> None:
    bad = {
        name: hit
        for name, text in texts(root).items()
        if name != WHEELS
        if (hit := next((host for host in REGISTRIES if host in text), None))
        or ((found := MACHINE_PATHS.search(text)) and (hit := found[0]))
    }
    assert bad == {}


@pytest.mark.parametrize(
    "text",
    ["see /" + "home/jane/x", '"/' + 'root/.cache"', "cd /" + "work/main", "/" + "Users/jo/"],
)
def test_machine_paths_are_seen(text: str) -> None:
    assert MACHINE_PATHS.search(text)


@pytest.mark.parametrize("text", ["/home/user/train.py", "docs/work/", "https://x.org/root/y"])
def test_other_paths_are_not(text: str) -> None:
    assert not MACHINE_PATHS.search(text)


def test_changelog_tells_of_this_version(root: Path) -> None:
    text = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    entries = dict(re.findall(r"^## (\S+)[^\n]*\n(.*?)(?=^## |\Z)", text, flags=re.M | re.S))
    assert re.search(r"^- \S", entries[flatout.__version__], flags=re.M)


def test_everything_is_since_a_version_of_the_changelog(root: Path) -> None:
    versions = re.findall(r"^## (\S+)", (root / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)
    newer = {
        path.name: since
        for path in (root / "src").rglob("*.py")
        for since in re.findall(r'\bsince="(.*?)"', path.read_text(encoding="utf-8"))
        if since not in versions
    }
    assert newer == {}


def test_every_dependency_is_pinned(root: Path) -> None:
    lines = (root / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    assert list(pins) == sorted(pins)
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    groups = project["dependency-groups"]
    asked = [
        *project["build-system"]["requires"],
        *project["project"]["dependencies"],
        *project["project"]["optional-dependencies"]["torch"],
        *(item for group in groups.values() for item in group),
    ]
    for requirement in map(Requirement, asked):
        name = canonicalize_name(requirement.name)
        assert name in pins
        assert requirement.specifier.contains(pins[name]), name
    assert pins["torch"] == "2.13.0"


def test_torch_is_never_a_base_dependency(root: Path) -> None:
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert "torch" not in {Requirement(item).name for item in project["dependencies"]}
