import torch
import torch.nn as nn
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset, random_split


class Classifier(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.stem = nn.Conv2d(1, width, 3, padding=1)
        self.layers = nn.ModuleList()
        for _ in range(3):
            self.layers.append(
                nn.Sequential(
                    nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()
                )
            )
        self.fc = nn.Linear(width, 10)

    def features(self, x):
        x = self.stem(x)
        for layer in self.layers:
            x = x + layer(x)
        return x.mean(dim=(2, 3))

    def forward(self, x):
        return self.fc(self.features(x))


class Trainer:
    def __init__(self, model, train_set, val_set, epochs=6):
        self.model = model
        self.epochs = epochs
        self.train_loader = DataLoader(train_set, batch_size=128, shuffle=True)
        self.val_loader = DataLoader(val_set, batch_size=256)
        self.optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
        self.criterion = nn.CrossEntropyLoss()

    def training_step(self, batch):
        x, y = batch
        logits = self.model(x)
        features = self.model.features(torch.cat([x, x.flip(-1)]))
        self.optimizer.zero_grad()
        loss = self.criterion(logits, y)
        loss.backward()
        self.optimizer.step()
        return {"loss": loss.item(), "n": len(y)}

    @torch.no_grad()
    def validate(self):
        self.model.eval()
        hits = sum((self.model(x).argmax(1) == y).sum().item() for x, y in self.val_loader)
        self.model.train()
        return hits / len(self.val_loader.dataset)

    def fit(self):
        for epoch in range(self.epochs):
            outs = [self.training_step(b) for b in self.train_loader]
            mean = sum(o["loss"] * o["n"] for o in outs) / sum(o["n"] for o in outs)
            print(f"epoch {epoch:02d} train {mean:.4f} val {self.validate():.3f}")


if __name__ == "__main__":
    torch.manual_seed(0)
    digits = load_digits()
    ds = TensorDataset(
        torch.tensor(digits.images).float().unsqueeze(1) / 16, torch.tensor(digits.target)
    )
    train_set, val_set = random_split(ds, [1600, 197])
    Trainer(Classifier(), train_set, val_set).fit()
