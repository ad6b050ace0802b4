"""`flatout explain CODE`: the code's page, as a person or a program reads it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from flatout.diagnosing import pages


def flat(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "flatout", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize("code", ["ENV002", "env002", "nouveau-in-the-way"])
def test_page(code: str) -> None:
    done = flat("explain", code)
    assert done.returncode == 0, done.stderr
    page = pages.find("ENV002")
    assert page is not None
    assert done.stdout.strip() == page.markdown.strip()


def test_json() -> None:
    document = json.loads(flat("explain", "ENV002", "--json").stdout)
    assert document["schema"] == "flatout.explain/1"
    assert document["matches"] == []
    assert document["page"]["code"] == "ENV002"
    assert "## Cure" in document["page"]["body"]


def test_unknown() -> None:
    done = flat("explain", "EVN002")
    assert done.returncode == 1
    assert "no finding 'EVN002'" in done.stderr
    assert "ENV002" in done.stderr
    assert "Traceback" not in done.stderr
