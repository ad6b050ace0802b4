"""Slurm, the batch system of most clusters that are not in a cloud.

## The command

    flatout launch slurm --nodes 2 --gpus 8 --time 4h train.py

Run it on a login node, in the code folder, which the nodes must see under the same path.
`--gpus all` asks for every GPU of a node. `--partition` and `--account` are Slurm's own; any other
option of sbatch is named by `--set`, as in `--set qos=high --set constraint=a100`.

## What is written

`.flatout/launch/<name>-<time>/job.sbatch`, a script of some forty lines, with reasons:

- one task on each node (`--ntasks-per-node=1`), which is `flatout run`: it starts a process for
  each GPU itself, so that the processes of a node see each other's GPUs (`--gpus-per-task` would
  hide them);
- as many cores as belong to the requested GPUs: all of a node's cores for all of its GPUs. Slurm
  would give one core, and every data loader would starve. `--set cpus-per-task=N` changes it;
- `--requeue`, `--open-mode=append`: after the failure of a node the job is queued again and its log
  continues;
- `srun --wait=60`: if the program of one node ends, the others end by themselves and say why;
  whatever is left a minute later is killed.

It is yours: edit it, and submit it again with `sbatch`.

## What is checked first

Whether sbatch is installed and the controller answers; whether the partition exists, is up, has
enough nodes and GPUs and allows that time. Then `sbatch --test-only` lets the cluster itself check
the script, accounts and limits included, and says when it would start.

## Following and stopping

Each node writes `node-N.log` beside the script; they are shown as one log, with the node before
each line. Ctrl-C leaves the job running. `flatout monitor --slurm JOB` shows its machines,
`flatout launch --cancel JOB` ends it.

## Restarts

Two minutes before the time limit Slurm warns the job. A script that uses `flatout.Checkpoint` saves
its state and ends, and the job is queued again: it continues at the exact sample. A script with its
own checkpoints is queued again only with `--restarts N`, at most N times.

Slurm itself waits about two minutes before it starts a job again.

## What was really run

Slurm 22.05 of Debian 12: a controller and two nodes on one machine, without accounts, ranks on CPU
cores. Two nodes train to the losses of one process; at a time limit of one minute the job saves, is
queued again and goes on, twice; it is cancelled; a rank fails, a node is killed, and each is named;
each check above, against that cluster. GPUs were counted as Slurm counts them, and none was used.

## References

- https://slurm.schedmd.com/sbatch.html
- https://slurm.schedmd.com/srun.html
- https://slurm.schedmd.com/scontrol.html
"""

from __future__ import annotations

import os
import re
import shlex
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from flatout.launching import contract, engine_calls, slurm_facts, tails
from flatout.nouns import units
from flatout.nouns.errors import UserError
from flatout.nouns.launched import (
    CheckedLaunch,
    JobState,
    LaunchCosts,
    LaunchEngine,
    LaunchFile,
    LaunchRequest,
    LogLine,
    SubmittedJob,
)

ENGINE = LaunchEngine(
    title="Slurm",
    since="0.2.0",
    needs="sbatch of a login node",
    travels=False,
    understands=("partition", "account"),
    settings=("*",),
)
FILE = "job.sbatch"
BATCH_LOG = "slurm.log"
ENDED = "ended"
"""The file with the script's exit code, for clusters without accounting."""
START = "flatout launch: start "
"""The beginning of the line that each start of the job writes."""
TASK_ENDED = re.compile(
    r"^srun: error: (?P<host>[^:\s]+): task (?P<task>\d+):"
    r" (?:Exited with exit code (?P<code>\d+)|(?P<how>[A-Z][\w ()]+))",
    re.MULTILINE,
)
LOGIN = "run it on a login node of the cluster, or write the script alone: --dry-run"
WARNED_S = 120
CORES = "cpus-per-task"
LOCAL = ("/tmp", "/var/tmp", "/dev/shm")


def check(request: LaunchRequest) -> CheckedLaunch:
    """Ask the cluster whether it would accept this job."""
    for program in ("sbatch", "sinfo", "scontrol"):
        engine_calls.need(program, LOGIN)
    partition = slurm_facts.partition(request.partition)
    slurm_facts.check(partition, request)
    gpus = request.gpus
    if gpus is not None:
        gpus = slurm_facts.gpus(partition, gpus, request.nodes)
    settled = replace(request, gpus=gpus, python=request.python or _python())
    filled = _with_cores(settled, partition)
    answer = _tested(filled)
    if answer.returncode and filled != settled:
        answer, filled = _tested(settled), settled  # the cores were our own idea
    if answer.returncode:
        raise slurm_facts.refusal(answer)
    start = slurm_facts.expected_start(answer)
    return CheckedLaunch(filled, tuple(_warnings(filled, partition)), (start,) if start else ())


def files(request: LaunchRequest) -> tuple[LaunchFile, ...]:
    """The script for sbatch."""
    if request.gpus == "all":
        raise UserError(
            "--gpus all can be counted only where Slurm is", "name the number: --gpus 8"
        )
    return (LaunchFile(FILE, "\n".join(_script(request)) + "\n"),)


def submit(request: LaunchRequest, folder: Path) -> SubmittedJob:
    """Hand the script to sbatch."""
    answer = engine_calls.ask(["sbatch", "--parsable", str(folder / FILE)], env=_environment())
    if answer.returncode:
        raise slurm_facts.refusal(answer)
    number = answer.stdout.strip().splitlines()[-1].partition(";")[0]
    extra = {"monitor": f"flatout monitor --slurm {number}"}
    return SubmittedJob(
        "slurm", number, request.name, str(folder), time.time(), request.nodes, extra
    )


def state(job: SubmittedJob) -> JobState:
    """The state from scontrol; for jobs it has forgotten, from sacct or the script itself."""
    known = slurm_facts.of_controller(job.id) or slurm_facts.of_accounts(job.id)
    if known is not None:
        return _with_first(job, known) if known.state == "failed" else known
    try:
        code = int(Path(job.folder, ENDED).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return JobState(
            "unknown", "Slurm no longer knows the job, and its script recorded no exit code"
        )
    return JobState("ended" if code == 0 else "failed", "", code)


def _with_first(job: SubmittedJob, failed: JobState) -> JobState:
    """Add which node ended first, from srun: the job's exit code is only the highest of all."""
    try:
        text = Path(job.folder, BATCH_LOG).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return failed
    found = TASK_ENDED.search(text.rpartition(START)[2])
    if found is None:
        return failed
    host, node, how, code = found["host"], found["task"], found["how"], found["code"]
    said = f"{host} ended first: {'exit code ' + code if code else how.strip()}"
    detail = f"{failed.detail}; {said}" if failed.detail else said
    returncode = int(code) if code else failed.returncode
    return replace(failed, detail=detail, returncode=returncode, first=f"node {node}")


def logs(job: SubmittedJob) -> Iterator[LogLine | None]:
    """The log files beside the script."""
    folder = Path(job.folder)

    def paths() -> dict[Path, str]:
        own = {folder / BATCH_LOG: "slurm"}
        return own | {folder / f"node-{node}.log": f"node {node}" for node in range(job.nodes)}

    return tails.follow(paths)


def read(job: SubmittedJob, node: str, path: str) -> str:
    """Read it directly: all nodes share the code folder, which has their logs."""
    return tails.end_of(Path(path))


def cancel(job: SubmittedJob) -> None:
    """Let Slurm end it."""
    answer = engine_calls.ask(["scancel", job.id])
    if answer.returncode:
        raise UserError(f"scancel: {answer.said}", f"squeue --jobs {job.id}", 1)


def costs(request: LaunchRequest) -> LaunchCosts:
    """The resources requested."""
    return contract.costs(request)


def _script(request: LaunchRequest) -> Iterator[str]:
    yield "#!/bin/bash"
    yield f"# {request.name}: written by flatout launch, yours to keep and edit; submit it again:"
    yield f"#   sbatch {shlex.quote(str(request.launch_folder / FILE))}"
    yield from _directives(request)
    yield ""
    for name, value in request.variables:
        yield f"export {name}={shlex.quote(value)}"
    yield "logs=" + shlex.quote(str(request.launch_folder))
    yield f'rm -f "$logs/{ENDED}"'
    patience = WARNED_S - 30
    yield from BODY_HEAD.format(restarts=request.restarts, patience=patience).splitlines()
    yield f"  {contract.node_line(request, (sys.executable, '-m', 'flatout'))} &"
    codes = {"saved": contract.SAVED_EXIT, "lost": contract.LOST_EXIT}
    yield from BODY_TAIL.format(ended=ENDED, **codes).splitlines()


def _directives(request: LaunchRequest) -> Iterator[str]:
    """The lines that sbatch reads; the user's own take precedence."""
    given = dict(request.options)
    for why, name, value in _rows(request):
        if name in given or value is None:
            continue
        if why:
            yield f"# {why}"
        yield f"#SBATCH --{name}={shlex.quote(value)}" if value else f"#SBATCH --{name}"
    for name, value in request.options:
        yield f"#SBATCH --{name}={shlex.quote(value)}" if value else f"#SBATCH --{name}"


def _rows(request: LaunchRequest) -> Iterator[tuple[str, str, str | None]]:
    """Reason, name and value of each option; an option with the value None is omitted."""
    given = dict(request.options)
    yield "", "job-name", request.name
    yield "", "partition", request.partition or None
    yield "", "account", request.account or None
    yield "", "nodes", str(request.nodes)
    yield "flatout starts the processes of a node itself.", "ntasks-per-node", "1"
    yield "", "gpus-per-node", str(request.gpus) if request.gpus else None
    limit = slurm_facts.time_words(request.time_s) if request.time_s is not None else None
    yield "", "time", limit
    yield "All nodes must see the code folder under this path.", "chdir", str(request.folder)
    yield "", "output", str(request.launch_folder / BATCH_LOG)
    requeue = None if "no-requeue" in given else ""
    yield "After the failure of a node it is queued again, and its log goes on.", "requeue", requeue
    yield "", "open-mode", "append"
    yield "This script is warned before the time limit: see below.", "signal", f"B:USR1@{WARNED_S}"


BODY_HEAD = """
echo "flatout launch: start $((${{SLURM_RESTART_COUNT:-0}} + 1)) on $SLURM_JOB_NODELIST"

# Slurm gives srun one core unless this says otherwise.
[ -n "$SLURM_CPUS_PER_TASK" ] && export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"

# Before the time limit: the programs on all nodes save their state and end. Those that do not are
# started again only where that was asked for: again, so often.
again={restarts}
count="${{SLURM_RESTART_COUNT:-0}}"
warned() {{
  wait_again=1
  scancel --signal=USR1 "$SLURM_JOB_ID"
  [ "$count" -ge "$again" ] || {{ sleep {patience}; scontrol requeue "$SLURM_JOB_ID"; }} &
}}
trap warned USR1

# One task on each node. Where one ends, flatout ends the others and says why; what is left a minute
# later is killed. (--kill-on-bad-exit=1 would kill them before they have saved or said a word.)
srun --kill-on-bad-exit=0 --wait=60 --open-mode=append --output="$logs/node-%n.log" \\"""
BODY_TAIL = """step=$!
wait_again=1
while [ -n "$wait_again" ]; do wait_again=; wait "$step"; code=$?; done

# With {saved} the state is saved: it goes on from there. With {lost} and from 128 on it was lost or
# killed from outside; any other error would come again.
if [ "$code" = {saved} ] ||
  {{ [ "$count" -lt "$again" ] && {{ [ "$code" = {lost} ] || [ "$code" -ge 128 ]; }}; }}; then
  echo "exit code $code: queued again, for start $((count + 2))"
  scontrol requeue "$SLURM_JOB_ID" && sleep 300  # Slurm ends this script
fi
echo "$code" >"$logs/{ended}"
exit "$code\""""


def _with_cores(request: LaunchRequest, partition: slurm_facts.Partition) -> LaunchRequest:
    """The request with the cores that belong to its GPUs, or all of a node's without GPUs."""
    given = dict(request.options)
    if CORES in given or {"exclusive", "cpus-per-gpu"} & given.keys():
        return request
    cores, present = partition.cores(request.nodes), partition.most_gpus(request.nodes)
    own: tuple[tuple[str, str], ...] = ()
    if request.gpus and present:
        assert request.gpus != "all"
        cores = max(1, cores * request.gpus // present)
    whole = not request.gpus or request.gpus == present
    if cores > 1:
        own = ((CORES, str(cores)),)
    if whole and not given.keys() & {"mem", "mem-per-cpu", "mem-per-gpu"}:
        own += (("mem", "0"),)  # all of it
    return replace(request, options=(*request.options, *own))


def _tested(request: LaunchRequest) -> engine_calls.ToolAnswer:
    """Slurm's own check of the script; nothing is submitted."""
    (file,) = files(request)
    return engine_calls.ask(["sbatch", "--test-only"], given=file.text, env=_environment())


def _warnings(request: LaunchRequest, partition: slurm_facts.Partition) -> Iterator[str]:
    if request.gpus is None and (most := partition.most_gpus(request.nodes)):
        yield f"nodes of {partition.name} have {most} GPUs, and none is asked for (--gpus all)"
    if request.gpus and (idle := partition.most_gpus(request.nodes) - int(request.gpus)) > 0:
        yield f"{idle} GPUs of each node stay free for others"
    local = next((top for top in LOCAL if request.folder.is_relative_to(top)), None)
    if local is not None:
        yield (
            f"{request.folder}: all nodes must see this folder, and {local} is usually local to"
            " each node"
        )
    if request.time_s is None and partition.default_s is not None:
        yield f"no --time: the partition ends it after {units.duration(partition.default_s)}"


def _python() -> str:
    from flatout.running.one import command

    return command.default_python()


def _environment() -> dict[str, str]:
    """The variables without those that a surrounding allocation would pass on to the job."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SLURM_", "SLURMD_", "FLATOUT_")) or name == "SLURM_CONF"
    }
