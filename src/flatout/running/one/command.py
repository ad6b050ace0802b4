"""From the words after `flatout run` to the command that is started and its Python."""

from __future__ import annotations

import difflib
import hashlib
import importlib.util
import os
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from flatout.nouns.errors import UserError
from flatout.nouns.typed import typed

SCRIPT_SUFFIXES = (".py", ".pyw")
WINDOWS_NAMES = ("python.exe", "python.bat", "python3.exe")
"""What Python is called in its folder there; pyenv's is a batch file."""
LOOKED_AT = 5000
"""The most files looked at to suggest a name: the answer must not wait for a whole disk."""


@dataclass(frozen=True)
class Command:
    """The command that is started."""

    argv: tuple[str, ...]
    """The first word is the full path of an executable."""
    script: Path | None
    """The file of the training script, for its hash, or None if unknown."""
    python: str
    """The interpreter of the user's environment."""
    display: tuple[str, ...]
    """The words that the user gave: `flatout run` followed by these starts the same."""
    input: Path | None = None
    """A file that each run of a trial reads as its standard input, or None for no input."""

    @property
    def shown(self) -> str:
        """`display` as it would be typed."""
        return typed(self.display)


def resolve(
    words: Sequence[str],
    module: str | None = None,
    python: str | None = None,
    verb: str = "run",
) -> Command:
    """The command meant by `words`: a script, a module if `module` is given, or any program.

    verb: the command of flatout to name in what to do next.
    Raises UserError if there is no such script, command or interpreter.
    """
    interpreter = chosen_python(python)
    if module is not None:
        argv = (interpreter, "-m", module, *words)
        # The file that `python -m module` runs, if it lies under the working folder.
        base = Path(*module.split("."))
        candidates = (base.with_name(f"{base.name}.py"), base / "__main__.py")
        file = next((path for path in candidates if path.is_file()), None)
        return Command(argv, file, interpreter, ("-m", module, *words))
    if not words:
        raise UserError("no script is named", f"flatout {verb} train.py", 2)
    if words[0].lower().endswith(SCRIPT_SUFFIXES):
        script = _script(words[0])
        return Command((interpreter, *words), script, interpreter, tuple(words))
    # The program is searched for first beside the user's Python.
    beside = Path(interpreter).parent
    # conda on Windows keeps python.exe one level above the commands of its packages.
    folders = [beside, beside / "Scripts"] if sys.platform == "win32" else [beside]
    searched = os.pathsep.join([*map(str, folders), os.environ.get("PATH", os.defpath)])
    path = shutil.which(words[0], path=searched)
    program = str(Path(path).absolute()) if path else _no_command(words, verb)
    # The first word that is a script, as in `torchrun --nproc-per-node 2 train.py ...`.
    scripts = (Path(word) for word in words[1:] if word.lower().endswith(SCRIPT_SUFFIXES))
    script_among = next((path for path in scripts if path.is_file()), None)
    return Command((program, *words[1:]), script_among, interpreter, tuple(words))


def script_sha256(script: Path | None) -> str | None:
    """SHA-256 of the script's file, or None if there is none or it cannot be read."""
    if script is None:
        return None
    try:
        return hashlib.sha256(script.read_bytes()).hexdigest()
    except OSError:
        return None


def chosen_python(name: str | None) -> str:
    """The interpreter of that name or path, or the default one if None. Raises UserError."""
    if name is None:
        return default_python()
    path = shutil.which(name)
    if path is not None:
        return str(Path(path).absolute())
    inside = _python_in(Path(name))
    hint = f"did you mean --python {inside}?" if inside else "check the path after --python"
    raise UserError(f"no Python interpreter at {name}", hint, 2)


def default_python(environ: Mapping[str, str] | None = None) -> str:
    """The interpreter that the user's script would get here."""
    environ = os.environ if environ is None else environ
    environments = [environ.get("VIRTUAL_ENV")]
    # conda's base environment is active in every shell, wanted or not.
    if environ.get("CONDA_DEFAULT_ENV") != "base" or not _torch_is_here():
        environments.append(environ.get("CONDA_PREFIX"))
    for folder in environments:
        python = _python_in(Path(folder)) if folder else None
        if python and not _is_own(Path(folder or "")):
            return python
    if _torch_is_here():
        return sys.executable
    path = environ.get("PATH")
    if "UV" in environ and "VIRTUAL_ENV" not in environ:  # uvx, whose own environment is on PATH
        folders = (path or "").split(os.pathsep)
        path = os.pathsep.join(item for item in folders if not _is_own(Path(item).parent))
    if sys.platform == "win32":
        # Few have a python3.exe, and the store's stubs have 0 bytes.
        for folder in filter(None, (path or "").split(os.pathsep)):
            for name in WINDOWS_NAMES:
                with suppress(OSError):
                    if Path(folder, name).stat().st_size:
                        return str(Path(folder, name))
        return sys.executable
    return shutil.which("python3", path=path) or shutil.which("python", path=path) or sys.executable


def _is_own(environment: Path) -> bool:
    try:
        return environment.samefile(sys.prefix)
    except OSError:
        return False


def _torch_is_here() -> bool:
    """Whether flatout's own interpreter has torch. Does not import it."""
    try:
        spec = importlib.util.find_spec("torch")
    except (ImportError, ValueError):
        return False
    return spec is not None and spec.origin is not None  # a folder of that name has none


def _python_in(environment: Path) -> str | None:
    """The interpreter of a virtual or conda environment."""
    if sys.platform == "win32":
        candidates = [environment / "Scripts" / "python.exe", environment / "python.exe"]
    else:
        candidates = [environment / "bin" / "python", environment / "bin" / "python3"]
    return next((str(path) for path in candidates if os.access(path, os.X_OK)), None)


def _script(name: str) -> Path:
    path = Path(name)
    if path.is_file():
        return path
    if path.is_dir():
        raise UserError(f"{name} is a folder, not a script", "name the script in it", 2)
    if path.exists():
        raise UserError(f"{name} is not a regular file", "name a script that is one", 2)
    # Scripts here or below with the same name, and beside it with almost the same.
    namesakes = [str(script) for script in _scripts_below(Path()) if script.name == path.name]
    neighbours: dict[str, str] = {}
    with suppress(OSError):
        beside = (file for file in path.parent.iterdir() if file.suffix in SCRIPT_SUFFIXES)
        neighbours = {script.name: str(script) for script in beside}
    close = difflib.get_close_matches(path.name, neighbours, n=2, cutoff=0.7)
    similar = [neighbours[name] for name in close]
    near = [*dict.fromkeys([*similar, *sorted(namesakes, key=len)])][:3]
    hint = f"did you mean {' or '.join(near)}?"
    if not near:
        folder = next(parent for parent in path.absolute().parents if parent.is_dir())
        shown = folder if folder != Path.cwd() else Path()
        lists = f"dir {shown}" if sys.platform == "win32" else f"ls {shlex.quote(str(shown))}"
        hint = f"look for it: {lists}"
    raise UserError(f"no such script: {name} (in {Path.cwd()})", hint, 2)


def _scripts_below(folder: Path) -> Iterator[Path]:
    """Scripts at most three folders down, in folders that people keep code in."""

    def walk() -> Iterator[Path]:
        for root, folders, files in os.walk(folder):
            deep = len(Path(root).parts) >= 3
            names = [name for name in folders if not deep and not name.startswith((".", "__"))]
            folders[:] = [] if "site-packages" in root else names
            yield from (Path(root, name) for name in files)

    return (path for path in islice(walk(), LOOKED_AT) if path.suffix in SCRIPT_SUFFIXES)


def _no_command(words: Sequence[str], verb: str) -> str:
    """Raise UserError with why `words[0]` cannot be started and what may have been meant."""
    name, path = words[0], Path(words[0])
    rest = typed(words)
    if path.is_dir():
        entry = path / "__main__.py"
        hint = f"flatout {verb} -- python {rest}" if entry.is_file() else "name the script in it"
        raise UserError(f"{name} is a folder, not a command", hint, 2)
    if path.is_file():
        runner = "bash" if path.suffix == ".sh" else "python"
        raise UserError(f"{name} is not executable", f"try: flatout {verb} -- {runner} {rest}", 2)
    if name.startswith("-"):
        raise UserError(
            f"{name} is not an option of flatout {verb}",
            "put flatout's options before the script's name and the script's after it; see"
            f" flatout {verb} --help",
            2,
        )
    script = Path(f"{name}.py")
    if script.is_file():
        raise UserError(f"no such command: {name}", f"did you mean {script}?", 2)
    folders = [Path(sys.executable).parent, *map(Path, os.get_exec_path())]
    names: dict[str, None] = {}
    for folder in folders:
        try:
            names.update(dict.fromkeys(path.name for path in folder.iterdir()))
        except OSError:
            continue
    close = difflib.get_close_matches(name, list(names), n=3, cutoff=0.75)
    hint = f"did you mean {' or '.join(close)}?" if close else "check the spelling and PATH"
    raise UserError(f"no such command: {name}", hint, 2)
