"""Every package that is installed in this interpreter, Python 3.8 or newer; reported as JSON.

Standard library only. Where a package is found twice, the first is the one that is imported.
"""

from __future__ import annotations

import platform
import sys
from importlib.metadata import distributions
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flatout_programs.tell import Tell


def main(arguments: list[str], tell: Tell) -> None:
    """Report the list."""
    versions: dict[str, str] = {}
    for distribution in distributions():
        try:
            name, version = distribution.metadata["Name"], distribution.version
        except Exception:  # its metadata is broken
            continue
        if name and version:
            versions.setdefault(name.lower().replace("_", "-").replace(".", "-"), version)
    where = f"{platform.system()} {platform.machine()}"
    tell({"python": f"{platform.python_version()} on {where}", "packages": versions})


if __name__ == "__main__":
    from tell import begin, end  # type: ignore[import-not-found]  # a file of this folder

    main(sys.argv[1:], begin())
    end()
