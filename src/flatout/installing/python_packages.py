"""Lines that install and remove Python packages in a Target's interpreter, by its manager."""

from __future__ import annotations

from dataclasses import replace

from flatout.installing import shell
from flatout.installing.target import Target

SYSTEM_FOLDERS = ("/usr/bin/", "/bin/")
"""Interpreters here belong to the distribution, which forbids pip in them (PEP 668)."""
OWN_ENVIRONMENT = ".venv"
TRITONS = {
    "cu": ("triton",),
    "rocm": ("pytorch-triton-rocm", "triton-rocm"),
    "xpu": ("pytorch-triton-xpu", "triton-xpu"),
}
"""Beginning of a build's name -> the packages of the Triton that comes with it."""


def lines(
    target: Target,
    install: tuple[str, ...] = (),
    remove: tuple[str, ...] = (),
    options: tuple[str, ...] = (),
) -> tuple[str, ...]:
    """Lines that first remove, then install; `options` go with the installation."""
    if target.manager == "conda":
        return _conda(target, install, remove, options)
    found = []
    if remove:
        found.append(f"{_tool(target, 'uninstall')} {' '.join(remove)}")
    if install:
        words = [*(shell.quote(target, word) for word in install), *options]
        found.append(f"{_tool(target, 'install')} {' '.join(words)}")
    return tuple(found)


def other_triton(target: Target, build: str) -> tuple[str, ...]:
    """The Triton of another vendor's torch: both are the folder `triton`; one breaks the other."""
    had = (target.user_has_torch or "").partition("+")[2]
    found = (of for kind, of in TRITONS.items() if had.startswith(kind) and kind not in build)
    return () if build == "cpu" else next(found, ())


def environment(target: Target) -> tuple[tuple[str, ...], Target]:
    """Lines that make a virtual environment where the interpreter must be left alone, and the
    Target that it then is.
    """
    if not _belongs_to_the_system(target):
        return (), target
    own = replace(
        target,
        executable=f"{OWN_ENVIRONMENT}/bin/python",
        virtual_environment=True,
        user_has_torch=None,
    )
    if target.manager == "uv":
        made = f"uv venv --python {shell.quote(target, target.executable or 'python3')}"
        made = f"{made} {OWN_ENVIRONMENT}"
    else:
        made = f"{shell.python(target)} -m venv {OWN_ENVIRONMENT}"
    why = "why: this Python belongs to the system, which forbids to install into it"
    return (shell.remark(why), made), own


def _belongs_to_the_system(target: Target) -> bool:
    outside = target.virtual_environment is False and not target.container
    own = (target.executable or "").startswith(SYSTEM_FOLDERS)
    return outside and own and target.system == "Linux" and target.manager != "conda"


def _tool(target: Target, verb: str) -> str:
    """The start of a line of pip or uv; pip asks before it removes, uv does not."""
    if target.manager == "uv":
        python = target.executable
        return f"uv pip {verb}" + (f" --python {shell.quote(target, python)}" if python else "")
    return f"{shell.python(target)} -m pip {verb}" + (" -y" if verb == "uninstall" else "")


def _conda(
    target: Target, install: tuple[str, ...], remove: tuple[str, ...], options: tuple[str, ...]
) -> tuple[str, ...]:
    """Conda acts on the environment of the interpreter, if that is known."""
    prefix = _conda_prefix(target)
    where = f"-p {shell.quote(target, prefix)} " if prefix else ""
    found = []
    if remove:
        found.append(f"conda remove -y {where}{' '.join(remove)}")
    if install:
        words = [*(_conda_quote(target, word) for word in install), *options]
        found.append(f"conda install -y {where}-c conda-forge {' '.join(words)}")
    return tuple(found)


def _conda_prefix(target: Target) -> str | None:
    """The environment's folder: Linux and macOS keep Python in its bin, Windows at its top."""
    path = target.executable
    if path is None:
        return None
    if target.system == "Windows":
        return path.replace("/", "\\").rpartition("\\")[0] or None
    folder, separator, _ = path.rpartition("/bin/")
    return folder if separator else None


def _conda_quote(target: Target, word: str) -> str:
    return f'"{word}"' if set(word) & set("<>*|, ") else shell.quote(target, word)
