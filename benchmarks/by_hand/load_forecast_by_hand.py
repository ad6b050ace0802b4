import argparse
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader


class LoadWindows:
    """Normalised once; every window is a row of a strided view, a batch is one gather."""

    def __init__(self, values, mean, std, seq_len, horizon):
        z = torch.from_numpy((values - mean) / (std + 1e-8)).float()
        n = len(z) - seq_len - horizon + 1
        self.x = z.unfold(0, seq_len, 1)[:n].transpose(1, 2)              # n, seq_len, features
        self.y = z[seq_len:, 0].unfold(0, horizon, 1)                     # n, horizon

    def __len__(self):
        return len(self.x)


def generate_series(n_hours, seed=0):
    rng = np.random.RandomState(seed)
    t = np.arange(n_hours)
    temp = 12 + 9 * np.sin(2 * np.pi * t / 8760 - 1.8) + 4 * np.sin(2 * np.pi * t / 24 - 2.2)
    temp = temp + np.convolve(rng.randn(n_hours), np.ones(24) / 5, mode="same")
    workday = ((t // 24) % 7 < 5).astype(np.float64)
    load = 900 + 130 * np.sin(2 * np.pi * t / 24 - 1.1) * (0.5 + workday) + 60 * np.sin(4 * np.pi * t / 24)
    load = load + 1.4 * (temp - 17) ** 2 + 120 * workday + rng.randn(n_hours) * 18
    wind = np.abs(np.convolve(rng.randn(n_hours), np.ones(12) / 3, mode="same")) * 5
    sun = np.clip(np.sin(2 * np.pi * t / 24 - 1.6), 0, None) * 600 * rng.uniform(0.4, 1, n_hours)
    price = 40 + 0.03 * load - 1.5 * wind - 0.02 * sun + rng.randn(n_hours) * 4
    hour_s, hour_c = np.sin(2 * np.pi * t / 24), np.cos(2 * np.pi * t / 24)
    return np.stack([load, temp, workday, wind, sun, price, hour_s, hour_c], axis=1)


class LSTMForecaster(nn.Module):
    def __init__(self, n_features, hidden_size, num_layers, horizon, dropout):
        super(LSTMForecaster, self).__init__()
        self.hidden_size = hidden_size
        self.num_layers = num_layers
        self.lstm = nn.LSTM(n_features, hidden_size, num_layers, batch_first=True, dropout=dropout)
        self.fc = nn.Sequential(nn.Linear(hidden_size, hidden_size), nn.ReLU(), nn.Linear(hidden_size, horizon))

    def forward(self, x):
        out, _ = self.lstm(x)
        return self.fc(out[:, -1, :])


class ForecastTrainer:
    def __init__(self, args):
        self.args = args
        self.build_data()
        self.model = LSTMForecaster(8, args.hidden, args.layers, args.horizon, args.dropout)
        self.params = list(self.model.parameters())
        self.optimizer = torch.optim.Adam(self.params, lr=args.lr, fused=True)
        self.scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(self.optimizer, factor=0.5, patience=1)
        self.global_step = 0

    def build_data(self):
        args = self.args
        values = generate_series(args.hours, args.seed)
        n_train = int(0.8 * len(values))
        mean = values[:n_train].mean(axis=0)
        std = values[:n_train].std(axis=0)
        g = torch.Generator()
        g.manual_seed(args.seed)
        self.train_set = LoadWindows(values[:n_train], mean, std, args.seq_len, args.horizon)
        self.val_set = LoadWindows(values[n_train:], mean, std, args.seq_len, args.horizon)
        self.train_loader = DataLoader(range(len(self.train_set)), batch_size=args.batch_size, shuffle=True,
                                       generator=g, collate_fn=torch.tensor)

    def predict(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            return self.model(x).float()

    def train_epoch(self, epoch):
        self.model.train()
        total = torch.zeros(())
        n = 0
        for idx in self.train_loader:
            loss = F.mse_loss(self.predict(self.train_set.x[idx]), self.train_set.y[idx])
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(self.params, max_norm=1.0, foreach=True)
            self.optimizer.step()
            total += loss.detach()
            n += 1
            self.global_step += 1
            if self.global_step % 10 == 0:
                print("epoch {} step {} train loss {:.7f}".format(epoch, self.global_step, loss.item()), flush=True)
            if self.global_step >= self.args.steps:
                break
        return total.item() / n

    @torch.inference_mode()
    def validate(self):
        self.model.eval()
        torch.empty((), dtype=torch.int64).random_()     # keep the global random stream in step
        v, bs = self.val_set, self.args.batch_size
        err = torch.cat([self.predict(x) for x in v.x.split(4 * bs)]) - v.y
        # mean over batches of the batch means, as the metric is defined
        return (np.mean([e.square().mean().item() for e in err.split(bs)]),
                np.mean([e.abs().mean().item() for e in err.split(bs)]))

    def run(self):
        best = float("inf")
        for epoch in range(self.args.epochs):
            train_loss = self.train_epoch(epoch)
            val_loss, val_mae = self.validate()
            self.scheduler.step(val_loss)
            print("epoch {} | train {:.7f} | val {:.7f} | val mae {:.7f}".format(
                epoch, train_loss, val_loss, val_mae), flush=True)
            if val_loss < best:
                best = val_loss
                torch.save(self.model.state_dict(), self.args.checkpoint)
            if self.global_step >= self.args.steps:
                break
        print("best val loss {:.7f}".format(best))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="hourly load forecasting")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--steps", type=int, default=1000000)
    parser.add_argument("--batch_size", type=int, default=64)
    parser.add_argument("--seq_len", type=int, default=96)
    parser.add_argument("--horizon", type=int, default=24)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--dropout", type=float, default=0.2)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--hours", type=int, default=12000)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--checkpoint", type=str, default="load_forecast_by_hand.pth")
    args = parser.parse_args()
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)      # 64-wide cells: a second thread costs more than it brings
    ForecastTrainer(args).run()
