"""Libraries that open files by themselves, in C++ or Rust, and the arguments with the path.

A door is a function or method with a path among its arguments: the path is replaced by the place in
scratch. Functions are replaced in their module and in the library's modules that have imported them
by name.
"""
# ruff: noqa: PTH118, PTH119

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, NamedTuple

from flatout_agent.overlay.changes import Changes, as_text
from flatout_agent.overlay.opening import Intent, Opening

WRITE = Intent(create=True, truncate=True)
CHANGE = Intent(create=True)

Arguments = dict[str, Any]


class Door(NamedTuple):
    """`name` in `module` (`Class.method` for a method, whose position 0 is the object)."""

    module: str
    name: str
    position: int
    keyword: str
    intent: Callable[[Arguments], Intent | None]
    extra: tuple[int, str] | None = None
    """A further argument that `intent` needs: position and keyword."""


def _reads(_: Arguments) -> Intent | None:
    return None


def _writes(_: Arguments) -> Intent | None:
    return WRITE


def _mapped(arguments: Arguments) -> Intent | None:
    """torch.from_file: a shared mapping writes."""
    return CHANGE if arguments.get("extra") else None


def _by_mode(arguments: Arguments) -> Intent | None:
    mode = arguments.get("extra") or "r"
    if mode == "r":
        return None
    return Intent(create=mode != "r+", truncate=mode == "w", exclusive=mode in ("x", "w-"))


DOORS = (
    Door("torch", "save", 1, "f", _writes),
    Door("torch", "load", 0, "f", _reads),
    Door("torch", "from_file", 0, "filename", _mapped, (1, "shared")),
    Door("torch.serialization", "save", 1, "f", _writes),
    Door("torch.serialization", "load", 0, "f", _reads),
    Door("torch.jit", "save", 1, "f", _writes),
    Door("torch.jit", "load", 0, "f", _reads),
    Door("torch.autograd.profiler", "profile.export_chrome_trace", 1, "path", _writes),
    Door("torch.export.pt2_archive._package", "PT2ArchiveWriter.__init__", 1,
         "archive_path_or_buffer", _writes),
    Door("torch.export.pt2_archive._package", "PT2ArchiveReader.__init__", 1,
         "archive_path_or_buffer", _reads),
    Door("safetensors", "serialize_file", 1, "filename", _writes),
    Door("safetensors", "safe_open", 0, "filename", _reads),
    Door("tokenizers", "Tokenizer.save", 1, "path", _writes),
    Door("tokenizers", "Tokenizer.from_file", 0, "path", _reads),
    Door("tokenizers", "Tokenizer.train", 1, "files", _reads),
    Door("torchvision.io.image", "read_file", 0, "path", _reads),
    Door("torchvision.io.image", "write_file", 0, "filename", _writes),
    Door("cv2", "imread", 0, "filename", _reads),
    Door("cv2", "imwrite", 0, "filename", _writes),
    Door("h5py", "File.__init__", 1, "name", _by_mode, (2, "mode")),
    Door("sentencepiece", "SentencePieceProcessor.LoadFromFile", 1, "arg", _reads),
    Door("pyarrow", "memory_map", 0, "path", _by_mode, (1, "mode")),
)  # fmt: skip


def hooks(opening: Opening) -> dict[str, Callable[[Any], None]]:
    """For each library, the action once it has been imported."""
    names = {door.module.split(".")[0] for door in DOORS} | {
        door.module for door in DOORS if door.module.startswith("torch.export.")
    }
    hooks_by_name: dict[str, Callable[[Any], None]] = {name: _hook(opening, name) for name in names}
    hooks_by_name["sqlite3"] = lambda module: _sqlite(opening)
    return hooks_by_name


def _hook(opening: Opening, library: str) -> Callable[[Any], None]:
    return lambda module: _open_doors(opening, library)


def _open_doors(opening: Opening, library: str) -> None:
    for door in DOORS:
        module = sys.modules.get(door.module)
        if module is not None and door.module.startswith(library):
            _replace(opening, door, module)
    if library == "tokenizers":
        _tokenizer_models(opening)


def _replace(opening: Opening, door: Door, module: Any) -> None:
    owner, _, attribute = door.name.rpartition(".")
    holder = getattr(module, owner, None) if owner else module
    held = vars(holder).get(attribute) or getattr(holder, attribute, None) if holder else None
    if held is None:  # a file of the script's own has the library's name
        return
    original = held.__func__ if isinstance(held, staticmethod) else held
    if hasattr(original, "_flatout_original"):
        return
    wrapped: Any = _wrapped(opening, door, original)
    setattr(holder, attribute, staticmethod(wrapped) if original is not held else wrapped)
    if owner:
        return
    library = door.module.split(".")[0]
    for name, importer in list(sys.modules.items()):
        if name.split(".")[0] == library and vars(importer).get(attribute) is original:
            setattr(importer, attribute, wrapped)


def _wrapped(opening: Opening, door: Door, original: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **options: Any) -> Any:
        extra = None
        if door.extra is not None:
            place, keyword = door.extra
            extra = args[place] if len(args) > place else options.get(keyword)
        intent = door.intent({"extra": extra})
        by_position = len(args) > door.position
        path = args[door.position] if by_position else options.get(door.keyword)
        if door.module == "tokenizers" and isinstance(path, list):
            return original(*_with(args, door.position, _all(opening, path)), **options)
        with opening.lent(path, intent) as there:
            if there is path:
                return original(*args, **options)
            if by_position:
                return original(*_with(args, door.position, there), **options)
            return original(*args, **{**options, door.keyword: there})

    functools.update_wrapper(call, original, updated=())
    vars(call)["_flatout_original"] = original
    return call


def _with(args: tuple[Any, ...], position: int, value: Any) -> tuple[Any, ...]:
    return (*args[:position], value, *args[position + 1 :])


def _all(opening: Opening, paths: list[Any]) -> list[Any]:
    with ExitStack() as stack:
        return [stack.enter_context(opening.lent(path, None)) for path in paths]


def _tokenizer_models(opening: Opening) -> None:
    """`Model.save(folder)` of tokenizers writes files of its own choice into a folder."""
    model: Any = getattr(sys.modules.get("tokenizers.models"), "Model", None)
    if model is None or hasattr(model.save, "_flatout_original"):
        return
    original = model.save
    changes = Changes(opening.overlay)

    def save(self: Any, folder: Any, prefix: Any = None) -> Any:
        name = as_text(folder)
        where = changes.write_folder(name) if name is not None else None
        if name is None or where is None:
            return original(self, folder, prefix)
        written = original(self, where, prefix)
        changes.adopt(name, where)
        return [os.path.join(folder, os.path.basename(path)) for path in written]

    vars(save)["_flatout_original"] = original
    model.save = save


def _sqlite(opening: Opening) -> None:
    """`sqlite3.connect`: a database is assumed to be written, unless its address says otherwise."""
    modules = [sys.modules.get(name) for name in ("sqlite3", "sqlite3.dbapi2")]
    original = next(module.connect for module in modules if module is not None)
    if hasattr(original, "_flatout_original"):
        return
    import urllib.parse  # only a program that uses sqlite3 pays for it
    import urllib.request

    def connect(database: Any, *args: Any, **options: Any) -> Any:
        name = as_text(database)
        if name is None or name == ":memory:":
            return original(database, *args, **options)
        uri = options.get("uri", args[6] if len(args) > 6 else False)
        address = urllib.parse.urlsplit(name) if uri and name.startswith("file:") else None
        if address is None:
            with opening.lent(database, CHANGE) as there:
                return original(there, *args, **options)
        path = urllib.request.url2pathname(address.path)
        if not path or path == ":memory:" or "mode=memory" in address.query:
            return original(database, *args, **options)
        with opening.lent(path, None if "mode=ro" in address.query else CHANGE) as there:
            quoted = urllib.request.pathname2url(there)
            return original(f"file:{quoted}?{address.query}", *args, **options)

    vars(connect)["_flatout_original"] = original
    for module in modules:
        if module is not None:
            vars(module)["connect"] = connect
