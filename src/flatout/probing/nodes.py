"""Which of several machines this is, and where they meet, from its engine's variables.

Each engine has a reader, which gives None if its variables are not set. FLATOUT_NODES and its
companions are flatout's own and win: `flatout launch` sets them if an engine sets nothing.
"""

from __future__ import annotations

import os
import re
import socket
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress

from flatout.nouns import units
from flatout.nouns.errors import UserError
from flatout.nouns.nodes import NodeLayout
from flatout.probing.program_answer import ask

Environ = Mapping[str, str]
FIRST_PORT, PORTS = 12000, 20000
"""Ports if an engine names none, below those that systems use for outgoing connections."""
LIMIT_S = 10.0
RANK_PORT = 29500
"""torch's default for MASTER_PORT."""
MAX_HOSTS = 100_000
PART = re.compile(r"(?:[^,\[\]]|\[[^\[\]]*\])+")
BRACKETS = re.compile(r"\[([^\[\]]*)\]")
RANGE = re.compile(r"(\d+)(?:-(\d+))?")
EXAMPLE = "FLATOUT_NODES=2 FLATOUT_NODE=0 FLATOUT_LEADER=10.0.0.1:29500 FLATOUT_JOB=<a secret>"


def layout(asked: str, environ: Environ | None = None) -> NodeLayout:
    """The nodes of this job. asked: what `--nodes` says. Raises UserError.

    auto: as many as the engine has started; a number: that many, or an error; 1: only this one,
    whatever is set.
    """
    environ = os.environ if environ is None else environ
    if asked != "auto" and not (asked.isdecimal() and int(asked) > 0):
        raise UserError(f"--nodes {asked} is neither auto nor a number of nodes", "--nodes auto")
    if asked == "1":
        return NodeLayout()
    found = (read for reader in READERS if (read := reader(environ)) is not None)
    read = next(found, None)
    if read is None:
        read = NodeLayout()
    elif not 1 <= read.count <= MAX_HOSTS:
        raise UserError(f"{read.engine}: {read.count} nodes cannot be", _by_hand())
    elif not 0 <= read.index < read.count:
        raise UserError(
            f"{read.engine}: this is node {read.index} of {units.count(read.count, 'node')}, "
            "counted from 0",
            _by_hand(),
        )
    elif not 0 < read.port < 2**16:
        raise UserError(f"{read.engine}: {read.port} is no port", _by_hand())
    if asked != "auto" and read.count != int(asked):
        if read.engine:
            said = f"{read.engine} has started {units.count(read.count, 'node')}"
        else:
            said = "no engine's variables say that this is one of several nodes"
        raise UserError(
            f"--nodes {asked}: {said}",
            f"start it on each of {asked} nodes, or set on each, as on the first: {EXAMPLE}",
        )
    return read


def _by_hand() -> str:
    return f"set them yourself on each node, as on the first: {EXAMPLE}; or --nodes 1"


def _alone(engine: str, job: str = "", name: str = "") -> NodeLayout:
    """A layout of one node, which meets no others."""
    return NodeLayout(1, 0, "", RANK_PORT, engine, job, name)


# Reading ----------------------------------------------------------------------------------------


def _number(environ: Environ, name: str) -> int | None:
    """The variable's number, or None if unset. Raises UserError if it is no number."""
    text = environ.get(name, "").strip()
    if not text:
        return None
    if not text.isdecimal():
        raise UserError(f"{name}={text} is no number", _by_hand())
    return int(text)


def _needed(engine: str, environ: Environ, *names: str) -> None:
    """Raise UserError if one of these is not set."""
    missing = [name for name in names if not environ.get(name, "").strip()]
    if missing:
        there = [name for name in names if name not in missing]
        raise UserError(
            f"{engine} has set {', '.join(there) or 'some of its variables'}, "
            f"but not {', '.join(missing)}",
            _by_hand(),
        )


def _hosts(engine: str, name: str, hosts: Sequence[str], count: int) -> None:
    if len(hosts) != count:
        raise UserError(
            f"{engine}: {name} names {units.count(len(hosts), 'node')}, there are {count}",
            _by_hand(),
        )


def port_for(job: str) -> int:
    """A port that is the same on all nodes of a job, and hardly ever another job's."""
    return FIRST_PORT + zlib.crc32(job.encode()) % PORTS


def _address(text: str, name: str, port: int | None) -> tuple[str, int]:
    """Host and port of host:port, [v6]:port or, if `port` is given, only a host."""
    host, colon, after = text.rpartition(":")
    if text.startswith("[") and text.endswith("]"):
        host, colon, after = text, "", ""
    elif not colon or (":" in host and not host.startswith("[")):
        host, after = text, ""
    if after.isdecimal():
        port = int(after)
    if not host or port is None or (after and not after.isdecimal()):
        raise UserError(f"{name}={text} is no host:port", f"{name}=10.0.0.1:29500")
    return host.strip("[]"), port


# One for each engine ----------------------------------------------------------------------------


def _own(environ: Environ) -> NodeLayout | None:
    """Our own: FLATOUT_NODES, FLATOUT_NODE, FLATOUT_LEADER, FLATOUT_JOB."""
    count, engine = _number(environ, "FLATOUT_NODES"), "FLATOUT_NODES"
    if count is None:
        if environ.get("FLATOUT_NODE") or environ.get("FLATOUT_LEADER"):
            _needed("your environment", environ, "FLATOUT_NODES", "FLATOUT_NODE", "FLATOUT_LEADER")
        return None
    job = environ.get("FLATOUT_JOB", "")
    if count == 1:
        return _alone(engine, job)
    # An indexed Job of Kubernetes knows only the number.
    name = "FLATOUT_NODE" if environ.get("FLATOUT_NODE") else "JOB_COMPLETION_INDEX"
    index = _number(environ, name)
    if index is None or not environ.get("FLATOUT_LEADER"):
        _needed("your environment", environ, "FLATOUT_NODES", "FLATOUT_NODE", "FLATOUT_LEADER")
    host, port = _address(environ["FLATOUT_LEADER"].strip(), "FLATOUT_LEADER", None)
    return NodeLayout(
        count, index or 0, host, port, engine, job, environ.get("FLATOUT_NODE_NAME", "")
    )


def _sky(environ: Environ) -> NodeLayout | None:
    """SkyPilot: a line for each node in SKYPILOT_NODE_IPS."""
    count = _number(environ, "SKYPILOT_NUM_NODES")
    if count is None:
        return None
    engine, job = "SkyPilot", environ.get("SKYPILOT_TASK_ID", "")
    if count == 1:
        return _alone(engine, job)
    _needed(engine, environ, "SKYPILOT_NODE_RANK", "SKYPILOT_NODE_IPS")
    hosts = environ["SKYPILOT_NODE_IPS"].split()
    _hosts(engine, "SKYPILOT_NODE_IPS", hosts, count)
    index = _number(environ, "SKYPILOT_NODE_RANK") or 0
    return NodeLayout(count, index, hosts[0], port_for(job), engine, job)


def _kubeflow(environ: Environ) -> NodeLayout | None:
    """Kubeflow Trainer, or others that set torchrun's options as PET_ variables."""
    text = environ.get("PET_NNODES", "").strip()
    if not text:
        return None
    low, _, high = text.partition(":")
    if high and high != low:
        raise UserError(
            f"PET_NNODES={text}: the number of nodes is not fixed",
            "give the job a fixed number of nodes",
        )
    count = _number({"PET_NNODES": low}, "PET_NNODES") or 0
    job = environ.get("PET_RDZV_ID", "")
    engine = "Kubeflow Trainer" if environ.get("KUBERNETES_SERVICE_HOST") else "torchrun"
    if count == 1:
        return _alone(engine, job)
    _needed(engine, environ, "PET_NODE_RANK")
    endpoint = environ.get("PET_RDZV_ENDPOINT", "").strip()
    if not environ.get("PET_MASTER_ADDR") and endpoint:
        host, port = _address(endpoint, "PET_RDZV_ENDPOINT", RANK_PORT)
    else:
        _needed(engine, environ, "PET_NODE_RANK", "PET_MASTER_ADDR")
        host, port = environ["PET_MASTER_ADDR"].strip(), _number(environ, "PET_MASTER_PORT") or 0
    index = _number(environ, "PET_NODE_RANK") or 0
    return NodeLayout(count, index, host, port or RANK_PORT, engine, job)


def _slurm(environ: Environ) -> NodeLayout | None:
    """Slurm, inside a step: one task on each node."""
    engine = "Slurm"
    allocated = _number(environ, "SLURM_NNODES") or _number(environ, "SLURM_JOB_NUM_NODES")
    count = _number(environ, "SLURM_STEP_NUM_NODES")
    if allocated is None and count is None:
        return None
    number = environ.get("SLURM_JOB_ID") or environ.get("SLURM_JOBID") or ""
    job = f"{number}.{environ.get('SLURM_STEP_ID', '')}.{environ.get('SLURM_RESTART_COUNT', '0')}"
    if count is None and allocated == 1:
        return _alone(engine, job)
    tasks = _number(environ, "SLURM_STEP_NUM_TASKS") or count
    start = "srun --ntasks-per-node=1 flatout run --gpus all --nodes auto train.py"
    if count is None:
        raise UserError(
            f"Slurm has given {units.count(allocated or 0, 'node')} (SLURM_NNODES), and this was "
            "not started by srun (SLURM_STEP_NUM_NODES is not set): it would run on one of them",
            f"{start}, or --nodes 1",
        )
    if tasks != count:
        raise UserError(
            f"srun has started {tasks} tasks on {units.count(count, 'node')} "
            "(SLURM_STEP_NUM_TASKS, SLURM_STEP_NUM_NODES); flatout starts the ranks itself",
            start,
        )
    name = environ.get("SLURMD_NODENAME", "")
    if count == 1:
        return _alone(engine, job, name)
    list_name = (
        "SLURM_STEP_NODELIST" if environ.get("SLURM_STEP_NODELIST") else "SLURM_JOB_NODELIST"
    )
    _needed(engine, environ, "SLURM_NODEID", list_name)
    # A container may lack Slurm's own tool.
    said = _output(["scontrol", "show", "hostnames", environ[list_name]])
    hosts = said.split() if said else expanded(environ[list_name])
    _hosts(engine, list_name, hosts, count)
    index = _number(environ, "SLURM_NODEID") or 0
    return NodeLayout(
        count, index, _slurm_address(hosts[0]), port_for(job), engine, job, name or hosts[index]
    )


def expanded(text: str) -> list[str]:
    """All names of Slurm's notation n[01-03,7],login. Raises UserError if it is no such list."""
    names: list[str] = []
    rest = text.strip()
    while rest:
        part = PART.match(rest)
        if part is None or not (part.end() == len(rest) or rest[part.end()] == ","):
            raise _wrong(text)
        for name in _names(part[0], text):
            names.append(name)
            if len(names) > MAX_HOSTS:
                raise _wrong(text)
        rest = rest[part.end() + 1 :]
    return names


def _names(part: str, text: str) -> Iterator[str]:
    """The names of one part, which may have several pairs of brackets."""
    brackets = BRACKETS.search(part)
    if brackets is None:
        yield part
        return
    for piece in brackets[1].split(","):
        span = RANGE.fullmatch(piece.strip())
        if span is None:
            raise _wrong(text)
        first, last = span[1], span[2] or span[1]
        if not 0 <= int(last) - int(first) < MAX_HOSTS:
            raise _wrong(text)
        for number in range(int(first), int(last) + 1):
            filled = str(number).zfill(len(first))
            yield from _names(part[: brackets.start()] + filled + part[brackets.end() :], text)


def _wrong(text: str) -> UserError:
    shown = text if len(text) < 80 else text[:77] + "..."
    return UserError(f"{shown} is no list of nodes as Slurm writes it", "--nodes 1")


def _slurm_address(host: str) -> str:
    """Its name if that can be resolved, else the address by which Slurm reaches it."""
    with suppress(OSError):
        socket.getaddrinfo(host, None)
        return host
    words = _output(["scontrol", "--oneliner", "show", "node", host]).split()
    addresses = (word.removeprefix("NodeAddr=") for word in words if word.startswith("NodeAddr="))
    return next(addresses, host)


def _output(command: list[str]) -> str:
    answer = ask(command, LIMIT_S)
    return answer.text if answer.code == 0 else ""


def _plain(environ: Environ) -> NodeLayout | None:
    """NNODES and NODE_RANK, or WORLD_SIZE and RANK as an operator sets them per node."""
    if environ.get("TORCHELASTIC_RUN_ID"):
        raise UserError(
            "torchrun has started this process (TORCHELASTIC_RUN_ID); flatout starts the ranks "
            "itself",
            "flatout run --gpus all --nodes auto train.py on each node, without torchrun",
        )
    by_node = bool(environ.get("NNODES"))
    names = ("NNODES", "NODE_RANK") if by_node else ("WORLD_SIZE", "RANK")
    count = _number(environ, names[0])
    engine = "torch's variables" if by_node else "WORLD_SIZE"
    if count is None or count == 1:
        if count is None and environ.get("NODE_RANK", "0").strip("0"):
            _needed("your environment", environ, "NNODES", "NODE_RANK", "MASTER_ADDR")
        return None if count is None else _alone(engine)
    if not by_node and environ.get("LOCAL_WORLD_SIZE", "1") != "1":
        raise UserError(
            f"LOCAL_WORLD_SIZE={environ['LOCAL_WORLD_SIZE']}: another program starts the ranks of "
            "this node; flatout starts them itself",
            "start flatout once on each node",
        )
    _needed(engine, environ, *names, "MASTER_ADDR")
    port = _number(environ, "MASTER_PORT") or RANK_PORT
    index = _number(environ, names[1]) or 0
    return NodeLayout(count, index, environ["MASTER_ADDR"].strip(), port, engine)


READERS: tuple[Callable[[Environ], NodeLayout | None], ...] = (
    _own,
    _sky,
    _kubeflow,
    _slurm,
    _plain,
)
"""The first that finds its variables counts: special ones before those that many set."""
