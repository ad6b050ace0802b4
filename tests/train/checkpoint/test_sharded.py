import io
import os
import pickle

import pytest
import torch
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import save

from flatout_train.checkpoint import sharded as checkpoint_sharded
from flatout_train.checkpoint.states import MARK


def test_an_index_can_name_nothing_but_records_of_tensors():
    class Trap:
        def __reduce__(self):
            return os.mkdir, ("/nowhere",)

    for thing in (Trap(), torch.nn.Linear, eval, os.path.join):
        with pytest.raises(pickle.UnpicklingError, match="does not belong in an index"):
            checkpoint_sharded._Index(io.BytesIO(pickle.dumps(thing))).load()


def mark(name, value):
    return {MARK: name, "shape": list(value.shape), "dtype": value.dtype}


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_tensors_that_dcp_wrote_are_read_into_the_state(tmp_path):
    dtypes = torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.float8_e4m3fn
    whole = {str(dtype): torch.tensor([[0, 1, 1]]).to(dtype) for dtype in dtypes}
    save(dict(whole), storage_writer=FileSystemWriter(tmp_path / "shards"), no_dist=True)
    state = {"net": [mark(name, value) for name, value in whole.items()], "step": 5}
    found: dict = {}
    current = {"net": [torch.zeros(1, 3), *list(whole.values())[1:3]]}  # the rest is not here yet
    checkpoint_sharded._targets(state, current, [], found)
    checkpoint_sharded._read(found, tmp_path / "shards", None)
    filled = checkpoint_sharded.fill(state, found)
    assert filled["step"] == 5
    assert [value.dtype for value in filled["net"]] == list(dtypes)
    for value, truth in zip(filled["net"], whole.values(), strict=True):
        assert torch.equal(value.float(), truth.float())
