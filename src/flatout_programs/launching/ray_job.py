"""One program on several nodes of a Ray cluster: a task on each runs the command below.

Written by `flatout launch ray`, and yours: edit the values and submit it again, from a folder that
holds the code and this file:

    ray job submit --working-dir . -- python ray_job.py
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Any, Callable, Iterator

# ---- what is asked for
NODES = 1
# GPUs of each node; "all" means as many as the node with the most has.
GPUS: int | str = 0
# Cores that Ray counts as taken on each node; the program may use all.
CPUS = 1
COMMAND = ["flatout", "run", "--nodes", "auto", "train.py"]
# Python of the program; "" means the one that Ray runs.
PYTHON = ""
VARIABLES: dict[str, str] = {}
# After an error, or the loss of a node: how often all nodes start again.
RESTARTS = 0
# Seconds, or None for no limit.
TIME_S: float | None = None
# ---- until here

OTHERS_S = 60.0
"""Seconds after which the others are ended; they usually notice a failed node themselves."""
GRACE_S = 120.0
"""Seconds between SIGTERM and SIGKILL, to finish a step and save."""
FAILED, TIMED_OUT = 1, 124


def main() -> int:
    """Run it; the exit code is that of the node that failed first."""
    os.environ.setdefault("RAY_DEDUP_LOGS", "0")
    import ray

    ray.init(address=os.environ.get("RAY_ADDRESS") or "auto")
    deadline = None if TIME_S is None else time.monotonic() + TIME_S
    for start in range(RESTARTS + 1):
        code = one_start(ray, deadline)
        if code in (0, TIMED_OUT) or start == RESTARTS:
            return code
        say(f"start {start + 2} of {RESTARTS + 1}")
    return FAILED


def say(text: str, by: str = "ray_job") -> None:
    """A line of ours in the job's log."""
    sys.stdout.write(f"{by}: {text}\n")
    sys.stdout.flush()


def complain(text: str) -> None:
    """The error, in the form of `flatout run`."""
    say(text, by="flatout: error")


def one_start(ray: Any, deadline: float | None) -> int:
    """Run all nodes once; returns the exit code."""
    from ray.util.placement_group import placement_group, remove_placement_group

    gpus = most_gpus(ray) if GPUS == "all" else int(GPUS)
    bundle = {"CPU": CPUS, "GPU": gpus} if gpus else {"CPU": CPUS}
    group = placement_group([bundle] * NODES, strategy="STRICT_SPREAD")
    try:
        if not placed(ray, group, bundle, deadline):
            complain(f"its time is over, and it never had {NODES} nodes")
            return TIMED_OUT
        places = ray.get([remote(ray, place, group, i, gpus).remote() for i in range(NODES)])
        lacking = [host for host, _, _, program in places if not program]
        if lacking:
            complain("flatout is not installed on " + ", ".join(sorted(set(lacking))))
            return FAILED
        host, ip, port, _ = places[0]
        leader = f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"
        say(f"leader {host} at {leader}")
        token = secrets.token_hex(16)
        tasks = {}
        for index in range(NODES):
            task = remote(ray, run_node, group, index, gpus, num_returns="streaming")
            told = (index, leader, token, places[index][0])
            tasks[task.remote(*told)] = index
        return followed(ray, tasks, [entry[0] for entry in places], deadline)
    finally:
        remove_placement_group(group)


def remote(
    ray: Any, function: Callable[..., Any], group: Any, index: int, gpus: int, **options: Any
) -> Any:
    """The function as a task on that node of the group, tried once."""
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index)
    options.update(num_cpus=CPUS, num_gpus=gpus, max_retries=0, scheduling_strategy=strategy)
    return ray.remote(function).options(**options)


def most_gpus(ray: Any) -> int:
    """GPUs of the node with the most."""
    alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return int(max([resources.get("GPU", 0) for resources in alive] or [0]))


def placed(ray: Any, group: Any, bundle: dict[str, int], deadline: float | None) -> bool:
    """Wait until the cluster has the nodes; returns False if the time is over."""
    said = 0.0
    while not group.wait(timeout_seconds=5):
        now = time.monotonic()
        if deadline is not None and now > deadline:
            return False
        if now - said > 60:
            nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
            fit = sum(all(n.get(key, 0) >= bundle[key] for key in bundle) for n in nodes)
            asked = " and ".join(f"{bundle[key]} {key}" for key in sorted(bundle))
            say(f"waits for {NODES} nodes with {asked} each; {fit} have it, and may be in use")
            said = now
    return True


def followed(ray: Any, tasks: dict[Any, int], hosts: list[str], deadline: float | None) -> int:
    """Print the nodes' output until all have ended; returns the first failure's exit code."""
    first: int | None = None
    end_at, cancelled = deadline, False
    waiting = list(tasks)
    while waiting:
        ready, waiting = ray.wait(waiting, timeout=1.0, fetch_local=False)
        for stream in ready:
            index = tasks[stream]
            try:
                lines, code = ray.get(next(stream))
            except StopIteration:
                continue
            except ray.exceptions.RayError as error:
                # The task is gone: its worker, or the whole node.
                lines, code = ["flatout: error: " + short(error)], FAILED
            else:
                waiting.append(stream)
            for line in lines:
                sys.stdout.write(f"[node {index}] {line}\n")
            sys.stdout.flush()
            if code and first is None and not cancelled:
                first = code
                complain(f"node {index} ({hosts[index]}) ended first, exit code {code}")
                end_at = time.monotonic() + OTHERS_S
        if end_at is not None and time.monotonic() > end_at and not cancelled:
            cancelled = True
            if first is None:
                complain(f"its time is over: {TIME_S} s")
                first = TIMED_OUT
            for stream in waiting:
                ray.cancel(stream)
            end_at = time.monotonic() + GRACE_S + 10
        elif end_at is not None and time.monotonic() > end_at:
            complain("some do not end, and are killed")
            for stream in waiting:
                ray.cancel(stream, force=True)
            break
    return first or 0


def short(error: Exception) -> str:
    """The outcome of a task, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return "{}: {}".format(type(error).__name__, lines[0] if lines else "")


# On a node ---------------------------------------------------------------------------------------


def place() -> tuple[str, str, int, str]:
    """Name and address of the node, a free port, and flatout's path."""
    import ray

    with socket.socket() as probe:
        probe.bind(("", 0))
        port = probe.getsockname()[1]
    beside = Path(sys.executable).parent / COMMAND[0]
    program = shutil.which(COMMAND[0]) or (str(beside) if beside.exists() else "")
    return socket.gethostname(), ray.util.get_node_ip_address(), port, program


def run_node(
    index: int, leader: str, token: str, name: str
) -> Iterator[tuple[list[str], int | None]]:
    """Run the command; yields its output, and finally its exit code."""
    variables = {
        "FLATOUT_NODES": str(NODES),
        "FLATOUT_NODE": str(index),
        "FLATOUT_LEADER": leader,
        "FLATOUT_JOB": token,
        "FLATOUT_NODE_NAME": name,
        "PYTHONUNBUFFERED": "1",
    }
    environment = dict(os.environ, **variables)
    # Ray sets it to the cores that it counts.
    environment.pop("OMP_NUM_THREADS", None)
    environment.update(VARIABLES)
    _, _, _, program = place()
    command = [program, *COMMAND[1:]]
    if "--python" not in COMMAND:
        command[2:2] = ["--python", PYTHON or sys.executable]
    process = subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        preexec_fn=ends_with_its_parent(),
    )
    try:
        assert process.stdout is not None
        for lines in read(process.stdout):
            yield lines, None
        yield [], shell_code(process.wait())
    finally:
        end(process)


def read(pipe: IO[bytes]) -> Iterator[list[str]]:
    """Lines as they arrive, as many as there are."""
    rest = b""
    while True:
        chunk = os.read(pipe.fileno(), 1 << 16)
        if not chunk:
            break
        whole, newline, rest = (rest + chunk).rpartition(b"\n")
        if newline:
            yield [line.decode("utf-8", "replace") for line in whole.split(b"\n")]
    if rest:
        yield [rest.decode("utf-8", "replace")]


def end(process: subprocess.Popen[bytes]) -> None:
    """The command ends with the task."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def shell_code(code: int) -> int:
    """-9 -> 137, as a shell says it."""
    return code if code >= 0 else 128 - code


def ends_with_its_parent() -> Callable[[], Any] | None:
    """On Linux, the command gets SIGTERM if Ray's worker is killed, so nothing is left running."""
    if not sys.platform.startswith("linux"):
        return None
    import ctypes

    prctl = ctypes.CDLL(None).prctl  # looked up before the fork
    parent_death_signal, number = 1, int(signal.SIGTERM)
    return lambda: prctl(parent_death_signal, number)


if __name__ == "__main__":
    sys.exit(main())
