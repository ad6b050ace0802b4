"""The pages of the reference, made from the code: commands, boosts, findings, errors and so on.

They are built with the site (docs/site.py) and are no files of the repository: what they say stands
in the docstrings and tables that they are made from. `flatout explain NAME` prints most of them.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import typer

import flatout
from flatout import commands
from flatout.diagnosing import checks
from flatout.diagnosing import pages as check_pages
from flatout.explaining import described
from flatout.knowledge import backends, boosts, signatures
from flatout.launching import engines
from flatout.watching import pages as alert_pages
from flatout.watching import rules

ROOT = Path(__file__).parent.parent
LIBRARY = "src/flatout_train"
SIGNATURES = "src/flatout/knowledge/signatures"


class Made(NamedTuple):
    """A page, and the file or folder of the repository that it is made from."""

    source: str
    text: str


def pages() -> dict[str, Made]:
    """Every page, by its place on the site."""
    made = command_pages() | engine_pages() | backend_pages() | boost_pages() | finding_pages()
    return made | error_pages("en", "errors") | error_pages("zh", "errors/zh") | library_pages()


def _index(source: str, title: str, columns: str, rows: Iterable[str], note: str = "") -> Made:
    """The table of a folder's pages."""
    table = [columns, "|---" * (columns.count("|") - 1) + "|", *rows]
    return Made(source, "\n\n".join(filter(None, [f"# {title}", note, "\n".join(table)])) + "\n")


def command_pages() -> dict[str, Made]:
    """One page for each command: what its `--help` says."""
    found, rows = {}, []
    for name in commands.names():
        command = typer.main.get_command(commands.application(name)).commands[name]
        text = "\n\n".join(_command_parts(f"flatout {name}", command, "#")) + "\n"
        source = f"src/flatout/commands/{name.replace('-', '_')}.py"
        found[f"commands/{name}.md"] = Made(source, text)
        rows.append(f"| [flatout {name}]({name}.md) | {command.help.splitlines()[0]} |")
    columns = "| command | what it does |"
    found["commands/README.md"] = _index("src/flatout/commands", "Commands", columns, rows)
    return found


def _command_parts(called: str, command: Any, level: str) -> list[str]:
    """Usage, help and options of a command; then those of its own commands."""
    context = typer.Context(command, info_name=called)
    usage = " ".join([called, *command.collect_usage_pieces(context)])
    parts = [f"{level} {called}", f"```text\n{usage}\n```"]
    for paragraph in command.help.split("\n\n"):
        _, mark, lines = paragraph.rpartition("\b\n")  # what follows it keeps its lines
        title, _, examples = lines.rpartition(":\n")
        parts += [f"{title}:"] if title and mark else []
        parts.append(f"```sh\n{textwrap.dedent(examples)}\n```" if mark else paragraph)
    rows = [item.get_help_record(context) for item in command.params]
    table = [f"| {_cell(row[0])} | {' '.join(row[1].split())} |" for row in rows if row]
    if table:
        parts.append("\n".join(["| option | meaning |", "|---|---|", *table]))
    for name, item in getattr(command, "commands", {}).items():
        parts += _command_parts(f"{called} {name}", item, f"{level}#")
    return parts


def _cell(option: str) -> str:
    """As code in a table, where a bar would end the cell even there."""
    return f"<code>{option.replace('|', '&#124;')}</code>" if "|" in option else f"`{option}`"


def engine_pages() -> dict[str, Made]:
    """One page for each engine of `flatout launch`."""
    folder = "src/flatout/launching/engines"
    found, rows = {}, []
    for name in engines.names():
        needs = engines.load(name).ENGINE.needs
        found[f"engines/{name}.md"] = Made(f"{folder}/{name}.py", engines.page(name))
        rows.append(f"| [{name}]({name}.md) | {engines.title(name)} | {needs} |")
    columns = "| engine | what it is | needs |"
    found["engines/README.md"] = _index(folder, "Engines of flatout launch", columns, rows)
    return found


def backend_pages() -> dict[str, Made]:
    """One page for each backend of `flatout export`."""
    folder = "src/flatout_programs/backends"
    found, rows = {}, []
    for backend in backends.every():
        source = f"{folder}/{backend.id.replace('-', '_')}.py"
        found[f"backends/{backend.id}.md"] = Made(source, backend.page)
        rows.append(f"| [{backend.id}]({backend.id}.md) | {backend.title} | {backend.builds} |")
    columns = "| backend | what it is | builds |"
    found["backends/README.md"] = _index(folder, "Backends of flatout export", columns, rows)
    return found


def boost_pages() -> dict[str, Made]:
    """One page for each boost."""
    folder = "src/flatout_agent/boosts"
    found, rows = {}, []
    for boost in boosts.every():
        source = f"{folder}/{boost.id.replace('-', '_')}.py"
        found[f"boosts/{boost.id}.md"] = Made(source, boost.page)
        rows.append(f"| [{boost.id}]({boost.id}.md) | {boost.title} | {boost.risk.value} |")
    columns = "| boost | what it does | risk |"
    found["boosts/README.md"] = _index(folder, "Boosts", columns, rows)
    return found


def finding_pages() -> dict[str, Made]:
    """One page for each code, of a check or of an alert."""
    files = [file.path for file in checks.files()]
    sources = [path.relative_to(ROOT).as_posix() for path in (*files, *rules.files())]
    every = (*check_pages.every(), *alert_pages.every())
    found, rows = {}, []
    for page, source in sorted(zip(every, sources, strict=True), key=lambda item: item[0].code):
        found[f"findings/{page.code}.md"] = Made(source, page.markdown)
        rows.append(f"| [{page.code}]({page.code}.md) | {page.title} | {page.severity} |")
    columns = "| code | what is wrong | severity |"
    found["findings/README.md"] = _index("src/flatout/diagnosing", "Findings", columns, rows)
    return found


def error_pages(language: str, folder: str) -> dict[str, Made]:
    """One page for each family of signatures, in one of their languages."""
    found, rows = {}, []
    for family in signatures.families():
        text = f"{described.family_page(family, language)}\n"
        found[f"{folder}/{family.id}.md"] = Made(f"{SIGNATURES}/{family.id}.toml", text)
        title = family.title.in_language(language)
        rows.append(f"| [{title}]({family.id}.md) | {len(family.signatures)} |")
    title, columns, other = {
        "en": (
            "Errors that `flatout explain` knows",
            "| family | signatures |",
            "[中文](zh/README.md)",
        ),
        "zh": ("`flatout explain` 认识的错误", "| 类别 | 特征数 |", "[English](../README.md)"),
    }[language]
    found[f"{folder}/README.md"] = _index(SIGNATURES, title, columns, rows, other)
    return found


def library_pages() -> dict[str, Made]:
    """One page for each public name, read from the source: importing it would import torch."""
    folders = LIBRARY, "src/flatout/in_process"
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    sources = {path: ast.parse(path.read_text("utf-8")) for path in paths}
    classes = {
        node.name: node
        for source in sources.values()
        for node in source.body
        if isinstance(node, ast.ClassDef)
    }
    found, rows = {}, []
    for name, module in sorted(flatout._MODULES.items()):
        if name not in flatout.__all__:
            continue  # called by IPython
        file = ROOT / "src" / module.replace(".", "/")
        file = file / "__init__.py" if file.is_dir() else file.with_suffix(".py")
        whole = sources[file]
        all_of_it = module == f"flatout_train.{name}"
        own = [node for node in whole.body if all_of_it or getattr(node, "name", "") == name]
        parts = [part for node in own for part in _documented(node, classes, f"flatout.{name}")]
        about = ast.get_docstring(whole if all_of_it else own[0]) or ""
        head = [f"# flatout.{name}", *([about] if all_of_it else [])]
        text = "\n\n".join([*head, *parts]) + "\n"
        found[f"library/{name}.md"] = Made(file.relative_to(ROOT).as_posix(), text)
        summary = about.partition("\n")[0]
        rows.append(f"| [flatout.{name}]({name}.md) | {summary} |")
    found["library/README.md"] = _index(LIBRARY, "The library", "| name | what it is |", rows)
    return found


def _documented(node: ast.AST, classes: dict[str, ast.ClassDef], called: str) -> list[str]:
    """Signature and docstring of a function or class; of a class its public methods too."""
    if not isinstance(node, ast.FunctionDef | ast.ClassDef) or node.name.startswith("_"):
        return []
    text = ast.get_docstring(node)
    if text is None:
        return []
    name = called if called.endswith(node.name) else f"{called}.{node.name}"
    if isinstance(node, ast.ClassDef):
        methods = [item for item in node.body if isinstance(item, ast.FunctionDef)]
        made = next((item for item in methods if item.name == "__init__"), None)
        # What the library makes itself is not called by the reader.
        shown = made is not None and "Made by" not in text
        head = _signature(name, made) if shown and made is not None else f"class {name}"
        own = [part for item in methods for part in _documented(item, {}, node.name)]
        return [f"## {node.name}", f"```python\n{head}\n```", text, *own]
    returned = ast.unparse(node.returns) if node.returns is not None else ""
    shown = [f"```python\n{_signature(name, node)}\n```", text]
    return shown + (_documented(classes[returned], {}, returned) if returned in classes else [])


def _signature(name: str, function: ast.FunctionDef) -> str:
    """As one would call it: one line where that fits, else one argument a line."""
    given = ast.parse(ast.unparse(function.args).join(["def f(", "): ..."])).body[0]
    assert isinstance(given, ast.FunctionDef)
    given.args.args = [item for item in given.args.args if item.arg != "self"]
    words = ast.unparse(given.args)
    result = f" -> {ast.unparse(function.returns)}" if function.returns is not None else ""
    line = f"{name}({words}){result}"
    if len(line) <= 100:
        return line
    shown = ",\n    ".join(_arguments(words))
    return f"{name}(\n    {shown},\n){result}"


def _arguments(words: str) -> list[str]:
    """`a, b=f(1, 2)` cut at the commas between arguments."""
    found, depth = [""], 0
    for letter in words:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            found.append("")
        else:
            found[-1] += letter
    # ast writes `a: int=1` where people write `a: int = 1`.
    return [item.strip().replace("=", " = ", ": " in item) for item in found]
