"""Small trainings of every style, one after the other, each printing `CASE name losses...`.

Run alone and as ranks: the figures must be the same. Each is written as its author would.
"""

from __future__ import annotations

import copy
import io
import random
import sys

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset


def data(rows=50, width=12, classes=3, seed=1):
    dice = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, width, generator=dice)
    return x, (x[:, :classes].argmax(1)).long()


def mlp(width=12, out=3, norm=False):
    middle = [nn.BatchNorm1d(16)] if norm else []
    return nn.Sequential(nn.Linear(width, 16), *middle, nn.ReLU(), nn.Linear(16, out))


def fit(model, loader, loss_of, optimizer=None, epochs=2):
    # Not Adam: of a gradient that is nothing but rounding it makes a whole step.
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(epochs):
        for batch in loader:
            optimizer.zero_grad()
            loss = loss_of(*batch)
            loss.backward()
            optimizer.step()
            yield loss.item()


def batches(rows=50, size=10, shuffle=False):
    return DataLoader(TensorDataset(*data(rows)), batch_size=size, shuffle=shuffle)


def classified(model, loader=None, **more):
    return fit(model, loader or batches(), lambda x, y: F.cross_entropy(model(x), y), **more)


def uneven_last_batch():
    return classified(mlp(), batches(47, shuffle=True))


def fewer_rows_than_ranks():
    return classified(mlp(), batches(33, 8))  # the last one has one row


def batch_norm():
    model = mlp(norm=True)
    x, y = data(50)
    yield from classified(model)
    model.eval()
    with torch.no_grad():
        yield F.cross_entropy(model(x), y).item()
    yield from model[1].running_mean[:4].tolist()
    yield from model[1].running_var[:4].tolist()


def batch_norm_images():
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8, affine=False), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(8, 3),
    )  # fmt: skip
    dice = torch.Generator().manual_seed(3)
    images = torch.randn(21, 3, 8, 8, generator=dice)
    return classified(model, DataLoader(TensorDataset(images, data(21)[1]), batch_size=7))


class LossInside(nn.Module):
    def __init__(self, ignore=-100, reduction="mean"):
        super().__init__()
        self.embedding = nn.Embedding(20, 16)
        self.out = nn.Linear(16, 20)
        self.ignore, self.reduction = ignore, reduction

    def forward(self, tokens, labels=None):
        logits = self.out(self.embedding(tokens))
        loss = None
        if labels is not None:
            loss = F.cross_entropy(
                logits.flatten(0, 1), labels.flatten(),
                ignore_index=self.ignore, reduction=self.reduction,
            )  # fmt: skip
        return {"loss": loss, "logits": logits, "note": "text"}


def tokens(rows=24, length=9, pad=None):
    dice = torch.Generator().manual_seed(4)
    values = torch.randint(1, 20, (rows, length), generator=dice)
    labels = values.roll(1, 1)
    if pad is not None:
        for row in range(rows):
            labels[row, row % length :] = pad
    return values, labels


def loss_in_model(ignore=-100, pad=-100, reduction="mean", late=False):
    model = LossInside(ignore, reduction)
    values, labels = tokens(pad=pad)
    if late:  # nothing is to be ignored in the first batches
        labels[:12] = values[:12].roll(1, 1)
    loader = DataLoader(TensorDataset(values, labels), batch_size=6)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    return fit(model, loader, lambda x, y: model(x, labels=y)["loss"], optimizer)


def loss_in_model_own_pad():
    return loss_in_model(ignore=0, pad=0, late=True)


def loss_in_model_late_padding():
    return loss_in_model(late=True)


def loss_in_model_sum():
    return loss_in_model(reduction="sum")


class OwnMean(nn.Module):
    """Its mean counts what its mask leaves: no mean over rows."""

    def __init__(self):
        super().__init__()
        self.line = nn.Linear(12, 1)

    def forward(self, x, mask):
        error = self.line(x).squeeze(1).square() * mask
        return error.sum() / mask.sum()


def masked_mean():
    model = OwnMean()
    x, y = data(40)
    return fit(model, DataLoader(TensorDataset(x, (y > 0).float()), batch_size=10), model)


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(6, 8)
        self.out = nn.Linear(8, 3)

    def forward(self, x, state=None):
        hidden, state = self.lstm(x, state)
        return self.out(hidden), state


def sequence_first():
    model, (x, y) = Tagger(), data(60, 6)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    state = None
    for chunk, target in zip(x.view(4, 3, 5, 6), y.view(4, 3, 5), strict=True):
        logits, state = model(chunk, state)  # 3 steps of 5 sequences; the state is carried on
        state = tuple(each.detach() for each in state)
        loss = F.cross_entropy(logits.flatten(0, 1), target.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()


def transformer_sequence_first():
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0)
    mask = nn.Transformer.generate_square_subsequent_mask(5)  # as long as the batch is large
    head = nn.Linear(8, 3)
    optimizer = torch.optim.Adam([*layer.parameters(), *head.parameters()], lr=1e-2)
    x, y = data(100, 8)
    for chunk, target in zip(x.view(4, 5, 5, 8), y.view(4, 5, 5), strict=True):
        loss = F.cross_entropy(head(layer(chunk, src_mask=mask)).flatten(0, 1), target.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()


def weight_used_outside():
    model = mlp()

    def loss(x, y):
        return F.cross_entropy(model(x), y) + 1e-2 * model[0].weight.square().sum()

    return fit(model, batches(), loss)


class ByChance(nn.Module):
    """Uses one branch or the other by what it sees."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(12, 3), nn.Linear(12, 3)

    def forward(self, x):
        where = x[:, 0] > 0
        y = x.new_zeros(len(x), 3)
        if where.any():
            y[where] = self.a(x[where])
        if (~where).any():
            y[~where] = self.b(x[~where])
        return y


def unused_by_chance():
    x, y = data(48)
    order = x[:, 0].argsort()  # the first rows use one branch, the last ones the other
    return classified(ByChance(), DataLoader(TensorDataset(x[order], y[order]), batch_size=8))


class Checkpointed(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.first, self.second = mlp(12, 12, norm=True), mlp(12, 3)
        self.reentrant = reentrant

    def forward(self, x):
        x = x.requires_grad_() if self.reentrant else x
        return self.second(checkpoint(self.first, x, use_reentrant=self.reentrant))


def checkpointed(reentrant=False):
    return classified(Checkpointed(reentrant))


def reentrant_checkpoint():
    return checkpointed(reentrant=True)


def wgan_gp():
    critic, generator = mlp(12, 1), mlp(4, 12)
    of_critic = torch.optim.SGD(critic.parameters(), lr=1e-2)
    of_generator = torch.optim.SGD(generator.parameters(), lr=1e-2)
    x, _ = data(40)
    for real in x.split(10):
        fake = generator(torch.randn(10, 4))
        share = torch.rand(10, 1)
        between = (share * real + (1 - share) * fake.detach()).requires_grad_()
        (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
        penalty = (slope.norm(dim=1) - 1).square().mean()
        loss = critic(fake.detach()).mean() - critic(real).mean() + 10 * penalty
        of_critic.zero_grad()
        loss.backward()
        of_critic.step()
        yield loss.item()
        loss = -critic(generator(torch.randn(10, 4))).mean()
        of_generator.zero_grad()
        loss.backward()
        of_generator.step()
        yield loss.item()


def second_order():
    """A step within the step, through its own gradient (MAML)."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = data(40)
    for inner, outer in zip(x.split(10), y.split(10), strict=True):
        fast = dict(model.named_parameters())
        loss = F.cross_entropy(torch.func.functional_call(model, fast, (inner,)), outer)
        slopes = torch.autograd.grad(loss, list(fast.values()), create_graph=True)
        fast = {name: w - 0.1 * g for (name, w), g in zip(fast.items(), slopes, strict=True)}
        loss = F.cross_entropy(torch.func.functional_call(model, fast, (inner,)), outer)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()


def first_order():
    """The inner step is the model's own call, the outer one goes through its gradient."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = data(40)
    for inner, outer in zip(x.split(10), y.split(10), strict=True):
        loss = F.cross_entropy(model(inner), outer)
        slopes = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
        loss = loss + sum(slope.square().sum() for slope in slopes)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()


def views_and_calls_twice():
    """Two calls before one backward pass, what comes out is viewed, BatchNorm inside."""
    model = nn.Sequential(nn.Conv1d(3, 8, 3), nn.BatchNorm1d(8), nn.ReLU(), nn.Flatten())
    head = nn.LSTM(6, 8)
    optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.1)
    x, _ = data(60)
    for rows in x.view(5, 12, 3, 4).split(1):
        a, b = model(rows[0]), model(rows[0].flip(0))
        hidden, _ = head((a + b).view(12, 2, 8).transpose(0, 1)[..., :6])
        loss = hidden.view(-1, 16).square().mean() + (a - b).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()


def unfreeze():
    trunk, head = mlp(12, 12), nn.Linear(12, 3)
    for parameter in trunk.parameters():
        parameter.requires_grad_(False)
    optimizer = torch.optim.Adam(head.parameters(), lr=1e-2)
    for epoch in range(3):
        if epoch == 1:
            for parameter in trunk.parameters():
                parameter.requires_grad_(True)
            optimizer.add_param_group({"params": trunk.parameters(), "lr": 1e-3})
        for x, y in batches():
            loss = F.cross_entropy(head(trunk(x)), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            yield loss.item()


def optimizer_before_double():
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.double()
    return fit(model, batches(), lambda x, y: F.cross_entropy(model(x.double()), y), optimizer)


def ragged_accumulation():
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    loader = DataLoader(TensorDataset(*data(47)), batch_size=5)
    for number, (x, y) in enumerate(loader, 1):
        loss = F.cross_entropy(model(x), y) / 4
        loss.backward()
        if number % 4 == 0 or number == len(loader):
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
        yield loss.item()


def unseeded():
    import numpy

    model = mlp()
    dice = numpy.random.default_rng()
    words = sorted({random.random() for _ in range(3)})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        x = torch.tensor(dice.normal(size=(8, 12)), dtype=torch.float32)
        loss = model(x).square().mean() * words[0]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()


def set_vocabulary():
    letters = list({"apple", "pear", "plum", "fig", "kiwi", "date"})
    model = nn.Embedding(6, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    numbers = torch.tensor([letters.index(word) for word in ("fig", "plum", "pear", "fig")])
    for _ in range(3):
        loss = model(numbers).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()


def data_parallel():
    model = nn.DataParallel(mlp(norm=True))
    yield from classified(model)
    yield float(all(name.startswith("module.") for name in model.state_dict()))


def saved_and_copied():
    model = mlp()
    yield from classified(model)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    other = torch.load(file, weights_only=False)
    third = copy.deepcopy(other)
    yield from classified(third, epochs=1)


class Kept(nn.Module):
    """Keeps a loss of its own for the script to add: not to be cut."""

    def __init__(self):
        super().__init__()
        self.line = nn.Linear(12, 3)
        self.extra = torch.zeros(())

    def forward(self, x):
        y = self.line(x)
        self.extra = y.square().mean() + y.mean(0).square().sum()
        return y


def keeps_a_tensor():
    model = Kept()
    return fit(model, batches(), lambda x, y: F.cross_entropy(model(x), y) + model.extra)


class Listed(nn.Module):
    """Keeps the losses of its parts in a list for the script to add: not to be cut."""

    def __init__(self):
        super().__init__()
        self.line, self.extra = nn.Linear(12, 3), []

    def forward(self, x):
        y = self.line(x)
        self.extra.append(y.mean(0).square().sum())
        return y


def keeps_a_list():
    model = Listed()
    return fit(model, batches(), lambda x, y: F.cross_entropy(model(x), y) + model.extra.pop())


class Positions(nn.Module):
    """Makes a table at its first call and keeps it."""

    def __init__(self):
        super().__init__()
        self.line, self.table = nn.Linear(12, 3), None

    def forward(self, x):
        if self.table is None:
            self.table = torch.linspace(0, 1, x.shape[1])
        return self.line(x + self.table)


def table_of_positions():
    return classified(Positions())


class Codebook(nn.Module):
    """Its buffer follows the mean of what it sees."""

    def __init__(self):
        super().__init__()
        self.line = nn.Linear(12, 3)
        self.register_buffer("centre", torch.zeros(3))

    def forward(self, x):
        y = self.line(x)
        out = y - self.centre
        with torch.no_grad():
            self.centre.lerp_(y.max(0).values, 0.1)
        return out


def own_buffer():
    model = Codebook()
    yield from classified(model)
    yield from model.centre.tolist()


def hooked():
    model = mlp()
    features = []
    model[0].register_forward_hook(lambda module, inputs, output: features.append(output))

    def loss(x, y):
        return F.cross_entropy(model(x), y) + 0.1 * features.pop().square().mean()

    return fit(model, batches(), loss)


def adversarial():
    """The gradient of the inputs is asked for (FGSM)."""
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for x, y in batches():
        x.requires_grad_()
        F.cross_entropy(model(x), y).backward()
        optimizer.zero_grad()
        loss = F.cross_entropy(model((x + 0.1 * x.grad.sign()).detach()), y)
        loss.backward()
        optimizer.step()
        yield loss.item()


def group_norm_and_weight_norm():
    model = nn.Sequential(
        nn.utils.parametrizations.weight_norm(nn.Linear(12, 16)), nn.GroupNorm(4, 16),
        nn.GELU(), nn.utils.parametrizations.spectral_norm(nn.Linear(16, 3)),
    )  # fmt: skip
    return classified(model)


class Modulated(nn.Module):
    """Takes a weight that another model has computed: as an argument, or before the call."""

    def __init__(self):
        super().__init__()
        self.line = nn.Linear(12, 3)
        self.weight = None

    def forward(self, x, weight=None):
        return self.line(x * (self.weight if weight is None else weight))


def hypernetwork(before=False):
    hyper, model = mlp(12, 12), Modulated()
    optimizer = torch.optim.SGD([*hyper.parameters(), *model.parameters()], lr=0.1)
    noise = torch.randn(4, 12)

    def loss(x, y):
        weight = hyper(noise).mean(0)
        if before:
            model.weight = weight
            return F.cross_entropy(model(x), y)
        return F.cross_entropy(model(x, weight), y)

    return fit(model, batches(), loss, optimizer)


def hypernetwork_before():
    return hypernetwork(before=True)


class Embedded(torch.utils.data.Dataset):
    """Its loader workers call a model of their own."""

    def __init__(self, encoder):
        self.encoder, (self.x, self.y) = encoder, data(32)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, number):
        with torch.no_grad():
            return self.encoder(self.x[number]), self.y[number]


def model_in_the_workers():
    encoder, model = mlp(12, 12), mlp()
    encoder(torch.randn(8, 12))  # known as a model of the program already
    return classified(model, DataLoader(Embedded(encoder), batch_size=8, num_workers=1), epochs=1)


def autocast():
    model = mlp()

    def loss(x, y):
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(x)
        return F.cross_entropy(logits.float(), y)

    return fit(model, batches(), loss)


CASES = [
    uneven_last_batch, fewer_rows_than_ranks, batch_norm, batch_norm_images, loss_in_model,
    loss_in_model_own_pad, loss_in_model_late_padding, loss_in_model_sum, masked_mean,
    sequence_first, transformer_sequence_first, weight_used_outside, unused_by_chance,
    checkpointed, reentrant_checkpoint, wgan_gp, second_order, first_order,
    views_and_calls_twice, unfreeze, optimizer_before_double, ragged_accumulation, unseeded,
    set_vocabulary, data_parallel, saved_and_copied, keeps_a_tensor, own_buffer, keeps_a_list,
    table_of_positions, hooked, adversarial, hypernetwork, hypernetwork_before,
    group_norm_and_weight_norm, autocast, model_in_the_workers,
]  # fmt: skip


def main() -> None:
    chosen = sys.argv[1:]
    torch.set_num_threads(1)
    for case in CASES:
        if not chosen or case.__name__ in chosen:
            if case is not unseeded:
                torch.manual_seed(0)
                random.seed(0)
            print("CASE", case.__name__, *map(repr, case()), flush=True)


if __name__ == "__main__":
    main()
