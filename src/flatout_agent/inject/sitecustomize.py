"""Load flatout's agent, then hand over to the user's own sitecustomize. Nothing else belongs here.

This folder is the only one that flatout puts on PYTHONPATH. Python imports this file at start-up,
before the user's program. It takes its own folder off `sys.path` again; the environment variable
stays, so that the processes which the program starts load the agent too.
"""

import os
import sys


def _load_agent(package: str) -> None:
    """Import `flatout_agent` by its file, so that no other package beside it becomes visible."""
    import importlib.util

    spec = importlib.util.spec_from_file_location(
        "flatout_agent",
        os.path.join(package, "__init__.py"),  # noqa: PTH118 - pathlib is slow to import
        submodule_search_locations=[package],
    )
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["flatout_agent"] = module
    spec.loader.exec_module(module)
    from flatout_agent.process import start

    start.start()


def _hand_over(ours: object) -> None:
    """Import the user's own sitecustomize, if there is one, in place of this file."""
    sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # noqa: F401
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
        sys.modules["sitecustomize"] = ours  # type: ignore[assignment]


_here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120
_same = os.path.normcase(_here)
sys.path[:] = [
    entry
    for entry in sys.path
    if os.path.normcase(os.path.abspath(entry)) != _same  # noqa: PTH100
]
sys.path_importer_cache.pop(_here, None)
_ours = sys.modules.get("sitecustomize")
try:
    _load_agent(os.path.dirname(_here))  # noqa: PTH120
except Exception as _error:  # an error of ours costs a speed-up, never a run
    if os.environ.get("FLATOUT_DEBUG"):
        print(f"flatout: the agent did not start: {_error!r}", file=sys.stderr)  # noqa: T201
_hand_over(_ours)
