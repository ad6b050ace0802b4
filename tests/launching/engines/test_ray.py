"""The driver for Ray, and what a cluster's answers become; see also test_ray_cluster.py."""

from __future__ import annotations

import ast
import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from flatout.launching import ray_api
from flatout.launching.engines import ray
from flatout.nouns.errors import UserError
from flatout.nouns.launched import LaunchRequest, PackedCode, SubmittedJob

REQUEST = LaunchRequest(
    "ray",
    ("train.py", "--words", 'it\'s \\ "new"\n'),
    "train",
    Path("/code"),
    nodes=2,
    gpus=4,
    time_s=90.0,
    variables=(("A", "1"),),
    restarts=3,
    packed=PackedCode(Path("/code"), ("train.py",), 3),
)


def values(request: LaunchRequest) -> dict[str, Any]:
    """What the driver's settings are to Python."""
    [file] = ray.files(request)
    assert file.path == "ray_job.py"
    found = {}
    for node in ast.parse(file.text).body:
        target = node.targets[0] if isinstance(node, ast.Assign) else None
        target = node.target if isinstance(node, ast.AnnAssign) else target
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(target, ast.Name):
            assert node.value is not None
            found[target.id] = ast.literal_eval(node.value)
    return found


def test_the_driver_holds_what_was_asked() -> None:
    found = values(REQUEST)
    assert found["COMMAND"] == [
        *("flatout", "run", "--nodes", "auto", "--gpus", "4", "train.py"),
        *("--words", 'it\'s \\ "new"\n'),
    ]
    assert (found["NODES"], found["GPUS"], found["CPUS"]) == (2, 4, 4)
    assert (found["RESTARTS"], found["TIME_S"], found["VARIABLES"]) == (3, 90, {"A": "1"})
    assert found["PYTHON"] == ""


def test_where_the_cluster_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    assert ray_api.address("") == "http://127.0.0.1:8265"
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")  # takes no jobs
    assert ray_api.address("") == "http://127.0.0.1:8265"
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "https://ray/")
    assert ray_api.address("") == "https://ray"
    assert ray_api.address("http://other:1") == "http://other:1"
    with pytest.raises(UserError, match="not the address of a dashboard"):
        ray_api.address("head:8265")


class Dashboard:
    """A server that answers as Ray's dashboard does."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.asked: list[tuple[str, str, str]] = []
        self.server = HTTPServer(("127.0.0.1", 0), self._handler())
        self.address = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        dashboard = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                token = self.headers.get("Authorization", "")
                dashboard.asked.append((self.command, self.path, token))
                found = dashboard.answers.get(self.path.partition("?")[0], 404)
                self.send_response(found if isinstance(found, int) else 200)
                self.end_headers()
                self.wfile.write(json.dumps(found).encode())

            do_GET = do_POST = answer  # noqa: N815

            def log_message(self, *words: Any) -> None:
                """Not shown."""

        return Handler


@pytest.fixture
def dashboard(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Dashboard]:
    found = Dashboard()
    program = tmp_path / "bin" / "ray"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("RAY_AUTH_TOKEN", "RAY_JOB_HEADERS", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    yield found
    found.server.shutdown()
    found.server.server_close()


def to(dashboard: Dashboard, **changes: Any) -> LaunchRequest:
    return replace(REQUEST, options=(("address", dashboard.address),), **changes)


def nodes(*resources: dict[str, float]) -> dict[str, Any]:
    rows = [{"state": "ALIVE", "resources_total": entry} for entry in resources]
    rows.append({"state": "DEAD", "resources_total": {"CPU": 64.0, "GPU": 8.0}})
    return {"data": {"result": {"result": rows}}}


def test_too_few_nodes_are_a_warning_and_no_gpu_an_error(dashboard: Dashboard) -> None:
    dashboard.answers["/api/version"] = {"ray_version": "2.60.0"}
    dashboard.answers["/api/v0/nodes"] = nodes({"CPU": 8.0, "GPU": 8.0}, {"CPU": 8.0})
    checked = ray.check(to(dashboard))
    assert checked.warnings == (
        "1 node of the cluster now has 4 CPU and 4 GPU: it waits until there are 2",
    )
    dashboard.answers["/api/v0/nodes"] = nodes({"CPU": 8.0})
    with pytest.raises(UserError, match=r"no node of the Ray cluster \(2\.60\.0\) has GPUs"):
        ray.check(to(dashboard))


@pytest.mark.parametrize(
    ("answer", "message"),
    [({"other": 1}, "is not a Ray cluster"), (401, "does not know you"), (500, "answers 500")],
)
def test_what_answers_otherwise(dashboard: Dashboard, answer: Any, message: str) -> None:
    dashboard.answers["/api/version"] = answer
    with pytest.raises(UserError, match=message) as error:
        ray.check(to(dashboard))
    assert error.value.next_step


def test_nothing_answers_or_ray_is_not_there(
    dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    nowhere = replace(REQUEST, options=(("address", "http://127.0.0.1:9"),))
    with pytest.raises(UserError, match="no Ray cluster answers at "):
        ray.check(nowhere)
    own = PackedCode(Path("/code"), ("ray_job.py", "train.py"), 3)
    with pytest.raises(UserError, match="of its own"):
        ray.check(to(dashboard, packed=own))
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    with pytest.raises(UserError, match="ray is not installed here"):
        ray.check(nowhere)


def test_a_token_goes_along(dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "abc")
    dashboard.answers["/api/version"] = {"ray_version": "2.60.0"}
    ray.check(to(dashboard, gpus=None))
    assert {token for _, _, token in dashboard.asked} == {"Bearer abc"}


def job(dashboard: Dashboard) -> SubmittedJob:
    return SubmittedJob("ray", "train-1", "train", "/x", 0.0, 2, {"address": dashboard.address})


@pytest.mark.parametrize(
    ("answer", "state", "code", "detail"),
    [
        ({"status": "PENDING", "message": "waits"}, "queued", None, "waits"),
        ({"status": "RUNNING", "message": "Job is currently running."}, "running", None, ""),
        ({"status": "SUCCEEDED", "driver_exit_code": 0}, "ended", 0, ""),
        ({"status": "STOPPED", "message": "Job was intentionally stopped."}, "cancelled", None, ""),
        (
            {
                "status": "FAILED",
                "driver_exit_code": 137,
                "message": "Job entrypoint command failed with exit code 137, last available logs "
                "(truncated to 20,000 chars):\nline",
            },
            *("failed", 137, "Job entrypoint command failed with exit code 137"),
        ),
    ],
)
def test_states(
    dashboard: Dashboard, answer: dict[str, Any], state: str, code: int | None, detail: str
) -> None:
    dashboard.answers["/api/jobs/train-1"] = answer
    found = ray.state(job(dashboard))
    assert (found.state, found.returncode, found.detail) == (state, code, detail)


def test_a_cluster_that_is_gone_is_unknown(dashboard: Dashboard) -> None:
    assert ray.state(job(dashboard)).state == "unknown"
    with pytest.raises(UserError, match="answers 404"):
        ray.cancel(job(dashboard))
