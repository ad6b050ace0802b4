"""Your own machines, two to a handful, reached by ssh.

## The command

    flatout launch ssh --hosts gpu1,gpu2 --gpus all train.py

The hosts are named as ssh knows them; the first one leads. Each needs Linux, Python with flatout
and torch (`--python /path/to/python` if that is not `python3`), and must let you in by a key.
`--set` knows `config` (a file for `ssh -F`), `leader` (the first host's address, as the others
reach it) and `port`.

## What is written

`.flatout/launch/<name>-<time>/node.sh`, the script that each machine runs, with reasons. The code
folder is packed and sent to `~/.flatout/launch/<name>-<time>/node-N/code` on each machine: later
changes have no effect. Secrets (.env, keys, credentials), `.git`, environments and files larger
than 20 MiB are not sent, and are named.

## What is checked first

Whether each host lets you in, and if not, why: a host key that is unknown or has changed, no key of
yours that it accepts, no machine, no sshd. Whether its Python has flatout (the same version on all)
and torch, and whether it has the GPUs and enough disk space. Then the first host opens the port and
the others connect to it: a closed firewall is found before anything is sent.

## Following and stopping

Each machine writes its log beside the code; they are shown as one, with the node before each line.
The programs there do not depend on the connection: Ctrl-C, a closed laptop or a lost network leave
them running, and `flatout launch --follow JOB` shows them again. `flatout launch --cancel JOB` ends
them on all machines. If one dies, the others end by themselves. What the script has written stays
on the first machine, in its code folder. All calls of a command share one connection to each
machine (ssh's ControlMaster), which ends a quarter of a minute after the last of them.

## Restarts

Nothing queues the job again. `--restarts N` restarts a program that fails, at most N times.

## What was really run

OpenSSH 9.2, two sshd in two network namespaces of one machine, with homes, keys and addresses of
their own, ranks on CPU cores. Two machines train to the losses of one process; a rank fails, a
machine's flatout is killed, a follower is interrupted, the job cancelled: the right one is named,
and no process is left on either. Each check above, with host keys swapped and keys withdrawn.
Machines with GPUs, other shells than bash, and links slower than memory have not been tried.

## References

- https://man.openbsd.org/ssh
- https://man.openbsd.org/ssh_config
"""

from __future__ import annotations

import secrets
import shlex
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from flatout.launching import contract, engine_calls, ssh_facts, tails
from flatout.launching.ssh_hosts import UNREACHED, RemoteHost, at_once, hosts
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
    title="ssh",
    since="0.2.0",
    needs="ssh, and a key that each host accepts",
    travels=True,
    understands=("hosts",),
    settings=("config", "leader", "port"),
    logs_end=True,
)
FILE = "node.sh"
TOKEN = "token"
PORT = 29400
ROOT = ".flatout/launch"
"""Folder of launches below the home folder of each machine."""
SEVERAL = "flatout launch ssh --hosts gpu1,gpu2 train.py"
RETRY_S = 5.0
STOP_S = 15
"""Seconds for a program to end itself before it is killed."""
BOOT = "/proc/sys/kernel/random/boot_id"
BEGIN = f"""
cd "$HOME/$1" || exit 1
umask 077
cat {BOOT} >boot
# A session of its own: it goes on when this connection ends.
setsid sh -c '
  trap "again=1; kill -TERM \\$child" TERM
  sh node.sh "$0" >>log 2>&1 </dev/null &
  child=$!
  echo $$ >pid
  again=1
  while [ -n "$again" ]; do again=; wait "$child"; code=$?; done
  echo "$code" >ended.new
  mv ended.new ended
' "$2" </dev/null >/dev/null 2>&1 &
left=100
while [ ! -s pid ] && [ "$left" -gt 0 ]; do sleep 0.1; left=$((left - 1)); done
[ -s pid ]
"""
ALIVE = f"""
# Whether anything of it runs: numbers of processes come again, after a boot above all.
alive() {{
  [ "$(cat boot 2>/dev/null)" = "$(cat {BOOT})" ] || return 1
  group=$(cat pid)
  if [ -d "/proc/$group" ]; then grep -q node.sh "/proc/$group/cmdline"
  else kill -s 0 -- "-$group" 2>/dev/null; fi
}}
"""
LOOK = f"""{ALIVE}
cd "$HOME/$1" 2>/dev/null || {{ echo absent; exit 0; }}
if [ -f ended ]; then echo "ended $(cat ended) $(stat -c %Y ended)"
elif [ -f cancelled ]; then echo cancelled
elif [ ! -f pid ]; then echo absent
elif alive; then echo running
else echo lost; fi
[ -f cancelled ] && echo cancelled
exit 0
"""
END = "\x04"
FOLLOW = """
cd "$HOME/$1" || exit 1
touch log
exec 3<&0
tail -n "+$2" -f --pid="$(cat pid)" log &
tail=$!
# The end of this connection ends it.
{ cat <&3 >/dev/null; kill $tail; } &
wait $tail && printf '\\004\\n'
kill $!
"""
STOP = f"""{ALIVE}
cd "$HOME/$1" 2>/dev/null || exit 0
touch cancelled
[ -f pid ] && [ ! -f ended ] && alive || exit 0
kill -TERM "$group" 2>/dev/null
left=$2
while [ "$left" -gt 0 ] && [ ! -f ended ] && alive; do
  sleep 1
  left=$((left - 1))
done
alive && kill -s KILL -- "-$group" 2>/dev/null
exit 0
"""
TIMED_OUT = "124"
"""Exit code of `timeout`."""


def check(request: LaunchRequest) -> CheckedLaunch:
    """Ask every host whether it can take part, and whether they reach each other."""
    engine_calls.need("ssh", "install OpenSSH's client")
    _need_hosts(request)
    port = _port(request)
    machines = hosts(request.hosts, request.option("config"))
    facts = ssh_facts.look(machines, request)
    leader = request.option("leader") or ssh_facts.leader_address(machines[0], facts[0])
    ssh_facts.check_reach(machines, leader, port, request.python or "python3")
    options = (*request.options, ("leader", leader), ("port", str(port)))
    lines = (line for line in request.lock.splitlines() if line.startswith("torch=="))
    torch = next(lines, "").removeprefix("torch==")
    told = tuple(ssh_facts.warnings(machines, facts, torch))
    note = f"the first host is reached by the others at {leader}, port {port}"
    notes = (note,) if len(machines) > 1 else ()
    return CheckedLaunch(replace(request, options=options), told, notes)


def files(request: LaunchRequest) -> tuple[LaunchFile, ...]:
    """The script of each machine. Raises UserError if no machine is named."""
    _need_hosts(request)
    return (LaunchFile(FILE, "\n".join(_script(request)) + "\n", executable=True),)


def _need_hosts(request: LaunchRequest) -> None:
    if not request.hosts:
        raise UserError("no hosts are named", SEVERAL)


def submit(request: LaunchRequest, folder: Path) -> SubmittedJob:
    """Send code and script to all machines, then start them on all."""
    assert request.packed is not None
    packed = request.packed
    beside = {FILE: (folder / FILE).read_bytes(), TOKEN: secrets.token_hex(16).encode()}
    machines = hosts(request.hosts, request.option("config"))
    number = {host.name: index for index, host in enumerate(machines)}

    def send(host: RemoteHost) -> None:
        where = _remote(folder.name, number[host.name])
        _done(host, host.send(packed, where, beside), "the code could not be sent")

    def begin(host: RemoteHost) -> None:
        where, index = _remote(folder.name, number[host.name]), str(number[host.name])
        _done(host, host.ask(BEGIN, where, index), "it could not be started")

    leader = machines[0].name
    extra = {
        "hosts": ",".join(request.hosts),
        "config": request.option("config"),
        "monitor": f"flatout monitor {' '.join(request.hosts)}",
        "results": f"{leader}:{_remote(folder.name, 0)}/code",
    }
    job = SubmittedJob(
        "ssh", folder.name, request.name, str(folder), time.time(), len(machines), extra
    )
    at_once(send, machines)
    try:
        at_once(begin, machines)
    except BaseException:  # Ctrl-C too: nothing may keep running unnoticed
        _stop(job, machines)
        raise
    return job


def state(job: SubmittedJob) -> JobState:
    """The combined state of the program on all hosts."""
    machines = _machines(job)
    folder = Path(job.folder).name
    where = {host.name: _remote(folder, index) for index, host in enumerate(machines)}
    said = at_once(lambda host: host.ask(LOOK, where[host.name], limit_s=30), machines)
    answers = {
        index: answer.stdout.split("\n") if answer.returncode == 0 else [f"silent {answer.said}"]
        for index, answer in enumerate(said)
    }
    words = {index: lines[0].split() or ["absent"] for index, lines in answers.items()}
    cancelled = any("cancelled" in lines for lines in answers.values())
    return _together(words, cancelled, [host.name for host in machines])


def logs(job: SubmittedJob) -> Iterator[LogLine | None]:
    """The log of each host, over a connection of its own that is renewed if it breaks."""
    folder = Path(job.folder).name
    remote = [
        _RemoteLog(host, _remote(folder, index), f"node {index}")
        for index, host in enumerate(_machines(job))
    ]
    try:
        while not all(log.complete for log in remote):
            for log in remote:
                yield from log.waiting()
            yield None
    finally:
        for log in remote:
            log.close()


def read(job: SubmittedJob, node: str, path: str) -> str:
    """The file's end on the machine of that name."""
    host = next((host for host in _machines(job) if host.name == node), None)
    if host is None:
        return ""
    answer = host.ask('tail -c "$2" -- "$1"\n', path, str(tails.BLOCK), limit_s=30)
    return answer.stdout if answer.returncode == 0 else ""


def cancel(job: SubmittedJob) -> None:
    """End the program on every host."""
    troubles = _stop(job, _machines(job))
    if troubles:
        raise troubles[0]


def costs(request: LaunchRequest) -> LaunchCosts:
    """The resources requested; the user's own machines have no price per hour."""
    return contract.costs(request)


class _RemoteLog:
    """The log of one host, line by line; a lost connection is renewed."""

    def __init__(self, host: RemoteHost, folder: str, source: str) -> None:
        self.complete = False
        """Whether the program has ended and everything it wrote was read."""
        self._host, self._folder, self._source = host, folder, source
        self._seen = 0
        self._next = 0.0
        self._lines: Iterator[str | None] = iter(())

    def waiting(self) -> Iterator[LogLine]:
        """The lines available now."""
        for line in self._lines:
            if line is None:
                return
            if line.endswith(END):
                self.complete = True
                line = line.removesuffix(END)
                if not line:
                    return
            self._seen += 1
            yield LogLine(self._source, line)
        if not self.complete and time.monotonic() >= self._next:
            self._next = time.monotonic() + RETRY_S
            words = ["sh", "-c", FOLLOW, "sh", self._folder, str(self._seen + 1)]
            command = self._host.command(words)
            self._lines = engine_calls.lines_of(command, held=True, errors=False)

    def close(self) -> None:
        close = getattr(self._lines, "close", None)
        if close is not None:
            close()


def _script(request: LaunchRequest) -> Iterator[str]:
    leader = request.option("leader") or request.hosts[0]
    address = f"[{leader}]" if ":" in leader else leader
    program = (request.python or "python3", "-m", "flatout")
    yield "#!/bin/sh"
    yield f"# {request.name}: written by flatout launch, yours to keep and edit."
    yield f"# Runs on each of {len(request.hosts)} machines, beside the folder code; $1 is its"
    yield "# number from 0. In the file token is a secret by which the machines know each other."
    yield 'here=$(cd "$(dirname "$0")" && pwd)'
    yield 'cd "$here/code" || exit 1'
    yield ""
    yield "# Machine 0 leads; the others reach it there."
    yield f"export FLATOUT_NODES={len(request.hosts)}"
    yield 'export FLATOUT_NODE="$1"'
    yield f"export FLATOUT_LEADER={shlex.quote(f'{address}:{_port(request)}')}"
    yield 'export FLATOUT_JOB="$(cat "$here/token")"'
    yield 'case "$1" in'
    for index, host in enumerate(request.hosts):
        yield f"  {index}) export FLATOUT_NODE_NAME={shlex.quote(host)} ;;"
    yield "esac"
    for name, value in request.variables:
        yield f"export {name}={shlex.quote(value)}"
    yield ""
    if request.time_s is not None:
        yield "# --time: asked to end, and killed if it does not."
        yield f"exec timeout --foreground --kill-after=60 {int(request.time_s)} \\"
        yield f"  {contract.node_line(request, program)}"
    else:
        yield f"exec {contract.node_line(request, program)}"


def _port(request: LaunchRequest) -> int:
    text = request.option("port", str(PORT))
    if not text.isdecimal() or not 1024 <= int(text) < 65536:
        raise UserError(f"--set port={text} is no port that you may use", f"--set port={PORT}")
    return int(text)


def _remote(folder: str, index: int) -> str:
    """A folder for each node below the home folder, which machines may share."""
    return f"{ROOT}/{folder}/node-{index}"


def _machines(job: SubmittedJob) -> list[RemoteHost]:
    return hosts(job.extra.get("hosts", "").split(","), job.extra.get("config", ""))


def _done(host: RemoteHost, answer: engine_calls.ToolAnswer, failed: str) -> None:
    """Raise UserError if it failed."""
    if answer.returncode == UNREACHED:
        raise host.trouble(answer)
    if answer.returncode:
        raise UserError(f"{host.name}: {failed}: {answer.said}", f"look there: ssh {host.name}", 1)


def _together(words: dict[int, list[str]], cancelled: bool, names: list[str]) -> JobState:
    """The job's state from the states of its nodes."""
    silent = [index for index, word in words.items() if word[0] == "silent"]
    running = [index for index, word in words.items() if word[0] == "running"]
    # Nodes that did not end as they should, the earliest first.
    ends = [
        (float(word[2]) if word[0] == "ended" else 0.0, index)
        for index, word in words.items()
        if word[0] in ("lost", "absent") or (word[0] == "ended" and word[1] != "0")
    ]
    wrong = [index for _, index in sorted(ends)]
    detail = _first_words(words, wrong, names)
    if silent:
        said = f"{names[silent[0]]} does not answer: {' '.join(words[silent[0]][1:])}"
        return JobState("unknown", said, nodes=tuple(names))
    if running:
        return JobState("running", detail if wrong else "", nodes=tuple(names))
    if cancelled:
        return JobState("cancelled", nodes=tuple(names))
    if not wrong:
        return JobState("ended", "", 0, tuple(names))
    code = words[wrong[0]][1] if words[wrong[0]][0] == "ended" else "1"
    first = f"node {wrong[0]}"
    return JobState("failed", detail, int(code), tuple(names), first)


def _first_words(words: dict[int, list[str]], wrong: list[int], names: list[str]) -> str:
    if not wrong:
        return ""
    word, name = words[wrong[0]], names[wrong[0]]
    if word[0] == "ended":
        limit = " (its time limit, --time)" if word[1] == TIMED_OUT else ""
        return f"{name} ended first: exit code {word[1]}{limit}"
    if word[0] == "lost":
        return (
            f"{name}: the program is gone and left no exit code: it was killed, or the machine"
            " restarted"
        )
    return f"{name}: nothing was started there"


def _stop(job: SubmittedJob, machines: list[RemoteHost]) -> list[UserError]:
    """End it on all hosts; returns the errors."""
    folder = Path(job.folder).name
    where = {host.name: _remote(folder, index) for index, host in enumerate(machines)}

    def stop(host: RemoteHost) -> UserError | None:
        answer = host.ask(STOP, where[host.name], str(STOP_S), limit_s=STOP_S + 45)
        return host.trouble(answer) if answer.returncode else None

    return [error for error in at_once(stop, machines) if error is not None]
