"""The API server and the controllers of Kubernetes on this machine, without nodes: pods wait.

etcd, kube-apiserver and kube-controller-manager are looked for in $KUBEBUILDER_ASSETS, as envtest
does, and on the path.
"""

from __future__ import annotations

import json
import os
import shutil
import ssl
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ports import free_port

PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager", "kubectl")
TOKEN, POOR = "of-the-administrator", "of-somebody"
READY_S = 60.0


def missing() -> str:
    """Why there can be no cluster here; empty: there can."""
    lacking = [name for name in PROGRAMS if program(name) is None]
    if lacking:
        return f"not installed, nor in KUBEBUILDER_ASSETS: {', '.join(lacking)}"
    return ""


def program(name: str) -> str | None:
    assets = os.environ.get("KUBEBUILDER_ASSETS", "")
    return shutil.which(name, path=assets) or shutil.which(name)


@contextmanager
def started(folder: Path) -> Iterator[Cluster]:
    """The cluster while it runs."""
    cluster = Cluster(folder)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


class Cluster:
    """All processes of it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self.url = f"https://127.0.0.1:{self.port}"
        self.kubeconfig = folder / "kubeconfig"
        self.context = ssl.create_default_context()
        self.context.check_hostname, self.context.verify_mode = False, ssl.CERT_NONE
        self._processes: list[subprocess.Popen[bytes]] = []

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

    def stop(self) -> None:
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
                for path in ("/apis/batch/v1", "/api/v1/namespaces/default"):
                    header = {"Authorization": f"Bearer {TOKEN}"}
                    request = urllib.request.Request(self.url + path, headers=header)
                    urllib.request.urlopen(request, timeout=20, context=self.context).close()
                return
            assert time.monotonic() < deadline, (self.folder / "kube-apiserver.log").read_text()
            time.sleep(0.2)
