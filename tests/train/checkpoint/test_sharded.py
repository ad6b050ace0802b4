import pytest
import torch
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import save

from flatout_train.checkpoint import sharded as checkpoint_sharded
from flatout_train.checkpoint.states import MARK
from flatout_train.checkpoint.tracked import Tracked

DTYPES = torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.float8_e4m3fn
WHOLE = {str(dtype): torch.tensor([[0, 1, 1]]).to(dtype) for dtype in DTYPES}

pytestmark = pytest.mark.filterwarnings(
    "ignore:torch.distributed is disabled",
    "ignore:TypedStorage is deprecated",  # by DCP of torch 2.10
)


@pytest.fixture
def path(tmp_path):
    """A checkpoint whose tensors DCP wrote."""
    save(dict(WHOLE), storage_writer=FileSystemWriter(tmp_path / "shards"), no_dist=True)
    return tmp_path


def mark(name, value):
    return {MARK: name, "shape": list(value.shape), "dtype": value.dtype}


def test_tensors_that_dcp_wrote_are_read_into_the_state(path):
    thing = Tracked("net", torch.nn.Linear(1, 1))
    state = {"net": [mark(name, value) for name, value in WHOLE.items()], "step": 5}
    current = {"net": [torch.zeros(1, 3), *list(WHOLE.values())[1:3]]}  # the rest is not here yet
    filled = checkpoint_sharded.load({"net": state}, {"net": current}, [thing], path, None)["net"]
    assert filled["step"] == 5
    assert [value.dtype for value in filled["net"]] == list(DTYPES)
    for value, truth in zip(filled["net"], WHOLE.values(), strict=True):
        assert torch.equal(value.float(), truth.float())


def test_damage_is_found_wherever_it_is(path):
    assert checkpoint_sharded.problem(path, 0, 1) is None
    (file,) = (path / "shards").glob("*.distcp")
    whole = file.read_bytes()
    at = whole.index(WHOLE["torch.int64"].numpy().tobytes())
    file.write_bytes(whole[:at] + b"\x09" + whole[at + 1 :])
    told = [checkpoint_sharded.problem(path, rank, 3) for rank in range(3)]
    assert sorted(map(bool, told)) == [False, False, True]
    file.write_bytes(whole[:-50])
    assert "shards" in str(checkpoint_sharded.problem(path, 0, 1))
    (path / "shards" / ".metadata").write_bytes(b"")
    assert "cannot be read" in str(checkpoint_sharded.problem(path, 0, 1))
