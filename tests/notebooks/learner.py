# A learner with callbacks, as courses build one.

# %%
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(1)


class Callback:
    def before_fit(self, learner): ...
    def before_batch(self, learner): ...
    def after_batch(self, learner): ...
    def after_epoch(self, learner): ...


# %%
class Learner:
    def __init__(self, loaders, model, loss_function, callbacks=()):
        self.loaders, self.model, self.loss_function = loaders, model, loss_function
        self.callbacks = [*callbacks]

    def tell(self, name):
        for callback in self.callbacks:
            getattr(callback, name)(self)

    def fit_one_cycle(self, epochs, most):
        train, valid = self.loaders
        self.optimizer = torch.optim.Adam(self.model.parameters(), most)
        self.scheduler = torch.optim.lr_scheduler.OneCycleLR(
            self.optimizer, most, total_steps=epochs * len(train)
        )
        self.tell("before_fit")
        for self.epoch in range(epochs):
            self.model.train()
            for self.batch in train:
                self.tell("before_batch")
                self.loss = self.loss_function(self.model(self.batch[0]), self.batch[1])
                self.loss.backward()
                self.optimizer.step()
                self.optimizer.zero_grad()
                self.scheduler.step()
                self.tell("after_batch")
            self.model.eval()
            with torch.no_grad():
                losses = [self.loss_function(self.model(x), y).item() for x, y in valid]
            self.valid_loss = sum(losses) / len(losses)
            self.tell("after_epoch")


# %%
class Recorder(Callback):
    def before_fit(self, learner):
        self.losses = []

    def after_batch(self, learner):
        self.losses.append(learner.loss.item())

    def after_epoch(self, learner):
        print(learner.epoch, self.losses[-1], learner.valid_loss)


class Mixup(Callback):
    def before_batch(self, learner):
        x, y = learner.batch
        share = torch.distributions.Beta(0.4, 0.4).sample()
        learner.batch = share * x + (1 - share) * x.flip(0), share * y + (1 - share) * y.flip(0)


images = torch.randn(384, 1, 8, 8)
targets = F.one_hot((images.mean((1, 2, 3)) > 0).long(), 2).float()
data = TensorDataset(images[:256], targets[:256]), TensorDataset(images[256:], targets[256:])
loaders = DataLoader(data[0], 32, shuffle=True), DataLoader(data[1], 64)
model = nn.Sequential(
    nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(512, 2)
)

# %%
learner = Learner(loaders, model, F.cross_entropy, [Recorder(), Mixup()])
learner.fit_one_cycle(3, 1e-2)

# %%
learner.fit_one_cycle(1, 1e-3)
print(len(learner.callbacks[0].losses))
