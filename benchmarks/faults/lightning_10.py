import lightning as L
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


class LitAutoEncoder(L.LightningModule):
    def __init__(self, hidden=1280, code=16):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Linear(64, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, code),
        )
        self.decoder = nn.Sequential(
            nn.Linear(code, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, 64),
        )

    def training_step(self, batch, batch_idx):
        (x,) = batch
        loss = F.mse_loss(self.decoder(self.encoder(x)), x)
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        (x,) = batch
        self.log("val_loss", F.mse_loss(self.decoder(self.encoder(x)), x))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


if __name__ == "__main__":
    L.seed_everything(7)
    x = torch.tensor(load_digits().data, dtype=torch.float32) / 16
    train, val = TensorDataset(x[:1536]), TensorDataset(x[1536:])
    model = LitAutoEncoder()
    trainer = L.Trainer(
        max_epochs=12,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        check_val_every_n_epoch=4,
    )
    trainer.fit(
        model, DataLoader(train, batch_size=192, shuffle=True), DataLoader(val, batch_size=261)
    )
    print(trainer.callback_metrics)
