# Word-level GPT, exported from a notebook.

# In[1]:
import glob
import math
import os
import re
import tempfile
from collections import Counter

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(77)
VOCAB, SPAN, BATCH, DIM, LAYERS, HEADS = 2000, 64, 10, 128, 3, 4
EPOCHS, STEPS_PER_EPOCH = 4, 65

# In[2]:
words = []
for path in sorted(glob.glob(os.path.join(os.path.dirname(os.__file__), "*.py")))[:100]:
    with open(path, encoding="utf-8", errors="ignore") as f:
        words += re.findall(r"\w+|[^\w ]", f.read())
itos = ["<unk>"] + [w for w, _ in Counter(words).most_common(VOCAB - 1)]
stoi = {w: i for i, w in enumerate(itos)}
data = torch.tensor([stoi.get(w, 0) for w in words])
cut = int(0.95 * len(data))
train_data, valid_data = data[:cut], data[cut:]
len(data)


# In[3]:
def get_batch(source, gen):
    start = torch.randint(0, len(source) - SPAN - 1, (BATCH, 1), generator=gen)
    rows = source[start + torch.arange(SPAN + 1)]
    return rows[:, :-1], rows[:, 1:]


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(DIM, 3 * DIM)
        self.out = nn.Linear(DIM, DIM)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = (z.view(b, t, HEADS, -1).transpose(1, 2) for z in self.qkv(x).chunk(3, dim=-1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(b, t, DIM))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.attn = Attention()
        self.mlp = nn.Sequential(nn.Linear(DIM, 4 * DIM), nn.GELU(), nn.Linear(4 * DIM, DIM), nn.Dropout(0.1))

    def forward(self, x):
        x = x + self.attn(self.n1(x))
        return x + self.mlp(self.n2(x))


class LanguageModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, DIM)
        self.pos = nn.Parameter(torch.zeros(SPAN, DIM))
        self.layers = nn.Sequential(*[Layer() for _ in range(LAYERS)])
        self.norm = nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, VOCAB, bias=False)
        self.head.weight = self.tok.weight
        nn.init.normal_(self.tok.weight, std=0.02)

    def forward(self, ids, targets=None):
        h = self.norm(self.layers(self.tok(ids) + self.pos[:ids.size(1)]))
        logits = self.head(h)
        if targets is None:
            return logits
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


# In[4]:
model = LanguageModel()
decay = [p for p in model.parameters() if p.dim() > 1]
rest = [p for p in model.parameters() if p.dim() <= 1]
opt = torch.optim.AdamW([{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}], lr=1e-3)
total = EPOCHS * STEPS_PER_EPOCH
sched = torch.optim.lr_scheduler.LambdaLR(
    opt, lambda s: min((s + 1) / 20, 0.5 * (1 + math.cos(math.pi * s / total))))
folder = tempfile.mkdtemp(prefix="wordgpt_")
train_gen = torch.Generator().manual_seed(1)


@torch.no_grad()
def perplexity(n=8):
    model.eval()
    gen = torch.Generator().manual_seed(2)
    loss = sum(model(*get_batch(valid_data, gen)).item() for _ in range(n)) / n
    model.train()
    return math.exp(loss)


@torch.no_grad()
def continue_text(prompt, n=20):
    model.eval()
    ids = torch.tensor([[stoi.get(w, 0) for w in prompt.split()]])
    for _ in range(n):
        probs = F.softmax(model(ids[:, -SPAN:])[:, -1], dim=-1)
        ids = torch.cat([ids, torch.multinomial(probs, 1)], dim=1)
    model.train()
    return " ".join(itos[i] for i in ids[0].tolist())


# In[5]:
for epoch in range(EPOCHS):
    for i in range(STEPS_PER_EPOCH):
        x, y = get_batch(train_data, train_gen)
        loss = model(x, y)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        if i % 20 == 0:
            print(f"epoch {epoch} step {i:2d} loss {loss.item():.3f} grad norm {norm.item():.2f}")
    print(f"epoch {epoch} validation perplexity {perplexity():.1f}")
    torch.save({"model": model.state_dict(), "opt": opt.state_dict(), "epoch": epoch},
               os.path.join(folder, "last.pt"))

# In[6]:
print(continue_text("def run ( self"))
