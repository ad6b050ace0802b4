"""Other machines, reached by the user's own ssh: asking, sending, and explaining failures."""

from __future__ import annotations

import atexit
import functools
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from flatout.launching import engine_calls, packing
from flatout.launching.engine_calls import ToolAnswer
from flatout.nouns.errors import UserError
from flatout.nouns.launched import PackedCode

T = TypeVar("T")
OPTIONS = ("-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=10")
"""No terminal and no questions, which nobody could answer for several machines at once."""
UNREACHED = 255
"""Exit code of ssh itself."""
SEND_LIMIT_S = 1800.0
LIMIT_S = 60.0
UNPACK = 'umask 077; mkdir -p "$HOME/$1" && tar -xzf - -C "$HOME/$1"'
HOST = re.compile(r"(?:[\w.-]+@)?[\w.:%-]+")
TROUBLES = (
    (
        "REMOTE HOST IDENTIFICATION HAS CHANGED",
        "its host key has changed: it was reinstalled, or another machine answers",
        "once you know why: ssh-keygen -R {host}",
    ),
    (
        "Host key verification failed",
        "its host key is not known here",
        "connect once by hand and compare the key: ssh {host}",
    ),
    (
        "Permission denied",
        "it accepts none of your keys, and nobody can type a password here",
        "ssh-copy-id {host}; or, where the key has a passphrase: ssh-add",
    ),
    (
        "Too many authentication failures",
        "your ssh agent offers too many keys",
        "name the right one in ~/.ssh/config: IdentityFile and IdentitiesOnly yes",
    ),
    (
        "Could not resolve hostname",
        "there is no machine of that name",
        "check the spelling, or give it a HostName in ~/.ssh/config",
    ),
    ("Connection refused", "no sshd answers there", "start it: sudo systemctl start ssh"),
    ("timed out", "it does not answer", "is it on, and in this network? ping {host}"),
    (
        "No route to host",
        "there is no network route to it",
        "is it on, and in this network? ping {host}",
    ),
    ("Network is unreachable", "there is no network route to it", "is this machine in a network?"),
    ("Bad owner or permissions", "ssh does not trust its own files", "chmod 600 ~/.ssh/config"),
    ("UNPROTECTED PRIVATE KEY FILE", "others can read your key", "chmod 600 the key's file"),
)
"""Messages of ssh, what they mean, what to do."""
KEPT_S = 15
"""How long a connection is kept for the next call: longer than between two questions."""


@dataclass(frozen=True)
class RemoteHost:
    """A machine by the user's name for it."""

    name: str
    config: str = ""
    """File for `ssh -F`; empty for the user's own."""

    @property
    def _call(self) -> list[str]:
        return ["ssh", *(("-F", self.config) if self.config else ()), *OPTIONS]

    def command(self, words: Sequence[str]) -> list[str]:
        """The local command that runs these words there."""
        # One word for any remote shell.
        return [*self._call, *_shared(), "--", self.name, shlex.join(words)]

    def ask(self, script: str, *words: str, limit_s: float = LIMIT_S) -> ToolAnswer:
        """The answer of a script for sh run there. words: its arguments. Never raises."""
        return engine_calls.ask(self.command(["sh", "-s", "--", *words]), limit_s, script)

    def send(self, packed: PackedCode, folder: str, beside: Mapping[str, bytes]) -> ToolAnswer:
        """Unpack the files into `code` of a folder below the home folder there. Never raises.

        beside: further files next to `code`.
        """
        command = self.command(["sh", "-c", UNPACK, "sh", folder])
        with tempfile.TemporaryFile() as errors:  # as in engine_calls.ask
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,
            )
            assert process.stdin is not None
            why = ""
            try:
                packing.write(packed, process.stdin, "code/", beside)
                process.communicate(timeout=SEND_LIMIT_S)
            except (OSError, ValueError, subprocess.TimeoutExpired) as error:
                process.kill()
                process.communicate()
                why = str(error)
            errors.seek(0)
            said = errors.read().decode("utf-8", "replace") or why
        return ToolAnswer(process.returncode or 0, "", said)

    def trouble(self, answer: ToolAnswer) -> UserError:
        """The error that explains ssh's own failure."""
        known = engine_calls.meaning(answer.stderr, TROUBLES)
        if known is not None:
            return UserError(f"{self.name}: {known[0]}", known[1].format(host=self.name))
        return UserError(f"{self.name}: {answer.said}", f"try it by hand: ssh {self.name}")


@functools.cache
def _shared() -> tuple[str, ...]:
    """Options by which all calls of this process to a machine share one connection.

    A launch makes a dozen calls to each, and asks again while it follows. A handshake takes some
    tenths of a second, and more through a jump host. If sharing is not possible (Windows, a server
    without spare sessions), each call connects by itself.
    """
    if sys.platform == "win32":
        return ()
    # A short path: systems allow 103 characters, of which ssh needs 57.
    folder = tempfile.mkdtemp(prefix="flatout-", dir="/tmp")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    options = ("ControlMaster=auto", f"ControlPath={folder}/%C", f"ControlPersist={KEPT_S}")
    return tuple(word for option in options for word in ("-o", option))


def hosts(names: Sequence[str], config: str) -> list[RemoteHost]:
    """The machines. Raises UserError for an invalid name."""
    for name in names:
        if name.startswith("-") or not HOST.fullmatch(name):
            raise UserError(f"{name!r} is no host", "--hosts gpu1,gpu2, as ssh knows them")
    if len(set(names)) < len(names):
        raise UserError(
            "a host is named twice: each runs one process for each of its GPUs",
            "name it once; --ranks 2 starts two processes on it",
        )
    return [RemoteHost(name, config) for name in names]


def at_once(work: Callable[[RemoteHost], T], machines: Sequence[RemoteHost]) -> list[T]:
    """Do the same on all of them in parallel; the first error is raised."""
    with ThreadPoolExecutor(max(1, len(machines))) as pool:
        return list(pool.map(work, machines))
