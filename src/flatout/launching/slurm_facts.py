"""What a Slurm cluster says about its partitions and jobs, in plain words."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass

from flatout.launching import engine_calls
from flatout.nouns import units
from flatout.nouns.errors import UserError
from flatout.nouns.launched import JobState, LaunchRequest, LaunchState

FORMAT = "%P|%a|%l|%L|%D|%c|%G|%t"
"""Partition, available, time limit, default time, nodes, cores, GPUs, state of the nodes."""
GONE = ("down", "drain", "drng", "fail", "failg", "maint", "boot", "unk", "futr", "planned_down")
"""States of nodes that accept no job now."""
TIME = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)")
GPUS = re.compile(r"(?:^|,)gpu(?::[^:,()]+)?:(\d+)")
STATES: dict[str, LaunchState] = {
    "PENDING": "queued",
    "CONFIGURING": "queued",
    "REQUEUED": "queued",
    "REQUEUE_FED": "queued",
    "REQUEUE_HOLD": "queued",
    "SPECIAL_EXIT": "queued",
    "RESV_DEL_HOLD": "queued",
    "RUNNING": "running",
    "COMPLETING": "running",
    "RESIZING": "running",
    "SIGNALING": "running",
    "STAGE_OUT": "running",
    "STOPPED": "running",
    "SUSPENDED": "running",
    "COMPLETED": "ended",
    "CANCELLED": "cancelled",
}
FAILED = {
    "FAILED": "",
    "TIMEOUT": "it reached its time limit (--time)",
    "DEADLINE": "it reached its deadline",
    "NODE_FAIL": "a node failed",
    "BOOT_FAIL": "a node did not start",
    "OUT_OF_MEMORY": "it used more main memory than it had asked for (--set mem=...)",
    "PREEMPTED": "another job took its nodes",
    "REVOKED": "another cluster of the federation runs it",
}
REASONS = {
    "Resources": "no nodes are free",
    "Priority": "others come first",
    "BeginTime": "Slurm waits a while before it starts it again",
    "Dependency": "it waits for another job",
    "JobHeldUser": "it is held (scontrol release)",
    "JobHeldAdmin": "an administrator holds it",
    "PartitionTimeLimit": "it asks for more time than the partition allows: it will never start",
    "PartitionNodeLimit": "it asks for more nodes than the partition allows: it will never start",
    "PartitionDown": "the partition is down",
    "ReqNodeNotAvail": "nodes that it needs are down or reserved",
    "BadConstraints": "no nodes fit what it asks for: it will never start",
    "Licenses": "it waits for a licence",
    "NodeDown": "a node failed",
}
YOURS = "sacctmgr show assoc user=$USER"
NODES = "sinfo -o '%P %D %c %m %G' shows what they have"
REFUSALS = (
    ("invalid partition", "there is no such partition", "sinfo lists the partitions"),
    ("Invalid account", "this account may not be charged there", YOURS),
    ("Invalid qos", "there is no such quality of service for you", YOURS),
    ("time limit is invalid", "the partition does not allow that time", "name less: --time"),
    ("generic resource (gres)", "no node has such GPUs", "sinfo -o '%P %G' lists them"),
    ("GRES option unsupported", "this cluster does not manage GPUs", "leave --gpus out"),
    ("node configuration is not available", "no nodes have what is asked for", NODES),
    ("Node count specification invalid", "there are not that many nodes", "fewer: --nodes"),
    ("More processors requested", "there are not that many cores", "fewer: --set cpus-per-task=N"),
    ("Memory required by task", "no node has that much memory", "less: --set mem=32G"),
    ("violates accounting/QOS policy", "it is beyond a limit of your account", "ask for less"),
    ("Unable to contact slurm controller", "Slurm's controller does not answer", "scontrol ping"),
    ("Socket timed out", "Slurm's controller does not answer in time", "try again in a minute"),
    ("Access/permission denied", "Slurm does not let you", "ask who runs the cluster"),
)
"""Messages of sbatch, what they mean, what to do."""


@dataclass(frozen=True)
class PartitionNodes:
    """Identical nodes of a partition."""

    count: int
    cores: int
    gpus: int
    usable: bool


@dataclass(frozen=True)
class Partition:
    """One partition, as sinfo shows it."""

    name: str
    up: bool
    limit_s: float | None
    """Time limit, or None if unlimited or unknown."""
    default_s: float | None
    groups: tuple[PartitionNodes, ...]

    @property
    def nodes(self) -> int:
        """Number of all nodes, working or not."""
        return sum(group.count for group in self.groups)

    def most_gpus(self, nodes: int) -> int:
        """The most GPUs per node that this many nodes have."""
        return self._most(nodes, [(group.gpus, group.count) for group in self.groups])

    def cores(self, nodes: int) -> int:
        """The same for cores."""
        return self._most(nodes, [(group.cores, group.count) for group in self.groups])

    def _most(self, nodes: int, pairs: list[tuple[int, int]]) -> int:
        for amount in sorted({amount for amount, _ in pairs}, reverse=True):
            if sum(count for more, count in pairs if more >= amount) >= nodes:
                return amount
        return 0


def partition(name: str) -> Partition:
    """The partition of that name; empty for the default one. Raises UserError."""
    answer = engine_calls.ask(["sinfo", "--noheader", "--exact", "--format", FORMAT])
    if answer.returncode:
        raise refusal(answer, "sinfo")
    rows = [line.split("|") for line in answer.stdout.splitlines() if line.count("|") == 7]
    names = list(dict.fromkeys(row[0].rstrip("*") for row in rows))
    if not names:
        raise UserError("this cluster has no partition that you may use", "sinfo", 1)
    default = next((row[0].rstrip("*") for row in rows if row[0].endswith("*")), "")
    wanted = name or default
    if not wanted:
        raise UserError(
            f"no partition is the default one; there are {', '.join(names)}",
            f"name one: --partition {names[0]}",
        )
    own = [row for row in rows if row[0].rstrip("*") == wanted]
    if not own and "," not in wanted:
        near = difflib.get_close_matches(wanted, names, n=1)
        hint = f"--partition {(near or names)[0]}"
        raise UserError(f"there is no partition {wanted!r}; there are {', '.join(names)}", hint)
    # If several are named, the facts of one need not hold; sbatch decides.
    first = (own or rows)[0]
    groups = tuple(_group(row) for row in own)
    return Partition(wanted, first[1] == "up", _seconds(first[2]), _seconds(first[3]), groups)


def check(found: Partition, request: LaunchRequest) -> None:
    """Check that it could ever take the job. Raises UserError."""
    if not found.groups:
        return
    if not found.up:
        raise UserError(f"partition {found.name} is not up", "sinfo lists the others: --partition")
    if request.nodes > found.nodes:
        raise UserError(
            f"partition {found.name} has {units.count(found.nodes, 'node')}, not {request.nodes}",
            f"--nodes {found.nodes}" if found.nodes else "another --partition",
        )
    if request.time_s is not None and found.limit_s is not None and request.time_s > found.limit_s:
        raise UserError(
            f"partition {found.name} allows {units.duration(found.limit_s)},"
            f" not {units.duration(request.time_s)}",
            f"--time {int(found.limit_s // 60)}m",
        )


def gpus(found: Partition, asked: int | str, nodes: int) -> int:
    """GPUs of each node. Raises UserError if there are too few."""
    most = found.most_gpus(nodes)
    if not found.groups and asked != "all":
        return int(asked)
    if not most:
        where = f"no {nodes} nodes" if found.most_gpus(1) else "no nodes"
        raise UserError(
            f"partition {found.name} has {where} with GPUs that Slurm knows of",
            "another --partition (sinfo -o '%P %G'), or --ranks for CPU cores",
        )
    if asked == "all":
        return most
    if int(asked) > most:
        raise UserError(
            f"partition {found.name} has no {nodes} nodes with {asked} GPUs; they have {most}",
            f"--gpus {most}, and more --nodes",
        )
    return int(asked)


def refusal(answer: engine_calls.ToolAnswer, program: str = "sbatch") -> UserError:
    """The error that explains Slurm's refusal."""
    known = engine_calls.meaning(f"{answer.stderr}\n{answer.stdout}", REFUSALS)
    if known is not None:
        return UserError(f"{known[0]} ({program}: {_said(answer)})", known[1])
    return UserError(f"{program}: {_said(answer)}", "the script alone: --dry-run")


def expected_start(answer: engine_calls.ToolAnswer) -> str:
    """When Slurm would start it, from `sbatch --test-only`; empty if unknown."""
    found = re.search(r"to start at (\S+)", f"{answer.stderr}\n{answer.stdout}")
    return f"Slurm expects to start it at {found[1].replace('T', ' ')}" if found else ""


def of_controller(job: str) -> JobState | None:
    """What the controller knows about a job, or None if it has forgotten it."""
    answer = engine_calls.ask(["scontrol", "--oneliner", "show", "job", job])
    if answer.returncode:
        if "Invalid job id" in answer.stderr:
            return None
        return JobState("unknown", answer.said)
    fields = dict(re.findall(r"(?:^|\s)([A-Za-z:/]+)=(\S*)", answer.stdout))
    code = int(fields.get("ExitCode", "0:0").partition(":")[0] or 0)
    nodes = fields.get("NodeList", "")
    names = tuple(_names(nodes)) if nodes not in ("", "(null)") else ()
    return _state(fields.get("JobState", ""), fields.get("Reason", ""), code, names, fields)


def of_accounts(job: str) -> JobState | None:
    """What accounting knows about a job, or None if there is none or it lacks the job."""
    command = ["sacct", "--noheader", "--parsable2", "--allocations", "--format", "State,ExitCode"]
    answer = engine_calls.ask([*command, "--jobs", job])
    rows = [line.split("|") for line in answer.stdout.splitlines() if line.count("|") == 1]
    if answer.returncode or not rows:
        return None
    word, code = rows[-1]
    return _state(word.split()[0], "", int(code.partition(":")[0] or 0), (), {})


def time_words(seconds: float) -> str:
    """A time as Slurm writes it: 1-02:03:04."""
    whole = max(60, int(seconds))
    days, rest = divmod(whole, 86400)
    text = f"{rest // 3600:02}:{rest % 3600 // 60:02}:{rest % 60:02}"
    return f"{days}-{text}" if days else text


def _state(
    word: str, reason: str, code: int, nodes: tuple[str, ...], fields: dict[str, str]
) -> JobState:
    state = STATES.get(word)
    if state == "queued":
        why = REASONS.get(reason, "" if reason in ("None", "") else reason)
        starts = int(fields.get("Restarts", "0") or 0)
        again = [f"start {starts + 1}"] if starts else []
        return JobState("queued", "; ".join([*again, *([why] if why else [])]))
    if state is not None:
        return JobState(state, "", code or None if state != "ended" else 0, nodes)
    if word in FAILED:
        return JobState("failed", FAILED[word], code or None, nodes)
    return JobState("unknown", f"Slurm says {word}")


def _names(nodes: str) -> Iterator[str]:
    answer = engine_calls.ask(["scontrol", "show", "hostnames", nodes])
    yield from answer.stdout.split() if not answer.returncode else [nodes]


def _group(row: list[str]) -> PartitionNodes:
    number = re.match(r"\d+", row[5])
    gpu_count = sum(int(count) for count in GPUS.findall(row[6]))
    usable = not row[7].rstrip("*~#%$@^-+!").startswith(GONE) and "*" not in row[7]
    return PartitionNodes(int(row[4] or 0), int(number[0]) if number else 0, gpu_count, usable)


def _seconds(text: str) -> float | None:
    """The seconds in 1-02:03:04, 02:03:04 or 03:04; None for infinite or n/a."""
    found = TIME.fullmatch(text.strip())
    if found is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def _said(answer: engine_calls.ToolAnswer) -> str:
    """Its most informative line, without the program's name."""
    lines = [line.strip() for line in answer.stderr.splitlines() if "--help" not in line]
    errors = [line for line in lines if "error:" in line] or [line for line in lines if line]
    text = errors[-1] if errors else answer.said
    return re.sub(r"^(?:[a-z_ ]+: |Batch job submission failed: )+", "", text)
