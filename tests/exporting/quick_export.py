"""The command line with exports that are made of two builds and timed for a moment."""

import dataclasses

from flatout.__main__ import main
from flatout.exporting import export

whole = export.run


def quick(folder, settings, tell=None, notes=()):
    few = dataclasses.replace(settings, only=("eager", "onnxruntime"), measure_s=0.3, threads=1)
    return whole(folder, few, tell, notes)


export.run = quick
main()
