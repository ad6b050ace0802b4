"""What the operating system lets this process use: open files, locked memory, processes."""

from __future__ import annotations

import sys

from flatout.nouns.machine import Limits

if sys.platform == "win32":

    def limits() -> Limits:
        """Windows has no such limits."""
        return Limits()

else:
    import resource

    def limits() -> Limits:
        """The limits now in force; the process may raise its own up to the hard limit."""
        files = _limit("RLIMIT_NOFILE")
        return Limits(
            open_files=files[0],
            open_files_hard=files[1],
            locked_memory_bytes=_limit("RLIMIT_MEMLOCK")[0],
            processes=_limit("RLIMIT_NPROC")[0],
        )

    def _limit(name: str) -> tuple[int | None, int | None]:
        """Soft and hard limit; -1 is unlimited."""
        try:
            soft, hard = resource.getrlimit(getattr(resource, name))
        except (AttributeError, OSError, ValueError):
            return None, None
        return _finite(soft), _finite(hard)

    def _finite(limit: int) -> int:
        return -1 if limit == resource.RLIM_INFINITY or limit < 0 else limit
