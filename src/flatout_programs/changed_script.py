"""Run a changed copy of a script as the script itself: under its path, with its arguments.

Arguments: the copy, the script, and what the script is given. The process has torch if the script
has; this file imports nothing of its own that the script could miss.
"""

import sys


def run() -> None:
    """Make `__main__` what `python SCRIPT ...` would, and run the copy's text in it."""
    from pathlib import Path

    copy, script, *rest = sys.argv[1:]
    sys.argv[:] = [script, *rest]
    sys.path[0] = str(Path(script).absolute().parent)
    code = compile(Path(copy).read_bytes(), script, "exec")
    main = sys.modules["__main__"].__dict__
    del main["run"], main["sys"]
    main["__file__"], main["__doc__"] = script, None
    exec(code, main)


if __name__ == "__main__":
    run()
