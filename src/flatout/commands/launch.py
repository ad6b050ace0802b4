"""flatout launch."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flatout.commands import SCRIPT_CONTEXT, _options, duration, harmless, print_document, program
from flatout.nouns.errors import INTERRUPTED, UserError

if TYPE_CHECKING:
    from flatout.nouns.launched import LaunchRequest, PreparedLaunch, SubmittedJob

PLACE = ("Speed up", 6)
CONTEXT = SCRIPT_CONTEXT
USAGE = "ENGINE [OPTIONS] SCRIPT [ARGS]..."
PLAN = Path("flatout.toml")

Engine = Annotated[str, typer.Option("--engine", hidden=True, metavar="ENGINE")]
NodeCount = Annotated[int, typer.Option("--nodes", metavar="N", min=1, help="Nodes.")]
Gpus = Annotated[
    str | None,
    typer.Option("--gpus", metavar="all|N", help="GPUs of each node, one process on each."),
]
Ranks = Annotated[
    int | None,
    typer.Option(
        "--ranks", metavar="N", min=1, help="Without GPUs: processes on each node.  [default: 1]"
    ),
]
Time = Annotated[
    str | None, typer.Option("--time", metavar="TIME", help="Longest run, such as 90m or 12h.")
]
Env = Annotated[
    list[str] | None,
    typer.Option(
        "--env",
        metavar="NAME[=VALUE]",
        help="Set an environment variable; without a value, to the value it has here. Repeatable.",
    ),
]
Partition = Annotated[
    str, typer.Option("--partition", metavar="NAME", help="Slurm: the partition.")
]
Account = Annotated[
    str, typer.Option("--account", metavar="NAME", help="Slurm: the account to charge.")
]
Queue = Annotated[
    str, typer.Option("--queue", metavar="NAME", help="Kubernetes: the queue of Kueue.")
]
Image = Annotated[
    str, typer.Option("--image", metavar="IMAGE", help="Container image, for engines that use one.")
]
Hosts = Annotated[
    str, typer.Option("--hosts", metavar="A,B", help="ssh: the machines; the first one leads.")
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Another option of the engine; flatout explain ENGINE lists them. Repeatable.",
    ),
]
Name = Annotated[
    str, typer.Option("--name", metavar="NAME", help="Name of the job.  [default: the script's]")
]
Restarts = Annotated[
    int,
    typer.Option(
        "--restarts", metavar="N", min=0, help="Restart a script that fails, at most this often."
    ),
]
Python = Annotated[
    str, typer.Option("--python", metavar="PYTHON", help="Python interpreter on the nodes.")
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print the files that would be submitted, and end.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Submit without asking.")]
NoFollow = Annotated[bool, typer.Option("--no-follow", help="End once the job is submitted.")]
Follow = Annotated[
    str, typer.Option("--follow", metavar="JOB", help="Follow a job that was launched from here.")
]
Cancel = Annotated[
    str, typer.Option("--cancel", metavar="JOB", help="End a job that was launched from here.")
]
List = Annotated[bool, typer.Option("--list", help="List the jobs launched from here.")]
Json = Annotated[
    bool,
    typer.Option("--json", help="Print one JSON document on stdout, and the job's log on stderr."),
]


def modern(words: Sequence[str]) -> list[str]:
    """Make the engine's name an option: all after a first bare word would be the script's."""
    if words and not words[0].startswith("-"):
        return ["--engine", *words]
    return [*words]


def command(
    ctx: typer.Context,
    engine: Engine = "",
    nodes: NodeCount = 1,
    gpus: Gpus = None,
    ranks: Ranks = None,
    time: Time = None,
    env: Env = None,
    partition: Partition = "",
    account: Account = "",
    queue: Queue = "",
    image: Image = "",
    hosts: Hosts = "",
    setting: Set = None,
    name: Name = "",
    restarts: Restarts = 0,
    plan: _options.PlanToRun = None,
    no_plan: _options.NoPlan = False,
    python: Python = "",
    dry_run: DryRun = False,
    yes: Yes = False,
    no_follow: NoFollow = False,
    follow: Follow = "",
    cancel: Cancel = "",
    listing: List = False,
    as_json: Json = False,
) -> int:
    """Run a script on a cluster: slurm, ssh, kubernetes, ray or sky.

    Checks the request as far as possible and shows it, writes the engine's own files into
    .flatout/launch, submits them after asking, and follows the job. Ctrl-C leaves it running.

    Examples:
      flatout launch slurm --nodes 2 --gpus 8 --time 4h train.py
      flatout launch ssh --hosts gpu1,gpu2 --gpus all train.py
      flatout launch --follow last

    Exit code: that of the job; 2 for wrong usage.
    """
    if listing:
        return _listed(as_json)
    if follow or cancel:
        return _existing(follow, cancel, as_json)
    return _launched(_request(ctx.args, ctx.params), ctx.params)


def _launched(request: LaunchRequest, options: dict[str, Any]) -> int:
    """Check, show, ask, submit, follow."""
    from flatout.launching import launch
    from flatout.reporting import launch as report

    prepared = launch.prepare(request, dry=options["dry_run"])
    title = launch.engine(request.engine).ENGINE.title
    report.asked(prepared, title)
    if options["dry_run"]:
        if options["as_json"]:
            print_document(report.launch_document(prepared))
        else:
            report.files(prepared)
        return 0
    if not options["yes"]:
        if not sys.stdin or not sys.stdin.isatty():
            raise UserError("there is no terminal to ask on", "agree beforehand: --yes")
        sys.stderr.write("submit? [y/N] ")
        sys.stderr.flush()
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise UserError("nothing was submitted", exit_code=1)
    job = launch.submit(prepared)
    report.submitted(job, title)
    if options["no_follow"]:
        for words, line in report.hints(job):
            sys.stderr.write(f"  {words}: {line}\n")
        if options["as_json"]:
            print_document(report.launch_document(prepared, job))
        return 0
    return _followed(job, options["as_json"], prepared)


def _request(words: list[str], options: dict[str, Any]) -> LaunchRequest:
    """The request in the command line. Raises UserError."""
    from flatout.launching import engines, folders
    from flatout.nouns.launched import LaunchRequest

    if not options["engine"]:
        names = ", ".join(engines.names())
        raise UserError(
            f"no engine is named; there are {names}", "flatout launch slurm --nodes 2 train.py"
        )
    rest, module = program("launch", words)
    argv = rest if module is None else ("-m", module, *rest)
    limit, gpus = options["time"], options["gpus"]
    nodes = options["nodes"]
    hosts = tuple(host.strip() for host in options["hosts"].split(",") if host.strip())
    if hosts and nodes not in (1, len(hosts)):
        raise UserError(f"--nodes is {nodes}, but --hosts names {len(hosts)}", "leave --nodes out")
    if gpus is not None and gpus != "all":
        if not gpus.isdecimal() or not int(gpus):
            raise UserError(f"--gpus {gpus!r} is neither all nor a number of GPUs", "--gpus all")
        gpus = int(gpus)
    return LaunchRequest(
        engine=options["engine"],
        argv=argv,
        name=options["name"] or folders.default_name(argv),
        folder=Path.cwd(),
        nodes=len(hosts) or nodes,
        gpus=gpus,
        ranks=options["ranks"],
        time_s=duration("--time", limit) if limit is not None else None,
        variables=_variables(options["env"] or ()),
        image=options["image"],
        plan=_plan(options["plan"], options["no_plan"]),
        lock=_lock(),
        restarts=options["restarts"],
        partition=options["partition"],
        account=options["account"],
        queue=options["queue"],
        hosts=hosts,
        python=options["python"],
        options=tuple(_pair("--set", text) for text in options["setting"] or ()),
    )


def _variables(given: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """NAME=VALUE, or NAME for its value here."""
    found = []
    for text in given:
        if "=" not in text:
            if text not in os.environ:
                raise UserError(
                    f"--env {text}: it is not set here", f"give it a value: --env {text}=1"
                )
            text = f"{text}={os.environ[text]}"
        found.append(_pair("--env", text))
    return tuple(found)


def _pair(option: str, text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UserError(
            f"{option} {text!r} has no value", f"write it as in {option} {name or 'name'}=1"
        )
    if "\n" in value or "\0" in value:
        raise UserError(f"{option} {name}: a value of several lines", "put it into a file")
    return name, value


def _plan(path: Path | None, no_plan: bool) -> Path | None:
    if no_plan:
        return None
    if path is None:
        return PLAN if PLAN.is_file() else None
    if not path.is_file():
        raise UserError(f"there is no plan {path}", "make one: flatout tune train.py")
    return path


def _lock() -> str:
    """The packages of the script's Python, as far as they can be read quickly."""
    with harmless("the packages of this environment could not be recorded"):
        from flatout.probing import packages
        from flatout.running.one.command import chosen_python

        installed = packages.look(chosen_python(None))
        return "\n".join([f"# Python {installed.python}", *installed.lines]) + "\n"
    return ""


def _existing(follow: str, cancel: str, as_json: bool) -> int:
    """Follow or end an earlier job."""
    from flatout.launching import engines, folders
    from flatout.reporting import terminal

    if follow and cancel:
        raise UserError("--follow and --cancel cannot be combined", "leave one of them out")
    job = folders.find(follow or cancel, Path.cwd())
    if follow:
        return _followed(job, as_json, None)
    engines.load(job.engine).cancel(job)
    terminal.say(f"job {job.id} ({job.name}) is cancelled")
    return 0


def _listed(as_json: bool) -> int:
    from flatout.launching import engines, folders
    from flatout.reporting import launch as report

    jobs = [(job, engines.load(job.engine).state(job)) for job in folders.submitted(Path.cwd())]
    if as_json:
        print_document([report.launch_document(None, job, now) for job, now in jobs])
    elif jobs:
        report.listing(jobs)
    else:
        sys.stderr.write("flatout: no job was launched from this folder\n")
    return 0


def _followed(job: SubmittedJob, as_json: bool, prepared: PreparedLaunch | None) -> int:
    """Show its states and lines until it ends. Returns the exit code. Ctrl-C leaves it running."""
    from flatout.launching import following
    from flatout.nouns.launched import JobState
    from flatout.reporting import languages
    from flatout.reporting import launch as report

    now: JobState | None = None
    try:
        for event in following.events(job):
            if isinstance(event, JobState):
                now = event
                report.state(job, event)
            else:
                report.line(event, sys.stderr if as_json else None)
    except KeyboardInterrupt:
        report.left(job)
        return INTERRUPTED
    failure = None
    if now is not None and now.state == "failed":
        with harmless("the failure is not explained"):
            failure = following.first_failure(job, now.first)
            report.failed(failure, job, languages.chosen(None))
    if as_json:
        print_document(report.launch_document(prepared, job, now, failure))
    if now is None or now.state == "ended":
        return 0
    return now.returncode if now.returncode and 0 < now.returncode < 256 else 1
