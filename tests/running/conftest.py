from pathlib import Path

import pytest

from running import stand_in


@pytest.fixture
def inject(tmp_path: Path) -> Path:
    return stand_in.inject(tmp_path)


@pytest.fixture
def flatout(tmp_path: Path, inject: Path) -> stand_in.Flatout:
    folder = tmp_path / "work"
    folder.mkdir()
    return stand_in.Flatout(folder, inject)
