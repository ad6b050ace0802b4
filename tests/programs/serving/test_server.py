"""The server as a process of its own, and clients over real sockets."""

from __future__ import annotations

import http.client
import json
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from served import WEIGHTS, Served, linear, request, serving_process, tensor, until

INFER = "/v2/models/Linear/infer"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return linear(tmp_path_factory.mktemp("artefact"))


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Served]:
    with serving_process(folder, "--max-body-mib", "1") as running:
        yield running


def y(message: Any) -> np.ndarray[Any, Any]:
    (found,) = [row for row in message["outputs"] if row["name"] == "y"]
    return np.array(found["data"], "float32").reshape(found["shape"])


def raw(port: int, *pieces: bytes, pause_s: float = 0.0, wait_s: float = 60.0) -> bytes:
    """All that comes back for these bytes until the server closes the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=wait_s) as connection:
        with suppress(OSError):
            for piece in pieces:
                connection.sendall(piece)
                time.sleep(pause_s)
        answer = b""
        with suppress(ConnectionError):
            while chunk := connection.recv(65536):
                answer += chunk
        return answer


def post(body: bytes, *headers: str, host: str = "localhost") -> bytes:
    rows = [f"POST {INFER} HTTP/1.1", f"Host: {host}", *headers]
    if not any(row.lower().startswith(("content-length", "transfer-encoding")) for row in rows):
        rows.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*rows, "", ""]).encode() + body


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def test_health_and_metadata(server: Served) -> None:
    assert server.get("/v2/health/live") == {"live": True}
    assert server.get("/v2/health/ready")["ready"] is True
    assert server.get("/v2/models/Linear/ready") == {"name": "Linear", "ready": True}
    assert server.get("/v2")["extensions"] == ["binary_tensor_data"]
    metadata = server.get("/v2/models/Linear")
    assert metadata == server.get("/v2/models/Linear/versions/1/")
    assert metadata["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 3]}]
    assert metadata["outputs"][1] == {"name": "rows", "datatype": "INT64", "shape": [-1]}
    assert server.ask("HEAD", "/v2/health/ready")[2] == b""


def test_a_request_is_answered(server: Served) -> None:
    rows = [[1, 2, 3], [4, 5, 6]]
    code, message = server.infer(rows, "/v2/models/Linear/versions/1/infer")
    assert code == 200
    np.testing.assert_allclose(y(message), np.array(rows, "float32") @ WEIGHTS, rtol=1e-5)
    assert message["model_name"] == "Linear"
    assert "id" not in message
    body = json.dumps(request(rows, id="ä-1")).encode()
    assert json.loads(server.ask("POST", INFER, body)[2])["id"] == "ä-1"


@pytest.mark.parametrize(
    ("method", "path", "code"),
    [
        ("GET", "/", 404),
        ("GET", "/v2/models", 404),
        ("GET", "/v2/models/*", 404),
        ("GET", "/v2/models/other/ready", 404),
        ("GET", "/v2/models/Linear/versions/2", 404),
        ("GET", "/v2/models/../Linear", 404),
        ("GET", "/../manifest.json", 404),
        ("GET", "/%2e%2e/load.py", 404),
        ("GET", "/serve.py", 404),
        ("GET", INFER, 405),
        ("POST", "/v2", 405),
        ("DELETE", "/v2/models/Linear", 405),
        ("OPTIONS", INFER, 405),
    ],
)
def test_other_paths_and_methods(server: Served, method: str, path: str, code: int) -> None:
    answer = raw(server.port, f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n"
                              "Connection: close\r\n\r\n".encode())  # fmt: skip
    assert status(answer) == code
    assert "error" in json.loads(answer.partition(b"\r\n\r\n")[2])


def test_refusals_leave_the_connection_usable(server: Served) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    for body in (b"{", json.dumps(request([[1, 2]])).encode(), b"\x00" * 1000):
        connection.request("POST", INFER, body)
        answer = connection.getresponse()
        assert answer.status == 400
        assert json.loads(answer.read())["error"]
    connection.request("POST", INFER, json.dumps(request([[1, 2, 3]])))
    assert connection.getresponse().status == 200
    connection.close()


@pytest.mark.parametrize(
    ("pieces", "code"),
    [
        ([b"GARBAGE\r\n\r\n"], 400),
        ([b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n"], 400),  # the start of TLS
        ([b"GET / HTTP/1.1\r\nA: " + b"a" * 400_000 + b"\r\n\r\n"], 431),
        ([post(b"", "Content-Length: 99999999999")], 413),
        ([post(b"x" * 5_000_000)], 413),
        ([post(b"", "Content-Length: 1e3")], 400),
        ([post(b"0\r\n\r\n", "Transfer-Encoding: chunked")], 411),
        ([post(b"0\r\n\r\n", "Transfer-Encoding: chunked", "Content-Length: 5")], 411),
        ([post(b"{}", "Content-Encoding: gzip")], 415),
        ([post(b"{}", "Inference-Header-Content-Length: 3", "Connection: close")], 400),
        ([post(b"{}", "Inference-Header-Content-Length: x", "Connection: close")], 400),
        ([post(b"{}", host="attacker.example")], 421),
        ([post(b"{}", host="localhost.attacker.example:80")], 421),
    ],
)
def test_malformed_requests(server: Served, pieces: list[bytes], code: int) -> None:
    assert status(raw(server.port, *pieces)) == code
    assert server.infer([[1, 2, 3]])[0] == 200


def test_requests_in_one_piece_are_answered_in_order(server: Served) -> None:
    bodies = [json.dumps(request([[n, 0, 0]], id=str(n))).encode() for n in range(20)]
    *first, last = bodies
    answer = raw(server.port, b"".join(map(post, first)) + post(last, "Connection: close"))
    found = [
        json.loads(part.partition(b"\r\n\r\n")[2]) for part in answer.split(b"HTTP/1.1 200 OK")[1:]
    ]
    assert [message["id"] for message in found] == [str(n) for n in range(20)]
    for number, message in enumerate(found):
        np.testing.assert_allclose(y(message)[0], number * WEIGHTS[0], rtol=1e-5, atol=1e-6)


def test_a_request_in_many_pieces_is_read(server: Served) -> None:
    whole = post(json.dumps(request([[1, 2, 3]])).encode(), "Connection: close")
    pieces = [whole[start : start + 7] for start in range(0, len(whole), 7)]
    assert status(raw(server.port, *pieces, pause_s=0.002)) == 200


def test_a_client_that_asks_first_is_told_to_go_on(server: Served) -> None:
    """As curl does with large bodies: without an answer it waits for a second."""
    body = json.dumps(request([[1, 2, 3]])).encode()
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(post(body, "Expect: 100-continue")[: -len(body)])
        assert connection.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(body)
        assert connection.recv(1000).startswith(b"HTTP/1.1 200 OK")


def test_curl(server: Served, tmp_path: Path) -> None:
    curl = shutil.which("curl")
    if curl is None:
        pytest.skip("no curl")
    (tmp_path / "body").write_text(json.dumps(request([[1, 2, 3]] * 2000)))
    url = f"http://localhost:{server.port}{INFER}"
    command = [curl, "-sS", "-4", "--noproxy", "*", "-d", f"@{tmp_path / 'body'}", url]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert y(json.loads(done.stdout)).shape == (2000, 5)


def test_metrics_are_what_prometheus_reads(server: Served) -> None:
    server.infer([[1, 2, 3]])
    server.infer([[1, 2]])
    _, headers, text = server.ask("GET", "/metrics")
    assert headers["content-type"].startswith("text/plain; version=0.0.4")
    families = {family.name: family for family in text_string_to_metric_families(text.decode())}
    codes = {row.labels["code"]: row.value for row in families["serve_answers"].samples}
    assert codes["200"] >= 1
    assert codes["400"] >= 1
    assert families["serve_batch_rows"].type == "histogram"
    buckets = [row for row in families["serve_batch_rows"].samples if row.name.endswith("_bucket")]
    assert [row.labels["le"] for row in buckets][-1] == "+Inf"
    counts = [row.value for row in buckets]
    assert counts == sorted(counts)
    assert families["serve_ready"].samples[0].value == 1


def test_200_clients_at_once_get_their_own_answers(folder: Path) -> None:
    clients, each = 200, 10
    gate = threading.Barrier(clients)

    def client(number: int) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=120)
        connection.connect()
        gate.wait()
        for turn in range(each):
            count = 1 + (number + turn) % 3
            rows = np.full((count, 3), [number, turn, 1], "float32")
            identity = f"{number}/{turn}"
            connection.request("POST", INFER, json.dumps(request(rows, id=identity)))
            message = json.loads(connection.getresponse().read())
            assert message["id"] == identity
            np.testing.assert_allclose(y(message), rows @ WEIGHTS, rtol=1e-4, atol=1e-4)
        connection.close()
        return each

    with serving_process(folder, SLEEP_S="0.001") as running, ThreadPoolExecutor(clients) as pool:
        assert sum(pool.map(client, range(clients))) == clients * each
        calls = running.figure("serve_batch_rows_count")
        assert running.figure('serve_answers_total{code="200"}') >= clients * each
        assert calls < clients * each / 2  # most went through the model together
        assert running.figure("serve_bytes_held") == 0


def test_a_window_collects_a_batch_which_answers_as_each_alone(folder: Path) -> None:
    """Eight rows are a batch: the window of a minute ends as soon as they are there."""
    with serving_process(folder, "--window-ms", "60000") as running:
        with ThreadPoolExecutor(6) as pool:
            sizes = [1, 2, 1, 1, 2, 1]
            inputs = [
                np.random.default_rng(n).normal(size=(size, 3)) for n, size in enumerate(sizes)
            ]
            messages = list(pool.map(lambda rows: running.infer(rows)[1], inputs))
        for rows, message in zip(inputs, messages, strict=True):
            np.testing.assert_allclose(y(message), rows @ WEIGHTS, rtol=1e-4, atol=1e-5)
            assert message["outputs"][1]["data"] == [8] * len(rows)  # of one call of eight rows


def test_shapes_that_differ_do_not_wait_for_each_other(tmp_path: Path) -> None:
    """Two lengths in one window are two batches, and the second follows the first at once."""
    facts: dict[str, Any] = {"inputs": [tensor("x", "float32", None, None)]}
    folder = linear(tmp_path / "artefact", **facts)
    text = (folder / "load.py").read_text().replace("x @ weights", "x.sum(1, keepdims=True)")
    (folder / "load.py").write_text(text)
    options = ("--unchecked", "--window-ms", "500", "--timeout-s", "10")
    with serving_process(folder, *options) as running, ThreadPoolExecutor(4) as pool:
        found = list(pool.map(running.infer, ([[1] * size] for size in (1, 2, 3, 2))))
    assert [code for code, _ in found] == [200] * 4
    assert [message["outputs"][0]["data"] for _, message in found] == [[1], [2], [3], [2]]


def test_one_window_ends_by_time(folder: Path) -> None:
    with serving_process(folder, "--window-ms", "50") as running:
        assert running.infer([[1, 2, 3]])[1]["outputs"][1]["data"] == [1]


def test_a_request_that_the_model_cannot_take_harms_no_other(folder: Path) -> None:
    with (
        serving_process(folder, "--window-ms", "60000") as running,
        ThreadPoolExecutor(8) as pool,
    ):
        rows = [[[1e6 if n == 3 else n, 0, 0]] for n in range(8)]
        found = list(pool.map(running.infer, rows))
    assert [code for code, _ in found] == [500 if n == 3 else 200 for n in range(8)]
    assert "IndexError: index out of range" in found[3][1]["error"]
    np.testing.assert_allclose(y(found[5][1])[0], 5 * WEIGHTS[0], rtol=1e-5)


def test_without_a_dynamic_batch_each_runs_alone(tmp_path: Path) -> None:
    inputs = [tensor("x", "float32", 2, 3)]
    outputs = [tensor("y", "float32", 2, 5), tensor("rows", "int64", 2)]
    facts: dict[str, Any] = {"inputs": inputs, "outputs": outputs, "batch_dynamic": False}
    folder = linear(tmp_path / "fixed", **facts)
    with serving_process(folder, SLEEP_S="0.01") as running, ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda n: running.infer([[n, 0, 0]] * 2)[1], range(16)))
        assert [message["outputs"][1]["data"] for message in found] == [[2, 2]] * 16
        assert "it is [2, 3]" in running.infer([[1, 2, 3]])[1]["error"]


def test_an_output_without_the_batch_is_found_out(tmp_path: Path) -> None:
    """The manifest says that each output has the batch first, and the model does otherwise."""
    folder = linear(tmp_path / "artefact")
    text = (folder / "load.py").read_text()
    (folder / "load.py").write_text(text.replace("(len(x),)", "(1,)"))
    with (
        serving_process(folder, "--unchecked", "--window-ms", "60000") as running,
        ThreadPoolExecutor(8) as pool,
    ):
        found = list(pool.map(lambda n: running.infer([[n, 0, 0]])[1], range(8)))
    assert [message["outputs"][1]["data"] for message in found] == [[1]] * 8


def test_more_than_the_queue_takes_is_sent_away(folder: Path, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with serving_process(folder, "--queue", "2", "--max-batch", "1", GATE=str(gate)) as running:
        with ThreadPoolExecutor(10) as pool:
            body = json.dumps(request([[1, 2, 3]])).encode()
            asked = [pool.submit(running.ask, "POST", INFER, body) for _ in range(10)]
            # Seven, or eight where all came before the model took the first from the queue.
            until(lambda: running.figure('serve_answers_total{code="503"}') >= 7)
            gate.touch()
            found = [item.result() for item in asked]
        answered = [code for code, _, _ in found].count(200)
        assert answered in (2, 3)
        assert sorted(code for code, _, _ in found) == [200] * answered + [503] * (10 - answered)
        assert all(headers["retry-after"] == "1" for code, headers, _ in found if code == 503)
        assert running.infer([[1, 2, 3]])[0] == 200


def test_a_request_that_takes_too_long_is_told_so(folder: Path, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with serving_process(folder, "--timeout-s", "2", GATE=str(gate)) as running:
        code, message = running.infer([[1, 2, 3]])
        assert (code, "no result within 2 s" in message["error"]) == (503, True)
        assert running.get("/v2/health/live") == {"live": True}
        gate.touch()
        until(lambda: running.infer([[1, 2, 3]])[0] == 200)


def test_slow_and_silent_clients_are_cut_off_and_harm_nobody(folder: Path) -> None:
    with serving_process(folder, "--timeout-s", "3", "--connections", "40") as running:
        stuck = []
        for _ in range(20):
            connection = socket.create_connection(("127.0.0.1", running.port), timeout=60)
            connection.sendall(post(b"{" * 10, "Content-Length: 60000"))
            stuck.append(connection)
        assert running.infer([[1, 2, 3]])[0] == 200
        for connection in stuck:
            assert connection.recv(100) == b""
            connection.close()
        until(lambda: running.figure("serve_connections") == 1)
        assert running.figure("serve_bytes_held") == 0


def test_a_client_that_does_not_read_its_answer_is_cut_off(folder: Path) -> None:
    with serving_process(folder, "--timeout-s", "3") as running:
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", running.port))
        connection.settimeout(60)
        rows = np.zeros((100_000, 3))
        connection.sendall(post(json.dumps(request(rows)).encode()))
        until(lambda: running.figure("serve_bytes_held") > 1_000_000)
        until(lambda: running.figure("serve_bytes_held") == 0)
        assert running.figure("serve_connections") == 1
        connection.close()


def test_a_half_open_connection_may_still_be_answered(server: Served) -> None:
    """The client has said all that it will say, and reads."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(post(json.dumps(request([[1, 2, 3]])).encode()))
        connection.shutdown(socket.SHUT_WR)
        answer = b""
        while chunk := connection.recv(65536):
            answer += chunk
    assert status(answer) == 200


def test_too_many_connections_are_told_so(folder: Path) -> None:
    with serving_process(folder, "--connections", "3") as running:
        held = [socket.create_connection(("127.0.0.1", running.port)) for _ in range(3)]
        answer = raw(running.port, b"GET /v2 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert status(answer) == 503
        assert b"Retry-After: 1" in answer
        for connection in held:
            connection.close()
        until(lambda: status(raw(running.port, post(b"{}", "Connection: close"))) == 400)


def test_bodies_in_memory_are_bounded_and_small_ones_pass(folder: Path) -> None:
    with serving_process(folder, "--memory-mib", "2", "--timeout-s", "60") as running:
        slow = socket.create_connection(("127.0.0.1", running.port))
        slow.sendall(post(b"", "Content-Length: 1500000"))
        until(lambda: running.figure("serve_bytes_held") == 1_500_000)
        assert status(raw(running.port, post(b"x" * 1_000_000))) == 503
        assert running.infer([[1, 2, 3]])[0] == 200
        slow.close()
        until(lambda: running.figure("serve_bytes_held") == 0)
        assert status(raw(running.port, post(b"x" * 1_000_000, "Connection: close"))) == 400


def test_it_lives_before_it_is_ready(folder: Path, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with serving_process(folder, ready=False, LOAD_GATE=str(gate)) as running:
        assert running.get("/v2/health/live") == {"live": True}
        assert running.ask("GET", "/v2/health/ready")[0] == 503
        assert running.ask("GET", "/v2/models/Linear/ready")[0] == 503
        code, message = running.infer([[1, 2, 3]])
        assert (code, "being loaded" in message["error"]) == (503, True)
        gate.touch()
        until(lambda: running.ask("GET", "/v2/health/ready")[0] == 200)
        assert running.infer([[1, 2, 3]])[0] == 200


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_signal_finishes_what_runs(folder: Path, tmp_path: Path, name: str) -> None:
    gate = tmp_path / "gate"
    with serving_process(folder, "--max-batch", "1", GATE=str(gate)) as running:
        idle = socket.create_connection(("127.0.0.1", running.port), timeout=60)
        with ThreadPoolExecutor(3) as pool:
            asked = [pool.submit(running.infer, [[n, 0, 0]]) for n in (1, 2, 3)]
            until(lambda: running.figure("serve_queue_length") == 2)
            running.process.send_signal(getattr(signal, name))
            assert idle.recv(100) == b""
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", running.port), timeout=60)
            gate.touch()
            found = [item.result() for item in asked]
        assert [code for code, _ in found] == [200] * 3
        for number, (_, message) in enumerate(found):
            np.testing.assert_allclose(y(message)[0], (number + 1) * WEIGHTS[0], rtol=1e-5)
        assert running.process.wait(60) == 0
        idle.close()


def test_it_lingers_for_balancers_until_the_second_signal(folder: Path) -> None:
    with serving_process(folder, "--linger-s", "600") as running:
        running.process.send_signal(signal.SIGTERM)
        until(lambda: running.ask("GET", "/v2/health/ready")[0] == 503)
        assert running.get("/v2/health/live") == {"live": True}
        assert running.infer([[1, 2, 3]])[0] == 200
        assert running.end() == 0


def test_an_end_while_the_model_loads(folder: Path, tmp_path: Path) -> None:
    never = str(tmp_path / "never")
    with serving_process(folder, ready=False, LOAD_GATE=never) as running:
        assert running.end() == 0


def test_a_model_that_hangs_does_not_keep_the_process(folder: Path, tmp_path: Path) -> None:
    never = str(tmp_path / "never")
    with serving_process(folder, "--timeout-s", "1", GATE=never) as running:
        assert running.infer([[1, 2, 3]])[0] == 503
        assert running.end() == 0


def start(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(folder / "serve.py"), "--port", "0", *options]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize("name", ["weights.npy", "load.py"])
def test_a_file_that_was_changed_is_not_loaded(tmp_path: Path, name: str) -> None:
    folder = linear(tmp_path / "artefact")
    with (folder / name).open("ab") as file:
        file.write(b"\nopen(__file__ + '.run', 'w').close()\n")
    done = start(folder)
    assert done.returncode == 1
    assert f"{name} is not the file that was verified" in done.stderr
    assert not (folder / "load.py.run").exists()
    with serving_process(folder, "--unchecked") as running:
        assert running.infer([[1, 2, 3]])[0] == 200


def test_nothing_of_flatout_is_needed(folder: Path, tmp_path: Path) -> None:
    for name in ("flatout", "flatout_agent", "flatout_programs", "flatout_train"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('not here')")
    with serving_process(folder, PYTHONPATH=str(tmp_path)) as running:
        assert running.infer([[1, 2, 3]])[0] == 200


def test_packages_behind_those_of_python(tmp_path: Path) -> None:
    behind = tmp_path / "overlay"
    behind.mkdir()
    (behind / "only_here.py").write_text("")
    (behind / "json.py").write_text("raise ImportError('in front')")
    folder = linear(tmp_path / "artefact")
    (folder / "load.py").write_text("import only_here\n" + (folder / "load.py").read_text())
    with serving_process(folder, "--unchecked", "--packages", str(behind)) as running:
        assert running.infer([[1, 2, 3]])[0] == 200


@pytest.mark.parametrize(("options", "threads"), [((), "3 3"), (("--threads", "2"), "2 2")])
def test_as_many_threads_as_load_py_counts_cores(
    tmp_path: Path, options: tuple[str, ...], threads: str
) -> None:
    folder = linear(tmp_path / "artefact")
    text = (folder / "load.py").read_text().replace("return 1\n", "return 3\n")
    note = "    print('threads', threads, os.environ['TVM_NUM_THREADS'], file=sys.stderr)\n"
    head = "def load(folder=None, threads=None, check=False):\n"
    assert head in text
    (folder / "load.py").write_text("import sys\n" + text.replace(head, head + note))
    with serving_process(folder, "--unchecked", *options) as running:
        assert f"threads {threads}\n" in running.said


def test_a_manifest_does_not_name_files_elsewhere(tmp_path: Path) -> None:
    folder = linear(tmp_path / "artefact")
    manifest = json.loads((folder / "manifest.json").read_text())
    for name in ("../elsewhere", "/etc/hostname"):
        manifest["files"] = {name: "0" * 64}
        (folder / "manifest.json").write_text(json.dumps(manifest))
        assert "outside of this folder" in start(folder).stderr


def test_what_cannot_be_served_is_said(tmp_path: Path) -> None:
    folder = linear(tmp_path / "artefact", outputs=[tensor("y", "bfloat16", None)])
    assert "no type for y (bfloat16)" in start(folder).stderr
    other = linear(tmp_path / "other")
    (other / "load.py").write_text("raise ImportError('no onnxruntime here')")
    done = start(other, "--unchecked")
    assert done.returncode == 1
    assert "ImportError: no onnxruntime here" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_port_that_is_taken(folder: Path, server: Served) -> None:
    done = start(folder, "--port", str(server.port))
    assert done.returncode == 1
    assert "address already in use" in done.stderr.lower()


def test_it_listens_to_this_machine_alone_unless_told(folder: Path, server: Served) -> None:
    with suppress(OSError):
        others = {item[4][0] for item in socket.getaddrinfo(socket.gethostname(), None)}
        for address in others - {"127.0.0.1", "::1", "127.0.1.1"}:
            with pytest.raises(OSError), socket.create_connection((address, server.port), 5):
                pass
    with serving_process(folder, "--host", "0.0.0.0") as running:
        answer = raw(running.port, post(b"{}", "Connection: close", host="any.example"))
        assert status(answer) == 400  # read, and no longer a question of the name


def test_the_access_log_is_asked_for(folder: Path) -> None:
    with serving_process(folder, "--access-log") as running:
        running.infer([[1, 2, 3]])
        running.end()
        assert running.process.stderr is not None
        assert f"'POST' '{INFER}' 200" in running.process.stderr.read()
    with serving_process(folder) as running:
        running.infer([[1, 2, 3]])
        running.end()
        assert running.process.stderr is not None
        assert INFER not in running.process.stderr.read()
