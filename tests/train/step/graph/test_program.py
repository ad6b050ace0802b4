import dataclasses
import functools

import pytest
import torch
from torch import nn

from flatout_train.step.graph.program import Program
from flatout_train.step.graph.whole_step import WholeStep
from train.step.graph.fake import FakeRecorder

FACTORS = {"of a helper": 1.0, "deep": {"inner": 1.0}}


def helper(loss):
    return loss * FACTORS["of a helper"] * FACTORS["deep"]["inner"]


@dataclasses.dataclass
class Settings:
    gain: float = 1.0
    never_read: int = 0


class Model(nn.Module):
    factor = 1.0

    def __init__(self):
        super().__init__()
        self.linear, self.dropout = nn.Linear(4, 1), nn.Dropout(0)
        self.settings, self.gains, self.mask = Settings(), [1.0], torch.ones(1)

    def forward(self, x):
        return self.part(self.dropout(self.linear(x))) * self.settings.gain * self.factor

    def part(self, x):
        return x * self.gains[0] * self.mask


class Trainer:
    def __init__(self):
        self.steps, self.beta, self.weights = 0, 1.0, torch.ones(1)

    def loss(self, model, batch):
        return helper((model(batch) * self.weights).sum() * self.beta)


CHANGES = {
    "beta": lambda model, trainer: setattr(trainer, "beta", 2.0),
    "weights": lambda model, trainer: setattr(trainer, "weights", torch.zeros(1)),
    "factor": lambda model, trainer: setattr(model, "factor", 2.0),
    "settings.gain": lambda model, trainer: setattr(model.settings, "gain", 2.0),
    "settings": lambda model, trainer: setattr(model, "settings", Settings(3.0)),
    "gains": lambda model, trainer: model.gains.__setitem__(0, 2.0),
    "mask": lambda model, trainer: setattr(model, "mask", torch.zeros(1)),
    "dropout.p": lambda model, trainer: setattr(model.dropout, "p", 0.5),
    "of a helper": lambda model, trainer: FACTORS.update({"of a helper": 2.0}),
    "inner": lambda model, trainer: FACTORS["deep"].update(inner=2.0),
}


@pytest.fixture(autouse=True)
def factors():
    yield
    FACTORS.update({"of a helper": 1.0, "deep": {"inner": 1.0}})


@pytest.mark.parametrize("name", CHANGES)
def test_another_value_of_what_model_and_loss_read_is_noticed_and_named(name):
    model, trainer = Model(), Trainer()
    program = Program(model, trainer.loss)
    number = program.number()
    assert program.number() == number
    CHANGES[name](model, trainer)
    assert program.number() != number
    assert name in program.changed.replace("'", "")
    assert program.number() == program.number()


def test_what_they_do_not_read_does_not_count_and_a_value_that_comes_back_has_its_number():
    model, trainer = Model(), Trainer()
    program = Program(model, trainer.loss)
    number = program.number()
    trainer.steps, model.settings.never_read = 5, 5
    trainer.weights.add_(1)
    assert program.number() == number
    trainer.beta = 3.0
    program.number()
    trainer.beta = 1.0
    assert program.number() == number


def test_a_value_may_become_a_tensor_or_go_away():
    model, trainer = Model(), Trainer()
    program = Program(model, trainer.loss)
    numbers = {program.number()}
    trainer.beta = torch.ones(3)
    numbers.add(program.number())
    del trainer.beta
    numbers.add(program.number())
    assert len(numbers) == 3


def test_closures_partials_and_torchs_own_losses():
    beta = 1.0

    def loss(model, batch):
        return model(batch).sum() * beta

    programs = [Program(nn.Linear(1, 1), each) for each in (loss, functools.partial(loss))]
    before = [each.number() for each in programs]
    beta = 2.0
    assert all(each.number() != old for each, old in zip(programs, before, strict=True))
    own = nn.CrossEntropyLoss(weight=torch.ones(2))
    program = Program(nn.Linear(1, 1), own)
    seen = [program.number()]
    own.weight = torch.zeros(2)
    seen.append(program.number())
    own.label_smoothing = 0.1
    seen.append(program.number())
    assert len(set(seen)) == 3


def losses(steps, change, graph):
    torch.manual_seed(0)
    model, trainer = Model(), Trainer()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def body(batch):
        optimizer.zero_grad()
        loss = trainer.loss(model, batch)
        loss.backward()
        optimizer.step()
        return {"loss": loss.detach()}

    recorder = FakeRecorder(lambda: [*model.parameters()])
    whole = WholeStep(
        body, model, optimizer, torch.device("cpu"), loss_fn=trainer.loss, recorder=recorder
    )
    found = []
    for number in range(steps):
        change(trainer, number)
        done = whole.run(torch.ones(2, 4)) if graph else None
        found.append((body(torch.ones(2, 4)) if done is None else done)["loss"].item())
    return found, whole.reason, recorder.replays


@pytest.mark.parametrize("every", [1, 6, 70])
def test_a_factor_that_the_program_changes_reaches_recorded_steps(every):
    def change(trainer, number):
        trainer.beta = 1.0 + number // every

    steps = 4 * every if every > 6 else 100
    plain, *_ = losses(steps, change, graph=False)
    found, reason, replays = losses(steps, change, graph=True)
    assert found == plain
    assert replays > 0
    if every == 1:
        assert reason == "loss.beta, which the model or the loss reads, changes again and again"
    if every == 70:
        assert reason == "recorded"
