"""What stands in for a Python, where `forked.python` is given as one: programs run in a fork.

With nothing but the standard library, and of it as little as can be: it starts with each program.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from types import FrameType

FORWARDED = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")


def run(python: str, preloaded: str) -> None:
    """Do what this Python would do with the command line; preloaded: the socket."""
    argv = sys.argv[1:]
    if not argv or (argv[0].startswith("-") and argv[0] != "-m"):
        os.execv(python, [python, *argv])
    # The program may run before this knows whom to pass a signal on to: until then they wait.
    forwarded = [getattr(signal, name) for name in FORWARDED]
    signal.pthread_sigmask(signal.SIG_BLOCK, forwarded)
    with socket.socket(socket.AF_UNIX) as talk:
        talk.connect(preloaded)
        socket.send_fds(talk, [b"!"], [0, 1, 2])
        order = {"argv": argv, "folder": os.getcwd(), "variables": dict(os.environ)}
        talk.sendall(json.dumps(order).encode() + b"\n")
        answers = talk.makefile("rb")
        pid = int(answers.readline())

        def forward(number: int, frame: FrameType | None) -> None:
            os.kill(pid, number)

        for number in forwarded:
            signal.signal(number, forward)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, forwarded)
        code = int(answers.readline())
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)
