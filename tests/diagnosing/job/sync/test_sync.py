"""SYNC: each call that stalls the device is found by its own check, with its line."""

from __future__ import annotations

import pytest

from diagnosing.job import made
from flatout.nouns.anatomy import Kind
from flatout.nouns.finding import Severity
from flatout.nouns.profile import Copy, Place, Profile, Sync
from flatout_agent.wire import CallSeen

STALLED = {Kind.WAIT_SYNC: 6.3}


def job(sync: Sync | None, *calls: CallSeen) -> Profile:
    syncs = () if sync is None else (sync,)
    return made.profile(STALLED, syncs=syncs, seen__calls=calls)


def stall(name: str, source: str, calls: float = 1.0, idle_ms: float = 6.0) -> Sync:
    place = Place("train.py", 91, "train_epoch", source) if source else None
    return Sync(name, calls, ms=70.0, idle_ms=idle_ms, where=place)


CASES = [
    ("SYNC001", "value-read-each-step", "aten::item", "running_loss += loss.item()"),
    ("SYNC001", "value-read-each-step", "aten::item", "total = total + float(loss)"),
    ("SYNC001", "value-read-each-step", "cudaStreamSynchronize", "n += hits.sum().item()"),
    ("SYNC001", "value-read-each-step", "aten::item", ""),
    ("SYNC002", "tensor-taken-to-host-each-step", "aten::to", "kept.append(loss.cpu())"),
    ("SYNC002", "tensor-taken-to-host-each-step", "aten::item", "ids = best.tolist()"),
    ("SYNC002", "tensor-taken-to-host-each-step", "aten::copy_", "x = x.to('cpu')"),
    ("SYNC003", "tensor-printed-each-step", "aten::item", "print(step, loss)"),
    ("SYNC004", "indices-found-on-device", "aten::nonzero", "rows = mask.nonzero()"),
    ("SYNC004", "indices-found-on-device", "aten::nonzero", "loss = losses[mask].mean()"),
    ("SYNC004", "indices-found-on-device", "aten::masked_select", ""),
    ("SYNC005", "device-synchronised-each-step", "cudaDeviceSynchronize", ""),
    (
        "SYNC005",
        "device-synchronised-each-step",
        "cudaDeviceSynchronize",
        "torch.cuda.synchronize()",
    ),
    (
        "SYNC006",
        "clipping-waits",
        "aten::is_nonzero",
        "nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)",
    ),
    ("SYNC006", "clipping-waits", "aten::is_nonzero", "if total_norm > 1.0:"),
    ("SYNC007", "cache-emptied-each-step", "cudaDeviceSynchronize", "torch.cuda.empty_cache()"),
    ("SYNC008", "values-logged-each-step", "aten::item", 'writer.add_scalar("loss", loss, step)'),
    ("SYNC008", "values-logged-each-step", "aten::item", 'wandb.log({"loss": loss.item()})'),
    ("SYNC009", "checkpoint-stalls-device", "aten::to", "torch.save(model.state_dict(), path)"),
    ("SYNC010", "scaler-waits", "aten::item", "scaler.step(optimizer)"),
    ("SYNC011", "branch-on-device-value", "aten::is_nonzero", "if loss > 100:"),
    ("SYNC011", "branch-on-device-value", "aten::item", "if loss > 100:"),
    ("SYNC011", "branch-on-device-value", "aten::is_nonzero", "assert loss.isfinite().all()"),
    ("SYNC012", "host-waits-for-device", "cudaEventSynchronize", "x = custom(x)"),
]


@pytest.mark.parametrize(("code", "check", "name", "source"), CASES)
def test_each_stall_is_told_by_one_check(code: str, check: str, name: str, source: str) -> None:
    profile = job(stall(name, source))
    finding = made.only(check, profile)
    assert (finding.code, finding.severity) == (code, Severity.WARNING)
    assert finding.where == ("train.py:91" if source else None)
    assert made.saved_ms(finding, profile) == pytest.approx(6.0)
    assert [found for found in made.codes(profile) if found.startswith("SYNC")] == [code]


@pytest.mark.parametrize(("code", "check", "name", "source"), CASES)
def test_rare_or_harmless_calls_are_none(code: str, check: str, name: str, source: str) -> None:
    assert made.findings(check, job(stall(name, source, calls=0.02))) == ()
    assert made.findings(check, job(stall(name, source, idle_ms=0.2))) == ()
    on_cpu = made.cpu_profile(syncs=(stall(name, source, idle_ms=40.0),))
    assert made.findings(check, on_cpu) == ()


def test_a_blocking_copy_to_the_device_is_no_stall_of_these() -> None:
    place = Place("train.py", 81, "train_epoch", "x = x.to(device)")
    copy = Copy("HtoD", 1.0, 4e6, 1.0, pinned=False, exposed_ms=0.1, where=place)
    for sync in (
        Sync("aten::to", 1.0, 6.0, 6.0, place),
        Sync("cudaStreamSynchronize", 1.0, 6.0, 6.0, place),
    ):
        profile = made.profile(STALLED, syncs=(sync,), copies=(copy,))
        assert [code for code in made.codes(profile) if code.startswith("SYNC")] == []


def test_a_copy_of_no_known_line_goes_where_copies_go() -> None:
    sync = Sync("aten::to", 1.0, 6.0, 6.0)
    up = Copy("HtoD", 1.0, 4e6, 1.0, pinned=False)
    down = Copy("DtoH", 1.0, 4.0, 0.01, pinned=False)
    only_up = made.profile(STALLED, syncs=(sync,), copies=(up,))
    assert [code for code in made.codes(only_up) if code.startswith("SYNC")] == []
    both = made.profile(STALLED, syncs=(sync,), copies=(up, down))
    assert [code for code in made.codes(both) if code.startswith("SYNC")] == ["SYNC002"]


def test_calls_of_one_line_are_told_once() -> None:
    one, other = stall("aten::item", "a, b = x.item(), y.item()"), stall("aten::to", "")
    second = Sync("aten::_local_scalar_dense", 1.0, 10.0, 2.0, one.where)
    profile = made.profile(STALLED, syncs=(one, second, other))
    finding = made.only("value-read-each-step", profile)
    assert "2.0 times a step" in finding.evidence
    assert made.saved_ms(finding, profile) == pytest.approx(8.0)


def test_the_line_comes_from_the_watched_call_where_the_trace_has_none() -> None:
    call = CallSeen("Tensor.item", 1.0, 0.07, "train.py:99", "cuda")
    finding = made.only("value-read-each-step", job(stall("aten::item", ""), call))
    assert finding.where == "train.py:99"
    other = CallSeen("Tensor.item", 1.0, 0.07, "eval.py:12", "cuda")
    assert (
        made.only("value-read-each-step", job(stall("aten::item", ""), call, other)).where is None
    )
    on_host = CallSeen("Tensor.item", 1.0, 0.07, "train.py:12", "cpu")
    assert made.only("value-read-each-step", job(stall("aten::item", ""), on_host)).where is None


CURES = [
    ("value-read-each-step", "aten::item", "running_loss += loss.item()",
     "+ running_loss += loss.detach()"),
    ("tensor-taken-to-host-each-step", "aten::to", "kept.append(loss.cpu().numpy())",
     "+ kept.append(loss.detach())"),
    ("tensor-printed-each-step", "aten::item", "print(loss)", "+     print(loss)"),
    ("indices-found-on-device", "aten::nonzero", "loss = losses[mask].mean()",
     "+ loss = (losses * mask).sum() / mask.sum()"),
    ("clipping-waits", "aten::item", "clip_grad_norm_(ps, 1.0, error_if_nonfinite=True)",
     "+ clip_grad_norm_(ps, 1.0)"),
    ("branch-on-device-value", "aten::is_nonzero", "if loss > 100:",
     "+ if step % 50 == 0 and loss > 100:"),
    ("scaler-waits", "aten::item", "scaler.step(optimizer)", "+ optimizer.step()"),
]  # fmt: skip


@pytest.mark.parametrize(("check", "name", "source", "line"), CURES)
def test_the_cure_is_the_line_rewritten(check: str, name: str, source: str, line: str) -> None:
    changes = made.changes(made.only(check, job(stall(name, source))))
    assert f"# train.py:91\n- {source}\n" in changes or check == "scaler-waits"
    assert line in changes.splitlines()


def test_without_bfloat16_the_scaler_stays_and_the_optimizer_decides() -> None:
    sync = stall("aten::item", "scaler.step(optimizer)")
    profile = made.changed(
        job(sync), job__bf16=False, job__optimizers__0__fused=None, job__optimizers__0__kind="AdamW"
    )
    finding = made.only("scaler-waits", profile)
    assert "fused=True" in made.changes(finding)
    assert finding.boost == "fused-optimizer"


@pytest.mark.parametrize(
    ("check", "name"),
    [
        ("cache-emptied-each-step", "torch.cuda.empty_cache"),
        ("checkpoint-stalls-device", "torch.save"),
    ],
)
def test_calls_that_were_watched_count_as_well(check: str, name: str) -> None:
    profile = job(None, CallSeen(name, 1.0, 0.005, "train.py:93"))
    finding = made.only(check, profile)
    assert finding.where == "train.py:93"
    assert made.saved_ms(finding, profile) == pytest.approx(5.0)
    rare = job(None, CallSeen(name, 0.01, 0.005, "train.py:93"))
    assert made.findings(check, rare) == ()
    on_cpu = made.cpu_profile(seen__calls=(CallSeen(name, 1.0, 0.05, "train.py:93"),))
    assert made.findings(check, on_cpu) == ()
