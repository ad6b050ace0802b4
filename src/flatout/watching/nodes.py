"""Frames of other machines, through ssh: no port is opened and no token is needed.

Each node runs `flatout monitor --json --follow` and is read by a thread; if it ends, it is started
again. The remote side ends with its connection.
"""

from __future__ import annotations

import json
import queue
import shlex
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from flatout.nouns import frame_json
from flatout.nouns.errors import UserError
from flatout.nouns.frame import Frame

SSH = ("ssh", "-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=5")
STALE_S = 15.0
"""A node's last frame is shown for this long without a new one."""
RETRY_S = (1.0, 2.0, 5.0, 15.0, 60.0)
MOST_LETTERS = 200


class Nodes:
    """Several hosts as one source of frames."""

    def __init__(self, hosts: Sequence[str], remote: str = "flatout") -> None:
        """remote: the flatout command there. Raises UserError for an invalid host."""
        for host in hosts:
            if host.startswith("-") or not host.strip() or any(c.isspace() for c in host):
                raise UserError(f"{host!r} is no host", "flatout monitor node1 node2")
        self._frames: queue.Queue[tuple[str, Frame]] = queue.Queue()
        self._nodes = [_Node(host, remote, self._frames) for host in dict.fromkeys(hosts)]

    def frames(self, every_s: float = 1.0) -> Iterator[Frame]:
        """One frame of all hosts every `every_s` seconds."""
        latest: dict[str, tuple[float, Frame]] = {}
        for node in self._nodes:
            node.start()
        try:
            while True:
                deadline = time.monotonic() + every_s
                while (left := deadline - time.monotonic()) > 0:
                    with suppress(queue.Empty):
                        host, frame = self._frames.get(timeout=left)
                        latest[host] = time.monotonic(), frame
                yield self._merged(latest)
                for host, (at, frame) in latest.items():  # shown again, its steps are not new
                    jobs = tuple(replace(job, recent_steps=()) for job in frame.jobs)
                    latest[host] = at, replace(frame, jobs=jobs)
        finally:
            for node in self._nodes:
                node.stop()

    def once(self, limit_s: float = 30.0) -> Frame:
        """The first frame in which every host has answered or been given up."""
        deadline = time.monotonic() + limit_s
        frames = self.frames(0.5)
        try:
            for frame in frames:
                answered = len(frame.machines) + sum(bool(node.problem) for node in self._nodes)
                if answered >= len(self._nodes) or time.monotonic() > deadline:
                    return frame
        finally:
            frames.close()  # type: ignore[attr-defined]  # a generator
        raise AssertionError("frames() has no end")

    def _merged(self, latest: dict[str, tuple[float, Frame]]) -> Frame:
        now = time.monotonic()
        fresh = {host: frame for host, (at, frame) in latest.items() if now - at < STALE_S}
        notes = [
            f"{node.host}: {node.problem or 'connecting ...'}"
            for node in self._nodes
            if node.host not in fresh
        ]
        shown = [fresh[node.host] for node in self._nodes if node.host in fresh]
        return Frame(
            time_s=time.time(),
            machines=tuple(machine for frame in shown for machine in frame.machines),
            # Ids are unique within one machine; two machines may use the same.
            jobs=tuple(
                replace(job, id=f"{job.hostname}:{job.id}")
                for job in sorted(
                    (job for frame in shown for job in frame.jobs),
                    key=lambda job: job.state == "ended",
                )
            ),
            alerts=tuple(
                replace(alert, job=alert.job and f"{alert.hostname}:{alert.job}")
                for frame in shown
                for alert in frame.alerts
            ),
            notes=(*notes, *(note for frame in shown for note in frame.notes)),
        )


class _Node:
    """One host."""

    def __init__(self, host: str, remote: str, frames: queue.Queue[tuple[str, Frame]]) -> None:
        self.host = host
        self.problem = ""
        self._command = [*SSH, "--", host, f"{remote} monitor --json --follow"]
        self._frames = frames
        self._over = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the connection, even one that is just beginning: see `_follow`."""
        self._over.set()
        if self._process is not None:
            with suppress(OSError):
                self._process.kill()
        self._thread.join(5.0)

    def _run(self) -> None:
        tries = 0
        while not self._over.is_set():
            if self._follow():
                tries = 0
            self._over.wait(RETRY_S[min(tries, len(RETRY_S) - 1)])
            tries += 1

    def _follow(self) -> bool:
        """Read it to its end. Returns whether there was any frame."""
        try:
            self._process = process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        except OSError as error:
            self.problem = f"{self._command[0]} cannot be started: {error.strerror}"
            return False
        if self._over.is_set():
            process.kill()
        with process:
            return self._read(process)

    def _read(self, process: subprocess.Popen[bytes]) -> bool:
        errors: list[bytes] = []
        reader = threading.Thread(target=_collect, args=(process, errors), daemon=True)
        reader.start()
        seen = False
        assert process.stdout is not None
        for line in process.stdout:
            try:
                self._frames.put((self.host, frame_json.load(json.loads(line))))
            except UserError as error:
                self.problem = error.message
                process.kill()
            except (ValueError, RecursionError):
                continue  # printed by a login shell
            else:
                seen, self.problem = True, ""
        code = process.wait()
        reader.join()
        if not self.problem:
            text = b"".join(errors).decode("utf-8", "replace")
            lines = [line.strip() for line in text.splitlines() if line.strip()]
            self.problem = lines[-1][:MOST_LETTERS] if lines else f"exit code {code}"
            if code == 127:
                program = shlex.split(self._command[-1])[0]
                self.problem = f"{program} is not there ({self.problem}); name it with --remote"
        return seen


def _collect(process: subprocess.Popen[bytes], errors: list[bytes]) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        errors.append(line)
        del errors[:-20]


def slurm_hosts(job: str) -> list[str]:
    """The nodes of a running Slurm job. Raises UserError if Slurm does not name them."""
    if not job.replace("_", "").replace("+", "").isalnum():
        raise UserError(f"Slurm has no job {job!r}", "squeue --me lists yours")
    names = _asked(["squeue", "--noheader", "--jobs", job, "--format", "%N"]).split()
    if not names:
        raise UserError(f"Slurm's job {job} is not running", "squeue --me", 1)
    return _asked(["scontrol", "show", "hostnames", names[0]]).split()


def _asked(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except FileNotFoundError as error:
        raise UserError(
            f"{command[0]} is not there: this is no node of a Slurm cluster",
            "name the hosts: flatout monitor node1 node2",
            1,
        ) from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(f"{command[0]} does not answer: {error}", "try it again", 1) from error
    if done.returncode:
        reason = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise UserError(f"{command[0]}: {reason[0]}", "squeue --me", 1)
    return done.stdout
