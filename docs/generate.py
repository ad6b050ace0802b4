"""Make the reference pages from the code: commands, boosts, findings, engines, errors and so on.

Run by `make docs`; `tests/law` fails where a page differs from what this would write.
"""

from __future__ import annotations

import ast
import json
import sys
import textwrap
from pathlib import Path
from typing import Any

import typer

import flatout
from flatout import commands
from flatout.diagnosing import checks
from flatout.diagnosing.pages import Page
from flatout.diagnosing.pages import every as every_finding
from flatout.explaining import described
from flatout.knowledge import backends, boosts, signatures
from flatout.knowledge.backends import KnownBackend
from flatout.knowledge.boosts import KnownBoost
from flatout.launching import engines
from flatout.reporting.monitor.outlets.grafana import dashboard
from flatout.watching import rules
from flatout.watching.pages import every as every_alert

DOCS = Path(__file__).parent
LIBRARY = DOCS.parent / "src/flatout_train"
MADE = "<!-- Made by `make docs` from src/{file}.py: edit it there. -->"
MOMENTS = {
    "start": "when torch has been imported",
    "loader": "when a DataLoader is iterated for the first time",
    "model": "when a model is called in training for the first time",
    "optimizer": "when an optimizer takes its first step",
}
RISKS = {
    "exact": "exact: the same arithmetic, at most reordered",
    "rounding": "rounding: numbers are computed in another precision",
    "semantics": "semantics: what is computed changes; never on unless allowed",
}


def pages() -> dict[Path, str]:
    """Every generated page, by its path."""
    found = {DOCS / "boosts" / f"{boost.id}.md": page(boost) for boost in boosts.every()}
    found[DOCS / "boosts" / "README.md"] = index()
    findings = tuple(sorted((*every_finding(), *every_alert()), key=lambda page: page.code))
    found |= {DOCS / "findings" / f"{page.code}.md": finding(page) for page in findings}
    found[DOCS / "findings" / "README.md"] = finding_index(findings)
    results = json.loads((DOCS.parent / "benchmarks/results/breadth.json").read_text("utf-8"))
    found[DOCS / "benchmarks" / "breadth.md"] = breadth(results)
    results = json.loads((DOCS.parent / "benchmarks/results/ranks.json").read_text("utf-8"))
    found[DOCS / "benchmarks" / "ranks.md"] = ranks(results)
    found |= library() | command_pages() | backend_pages() | engine_pages()
    return found | errors("en", DOCS / "errors") | errors("zh", DOCS / "errors" / "zh")


def breadth(results: dict[str, Any]) -> str:
    """What `flatout tune` made of scripts of every style: a row for each."""
    figures, machine = results["figures"], results["machine"]
    head = [
        "<!-- Made by `make docs` from benchmarks/results/breadth.json. -->",
        "",
        "# What tuning made of scripts of every style",
        "",
        f"Measured by `benchmarks/breadth.py` on {machine['cores']} cores of {machine['cpu']},"
        f" torch {machine['torch']}, until {results['date'][:10]}: {figures['scripts']} scripts as"
        " [strangers](../../benchmarks/strangers/README.md) and"
        " [tests](../../tests/jobs/README.md) write them."
        f" Geometric mean {figures['geometric_mean']:.2f}x, worst {figures['worst']:.2f}x;"
        f" {figures['plans']} got a plan.",
        "",
        "The speed-up is that of fresh processes, as written and with the plan in turn, with its"
        " 95 % interval; without one, that of a single pair of whole runs (`nano_gpt`), or of"
        " neighbouring steps in one process, where fresh ones differ by too much to tell; 1 where"
        " no plan was written. *By hand*: an expert's version of the same script. *Budget*: seconds"
        " given to `flatout tune`; compiling takes most of so little and was hardly ever tried.",
        "",
        "| script | ms/step | budget | speed-up | by hand | boosts | same losses |",
        "|---|---|---|---|---|---|---|",
    ]
    rows = sorted(figures["rows"].items(), key=lambda item: -(item[1]["speedup"] or 1.0))
    return "\n".join([*head, *(_breadth_row(name, row) for name, row in rows)]) + "\n"


def _breadth_row(name: str, row: dict[str, Any]) -> str:
    speedup = "1"
    if row["speedup"]:
        low, high = row["interval"] or (None, None)
        spread = f" ({low:.2f}-{high:.2f})" if low and low != high else ""
        speedup = f"{row['speedup']:.2f}x{spread}"
    same = {True: "yes", False: "**no**", None: ""}[row["same_loss"]]
    hand = f"{row['by_hand']:.2f}x" if row.get("by_hand") else ""
    boosts_on = ", ".join(row["boosts"])
    times = f"{row['step_ms']:.3g} | {row['budget'].removesuffix('s')}"
    return f"| `{name}` | {times} | {speedup} | {hand} | {boosts_on} | {same} |"


def ranks(results: dict[str, Any]) -> str:
    """What became of scripts of every style on two ranks: a row for each."""
    scripts, machine = results["figures"]["scripts"], results["machine"]
    head = [
        "<!-- Made by `make docs` from benchmarks/results/ranks.json. -->",
        "",
        "# Scripts of every style on two ranks",
        "",
        f"Run by `benchmarks/ranks.py` on {machine['cores']} cores of {machine['cpu']}, torch"
        f" {machine['torch']}, on {results['date'][:10]}: {len(scripts)} scripts as"
        " [strangers](../../benchmarks/strangers/README.md) and"
        " [tests](../../tests/jobs/README.md) write them, each as one process and as two ranks"
        " with the same random numbers.",
        "",
        "*Rows*: each rank computes its own rows of the batch. *Partly*: of some models. *Whole*:"
        " every rank computes everything, for the reason named. *No model*: none is called with its"
        " own weights, and every rank computes everything. *Difference*: the largest relative"
        " one between the losses of the first steps. Where a model draws random numbers (dropout)"
        " each rank draws its own, and losses differ as with another seed; the gradient is then"
        " compared without them. *Gradient*: the relative error of the ranks' gradient together"
        " against that of the whole batch. *Speed-up*: of the trial before `flatout run --ranks 2`,"
        " against one process on as many cores, with its 95 % interval. Below 1.1x, without a"
        " speed-up, and with other losses (the reason says how far off) a script is not trained on"
        " ranks. The speed-ups are of a version that sent large tensors through memory shared"
        " by the ranks; now they go through gloo, and were not timed again.",
        "",
        "| script | mode | steps | difference | random | gradient | speed-up | reason |",
        "|---|---|---|---|---|---|---|---|",
    ]
    return "\n".join([*head, *(_ranks_row(*item) for item in sorted(scripts.items()))]) + "\n"


def _ranks_row(name: str, row: dict[str, Any]) -> str:
    difference, gradient = row.get("difference"), row.get("gradient_error")
    trial = row.get("trial") or {}
    figures = [
        str(row.get("steps", "")),
        "" if difference is None else f"{difference:.0e}",
        "yes" if row.get("random") else "",
        "" if gradient is None else f"{gradient:.0e}",
        _trial_speedup(trial),
    ]
    other = trial.get("losses_reason", "") if trial.get("losses") == "different" else ""
    why = [row["reason"], trial.get("error") or "", other]
    reason = "; ".join(dict.fromkeys(filter(None, why))).replace("|", "\\|").replace("\n", " ")
    return f"| `{name}` | {row['outcome']} | {' | '.join(figures)} | {reason} |"


def _trial_speedup(trial: dict[str, Any]) -> str:
    if trial.get("speedup") is None:
        return ""
    low, high = trial["interval"]
    return f"{trial['speedup']:.2f}x ({low:.2f}-{high:.2f})"


def errors(language: str, folder: Path) -> dict[Path, str]:
    """One page for each family of signatures, in one of their languages."""
    made = (
        "<!-- Made by `make docs` from src/flatout/knowledge/signatures/{file}: edit it there. -->"
    )
    families = signatures.families()
    found = {
        folder / f"{family.id}.md": made.format(file=f"{family.id}.toml")
        + f"\n\n{described.family_page(family, language)}\n"
        for family in families
    }
    title = {"en": "Errors that `flatout explain` knows", "zh": "`flatout explain` 认识的错误"}
    other = {"en": "[中文](zh/README.md)", "zh": "[English](../README.md)"}
    columns = {"en": "| family | signatures |", "zh": "| 类别 | 特征数 |"}
    rows = [
        f"| [{family.title.in_language(language)}]({family.id}.md) | {len(family.signatures)} |"
        for family in families
    ]
    head = ["<!-- Made by `make docs`. -->", "", f"# {title[language]}", "", other[language], ""]
    text = "\n".join([*head, columns[language], "|---|---|", *rows]) + "\n"
    return {**found, folder / "README.md": text}


def library() -> dict[Path, str]:
    """One page for each public name, read from the source: importing it would import torch."""
    sources = {path: ast.parse(path.read_text("utf-8")) for path in LIBRARY.rglob("*.py")}
    classes = {
        node.name: node
        for source in sources.values()
        for node in source.body
        if isinstance(node, ast.ClassDef)
    }
    found, rows = {}, []
    for name, module in sorted(flatout._MODULES.items()):
        file = LIBRARY / module.replace(".", "/")
        file = file / "__init__.py" if file.is_dir() else file.with_suffix(".py")
        whole = sources[file]
        own = [node for node in whole.body if name in (module, getattr(node, "name", ""))]
        parts = [part for node in own for part in _documented(node, classes, f"flatout.{name}")]
        summary = (ast.get_docstring(whole if name == module else own[0]) or "").partition("\n")[0]
        made_from = file.relative_to(DOCS.parent / "src").with_suffix("").as_posix()
        head = [MADE.format(file=made_from), f"# flatout.{name}"]
        if name == module:
            head.append(ast.get_docstring(whole) or "")
        found[DOCS / "library" / f"{name}.md"] = "\n\n".join([*head, *parts]) + "\n"
        rows.append(f"| [flatout.{name}]({name}.md) | {summary} |")
    head = [
        "<!-- Made by `make docs`. -->",
        "",
        "# The library",
        "",
        "| name | what it is |",
        "|---|---|",
    ]
    found[DOCS / "library" / "README.md"] = "\n".join([*head, *rows]) + "\n"
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


def command_pages() -> dict[Path, str]:
    """One page for each command: what its `--help` says."""
    found, rows = {}, []
    for name in commands.names():
        command = typer.main.get_command(commands.application(name)).commands[name]
        origin = MADE.format(file=f"flatout/commands/{name.replace('-', '_')}")
        parts = [origin, *_command_parts(f"flatout {name}", command, "#")]
        found[DOCS / "commands" / f"{name}.md"] = "\n\n".join(parts) + "\n"
        rows.append(f"| [flatout {name}]({name}.md) | {command.help.splitlines()[0]} |")
    head = ["<!-- Made by `make docs`. -->", "", "# Commands", ""]
    table = ["| command | what it does |", "|---|---|", *rows]
    found[DOCS / "commands" / "README.md"] = "\n".join([*head, *table]) + "\n"
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


def finding(page: Page) -> str:
    """One finding code's page."""
    check = checks.find(page.code)
    rule = next((path for path in rules.files() if path.stem.startswith(page.code.lower())), None)
    path = check.path if check is not None else rule
    assert path is not None
    source = path.relative_to(DOCS.parent / "src").with_suffix("").as_posix()
    return f"{MADE.format(file=source)}\n\n{page.markdown}"


def finding_index(findings: tuple[Page, ...]) -> str:
    """The table of all finding codes."""
    rows = [f"| [{p.code}]({p.code}.md) | {p.title} | {p.severity} |" for p in findings]
    head = ["<!-- Made by `make docs`. -->", "", "# Findings", ""]
    return "\n".join([*head, "| code | what is wrong | severity |", "|---|---|---|", *rows]) + "\n"


def page(boost: KnownBoost) -> str:
    """One boost's page: its facts, then its docstring."""
    title, _, text = boost.page.partition("\n")
    facts = [
        f"- Risk: {RISKS[boost.risk.value]}",
        f"- Applied {MOMENTS[boost.moment.value]}",
        f"- Since {boost.since}",
    ]
    if boost.params:
        shown = [f"`{name}`: {_values(values)}" for name, values in boost.params.items()]
        facts.append(f"- Parameters (the default first): {'; '.join(shown)}")
    if boost.covered_by:
        facts.append(f"- Gains nothing beside {_links(sorted(boost.covered_by))}")
    if boost.conflicts:
        facts.append(f"- Never together with {_links(sorted(boost.conflicts))}")
    file = f"flatout_agent/boosts/{boost.id.replace('-', '_')}"
    head = [MADE.format(file=file), f"# {boost.id}", title]
    return "\n\n".join([*head, "\n".join(facts), text.strip()]) + "\n"


def index() -> str:
    """The table of all boosts."""
    rows = [
        f"| [{boost.id}]({boost.id}.md) | {boost.title} | {boost.risk.value} |"
        for boost in boosts.every()
    ]
    head = ["<!-- Made by `make docs`. -->", "", "# Boosts", ""]
    return "\n".join([*head, "| boost | what it does | risk |", "|---|---|---|", *rows]) + "\n"


def backend_pages() -> dict[Path, str]:
    """One page for each backend of `flatout export`, and their table."""
    found = {DOCS / "backends" / f"{item.id}.md": backend_page(item) for item in backends.every()}
    rows = [
        f"| [{item.id}]({item.id}.md) | {item.title} | {_builds(item)} |"
        for item in backends.every()
    ]
    head = ["<!-- Made by `make docs`. -->", "", "# Backends of flatout export", ""]
    table = ["| backend | what it is | builds |", "|---|---|---|", *rows]
    found[DOCS / "backends" / "README.md"] = "\n".join([*head, *table]) + "\n"
    return found


def backend_page(backend: KnownBackend) -> str:
    """One backend's page: its facts, then its docstring."""
    title, _, text = backend.page.partition("\n")
    packages = dict.fromkeys(
        package for variant in backend.variants for package in backend.packages(variant)
    )
    needs = ", ".join(f"{package.pip} (about {package.mb} MB)" for package in packages)
    facts = [
        f"- Builds: {_builds(backend)}",
        f"- Packages beside torch: {needs or 'none'}",
        f"- The artefact is loaded {'without' if backend.torch_free else 'with'} torch",
    ]
    if backend.device:
        facts.append("- Needs an NVIDIA GPU")
    if backend.on_demand:
        facts.append(f"- Tried only where it is named: `--only {backend.id}`")
    file = f"flatout_programs/backends/{backend.id.replace('-', '_')}"
    head = [MADE.format(file=file), f"# {backend.id}", title]
    return "\n\n".join([*head, "\n".join(facts), text.strip()]) + "\n"


def _builds(backend: KnownBackend) -> str:
    names = [(f"{backend.id}-{v.name}".removesuffix("-"), v.precision) for v in backend.variants]
    return ", ".join(f"`{name}` ({precision})" for name, precision in names)


def engine_pages() -> dict[Path, str]:
    """One page for each engine of `flatout launch`, and their table."""
    found, rows = {}, []
    for name in engines.names():
        module = engines.load(name)
        title, _, text = (module.__doc__ or "").strip().partition("\n")
        about = module.ENGINE
        facts = [
            f"- Needs {about.needs}",
            f"- The code folder {'is sent along' if about.travels else 'is not sent'}",
            f"- Since {about.since}",
        ]
        head = [MADE.format(file=f"flatout/launching/engines/{name}"), f"# flatout launch {name}"]
        parts = [*head, title, "\n".join(facts), text.strip()]
        found[DOCS / "engines" / f"{name}.md"] = "\n\n".join(parts) + "\n"
        rows.append(f"| [{name}]({name}.md) | {title.removesuffix('.')} | {about.needs} |")
    head = ["<!-- Made by `make docs`. -->", "", "# Engines of flatout launch", ""]
    table = ["| engine | what it is | needs |", "|---|---|---|", *rows]
    found[DOCS / "engines" / "README.md"] = "\n".join([*head, *table]) + "\n"
    return found


DASHBOARD = DOCS / "assets/grafana-flatout.json"


def main() -> None:
    """Write the pages and the dashboard that differ; remove pages of what is no more."""
    wanted = pages()
    for folder in {path.parent for path in wanted}:
        folder.mkdir(parents=True, exist_ok=True)
        for stale in set(folder.glob("*.md")) - set(wanted):
            stale.unlink()
    for path, text in {**wanted, DASHBOARD: json.dumps(dashboard(), indent=2) + "\n"}.items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8", newline="\n")
            sys.stdout.write(f"{path.relative_to(DOCS.parent)}\n")


def _values(values: tuple[object, ...]) -> str:
    return ", ".join(f"`{value!r}`" for value in values)


def _links(ids: tuple[str, ...] | list[str]) -> str:
    return ", ".join(f"[{boost_id}]({boost_id}.md)" for boost_id in ids)


if __name__ == "__main__":
    main()
