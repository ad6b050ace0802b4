"""The packages installed in this interpreter, and torch's own information; reported as lines of
JSON.

This file is started as a program by the user's own Python, which may be as old as 3.7 and whose
torch may be missing, broken or hanging. So it imports nothing from flatout, reports what the files
say before it imports torch, and reports each further step as soon as it is known: the host keeps
everything from before a crash or a timeout. Nothing is written to any folder.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import struct
import sys
import sysconfig
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flatout_programs.tell import Tell

METADATA = {".dist-info": "METADATA", ".egg-info": "PKG-INFO"}
MATTERS = re.compile(
    r"(torch|torchvision|torchaudio|torchtext|torchao|torchdata|torch-.+|pytorch-.+|triton.*"
    r"|nvidia-.+|cuda-.+|cudatoolkit|cudnn|nccl|tensorflow.*|intel-tensorflow|tf-keras|tf-nightly.*"
    r"|keras|jax|jax-.+|jaxlib|cupy.*|xformers|flash-attn.*|bitsandbytes|transformers|lightning"
    r"|accelerate|deepspeed|intel-extension-for-.+|onnxruntime.*|numpy|apex|transformer-engine.*)"
)
BUILD = re.compile(r"(cpu|cu\d+|rocm\d+(?:\.\d+)*|xpu)(?![0-9a-z])")


def main(arguments: list[str], tell: Tell) -> None:
    """Report everything, the cheap facts first."""
    first = interpreter()
    tell(first)
    if first["torch"] is not None:
        torch_facts = imported()
        tell({"torch": torch_facts})
        if torch_facts["imported"]:
            tell({"torch": devices()})
            if "--deep" in arguments:
                tell({"torch": tried()})
    tell({"done": True})


def interpreter() -> dict[str, Any]:
    """Facts from the files: about the interpreter, its packages and torch."""
    base = getattr(sys, "base_prefix", sys.prefix)
    conda = Path(sys.prefix, "conda-meta")
    copies = installed(sys.path)
    packages, duplicates = sorted_out(copies, conda_records(conda))
    by_name = {package["name"]: package for package in packages}
    # The user's own site folder, unless Python was told to ignore it.
    site: Any = sys.modules.get("site")
    folder = _answer(lambda: Path(site.getusersitepackages()).resolve())
    return {
        "executable": sys.executable or None,
        "version": ".".join(map(str, sys.version_info[:3])),
        "bits": struct.calcsize("P") * 8,
        "free_threaded": sysconfig.get_config_var("Py_GIL_DISABLED") == 1,
        "virtual_environment": sys.prefix != base,
        "conda": conda.is_dir(),
        "managed_by": managed_by(conda.is_dir(), sys.prefix != base),
        "user_site": any(Path(entry).resolve() == folder for entry in sys.path),
        "headers": Path(sysconfig.get_paths()["include"], "Python.h").is_file(),
        "packages": packages,
        "duplicates": duplicates,
        "torch": torch_files(by_name, copies),
    }


def managed_by(conda: bool, virtual: bool) -> str | None:
    """The tool that installs packages here, or None if unknown."""
    settings = _read(Path(sys.prefix, "pyvenv.cfg"))
    marker = Path(sysconfig.get_paths()["stdlib"], "EXTERNALLY-MANAGED")
    if conda:
        return "conda"
    if virtual and re.search(r"^uv\s*=", settings, flags=re.MULTILINE):
        return "uv"
    if virtual and ("pypoetry" in sys.prefix or Path(sys.prefix, "../poetry.lock").is_file()):
        return "poetry"
    if not virtual and marker.is_file():
        return "system"
    # Not by find_spec, which setuptools takes as a sign that pip itself runs, and then steps aside.
    return "pip" if any(Path(folder, "pip/__init__.py").is_file() for folder in sys.path) else None


def installed(folders: list[str]) -> list[dict[str, Any]]:
    """Every copy of the relevant packages in these folders, the imported one first."""
    packages = []
    for folder in dict.fromkeys(Path(name).resolve() for name in folders):
        copies = [_copy(path) for path in _entries(folder) if path.suffix in METADATA]
        packages += [copy for copy in copies if copy is not None]
    return packages


def _copy(path: Path) -> dict[str, Any] | None:
    """One folder of metadata: `torch-2.7.1.dist-info`; older tools wrote folders and files."""
    name, _, version = path.stem.partition("-")
    name = re.sub(r"[-_.]+", "-", name).lower()
    if not MATTERS.fullmatch(name):
        return None
    text = _read(path if path.is_file() else path / METADATA[path.suffix])
    header = text.partition("\n\n")[0]
    header_version = re.search(r"^Version:\s*(\S+)", header, flags=re.MULTILINE)
    return {
        "name": name,
        "version": header_version.group(1)
        if header_version
        else version.partition("-py")[0] or None,
        "location": str(path.parent),
        "installer": _read(path / "INSTALLER").strip() or None,
        "requires": re.findall(r"^Requires-Dist:\s*(.+?)\s*$", header, flags=re.MULTILINE),
    }


def conda_records(folder: Path) -> list[dict[str, Any]]:
    """The packages that conda believes it installed: conda-meta/<name>-<version>-<build>.json."""
    records = []
    for path in _entries(folder):
        parts = path.stem.rsplit("-", 2) if path.suffix == ".json" else []
        name = parts[0] if len(parts) == 3 else ""
        name = "torch" if name == "pytorch" else name
        if MATTERS.fullmatch(name):
            record = {"name": name, "version": parts[1], "location": str(folder)}
            records.append({**record, "installer": "conda", "requires": []})
    return records


def sorted_out(
    copies: list[dict[str, Any]], recorded: list[dict[str, Any]]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The copy of each package that Python uses, and all copies of packages that exist twice."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for copy in copies:
        groups.setdefault(copy["name"], []).append(copy)
    for record in recorded:
        group = groups.setdefault(record["name"], [])
        # A conda package also contains metadata that looks like pip's.
        own = [copy for copy in group if copy["installer"] == "conda" or _same(copy, record)]
        for copy in own:
            copy["installer"] = copy["installer"] or "conda"
        group += [] if own else [record]
    duplicates = [copy for group in groups.values() if len(group) > 1 for copy in group]
    return [group[0] for group in groups.values()], duplicates


def _same(copy: dict[str, Any], record: dict[str, Any]) -> bool:
    versions = {
        re.sub(r"(\+.*|\.post\d+)$", "", entry["version"] or "") for entry in (copy, record)
    }
    return len(versions) == 1


def torch_files(
    packages: dict[str, dict[str, Any]], copies: list[dict[str, Any]]
) -> dict[str, Any] | None:
    """Facts of torch from its files alone, or None if it is not installed."""
    package = packages.get("torch")
    origin = getattr(_answer(lambda: importlib.util.find_spec("torch")), "origin", None)
    folder = Path(origin).parent if origin and Path(origin).is_file() else None
    if package is None and folder is None:
        return None
    values = constants(_read(folder / "version.py") if folder else "")
    full_version = values.get("__version__") or (package["version"] if package else None)
    version, _, local = (
        full_version.partition("+") if isinstance(full_version, str) else (None, "", "")
    )
    build = BUILD.match(local)
    own: list[str] = next((copy["requires"] for copy in copies if copy["name"] == "torch"), [])
    return {
        "version": version,
        "build": build.group(1) if build else None,
        **{key: values.get(key) for key in ("cuda", "hip", "xpu")},
        "location": str(folder.parent) if folder else package and package["location"],
        "installer": package["installer"] if package else None,
        "requires": [
            requirement
            for requirement in own
            if re.match(r"(nvidia-|triton|pytorch-triton|cuda-)", requirement)
        ],
    }


def constants(text: str) -> dict[str, Any]:
    """Names that a module binds to plain values, without running it."""
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError):
        return {}
    values = {}
    for node in body:
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            values[getattr(target, "id", "")] = _plain(node.value)
    return values


def _plain(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError:
        return None


def imported() -> dict[str, Any]:
    """Import torch; returns its facts that need no search for devices."""
    try:
        torch = importlib.import_module("torch")
        torch.__version__  # noqa: B018  # a folder left behind imports well and holds nothing
    except BaseException as error:  # an extension may even ask to exit
        return {"imported": False, "import_error": worded(error)}
    facts: dict[str, Any] = {"imported": True}
    facts["mps_built"] = _answer(lambda: torch.backends.mps.is_built())
    facts["arch_list"] = _answer(lambda: _architectures(torch))
    return facts


def _architectures(torch: Any) -> list[str]:
    if not (torch.version.cuda or getattr(torch.version, "hip", None)):
        return []
    if hasattr(torch._C, "_cuda_getArchFlags"):  # get_arch_list() is empty without a device
        return (torch._C._cuda_getArchFlags() or "").split()
    return list(torch.cuda.get_arch_list())


def devices() -> dict[str, Any]:
    """The devices that torch finds; none of this creates a context."""
    torch: Any = importlib.import_module("torch")

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        facts = {"cuda_available": _answer(torch.cuda.is_available)}
        facts["device_count"] = _answer(torch.cuda.device_count)
    texts = [" ".join(str(warning.message).split()) for warning in caught]
    messages = [
        text
        for sign in ("initialization", "CUDA|HIP", "NVML")
        for text in texts
        if re.search(sign, text)
    ]
    built = torch.version.cuda or getattr(torch.version, "hip", None)
    if built and not facts["cuda_available"]:
        facts["cuda_error"] = messages[0] if messages else _refusal(torch.cuda.init)
    refused = _refusal(torch.backends.cudnn.version) if torch.version.cuda else None
    if refused and not facts.get("cuda_error"):
        facts["cuda_error"] = refused  # its cuDNN is not the one it was built for
    if torch.version.cuda:
        facts["cudnn"] = _answer(lambda: dotted(torch.backends.cudnn.version()))
        facts["nccl"] = _answer(lambda: ".".join(str(part) for part in torch.cuda.nccl.version()))
    facts["mps_available"] = _answer(lambda: torch.backends.mps.is_available())
    facts["xpu_available"] = _answer(lambda: torch.xpu.is_available())
    return facts


def dotted(number: Any) -> str | None:
    """The version of cuDNN from its number: 91002 is 9.10.2, and 8902 is 8.9.2."""
    if not isinstance(number, int) or number < 1000:
        return None
    major, minor = (10000, 100) if number >= 90000 else (1000, 100)
    return f"{number // major}.{number % major // minor}.{number % minor}"


def tried() -> dict[str, Any]:
    """Facts that need a working device: whether a compiled function runs."""
    torch: Any = importlib.import_module("torch")

    cuda = bool(_answer(torch.cuda.is_available))
    facts: dict[str, Any] = {}
    if hasattr(torch, "compile"):
        try:
            values = torch.arange(64.0, device="cuda" if cuda else "cpu")
            right = torch.sin(values) * 2 + 1
            computed = torch.compile(lambda operand: torch.sin(operand) * 2 + 1)(values)
            facts["compile_works"] = bool(torch.allclose(computed, right, atol=1e-5))
            if not facts["compile_works"]:
                facts["compile_error"] = "a compiled function gives another result"
        except Exception as error:
            facts.update(compile_works=False, compile_error=worded(error))
    return facts


def worded(error: BaseException) -> str:
    """The error as in the last line of a traceback, on one line."""
    text = " ".join(str(error).partition("\nSet TORCHDYNAMO_VERBOSE")[0].split())[:600]
    return type(error).__name__ + (": " + text if text else "")


def _answer(question: Any) -> Any:
    """The fact, or None if this torch does not know it."""
    try:
        return question()
    except Exception:
        return None


def _refusal(question: Any) -> str | None:
    try:
        question()
    except Exception as error:
        return worded(error)
    return None


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _read(path: Path) -> str:
    """The file's text, or empty if it cannot be read."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(2**20)
    except (OSError, ValueError):
        return ""


if __name__ == "__main__":
    from tell import begin, end  # type: ignore[import-not-found]  # a file of this folder

    main(sys.argv[1:], begin())
    end()
