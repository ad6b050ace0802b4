"""A Python that has imported torch already; each program that is asked for runs in a fork of it.

Importing torch and what its optimizers import is all that a small program takes time for. Started
by `forked` with the path of a socket; ends when its input does.

One connection is one program: a byte with the program's input, output and errors as descriptors,
then a line of JSON (`ProgramOrder` in `forked`). It is answered with the program's pid, and at the
end with its exit code. Closing the connection before that ends the program.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import types
from pathlib import Path
from typing import Any

GIVEN = os.environ.get("PYTHONPATH", "").split(os.pathsep)
OWN_PATH = [entry for entry in sys.path[1:] if entry not in GIVEN]
"""Where a Python without PYTHONPATH looks for modules, behind the script's folder."""


def serve(path: str) -> dict[str, Any]:
    """Fork for each connection; returns in the program's process alone, with its order."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(64)
        print("ready", flush=True)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # those that wait are waited for by nobody
        while True:
            ready, _, _ = select.select([listener, 0], [], [])
            if 0 in ready:
                os._exit(0)
            talk, _ = listener.accept()
            with talk:
                if os.fork() == 0:
                    listener.close()
                    return attend(talk)


def attend(talk: socket.socket) -> dict[str, Any]:
    """In a fork: start the program in another one, and say how it ended."""
    _, descriptors, _, _ = socket.recv_fds(talk, 1, 3)
    with talk.makefile("rb") as lines:
        order: dict[str, Any] = json.loads(lines.readline())
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakes)
    pid = os.fork()
    if pid == 0:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for place, descriptor in enumerate(descriptors):
            os.dup2(descriptor, place)
        for descriptor in (*descriptors, woken, wakes):
            os.close(descriptor)
        talk.close()
        return order
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # what ends a whole group is for the program
    for descriptor in descriptors:
        os.close(descriptor)
    talk.sendall(b"%d\n" % pid)
    while True:
        ready, _, _ = select.select([talk, woken], [], [])
        if talk in ready:
            os.kill(pid, signal.SIGKILL)
        ended, status = os.waitpid(pid, 0 if talk in ready else os.WNOHANG)
        if ended:
            if talk not in ready:
                talk.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))
            os._exit(0)
        os.read(woken, 64)


def become(order: dict[str, Any]) -> str:
    """All that a new Python would have of its command and its environment; the script's name."""
    torch.seed()  # each process draws its own numbers, where the program chooses no seed
    numpy.random.seed()
    os.chdir(order["folder"])
    os.environ.clear()
    os.environ.update(order["variables"])
    sys.orig_argv[1:] = order["argv"]
    sys.argv[:] = order["argv"]
    given = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    sys.path[:] = [*given, *OWN_PATH]
    if any(Path(entry, "sitecustomize.py").is_file() for entry in given):
        sys.modules.pop("sitecustomize", None)
        importlib.import_module("sitecustomize")
    if sys.argv[0] == "-m":
        sys.path.insert(0, os.getcwd())
        del sys.argv[0]
        return ""
    sys.path.insert(0, str(Path(sys.argv[0]).resolve().parent))
    return os.path.abspath(sys.argv[0])  # a link stays one


def run(script: str) -> None:
    """The program as `__main__`; without a script the module that is named."""
    if not script:
        import runpy

        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        return
    main = types.ModuleType("__main__")
    main.__file__ = script
    sys.modules["__main__"] = main
    code = compile(Path(script).read_bytes(), script, "exec", dont_inherit=True)
    exec(code, main.__dict__)


if __name__ == "__main__":
    import numpy
    import torch
    import torch._dynamo

    gc.freeze()  # or each fork visits, and copies, all of torch when it ends
    run(become(serve(sys.argv[1])))
