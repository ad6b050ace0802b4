"""Two machines with sshd for tests: network namespaces of this one, or else loopback addresses.

Each has its own home folder and host key; keys and configuration lie in one folder and end with it.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from ports import free_port

PROGRAMS = ("sshd", "ssh", "ssh-keygen")
SEARCH = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))
HOSTS = ("box1", "box2")
LIMIT_S = 30.0
SERVER = """\
ListenAddress {address}
Port {port}
HostKey {folder}/host_key
AuthorizedKeysFile {top}/user_key.pub
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin yes
SetEnv HOME={folder}/home FLATOUT_TEST_MACHINE={top}/{name} {variables}
"""
CLIENT = """\
Host {name}
  HostName {address}
  Port {port}
  User root
  HostKeyAlias {name}
  IdentityFile {top}/user_key
  IdentitiesOnly yes
  UserKnownHostsFile {top}/known_hosts
  GlobalKnownHostsFile /dev/null
"""


def missing() -> str:
    """Why there can be none here; empty: there can."""
    if os.name != "posix" or os.geteuid() != 0:
        return "sshd of a test wants root"
    absent = [name for name in PROGRAMS if shutil.which(name, path=SEARCH) is None]
    return f"not installed: {', '.join(absent)} (Debian: openssh-server)" if absent else ""


class SshMachines:
    """The running machines."""

    def __init__(self, folder: Path, variables: Mapping[str, str]) -> None:
        self.folder = folder
        self.config = folder / "config"
        self.separate = False
        """Whether each has a network of its own."""
        self._variables = " ".join(f"{name}={value}" for name, value in variables.items())
        self._net = f"fl{secrets.token_hex(3)}"
        # Its own, for tests that run side by side.
        self._subnet = f"10.{secrets.choice(range(200, 250))}.{secrets.choice(range(1, 250))}"
        self._servers: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        """Start the sshd of each, and write the user's configuration for them."""
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        _key(self.folder / "user_key")
        self.separate = self._networks()
        known, config = [], []
        for index, name in enumerate(HOSTS):
            address = f"{self._subnet}.{index + 2}" if self.separate else f"127.0.0.{index + 2}"
            port = 22 if self.separate else free_port()
            own = self.folder / name
            (own / "home").mkdir(parents=True)
            _key(own / "host_key")
            values = {"address": address, "port": port, "folder": own, "top": self.folder}
            values |= {"name": name, "variables": self._variables}
            (own / "sshd_config").write_text(SERVER.format(**values))
            config.append(CLIENT.format(**values))
            known.append(f"{name} {(own / 'host_key.pub').read_text()}")
            self._servers[name] = self._server(name, own / "sshd_config")
            _answers(address, port)
        (self.folder / "known_hosts").write_text("".join(known))
        self.config.write_text("".join(config))

    def home(self, name: str) -> Path:
        """The home folder of one machine."""
        return self.folder / name / "home"

    def pids(self, name: str = "") -> list[int]:
        """Processes that were started on the machines, or on one of them."""
        wanted = f"FLATOUT_TEST_MACHINE={self.folder}/{name}".encode()
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                variables = (process / "environ").read_bytes().split(b"\0")
                if any(line == wanted if name else line.startswith(wanted) for line in variables):
                    found.append(int(process.name))
        return found

    def stop(self) -> None:
        """End everything, networks included."""
        for server in self._servers.values():
            server.terminate()
            server.wait()
        for pid in self.pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self.separate:
            for name in HOSTS:
                _ip("netns", "del", f"{self._net}{name}")
            _ip("link", "del", self._net)

    def _server(self, name: str, config: Path) -> subprocess.Popen[bytes]:
        sshd = shutil.which("sshd", path=SEARCH)
        assert sshd is not None
        inside = ["ip", "netns", "exec", f"{self._net}{name}"] if self.separate else []
        with (self.folder / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                [*inside, sshd, "-D", "-e", "-f", str(config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _networks(self) -> bool:
        """A bridge here, and a namespace on it for each machine; False: it is not allowed."""
        if shutil.which("ip", path=SEARCH) is None:
            return False
        bridge = self._net
        steps = [
            ("link", "add", bridge, "type", "bridge"),
            ("addr", "add", f"{self._subnet}.1/24", "dev", bridge),
            ("link", "set", bridge, "up"),
        ]
        for index, name in enumerate(HOSTS):
            space, outer, inner = f"{bridge}{name}", f"{bridge}o{index}", f"{bridge}i{index}"
            steps += [
                ("netns", "add", space),
                ("link", "add", outer, "type", "veth", "peer", "name", inner),
                ("link", "set", inner, "netns", space),
                ("link", "set", outer, "master", bridge, "up"),
                ("-n", space, "addr", "add", f"{self._subnet}.{index + 2}/24", "dev", inner),
                ("-n", space, "link", "set", inner, "up"),
                ("-n", space, "link", "set", "lo", "up"),
            ]
        if all(_ip(*step) for step in steps):
            return True
        for name in HOSTS:
            _ip("netns", "del", f"{bridge}{name}")
        _ip("link", "del", bridge)
        return False


@contextmanager
def machines(folder: Path, variables: Mapping[str, str]) -> Iterator[SshMachines]:
    """Two machines with these variables in each session, in `folder`, which is empty."""
    made = SshMachines(folder, variables)
    try:
        made.start()
        yield made
    finally:
        made.stop()


def _ip(*words: str) -> bool:
    done = subprocess.run(["ip", *words], capture_output=True, timeout=LIMIT_S)
    return done.returncode == 0


def _key(path: Path) -> None:
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, timeout=LIMIT_S)


def _answers(address: str, port: int) -> None:
    """Wait for its sshd."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        try:
            socket.create_connection((address, port), 1).close()
            return
        except OSError:
            assert time.monotonic() < deadline, f"no sshd at {address}:{port}"
            time.sleep(0.05)
