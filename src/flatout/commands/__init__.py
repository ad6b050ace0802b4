"""The commands, one per file: the folder is the table, the file's name is the verb.

Each file defines `command`, a function with typer annotations that returns the exit code; its
docstring is the help. One whose command line ends with the user's own program says
`CONTEXT = SCRIPT_CONTEXT`, takes a `typer.Context` and reads it with `program(ctx.args)`.

Only the command that was asked for is imported: the help of the others is read from their source.
"""

from __future__ import annotations

import ast
import difflib
import importlib
import importlib.util
import inspect
import pkgutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import flatout
from flatout.nouns.errors import UserError

if TYPE_CHECKING:
    from flatout.nouns.explained import Explained
    from flatout.nouns.machine import Machine
    from flatout.running import foreground

SCRIPT_CONTEXT: dict[str, Any] = {
    "allow_extra_args": True,
    "ignore_unknown_options": True,
    "allow_interspersed_args": False,
}
"""Everything from the script's name on belongs to the script, options and `--help` included."""

# Options that several commands have, or that would crowd a command's own file.
PlanToRun = Annotated[Path | None, typer.Option("--plan", help="The plan; flatout.toml if here.")]
NoPlan = Annotated[bool, typer.Option("--no-plan", help="As written, but watched.")]
Live = Annotated[bool, typer.Option("--live", help="Tune while it trains; writes the plan.")]
StepsLeft = Annotated[
    int | None, typer.Option("--steps-left", min=1, help="Steps that a whole run takes.")
]
Exact = Annotated[bool, typer.Option("--exact", help="Only boosts that keep precision.")]
Only = Annotated[list[str] | None, typer.Option("--only", help="This boost alone; repeatable.")]
Skip = Annotated[list[str] | None, typer.Option("--skip", help="Not this boost; repeatable.")]
Python = Annotated[str | None, typer.Option("--python", help="The Python that runs the script.")]
JsonBeside = Annotated[
    bool, typer.Option("--json", help="A JSON document on stdout, the script's own to stderr.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but warnings.")]

LOOK_S = 0.5
"""For facts on which steps of an error's cure depend."""
SCRIPT_USAGE = "[OPTIONS] SCRIPT [ITS ARGUMENTS]"


def names() -> list[str]:
    """The commands as the user types them."""
    return sorted(item.name.replace("_", "-") for item in pkgutil.iter_modules(__path__))


def call(arguments: Sequence[str]) -> int:
    """Run the command in `arguments`; its exit code. Raises UserError and typer's exceptions."""
    asked = next((item for item in arguments if not item.startswith("-")), None)
    if asked is not None and asked not in names():
        raise UserError(f"there is no command {asked!r}{_nearest(asked)}", "flatout --help")
    result = application(asked)(
        args=list(arguments) or ["--help"],
        prog_name="flatout",
        standalone_mode=False,
    )
    return result if isinstance(result, int) else 0


def application(asked: str | None = None) -> typer.Typer:
    """All commands; of these only `asked` is loaded, the others can tell their help alone."""
    app = typer.Typer(
        help=flatout.__doc__,
        add_completion=False,
        rich_markup_mode=None,  # importing rich would double the time to start
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_flatout)
    for name in names():
        if name == asked:
            module = importlib.import_module(_module(name))
            settings = getattr(module, "CONTEXT", None)
            text = _help(module.command.__doc__ or "")
            usage = SCRIPT_USAGE if settings is SCRIPT_CONTEXT else "[OPTIONS]"
            register = app.command(
                name, help=text, context_settings=settings, options_metavar=usage
            )
            register(module.command)
        else:
            app.command(name, help=summary(name))(_not_loaded)
    return app


def summary(name: str) -> str:
    """The first line of the docstring of a command's function, without importing its file."""
    spec = importlib.util.find_spec(_module(name))
    source = spec.loader.get_source(_module(name)) if spec and spec.loader else None  # type: ignore[attr-defined]
    for node in ast.parse(source or "").body:
        if isinstance(node, ast.FunctionDef) and node.name == "command":
            return (ast.get_docstring(node) or "").partition("\n")[0]
    return ""


def program(rest: Sequence[str]) -> tuple[tuple[str, ...], str | None]:
    """The user's program in what follows flatout's own options: its words, and the module of `-m`.

    `train.py ...`, `-m package.module ...`, or `-- any command ...`.
    """
    words = tuple(rest)
    if words[:1] != ("-m",):
        return words, None
    if len(words) == 1:
        raise UserError("-m needs the name of a module", "flatout run -m package.module")
    return words[2:], words[1]


def _help(docstring: str) -> str:
    """The docstring, with lines that show command lines kept as they are."""
    paragraphs = inspect.cleandoc(docstring).split("\n\n")
    keep = "\b\n"  # the mark that stops a paragraph from being wrapped anew
    return "\n\n".join((keep if text.startswith("flatout ") else "") + text for text in paragraphs)


def _module(name: str) -> str:
    return f"{__name__}.{name.replace('-', '_')}"


def _nearest(asked: str) -> str:
    near = difflib.get_close_matches(asked, names(), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"flatout {flatout.__version__}")
        raise typer.Exit


def _flatout(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None: ...


def _not_loaded() -> None:
    raise AssertionError("a command that was not asked for was called")


def look_here(python: str | None) -> Machine:
    """What can be told quickly of this machine and of the Python that runs the script."""
    from flatout.probing import machine
    from flatout.running.command import chosen_python

    return machine.look(chosen_python(python), limit_s=LOOK_S)


def crash_explained(
    ended: foreground.Finished, stderr: bytes, python: str | None
) -> Explained | None:
    """What ended the program, by its last words; None: it did not crash, or nobody knows."""
    from flatout.running import last_words

    texts = last_words.collected(ended.records, ended.returncode, stderr)
    if not texts:
        return None
    from flatout.explaining import explaining

    return explaining.of_crash(texts, lambda: look_here(python))


def warn(line: str) -> None:
    """One line on stderr, where there is one."""
    from flatout.reporting import terminal

    with suppress(OSError, AttributeError):  # stderr may be closed: no reason to stop
        terminal.warn(line)


@contextmanager
def harmless(consequence: str) -> Iterator[None]:
    """Trouble of flatout's own never changes what becomes of the user's program."""
    try:
        yield
    except Exception as error:
        warn(f"{consequence}: {type(error).__name__}: {error}")
