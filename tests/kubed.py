"""A cluster of Kubernetes on this machine: its own API server and controllers, and nodes of ours.

etcd, kube-apiserver and kube-controller-manager are looked for in $KUBEBUILDER_ASSETS, as envtest
does, and on the path. There is no container runtime: a node of ours runs the container's very
command as process 1 of namespaces of its own (processes, mounts), with its volumes and the names
of the pods. A claim is a folder that all nodes see.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from ports import free_port

PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager", "kubectl")
TOKEN, POOR = "of-the-administrator", "of-somebody"
READY_S = 60.0


def missing() -> str:
    """Why there can be no cluster here; empty: there can."""
    lacking = [name for name in PROGRAMS if program(name) is None]
    if lacking:
        return f"not installed, nor in KUBEBUILDER_ASSETS: {', '.join(lacking)}"
    command = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "true"]
    tried = subprocess.run(command, capture_output=True, check=False)
    return "no namespaces for processes and mounts here" if tried.returncode else ""


def program(name: str) -> str | None:
    assets = os.environ.get("KUBEBUILDER_ASSETS", "")
    return shutil.which(name, path=assets) or shutil.which(name)


@contextmanager
def started(folder: Path, nodes: int, environment: dict[str, str]) -> Iterator[Cluster]:
    """The cluster while it runs. environment: of the containers."""
    cluster = Cluster(folder, nodes, environment)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


class Cluster:
    """All processes of it."""

    def __init__(self, folder: Path, nodes: int, environment: dict[str, str]) -> None:
        self.folder, self.port = folder, free_port()
        self.url = f"https://127.0.0.1:{self.port}"
        self.kubeconfig = folder / "kubeconfig"
        self.context = ssl.create_default_context()
        self.context.check_hostname, self.context.verify_mode = False, ssl.CERT_NONE
        self._processes: list[subprocess.Popen[bytes]] = []
        self._environment = environment
        self.nodes = [Node(self, f"node-{number}", environment) for number in range(nodes)]

    def start(self) -> None:
        self._write()
        peers, clients = free_port(), free_port()
        etcd = f"http://127.0.0.1:{clients}"
        peer = f"http://127.0.0.1:{peers}"
        self._run(
            "etcd", "--data-dir", "etcd", "--listen-client-urls", etcd, "--advertise-client-urls",
            etcd, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
            "--initial-cluster", f"default={peer}", "--unsafe-no-fsync",
        )  # fmt: skip
        self._run(
            "kube-apiserver", "--etcd-servers", etcd, "--cert-dir", "certs", "--secure-port",
            str(self.port), "--bind-address", "127.0.0.1", "--advertise-address", "127.0.0.1",
            "--service-account-key-file", "sa.pub", "--service-account-signing-key-file", "sa.key",
            "--service-account-issuer", "https://localhost", "--token-auth-file", "tokens.csv",
            "--authorization-mode", "RBAC", "--service-cluster-ip-range", "10.0.0.0/24",
            "--disable-admission-plugins", "ServiceAccount",
            "--endpoint-reconciler-type", "none",
        )  # fmt: skip
        self._wait()
        self._run(
            "kube-controller-manager", "--kubeconfig", "kubeconfig", "--controllers",
            "job-controller,garbage-collector-controller", "--secure-port", "0",
            "--leader-elect=false", "--concurrent-gc-syncs=2",
        )  # fmt: skip
        for node in self.nodes:
            node.start()

    def stop(self) -> None:
        for node in self.nodes:
            node.stop()
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            try:
                process.wait(3)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def kubectl(self, *words: str) -> str:
        command = [program("kubectl") or "", "--kubeconfig", str(self.kubeconfig), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def call(self, method: str, path: str, body: Any = None, kind: str = "json") -> Any:
        """The API server's answer. Raises HTTPError."""
        kinds = {"json": "application/json", "merge": "application/merge-patch+json"}
        request = urllib.request.Request(
            self.url + path,
            None if body is None else json.dumps(body).encode(),
            {"Authorization": f"Bearer {TOKEN}", "Content-Type": kinds[kind]},
            method=method,
        )
        with urllib.request.urlopen(request, timeout=20, context=self.context) as answer:
            return json.loads(answer.read())

    def evict(self, pod: dict[str, Any]) -> None:
        """As a drain or a pod of higher priority does it."""
        name = pod["metadata"]["name"]
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
        self.call("POST", f"/api/v1/namespaces/default/pods/{name}/eviction", body)

    def lose(self, pod: dict[str, Any]) -> None:
        """As if its machine had lost its power, and the cluster had noticed and given it up."""
        for node in self.nodes:
            node.lose(pod["metadata"]["uid"])
        path = f"/api/v1/namespaces/default/pods/{pod['metadata']['name']}"
        lost = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC"}
        self.call(
            "PATCH",
            f"{path}/status",
            {"status": {"phase": "Failed", "conditions": [lost]}},
            "merge",
        )
        self.call("DELETE", path, {"gracePeriodSeconds": 0})

    def pods(self) -> list[dict[str, Any]]:
        return list(self.call("GET", "/api/v1/namespaces/default/pods")["items"])

    def _run(self, name: str, *words: str) -> None:
        with (self.folder / f"{name}.log").open("wb") as log:
            command = [program(name) or "", *words]
            self._processes.append(
                subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log)
            )

    def _write(self) -> None:
        for words in (
            ("genrsa", "-out", "sa.key", "2048"),
            ("rsa", "-in", "sa.key", "-pubout", "-out", "sa.pub"),
            ("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "node.key", "-out",
             "node.crt", "-subj", "/CN=127.0.0.1", "-days", "2"),
        ):  # fmt: skip
            subprocess.run(["openssl", *words], cwd=self.folder, capture_output=True, check=True)
        tokens = f"{TOKEN},admin,admin,system:masters\n{POOR},somebody,somebody,people\n"
        (self.folder / "tokens.csv").write_text(tokens)
        server = {"server": self.url, "insecure-skip-tls-verify": True}
        users = {"admin": TOKEN, "somebody": POOR, "stranger": "not-known"}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "here", "cluster": server}],
            "users": [{"name": name, "user": {"token": token}} for name, token in users.items()],
            "contexts": [
                {"name": name, "context": {"cluster": "here", "user": name}} for name in users
            ],
            "current-context": "admin",
        }
        self.kubeconfig.write_text(json.dumps(document))

    def _wait(self) -> None:
        deadline = time.monotonic() + READY_S
        while True:
            with suppress(OSError):
                self.call("GET", "/apis/batch/v1")
                self.call("GET", "/api/v1/namespaces/default")
                return
            assert time.monotonic() < deadline, (self.folder / "kube-apiserver.log").read_text()
            time.sleep(0.2)


class Node:
    """A node that takes pods, runs them, and shows their logs as a kubelet does."""

    def __init__(self, cluster: Cluster, name: str, environment: dict[str, str]) -> None:
        self.cluster, self.name, self.environment = cluster, name, environment
        self.folder = cluster.folder / name
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.asked_to_end: set[str] = set()
        self.lost: set[str] = set()
        """Of these pods it says nothing more."""
        self.writers: dict[str, threading.Thread] = {}
        """Of the logs of its pods."""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._server: ThreadingHTTPServer | None = None

    def start(self) -> None:
        self.folder.mkdir()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.cluster.folder / "node.crt", self.cluster.folder / "node.key")
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": self.name}}
        self.cluster.call("POST", "/api/v1/nodes", node)
        status = {
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self._server.server_address[1]}},
            "allocatable": {"cpu": "2", "memory": "4Gi"},
            "conditions": [{"type": "Ready", "status": "True"}],
        }
        path = f"/api/v1/nodes/{self.name}/status"
        self.cluster.call("PATCH", path, {"status": status}, "merge")
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(10)
        for process in self.running.values():
            with suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    def lose(self, uid: str) -> None:
        """End a pod that runs here, and forget it."""
        if uid in self.running:
            self.lost.add(uid)
            self.running[uid].kill()

    def runs(self, pod: str) -> bool:
        writer = self.writers.get(pod)
        return writer is not None and writer.is_alive()

    def _work(self) -> None:
        while not self._over.wait(0.2):
            with suppress(OSError, KeyError):
                self._round(self.cluster.pods())

    def _round(self, pods: list[dict[str, Any]]) -> None:
        busy = {
            pod["spec"]["nodeName"] for pod in pods if pod["spec"].get("nodeName") and _alive(pod)
        }
        for pod in pods:
            if not pod["spec"].get("nodeName") and self.name not in busy and _alive(pod):
                self._bind(pod)
                return
            if pod["spec"].get("nodeName") == self.name:
                self._care(pod)

    def _bind(self, pod: dict[str, Any]) -> None:
        name = pod["metadata"]["name"]
        target = {"apiVersion": "v1", "kind": "Node", "name": self.name}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
        self.cluster.call("POST", f"/api/v1/namespaces/default/pods/{name}/binding", body)

    def _care(self, pod: dict[str, Any]) -> None:
        uid, now = pod["metadata"]["uid"], time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        process = self.running.get(uid)
        if uid in self.lost:
            return None
        if process is None:
            if not _alive(pod) or pod["metadata"].get("deletionTimestamp"):
                return self._forget(pod)
            self.running[uid] = self._begin(pod)
            return self._tell(pod, "Running", {"running": {"startedAt": now}})
        code = process.poll()
        if code is None:
            self._end(pod, process)
            return None
        if _alive(pod):
            code = code if code >= 0 else 128 - code
            reason = "Completed" if code == 0 else "Error"
            ended = {"exitCode": code, "reason": reason, "startedAt": now, "finishedAt": now}
            self._tell(pod, "Failed" if code else "Succeeded", {"terminated": ended})
        return self._forget(pod)

    def _end(self, pod: dict[str, Any], process: subprocess.Popen[bytes]) -> None:
        """SIGTERM to its process 1 once it is deleted, SIGKILL when the time to end is over."""
        uid, deleted = pod["metadata"]["uid"], pod["metadata"].get("deletionTimestamp")
        if not deleted:
            return
        if time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()) > deleted:  # which is its last moment
            process.kill()
        elif uid not in self.asked_to_end:
            self.asked_to_end.add(uid)
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
            for child in children.split():
                os.kill(int(child), signal.SIGTERM)

    def _forget(self, pod: dict[str, Any]) -> None:
        if pod["metadata"].get("deletionTimestamp"):
            path = f"/api/v1/namespaces/default/pods/{pod['metadata']['name']}"
            with suppress(urllib.error.HTTPError):
                self.cluster.call("DELETE", path, {"gracePeriodSeconds": 0})

    def _tell(self, pod: dict[str, Any], phase: str, state: dict[str, Any]) -> None:
        container = pod["spec"]["containers"][0]
        status = {
            "name": container["name"], "image": container["image"], "imageID": "",
            "ready": "running" in state, "restartCount": 0, "state": state,
        }  # fmt: skip
        path = f"/api/v1/namespaces/default/pods/{pod['metadata']['name']}/status"
        body = {"status": {"phase": phase, "containerStatuses": [status]}}
        self.cluster.call("PATCH", path, body, "merge")

    def _begin(self, pod: dict[str, Any]) -> subprocess.Popen[bytes]:
        """The container's command, in namespaces of its own with its volumes."""
        folder = self.folder / pod["metadata"]["uid"]
        folder.mkdir()
        container = pod["spec"]["containers"][0]
        volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
        lines = ["set -e", "mount -t tmpfs none /mnt"]
        for number, mount in enumerate(container.get("volumeMounts", [])):
            source = self._volume(volumes[mount["name"]], folder)
            lines += [f"mkdir -p /mnt/{number} && mount --bind {source} /mnt/{number}"]
        lines += ["mkdir -p /flatout && mount -t tmpfs none /flatout"]
        for number, mount in enumerate(container.get("volumeMounts", [])):
            path = mount["mountPath"]
            lines += [f"mkdir -p {path} && mount --move /mnt/{number} {path}"]
        hosts = folder / "hosts"
        hosts.write_text(Path("/etc/hosts").read_text() + self._names(pod))
        lines += [f"mount --bind {hosts} /etc/hosts", 'exec "$@"']
        arguments = [word.replace("$$(", "$(") for word in container.get("args", [])]
        inside = ["sh", "-c", "\n".join(lines), "sh", *container["command"], *arguments]
        process = subprocess.Popen(
            ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", *inside],
            cwd=folder,
            env={**self.environment, **_variables(pod, container)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        log = self.folder / f"{pod['metadata']['name']}.log"
        log.touch()
        writer = threading.Thread(target=_stamp, args=(process, log), daemon=True)
        writer.start()
        self.writers[pod["metadata"]["name"]] = writer
        return process

    def _names(self, pod: dict[str, Any]) -> str:
        """All pods are on this machine."""
        spec = pod["spec"]
        if not spec.get("subdomain"):
            return ""
        stem = spec["hostname"].rpartition("-")[0]
        domain = spec["subdomain"]
        return "".join(f"127.0.0.1 {stem}-{index}.{domain}\n" for index in range(4))

    def _volume(self, volume: dict[str, Any], folder: Path) -> Path:
        if "persistentVolumeClaim" in volume:
            claim = self.cluster.folder / "claims" / volume["persistentVolumeClaim"]["claimName"]
            claim.mkdir(parents=True, exist_ok=True)
            return claim
        target = folder / volume["name"]
        target.mkdir()
        if "configMap" in volume:
            name = volume["configMap"]["name"]
            document = self.cluster.call("GET", f"/api/v1/namespaces/default/configmaps/{name}")
            for key, text in document.get("binaryData", {}).items():
                (target / key).write_bytes(base64.b64decode(text))
        return target


def _stamp(process: subprocess.Popen[bytes], log: Path) -> None:
    """Lines as a node keeps them: behind the time when they were written."""
    assert process.stdout is not None
    with process.stdout, log.open("ab", buffering=0) as file:
        for line in process.stdout:
            now = time.time_ns()
            second = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now // 10**9))
            file.write(f"{second}.{now % 10**9:09d}Z ".encode() + line)


def _alive(pod: dict[str, Any]) -> bool:
    return pod["status"].get("phase") in ("Pending", "Running", None)


def _variables(pod: dict[str, Any], container: dict[str, Any]) -> dict[str, str]:
    found = {}
    for entry in container.get("env", []):
        if "value" in entry:
            found[entry["name"]] = entry["value"].replace("$$(", "$(")
        elif "fieldRef" in entry.get("valueFrom", {}):
            path = entry["valueFrom"]["fieldRef"]["fieldPath"]
            table, _, key = path.removeprefix("metadata.").partition("['")
            found[entry["name"]] = pod["metadata"].get(table, {}).get(key.removesuffix("']"), "")
    return found


def _handler(node: Node) -> type[BaseHTTPRequestHandler]:
    """GET /containerLogs/namespace/pod/container, as a kubelet answers it."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.0"

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            asked = {key: values[0] for key, values in parse_qs(parts.query).items()}
            pod = parts.path.split("/")[3]
            log = node.folder / f"{pod}.log"
            self.send_response(200)
            self.end_headers()
            with log.open("rb") as file:
                while True:
                    over = not node.runs(pod)  # asked before the log is read
                    line = file.readline()
                    if line:
                        stamp, _, text = line.partition(b" ")
                        if stamp.decode() >= asked.get("sinceTime", "").removesuffix("Z"):
                            self.wfile.write(line if "timestamps" in asked else text)
                    elif asked.get("follow") != "true" or over:
                        return
                    else:
                        self.wfile.flush()
                        time.sleep(0.1)

        def log_message(self, *words: Any) -> None:
            """Not shown."""

    return Handler


if __name__ == "__main__":  # by hand: a cluster to look at
    with started(Path(sys.argv[1]), 2, dict(os.environ)) as shown:
        print(shown.kubeconfig)
        signal.pause()
