"""SYNC: each call that stalls the device is found, with its kind and line."""

from __future__ import annotations

import pytest

from diagnosing.job import made
from flatout.nouns.anatomy import Kind
from flatout.nouns.finding import Severity
from flatout.nouns.profile import Copy, Place, Profile, Sync
from flatout_agent.wire import CallSeen

STALLED = {Kind.WAIT_SYNC: 6.3}
WAITS = "SYNC001"


def job(sync: Sync | None, *calls: CallSeen) -> Profile:
    syncs = () if sync is None else (sync,)
    return made.profile(STALLED, syncs=syncs, seen__calls=calls)


def told(profile: Profile) -> list[str]:
    """The codes of this family that are found, each line's once."""
    return [code for code in made.codes(profile) if code.startswith("SYNC")]


def stall(name: str, source: str, calls: float = 1.0, idle_ms: float = 6.0) -> Sync:
    place = Place("train.py", 91, "train_epoch", source) if source else None
    return Sync(name, calls, ms=70.0, idle_ms=idle_ms, where=place)


LINES = {
    "a value is read from the device": [
        ("aten::item", "running_loss += loss.item()"),
        ("aten::item", "total = total + float(loss)"),
        ("cudaStreamSynchronize", "n += hits.sum().item()"),
        ("aten::item", ""),
    ],
    "a tensor is taken to the host": [
        ("aten::to", "kept.append(loss.cpu())"),
        ("aten::item", "ids = best.tolist()"),
        ("aten::copy_", "x = x.to('cpu')"),
    ],
    "a tensor is printed": [("aten::item", "print(step, loss)")],
    "the host waits for the number of elements": [
        ("aten::nonzero", "rows = mask.nonzero()"),
        ("aten::nonzero", "loss = losses[mask].mean()"),
        ("aten::masked_select", ""),
    ],
    "the host waits for the whole device": [
        ("cudaDeviceSynchronize", ""),
        ("cudaDeviceSynchronize", "torch.cuda.synchronize()"),
    ],
    "clipping the gradients waits": [
        ("aten::is_nonzero", "clip_grad_norm_(net.parameters(), 1.0, error_if_nonfinite=True)"),
        ("aten::is_nonzero", "if total_norm > 1.0:"),
    ],
    "values from the device are logged": [
        ("aten::item", 'writer.add_scalar("loss", loss, step)'),
        ("aten::item", 'wandb.log({"loss": loss.item()})'),
    ],
    "the gradient scaler waits": [("aten::item", "scaler.step(optimizer)")],
    "a branch waits for a value on the device": [
        ("aten::is_nonzero", "if loss > 100:"),
        ("aten::item", "if loss > 100:"),
        ("aten::is_nonzero", "assert loss.isfinite().all()"),
    ],
    "torch's memory cache is emptied in each step": [
        ("cudaDeviceSynchronize", "torch.cuda.empty_cache()"),
    ],
    "a checkpoint is saved in each step": [("aten::to", "torch.save(model.state_dict(), path)")],
    "the host waits for the device in each step (cuda": [("cudaEventSynchronize", "x = custom(x)")],
}
CASES = [(title, *call) for title, calls in LINES.items() for call in calls]


@pytest.mark.parametrize(("title", "name", "source"), CASES)
def test_each_stall_is_told_once(title: str, name: str, source: str) -> None:
    profile = job(stall(name, source))
    finding = made.only(WAITS, profile)
    assert finding.severity is Severity.WARNING
    assert finding.title.startswith(title)
    assert finding.where == ("train.py:91" if source else None)
    assert made.saved_ms(finding, profile) == pytest.approx(6.0)
    assert told(profile) == [finding.code]


@pytest.mark.parametrize(("title", "name", "source"), CASES)
def test_rare_or_harmless_calls_are_none(title: str, name: str, source: str) -> None:
    assert told(job(stall(name, source, calls=0.02))) == []
    assert told(job(stall(name, source, idle_ms=0.2))) == []
    assert told(made.cpu_profile(syncs=(stall(name, source, idle_ms=40.0),))) == []


def test_a_blocking_copy_to_the_device_is_no_stall_of_these() -> None:
    place = Place("train.py", 81, "train_epoch", "x = x.to(device)")
    copy = Copy("HtoD", 1.0, 4e6, 1.0, pinned=False, exposed_ms=0.1, where=place)
    for sync in (
        Sync("aten::to", 1.0, 6.0, 6.0, place),
        Sync("cudaStreamSynchronize", 1.0, 6.0, 6.0, place),
    ):
        profile = made.profile(STALLED, syncs=(sync,), copies=(copy,))
        assert told(profile) == []


def test_a_copy_of_no_known_line_goes_where_copies_go() -> None:
    sync = Sync("aten::to", 1.0, 6.0, 6.0)
    up = Copy("HtoD", 1.0, 4e6, 1.0, pinned=False)
    down = Copy("DtoH", 1.0, 4.0, 0.01, pinned=False)
    only_up = made.profile(STALLED, syncs=(sync,), copies=(up,))
    assert told(only_up) == []
    both = made.profile(STALLED, syncs=(sync,), copies=(up, down))
    assert told(both) == ["SYNC001"]


def test_calls_of_one_line_are_told_once() -> None:
    one, other = stall("aten::item", "a, b = x.item(), y.item()"), stall("aten::to", "")
    second = Sync("aten::_local_scalar_dense", 1.0, 10.0, 2.0, one.where)
    profile = made.profile(STALLED, syncs=(one, second, other))
    finding = made.only(WAITS, profile)
    assert "2.0 times a step" in finding.evidence
    assert made.saved_ms(finding, profile) == pytest.approx(8.0)


def test_the_line_comes_from_the_watched_call_where_the_trace_has_none() -> None:
    call = CallSeen("Tensor.item", 1.0, 0.07, "train.py:99", "cuda")
    finding = made.only(WAITS, job(stall("aten::item", ""), call))
    assert finding.where == "train.py:99"
    other = CallSeen("Tensor.item", 1.0, 0.07, "eval.py:12", "cuda")
    assert made.only(WAITS, job(stall("aten::item", ""), call, other)).where is None
    on_host = CallSeen("Tensor.item", 1.0, 0.07, "train.py:12", "cpu")
    assert made.only(WAITS, job(stall("aten::item", ""), on_host)).where is None


CURES = [
    ("aten::item", "running_loss += loss.item()", "+ running_loss += loss.detach()"),
    ("aten::to", "kept.append(loss.cpu().numpy())", "+ kept.append(loss.detach())"),
    ("aten::item", "print(loss)", "+     print(loss)"),
    ("aten::nonzero", "loss = losses[mask].mean()", "+ loss = (losses * mask).sum() / mask.sum()"),
    ("aten::item", "clip_grad_norm_(ps, 1, error_if_nonfinite=True)", "+ clip_grad_norm_(ps, 1)"),
    ("aten::is_nonzero", "if loss > 100:", "+ if step % 50 == 0 and loss > 100:"),
    ("aten::item", "scaler.step(optimizer)", "+ optimizer.step()"),
]


@pytest.mark.parametrize(("name", "source", "line"), CURES)
def test_the_cure_is_the_line_rewritten(name: str, source: str, line: str) -> None:
    changes = made.changes(made.only(WAITS, job(stall(name, source))))
    assert f"# train.py:91\n- {source}\n" in changes
    assert line in changes.splitlines()


def test_without_bfloat16_the_scaler_stays_and_the_optimizer_decides() -> None:
    sync = stall("aten::item", "scaler.step(optimizer)")
    profile = made.changed(
        job(sync), job__bf16=False, job__optimizers__0__fused=None, job__optimizers__0__kind="AdamW"
    )
    finding = made.only(WAITS, profile)
    assert "fused=True" in made.changes(finding)
    assert finding.boost == "fused-optimizer"
