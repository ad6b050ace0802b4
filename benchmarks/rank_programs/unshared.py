"""Runs a program on ranks each of which reads all of every batch: to compare with.

python unshared.py slow_loading.py --steps 60
"""

import runpy
import sys

import torch  # noqa: F401 - first: the agent makes this process a rank when torch is imported

from flatout_agent.ranks.loading import plans

plans.MARGIN = float("inf")  # sharing never pays
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
