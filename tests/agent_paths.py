"""Where the agent lies."""

from pathlib import Path

import flatout_agent

INJECT = Path(flatout_agent.__file__).parent / "inject"
