"""`flatout explain`: of an error its cause and cure, of a code its page."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from commands.called import Ended, Flatout
from flatout.diagnosing import pages
from flatout.knowledge import signatures
from flatout.probing import machine
from machines.healthy import cpu_server

KILLED = "RuntimeError: DataLoader worker (pid 82935) is killed by signal: Killed."


@pytest.fixture(autouse=True)
def _looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at the machine imports torch; processes of these tests take one."""
    facts = cpu_server()
    monkeypatch.setattr(machine, "look", lambda python, **options: facts)


def matches(done: Ended) -> list[dict[str, Any]]:
    document = json.loads(done.stdout)
    assert document["schema"] == "flatout.explain/1"
    found: list[dict[str, Any]] = document["matches"]
    return found


@pytest.mark.parametrize("words", [[KILLED], KILLED.split()])
def test_a_text(flat: Flatout, words: list[str]) -> None:
    done = flat("explain", *words)
    assert done.returncode == 0, done.stderr
    assert "main memory (RAM) ran out" in done.stdout
    assert "82935" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_a_folder_and_a_pipe(flat: Flatout, tmp_path: Path) -> None:
    (tmp_path / "rank0.log").write_text("all is well\n")
    (tmp_path / "rank1.log").write_text(f"epoch 1\n{KILLED}\n")
    both = matches(flat("explain", "--json", str(tmp_path)))
    piped = matches(flat("explain", "--json", stdin=f"epoch 1\n{KILLED}\n"))
    dash = matches(flat("explain", "--json", "-", stdin=KILLED))
    for found in (both, piped, dash):
        assert [item["id"] for item in found] == ["loader-worker-killed"]
        assert found[0]["confidence"] == "likely"
        assert {"title", "cause", "evidence", "cure"} <= found[0].keys()
    assert both[0]["where"] == f"{tmp_path / 'rank1.log'}:2"
    assert both[0]["rank"] == 1
    assert piped[0]["where"] == "line 2"


@pytest.mark.slow
def test_a_pipe_into_a_process_that_prints_chinese() -> None:
    command = [sys.executable, "-m", "flatout", "explain", "--lang", "zh"]
    done = subprocess.run(
        command, input=KILLED, capture_output=True, encoding="utf-8", check=False, timeout=120,
        env={**os.environ, "LANG": "C.UTF-8", "LC_ALL": ""},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "原因" in done.stdout
    assert "82935" in done.stdout


def test_chinese_by_option_and_by_locale_but_not_in_json(flat: Flatout) -> None:
    asked = flat("explain", "--lang", "zh", KILLED)
    by_locale = flat("explain", KILLED, variables={"LANG": "zh_CN.UTF-8"})
    assert "原因" in asked.stdout
    assert asked.stdout == by_locale.stdout
    assert "原因" not in flat("explain", "--json", KILLED, variables={"LANG": "zh_CN.UTF-8"}).stdout


def test_a_page_in_chinese_where_there_is_one(flat: Flatout) -> None:
    error = flat("explain", "--lang", "zh", "cuda-not-ready")
    assert "解决" in error.stdout
    assert error.stderr == ""
    finding = flat("explain", "--lang", "zh", "ENV002")
    assert finding.stdout == flat("explain", "ENV002").stdout
    assert finding.stderr == "flatout: warning: 这一页只有英文版\n"
    assert flat("explain", "--lang", "tlh", "ENV002").returncode == 2


def test_not_recognised(flat: Flatout) -> None:
    done = flat("explain", "something that nobody has ever seen")
    assert done.returncode == 1
    assert done.stdout.startswith("not recognised")
    document = json.loads(flat("explain", "--json", "something that nobody has ever seen").stdout)
    assert document["recognised"] is False
    assert document["matches"] == []
    assert document["better_log"]


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["missing.log"], 2, "no file missing.log"),
        (["logs/rank0/stderr"], 2, "no file"),
        (["--lang", "tlh", KILLED], 2, "--lang en or zh"),
        (["EVN002"], 1, "is called 'EVN002'; did you mean"),
        (["fused-optimiser"], 1, "did you mean fused-optimizer"),
        (["--nonsense"], 2, "--nonsense"),
    ],
)
def test_wrong_arguments(flat: Flatout, arguments: list[str], code: int, told: str) -> None:
    done = flat("explain", *arguments)
    assert done.returncode == code
    assert told in done.stderr
    assert "Traceback" not in done.stderr


def test_an_empty_pipe_and_an_empty_folder(flat: Flatout, tmp_path: Path) -> None:
    nothing = flat("explain").stdout
    assert "no text" in nothing
    assert "2>&1 | flatout explain" in nothing, "how to give it one"
    empty = flat("explain", str(tmp_path))
    assert empty.returncode == 2
    assert "holds no logs" in empty.stderr


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(flat: Flatout, tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(KILLED)
    path.chmod(0)
    done = flat("explain", str(path))
    assert done.returncode == 2
    assert "cannot be read" in done.stderr


@pytest.mark.parametrize("code", ["ENV002", "env002", "nouveau-in-the-way"])
def test_the_page_of_a_finding(flat: Flatout, code: str) -> None:
    done = flat("explain", code)
    assert done.returncode == 0, done.stderr
    page = pages.find("ENV002")
    assert page is not None
    assert done.stdout.strip() == page.markdown.strip()
    document = json.loads(flat("explain", code, "--json").stdout)
    assert (document["schema"], document["matches"]) == ("flatout.explain/1", [])
    assert document["page"]["code"] == "ENV002"
    assert "## Cure" in document["page"]["body"]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("loader-worker-killed", ["# A DataLoader worker was killed"]),
        ("tf32", ["# tf32", "- Risk: rounding"]),
        ("channels_last", ["# channels-last", "## How it is undone"]),
        ("slurm", ["# flatout launch slurm", "## What is checked first"]),
        ("onnxruntime", ["# flatout export --only onnxruntime", "## When it wins"]),
        ("compile", ["# compile\n", "\n# flatout export --only compile\n"]),  # a boost, a backend
    ],
)
def test_the_page_of_a_signature_a_boost_an_engine_and_a_backend(
    flat: Flatout, name: str, told: list[str]
) -> None:
    done = flat("explain", name)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(told[0])
    assert told[-1] in done.stdout
    document = json.loads(flat("explain", name, "--json").stdout)
    assert (document["recognised"], document["page"]["body"][:2]) == (True, "# ")


def test_its_guide_shows_what_it_prints(flat: Flatout, root: Path, tmp_path: Path) -> None:
    label = next(item for item in signatures.every() if item.id == "label-out-of-range")
    (tmp_path / "train.log").write_text(label.log, encoding="utf-8")
    shown = flat("explain", "train.log", folder=tmp_path).stdout.rstrip()
    assert f"```\n{shown}\n```" in (root / "docs/guide-explain.md").read_text(encoding="utf-8")


def test_pages_count_the_signatures(root: Path) -> None:
    """In hundreds, so that not every new signature changes three pages."""
    hundreds = (len(signatures.every()) - 1) // 100 * 100
    count = f"more than {hundreds} signatures in {len(signatures.families())} families"
    for page in ("README.md", "docs/guide-explain.md"):
        assert count in (root / page).read_text(encoding="utf-8"), page
