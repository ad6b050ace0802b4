"""A Slurm cluster of two nodes on this machine, for tests: own daemons, ports, sockets and files.

Everything lies in one folder and ends with it; a cluster that this machine may have is not touched.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ports import free_port

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue")
NODES = ("node1", "node2")
LIMIT_S = 120.0
CONF = """\
ClusterName=flatout
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,defer_batch
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
KillWait=5
SlurmdTimeout=20
MessageTimeout=10
MinJobAge=300
GresTypes=gpu
NodeName=node1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=2 Gres=gpu:2
NodeName=node2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=2 Gres=gpu:2
PartitionName=main Nodes=node1,node2 Default=YES MaxTime=60 DefaultTime=30 State=UP
PartitionName=closed Nodes=node1 MaxTime=60 State=DOWN
"""


def missing() -> str:
    """Why there can be no cluster here; empty: there can."""
    if os.name != "posix" or os.geteuid() != 0:
        return "the daemons of Slurm want root"
    search = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))
    absent = [name for name in PROGRAMS if shutil.which(name, path=search) is None]
    return f"not installed: {', '.join(absent)} (Debian: slurm-wlm)" if absent else ""


class SlurmCluster:
    """The running cluster."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.conf = folder / "slurm.conf"
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def environment(self) -> dict[str, str]:
        """By which the tools of Slurm, and what they start, see this cluster."""
        path = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))
        return {"SLURM_CONF": str(self.conf), "PATH": path}

    def start(self) -> None:
        """Start all daemons, and wait until both nodes are idle."""
        self.folder.chmod(0o755)
        (self.folder / "state").mkdir()
        host = socket.gethostname().partition(".")[0]
        text = CONF.format(host=host, folder=self.folder, ports=[free_port() for _ in range(3)])
        self.conf.write_text(text)
        for number in range(2):  # Slurm looks whether the devices' files exist
            (self.folder / f"gpu{number}").touch()
        gpus = f"NodeName=node[1-2] Name=gpu File={self.folder}/gpu[0-1]\n"
        (self.folder / "gres.conf").write_text(gpus)
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o600)
        names = ("socket=munge.sock", "key-file=munge.key", "pid-file=munge.pid")
        names += ("log-file=munge.log", "seed-file=munge.seed")
        options = [f"--{name.replace('=', f'={self.folder}/')}" for name in names]
        self._daemon("munged", "munged", "--foreground", "--force", *options)
        _until(lambda: (self.folder / "munge.sock").exists(), "munged has no socket")
        self._daemon("slurmctld", "slurmctld", "-D", "-f", str(self.conf))
        for node in NODES:
            self.start_node(node)
        _until(
            lambda: self.asked("sinfo", "-h", "-p", "main", "-o", "%D %t") == "2 idle", "not idle"
        )

    def start_node(self, node: str) -> None:
        """Start the daemon of a node."""
        self._daemon(node, "slurmd", "-D", "-N", node, "-f", str(self.conf))

    def kill_node(self, node: str) -> None:
        """As if its power was cut: the daemon and all that it has started are killed."""
        daemon = self._daemons.pop(node)
        daemon.kill()
        daemon.wait()
        for pid in self.pids(node):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def pids(self, node: str = "") -> list[int]:
        """Processes of jobs of this cluster; node: of one node alone."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                variables = (process / "environ").read_bytes().split(b"\0")
                of_node = not node or f"SLURMD_NODENAME={node}".encode() in variables
                ours = f"SLURM_CONF={self.conf}".encode() in variables
                jobs = any(line.startswith(b"SLURM_JOB_ID=") for line in variables)
                daemon = (process / "comm").read_text().startswith("slurmstepd")
                if daemon and not jobs:  # the steps' own servants have no such variables
                    continue
                if ours and jobs and of_node:
                    found.append(int(process.name))
        return found

    def asked(self, *command: str) -> str:
        """What one of Slurm's tools prints."""
        env = {**os.environ, **self.environment}
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=LIMIT_S)
        return done.stdout.strip()

    def stop(self) -> None:
        """End all jobs and daemons."""
        self.asked("scancel", "--user", "root", "--full", "--signal", "KILL")
        self.asked("scancel", "--user", "root")
        for name in (*NODES, "slurmctld", "munged"):
            daemon = self._daemons.pop(name, None)
            if daemon is None:
                continue
            daemon.terminate()
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        for pid in self.pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _daemon(self, name: str, *command: str) -> None:
        with (self.folder / f"{name}.said").open("ab") as said:
            self._daemons[name] = subprocess.Popen(
                command,
                env={**os.environ, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,
            )


@contextmanager
def cluster(folder: Path) -> Iterator[SlurmCluster]:
    """A cluster in `folder`, which is empty."""
    made = SlurmCluster(folder)
    try:
        made.start()
        yield made
    finally:
        made.stop()


def _until(true, otherwise: str) -> None:  # type: ignore[no-untyped-def]
    deadline = time.monotonic() + LIMIT_S
    while not true():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.05)
