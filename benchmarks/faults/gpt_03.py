import os
import tempfile
from pathlib import Path

import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel


def tokens(limit=300_000):
    raw = b""
    for f in sorted(Path(os.__file__).parent.glob("[a-m]*.py")):
        raw += f.read_bytes()
    return torch.tensor(list(raw[:limit]))


class Checkpointer:
    def __init__(self, folder):
        self.path = Path(folder) / "last.pt"

    def save(self, model, optimizer, step):
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        tmp = self.path.with_suffix(".tmp")
        torch.save(state, tmp)
        tmp.replace(self.path)


def build():
    config = GPT2Config(
        vocab_size=256,
        n_positions=64,
        n_embd=192,
        n_layer=4,
        n_head=4,
        bos_token_id=0,
        eos_token_id=0,
    )
    return GPT2LMHeadModel(config)


def main():
    torch.manual_seed(0)
    data = tokens()
    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.1)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, total_iters=10)
    with tempfile.TemporaryDirectory() as folder:
        ckpt = Checkpointer(folder)
        for step in range(45):
            at = torch.randint(0, len(data) - 64, (4, 1))
            ids = data[at + torch.arange(64)]
            loss = model(input_ids=ids, labels=ids).loss
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            ckpt.save(model, optimizer, step)
            if step % 13 == 0:
                print("step", step, "loss", round(loss.item(), 3))


if __name__ == "__main__":
    main()
