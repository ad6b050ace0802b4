"""Facts about machines reached by ssh, read before anything is sent to them."""

from __future__ import annotations

import json
import re
import secrets
import shlex
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from flatout.launching.ssh_hosts import UNREACHED, RemoteHost, at_once
from flatout.nouns.decoding import decode
from flatout.nouns.errors import UserError
from flatout.nouns.launched import LaunchRequest

MARK = "flatout-host "
ASK = r"""
python=$1
command -v "$python" >/dev/null 2>&1 || { echo "no python"; exit 0; }
command -v setsid >/dev/null 2>&1 || { echo "no setsid"; exit 0; }
command -v tar >/dev/null 2>&1 || { echo "no tar"; exit 0; }
exec "$python" -c '
import importlib.util, json, os, platform, shutil, socket, subprocess, sys
from importlib import metadata

def version(name):
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""

def own_version():
    try:
        import flatout
        return flatout.__version__
    except Exception:  # Python is too old for it
        return ""

def gpus():
    try:
        done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=20)
    except Exception:
        return 0
    return sum(line.startswith("GPU ") for line in done.stdout.splitlines())

def addresses():
    try:
        done = subprocess.run(["hostname", "-I"], capture_output=True, text=True, timeout=10)
        return done.stdout.split()
    except Exception:
        return []

print("flatout-host " + json.dumps({
    "python": platform.python_version(),
    "system": platform.system(),
    "flatout": own_version(),
    "torch": version("torch") if importlib.util.find_spec("torch") else "",
    "gpus": gpus(),
    "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1,
    "addresses": addresses(),
    "host_name": socket.gethostname(),
    "free_bytes": shutil.disk_usage(os.path.expanduser("~")).free,
}))
'
"""
LISTEN = r"""
import socket, sys, time
port, count, token = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3].encode()
both = socket.has_dualstack_ipv6()
family = socket.AF_INET6 if both else socket.AF_INET
try:
    server = socket.create_server(("", port), family=family, dualstack_ipv6=both)
except OSError as error:
    print("taken", error)
    raise SystemExit
print("open", flush=True)
server.settimeout(15)
deadline = time.monotonic() + 15
while count and time.monotonic() < deadline:
    try:
        peer = server.accept()[0]
    except OSError:
        break
    peer.settimeout(5)
    try:
        if peer.recv(64) == token:
            peer.sendall(token)
            count -= 1
    except OSError:
        pass
"""
CONNECT = r"""
import socket, sys, time
host, port, token = sys.argv[1], int(sys.argv[2]), sys.argv[3].encode()
deadline, said = time.monotonic() + 10, "no answer"
while time.monotonic() < deadline:
    try:
        with socket.create_connection((host, port), 5) as peer:
            peer.sendall(token)
            peer.settimeout(5)
            if peer.recv(64) == token:
                print("reached")
                raise SystemExit
            said = "another program answers there"
    except OSError as error:
        said = error.strerror or str(error)
    time.sleep(0.3)
print(said)
"""
SPARE_BYTES = 1 << 30


@dataclass(frozen=True)
class HostFacts:
    """One machine, as its Python sees it."""

    host_name: str
    python: str
    system: str
    flatout: str
    """flatout's version; empty if it is not installed for that Python."""
    torch: str
    gpus: int
    cores: int
    free_bytes: int
    addresses: tuple[str, ...] = ()


def look(machines: Sequence[RemoteHost], request: LaunchRequest) -> list[HostFacts]:
    """Facts of all machines. Raises UserError if one cannot take part."""
    python = request.python or "python3"

    def one(host: RemoteHost) -> HostFacts:
        answer = host.ask(ASK, python)
        if answer.returncode in (UNREACHED, -1):
            raise host.trouble(answer)
        missing = re.search(r"^no (python|setsid|tar)$", answer.stdout, re.MULTILINE)
        if missing is not None:
            raise _missing(host, missing[1], python)
        for line in answer.stdout.splitlines():  # a login script may have printed others
            if line.startswith(MARK) and (known := decode(HostFacts, _json(line))) is not None:
                return known
        raise UserError(
            f"{host.name}: {python} there did not report what it has: {answer.said}",
            f"try it by hand: ssh {host.name} {python} --version",
        )

    facts = at_once(one, machines)
    for host, known in zip(machines, facts, strict=True):
        _check(host, known, request, python)
    versions = {host.name: known.flatout for host, known in zip(machines, facts, strict=True)}
    if len(set(versions.values())) > 1:
        said = ", ".join(f"{version} on {name}" for name, version in versions.items())
        raise UserError(
            f"flatout differs between the machines: {said}", "install the same version on all"
        )
    return facts


def warnings(
    machines: Sequence[RemoteHost], facts: Sequence[HostFacts], torch: str
) -> Iterator[str]:
    """Differences among the machines, or from here. torch: the version here, or empty."""
    versions = {host.name: known.torch for host, known in zip(machines, facts, strict=True)}
    if len(set(versions.values())) > 1:
        said = ", ".join(f"{version} on {name}" for name, version in versions.items())
        yield f"torch differs: {said}"
    elif torch and torch not in versions.values():
        yield f"torch {facts[0].torch} there, {torch} here"
    counts = {known.gpus for known in facts}
    if len(counts) > 1:
        yield (
            "the machines have different numbers of GPUs:"
            f" {', '.join(str(known.gpus) for known in facts)}"
        )


def leader_address(host: RemoteHost, known: HostFacts) -> str:
    """An address by which the others may reach the first machine."""
    # Not loopback, link-local, or Docker's bridge, which are the same on every machine.
    outside = [
        address
        for address in known.addresses
        if not address.startswith(("127.", "::1", "169.254.", "fe80", "172.17."))
    ]
    return next((address for address in outside if ":" not in address), "") or next(
        iter(outside), host.name.rpartition("@")[2]
    )


def check_reach(machines: Sequence[RemoteHost], address: str, port: int, python: str) -> None:
    """Check that the others reach the first machine's port. Raises UserError."""
    leader, *others = machines
    if not others:
        return
    token = secrets.token_hex(8)
    said: list[str] = []

    def listen() -> None:
        answer = leader.ask(_program(python, LISTEN), str(port), str(len(others)), token)
        said.append(answer.stdout)

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    time.sleep(0.2)

    def connect(host: RemoteHost) -> str:
        return host.ask(_program(python, CONNECT), address, str(port), token).stdout.strip()

    answers = at_once(connect, others)
    if all(answer == "reached" for answer in answers):
        return
    listener.join(1)
    if said and said[0].startswith("taken"):
        raise UserError(
            f"port {port} of {leader.name} is in use", f"choose another one: --set port={port + 7}"
        )
    wrong = next(pair for pair in zip(others, answers, strict=True) if pair[1] != "reached")
    raise UserError(
        f"{wrong[0].name} does not reach {leader.name} at {address}, port {port}: {wrong[1]}",
        f"open the port in {leader.name}'s firewall, or give another address: --set"
        " leader=10.0.0.1",
    )


def _program(python: str, source: str) -> str:
    """A script for sh that runs a Python program with its own arguments."""
    return f"exec {shlex.quote(python)} -c '{source}' \"$@\"\n"


def _json(line: str) -> object:
    try:
        return json.loads(line.removeprefix(MARK))
    except ValueError:
        return None


def _missing(host: RemoteHost, what: str, python: str) -> UserError:
    if what == "python":
        return UserError(
            f"{host.name}: there is no {python} (a shell by ssh has a short PATH)",
            "its full path, the same on all of them: --python /path/to/python",
        )
    return UserError(
        f"{host.name}: {what} is not installed there", "it must be a Linux machine with it"
    )


def _check(host: RemoteHost, known: HostFacts, request: LaunchRequest, python: str) -> None:
    """Check that it has what a node needs. Raises UserError."""
    for name in ("flatout", "torch"):
        if not getattr(known, name):
            raise UserError(
                f"{host.name}: {python} there (Python {known.python}) has no {name}",
                f"ssh {host.name} {python} -m pip install {name}; or name the Python that has it: "
                "--python /path/to/python",
            )
    if request.gpus is not None:
        wanted = 1 if request.gpus == "all" else request.gpus
        if known.gpus < wanted:
            raise UserError(
                f"{host.name} has {known.gpus} NVIDIA GPUs, not {request.gpus}"
                if known.gpus
                else f"{host.name} has no NVIDIA GPU that its driver knows",
                "--ranks N trains on N CPU cores of each; flatout doctor says why one is not seen",
            )
    size = request.packed.size_bytes if request.packed is not None else 0
    if known.free_bytes < size + SPARE_BYTES:
        raise UserError(f"{host.name}: the disk of its home folder is full", "make room there", 1)
