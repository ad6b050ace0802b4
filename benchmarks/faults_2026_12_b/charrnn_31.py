import glob
import os

import torch
import torch.nn as nn
import torch.nn.functional as F


def read_text(limit=1_500_000):
    parts, size = [], 0
    for path in sorted(glob.glob(os.path.join(os.path.dirname(os.__file__), "*.py"))):
        with open(path, encoding="ascii", errors="ignore") as f:
            parts.append(f.read())
        size += len(parts[-1])
        if size > limit:
            break
    return "".join(parts)[:limit]


def char_kind(c):
    if c.isalpha():
        return 1 if c.isupper() else 0
    if c.isdigit():
        return 2
    if c in " \t":
        return 3
    if c == "\n":
        return 4
    return 5


def stream(ids, batch, span):
    """Contiguous streams, so that the hidden state can be carried over."""
    per = len(ids) // batch
    grid = ids[:per * batch].view(batch, per)
    while True:
        for a in range(0, per - span - 1, span):
            yield grid[:, a:a + span], grid[:, a + 1:a + span + 1], a == 0


class CharModel(nn.Module):
    def __init__(self, n_chars, n_kinds, emb=48, hidden=160):
        super().__init__()
        self.emb = nn.Embedding(n_chars, emb)
        self.rnn = nn.GRU(emb, hidden, num_layers=2, batch_first=True, dropout=0.1)
        self.next_char = nn.Linear(hidden, n_chars)
        self.next_kind = nn.Linear(hidden, n_kinds)

    def forward(self, x, state):
        h, state = self.rnn(self.emb(x), state)
        return self.next_char(h), self.next_kind(h), state


@torch.no_grad()
def sample(model, chars, lookup, prompt, n):
    model.eval()
    x = torch.tensor([[lookup[c] for c in prompt]])
    state, out = None, []
    for _ in range(n):
        logits, _, state = model(x, state)
        x = torch.multinomial(F.softmax(logits[:, -1] / 0.8, -1), 1)
        out.append(chars[x.item()])
    model.train()
    return prompt + "".join(out)


def main():
    torch.manual_seed(31)
    batch, span, steps = 24, 64, 260
    kind_weight = 0.3
    text = read_text()
    chars = sorted(set(text))
    lookup = {c: i for i, c in enumerate(chars)}
    ids = torch.tensor([lookup[c] for c in text])
    kinds = torch.tensor([char_kind(c) for c in chars])

    model = CharModel(len(chars), 6)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1.5e-3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 100, gamma=0.6)
    print(len(text), "characters,", len(chars), "distinct")

    state = None
    for step, (x, y, fresh) in enumerate(stream(ids, batch, span), 1):
        state = None if fresh or state is None else state.detach()
        char_logits, kind_logits, state = model(x, state)
        char_loss = F.cross_entropy(char_logits.flatten(0, 1), y.flatten())
        kind_loss = F.cross_entropy(kind_logits.flatten(0, 1), kinds[y].flatten())

        optimizer.zero_grad()
        char_loss.backward(retain_graph=True)
        (kind_weight * kind_loss).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()

        if step % 20 == 0:
            print(f"{step:4d}  char {char_loss.item():.3f}  kind {kind_loss.item():.3f}")
        if step == steps:
            break
    print(sample(model, chars, lookup, "def ", 120))


if __name__ == "__main__":
    main()
