"""The commands, one per file: the folder is the table, the file's name is the verb.

Each file defines `command`, a function with typer annotations that returns the exit code. Its
docstring is the help; `PLACE = (group, number)` says where `flatout --help` lists it. Also:

- `CONTEXT = SCRIPT_CONTEXT`: the command line ends with the user's own program; `command` takes a
    `typer.Context` and reads it with `user_command(verb, ctx.args, python)`. `USAGE` may give the
    usage line.
- `SUBCOMMANDS`: functions like `command`, which then is only the group's help.
- `modern(words)`: the words after the command in today's spelling.

`_options.py` has the options shared by several commands.

Only the requested command is imported: the help of the others is read from their source.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import os
import pkgutil
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, cast

import typer
from typer.core import TyperCommand, TyperGroup

import flatout
from flatout.nouns.errors import INTERRUPTED, UserError
from flatout.reporting.harmless import harmless as harmless
from flatout.reporting.harmless import warn as warn

if TYPE_CHECKING:
    from flatout.nouns.explained import Explained
    from flatout.nouns.machine import Machine
    from flatout.running.one import foreground
    from flatout.running.one.command import Command

INTRODUCTION = """
Run any PyTorch training script flat out.

flatout measures where the time of a training job goes, finds the speed-ups that work for your
script without changing its code, and checks that the model still learns the same. It also checks
the machine and explains errors.

Start here:
  flatout tune train.py    find what makes the script faster
  flatout run train.py     run the script with what was found
  flatout doctor           check the machine
"""
MORE = "Run flatout COMMAND --help for more about a command."
OF_FILES = ("compare", "explain")
"""Commands whose words are files. Those after a script are its own."""
GROUPS = ("Understand", "Speed up", "Fix")
"""Headings above the commands in `flatout --help`."""
SCRIPT_CONTEXT: dict[str, Any] = {
    "allow_extra_args": True,
    "ignore_unknown_options": True,
    "allow_interspersed_args": False,
}
"""Everything from the script's name on belongs to the script, even options and `--help`."""
SCRIPT_USAGE = "[OPTIONS] SCRIPT [ARGS]..."
PLACE = re.compile(r'^PLACE = \("([^"]+)", (\d+)\)$', re.MULTILINE)
SUMMARY = re.compile(r'^def command\(.*?^    """(.+?)(?:""")?$', re.MULTILINE | re.DOTALL)
COMPLETION = "_FLATOUT_COMPLETE"
"""Set by a shell that asks for completions."""


LOOK_S = 0.5
"""Seconds to look for facts on which the steps of an error's cure depend."""


def warn_of_others() -> None:
    """Say before long work that other programs use the cores, where they do."""
    with harmless("the machine's load was not checked"):
        from flatout.probing import neighbours

        if line := neighbours.told():
            warn(line)


class CommandEntry(NamedTuple):
    """A command as `flatout --help` lists it."""

    group: str
    number: int
    """The command's position in its group."""
    summary: str


class _Overview(TyperGroup):
    """Lists the commands under their groups' headings, before the options."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:  # typer would end without a word
            raise UserError("interrupted", exit_code=INTERRUPTED) from None

    def format_options(self, ctx: Any, formatter: Any) -> None:
        self.format_commands(ctx, formatter)
        TyperCommand.format_options(cast(TyperCommand, self), ctx, formatter)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        headings: dict[str, list[tuple[str, str]]] = {}
        width = max(map(len, self.commands))
        for name, command in self.commands.items():
            heading = getattr(command, "rich_help_panel", None) or "Commands"
            row = (name.ljust(width), (command.help or "").partition("\n")[0])
            headings.setdefault(heading, []).append(row)
        for heading, rows in headings.items():
            with formatter.section(heading):
                formatter.write_dl(rows)


class _WithUsage(TyperCommand):
    """Shows the usage given in the command's file, without typer's notation for arguments."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [self.options_metavar or ""]


def names() -> list[str]:
    """The commands as the user types them."""
    modules = (module.name for module in pkgutil.iter_modules(__path__))
    return sorted(name.replace("_", "-") for name in modules if not name.startswith("_"))


def call(arguments: Sequence[str]) -> int:
    """Run the command in `arguments`. Returns its exit code. Raises UserError, typer's errors."""
    if COMPLETION in os.environ:
        # The words of the line that a shell wants completed, without options.
        line = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS", "")
        typed = (word for word in line.split()[1:] if not word.startswith("-"))
        name, words = next(typed, None), [*arguments]
    else:
        name, words = _modern(arguments)
    result = application(name if name in names() else None)(
        args=words or ["--help"],
        prog_name="flatout",
        standalone_mode=False,
    )
    return result if isinstance(result, int) else 0


def _modern(arguments: Sequence[str]) -> tuple[str | None, list[str]]:
    """The requested command, and all words in today's spelling."""
    words = list(arguments)
    place = next((place for place, word in enumerate(words) if not word.startswith("-")), None)
    if place is None:
        return None, words
    name = words[place]
    if name not in names():
        raise UserError(f"there is no command {name!r}{nearest(name, names())}", "flatout --help")
    modern = getattr(importlib.import_module(_module(name)), "modern", None)
    if modern is not None:
        words[place + 1 :] = modern(words[place + 1 :])
    if name in OF_FILES:
        words[place + 1 :] = expanded(words[place + 1 :])
    return name, words


def print_document(document: Any) -> None:
    """Print what --json answers."""
    typer.echo(json.dumps(document, indent=2))


def expanded(words: Sequence[str]) -> list[str]:
    """The words, with the names of files in the place of *.log: no shell of Windows does that."""
    if sys.platform != "win32":
        return list(words)
    import glob

    return [name for word in words for name in (sorted(glob.glob(word)) or [word])]  # noqa: PTH207


def application(selected: str | None = None) -> typer.Typer:
    """Only the command `selected`, imported; None means all, with only their help read."""
    app = typer.Typer(
        cls=_Overview,
        help=_help(INTRODUCTION),
        epilog=MORE,
        rich_markup_mode=None,  # importing rich would double the time to start
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        subcommand_metavar="COMMAND",
    )
    app.callback()(_flatout)
    if selected is None:
        entries = {name: entry(name) for name in names()}
        for name in sorted(entries, key=lambda it: (GROUPS.index(entries[it].group), entries[it])):
            group, _, summary = entries[name]
            app.command(name, help=summary, rich_help_panel=group)(_not_loaded)
        return app
    module = importlib.import_module(_module(selected))
    text = _help(module.command.__doc__ or "")
    if hasattr(module, "SUBCOMMANDS"):
        subcommands = typer.Typer(
            cls=_Overview,
            help=text,
            add_completion=False,
            no_args_is_help=True,
            subcommand_metavar="COMMAND",
        )
        subcommands.callback()(module.command)
        for function in module.SUBCOMMANDS:
            subcommands.command(function.__name__, help=_help(function.__doc__ or ""))(function)
        app.add_typer(subcommands, name=selected)
        return app
    settings = getattr(module, "CONTEXT", None)
    usage = SCRIPT_USAGE if settings is SCRIPT_CONTEXT else "[OPTIONS]"
    register = app.command(
        selected,
        cls=_WithUsage,
        help=text,
        context_settings=settings,
        options_metavar=getattr(module, "USAGE", usage),
    )
    register(module.command)
    return app


def entry(name: str) -> CommandEntry:
    """A command's place and the first line of its help, read without importing its file."""
    spec = importlib.util.find_spec(_module(name))
    source = spec.loader.get_source(_module(name)) if spec and spec.loader else ""  # type: ignore[attr-defined]
    # Parsing nine files would take a third of the time of `flatout --help`.
    place, summary = PLACE.search(source), SUMMARY.search(source)
    assert place is not None and summary is not None, f"{name}: no PLACE, or no docstring"
    return CommandEntry(place[1], int(place[2]), summary[1])


def user_command(verb: str, arguments: Sequence[str], python: str | None) -> Command:
    """The user's program after the options of `flatout verb`. Raises UserError."""
    from flatout.running.one.command import resolve

    return resolve(*program(verb, arguments), python, verb)


def program(verb: str, arguments: Sequence[str]) -> tuple[tuple[str, ...], str | None]:
    """The words of the user's program, and the module of `-m`. Raises UserError.

    `train.py ...`, `-m package.module ...`, or `-- any command ...`.
    """
    words = tuple(arguments)
    if words[:1] != ("-m",):
        return words, None
    if len(words) == 1:
        raise UserError("-m needs the name of a module", f"flatout {verb} -m package.module")
    return words[2:], words[1]


def threshold(option: str, text: str) -> float:
    """10% or 0.1 as 0.1. Raises UserError for anything else."""
    from flatout.nouns import units

    share = units.portion(text)
    if share is None:
        message = f"{option} {text!r} is neither a percentage nor a ratio below 1"
        raise UserError(message, f"write it as {option} 10% or {option} 0.1")
    return share


def duration(option: str, text: str, zero: bool = False) -> float:
    """90, 90s, 10m, 1.5h in seconds. Raises UserError for anything else.

    zero: whether zero is allowed.
    """
    from flatout.nouns import units

    seconds = units.seconds(text)
    if seconds is None or (not seconds and not zero):
        raise UserError(f"{option} {text!r} is not a time", "write it as 90s, 10m or 1h")
    return seconds


def _help(docstring: str) -> str:
    """The docstring, in which paragraphs with indented lines are not wrapped."""
    paragraphs = inspect.cleandoc(docstring).split("\n\n")
    keep = "\b\n"  # the mark that keeps a paragraph from being wrapped
    return "\n\n".join((keep if "\n  " in text else "") + text for text in paragraphs)


def _module(name: str) -> str:
    return f"{__name__}.{name.replace('-', '_')}"


def nearest(name: str, names: Sequence[str]) -> str:
    """The known word most like `name`, as the end of a message, or nothing."""
    import difflib

    near = difflib.get_close_matches(name, names, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _show_version(requested: bool) -> None:
    if requested:
        typer.echo(f"flatout {flatout.__version__}")
        raise typer.Exit


def _flatout(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            "-V",
            callback=_show_version,
            is_eager=True,
            help="Show the version and exit.",
        ),
    ] = False,
) -> None: ...


def _not_loaded() -> None:
    raise AssertionError("a command that was not asked for was called")


def look_here(python: str | None) -> Machine:
    """Quick facts about this machine and the Python that runs the script."""
    from flatout.probing import machine
    from flatout.running.one.command import chosen_python

    return machine.look(chosen_python(python), limit_s=LOOK_S)


def crash_explained(
    ended: foreground.Finished, stderr: bytes, python: str | None
) -> Explained | None:
    """The cause of the program's end from its last lines, or None if no crash is recognised."""
    from flatout.running.one import last_words

    texts = last_words.collected(ended.records, ended.returncode, stderr)
    if not texts:
        return None
    from flatout.explaining import explaining

    return explaining.of_crash(texts, lambda: look_here(python), ended.records)
