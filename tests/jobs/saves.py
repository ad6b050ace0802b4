"""Writes a log file, the best model, and checkpoints of which it keeps the newest two."""

import argparse
from pathlib import Path

import torch
from torch import nn


def save(path, model, optimizer, step):
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
    torch.save(state, path)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-seed", action="store_true")
    parser.add_argument("--out", default="out", help="folder for all files")
    parser.add_argument("--save-every", type=int, default=20)
    args = parser.parse_args()
    if not args.no_seed:
        torch.manual_seed(args.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)

    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 1)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    best = float("inf")
    with open(out / "log.txt", "w") as log:
        for step in range(1, args.steps + 1):
            inputs = torch.randn(256, 64).to(device)
            targets = inputs.square().mean(dim=1, keepdim=True)
            loss = nn.functional.mse_loss(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print("step", step, "loss", repr(loss.item()))
            log.write(f"{step} {loss.item():.6f}\n")
            if step % args.save_every == 0:
                save(out / f"checkpoint-{step:05d}.pt", model, optimizer, step)
                for old in sorted(out.glob("checkpoint-*.pt"))[:-2]:
                    old.unlink()
                if loss.item() < best:
                    best = loss.item()
                    torch.save(model.state_dict(), out / "best.pt")
    newest = sorted(out.glob("checkpoint-*.pt"))
    print("kept", " ".join(path.name for path in newest))


if __name__ == "__main__":
    main()
