"""
Knowledge distillation for text classification:
  1. train a Transformer teacher
  2. distil it into a TextCNN student  (loss = alpha * KL(T) + (1 - alpha) * CE)
"""
import argparse
import random

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

PAD = 0


def build_corpus(n, vocab_size, n_classes, seed):
    rng = np.random.RandomState(seed)
    background = rng.dirichlet(np.full(vocab_size - 1, 0.3))
    topics = [0.65 * background + 0.35 * rng.dirichlet(np.full(vocab_size - 1, 0.05)) for _ in range(n_classes)]
    texts, labels = [], []
    for _ in range(n):
        c = rng.randint(n_classes)
        length = rng.randint(12, 57)
        texts.append((rng.choice(vocab_size - 1, size=length, p=topics[c]) + 1).tolist())
        labels.append(int(c))
    return texts, labels


class Texts:
    """All texts padded into one array; a batch is a gather cut to its longest text."""

    def __init__(self, texts, labels):
        self.len = torch.tensor([len(t) for t in texts])
        self.x = pad_sequence([torch.tensor(t) for t in texts], batch_first=True, padding_value=PAD)
        self.y = torch.tensor(labels)

    def batch(self, idx):
        return self.x[idx, :int(self.len[idx].max())], self.y[idx]

    def by_length(self, size):
        return self.len.argsort().split(size)


BITS = np.random.SFC64(123)


def dropout(x, p, training):
    """16 random bits an element from a fast generator (torch's CPU bernoulli_ is slow)."""
    if not training:
        return x
    n, k = x.numel(), round(p * 65536)
    r = torch.from_numpy(BITS.random_raw((n + 3) // 4).view(np.int16))[:n]
    return x * (r >= k - 32768).view(x.shape).to(x.dtype).mul_(65536 / (65536 - k))


class Teacher(nn.Module):
    def __init__(self, vocab_size, n_classes, d_model=128, nhead=4, layers=2, dropout=0.1):
        super().__init__()
        self.embed = nn.Embedding(vocab_size, d_model, padding_idx=PAD)
        self.pos = nn.Embedding(64, d_model)
        layer = nn.TransformerEncoderLayer(d_model, nhead, 4 * d_model, dropout, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers)
        self.fc = nn.Linear(d_model, n_classes)

    def layer(self, m, h, bias, p):
        B, L, C = h.shape
        a = m.self_attn
        q, k, v = F.linear(h, a.in_proj_weight, a.in_proj_bias).view(B, L, 3, a.num_heads, -1).permute(2, 0, 3, 1, 4)
        w = q.mul(a.head_dim ** -0.5) @ k.transpose(-2, -1)
        w = torch.softmax(w + bias, dim=-1, dtype=torch.bfloat16 if w.dtype == torch.bfloat16 else None)
        o = dropout(w, p, self.training) @ v
        o = a.out_proj(o.transpose(1, 2).reshape(B, L, C))
        h = m.norm1(h + dropout(o, p, self.training))
        f = m.linear2(dropout(F.relu(m.linear1(h)), p, self.training))
        return m.norm2(h + dropout(f, p, self.training))

    def forward(self, x):
        mask = x == PAD
        h = self.embed(x) + self.pos.weight[:x.size(1)]
        bias = torch.zeros(x.size(0), 1, 1, x.size(1), dtype=torch.bfloat16).masked_fill_(
            mask[:, None, None, :], float("-inf"))
        for m in self.encoder.layers:
            h = self.layer(m, h, bias, m.dropout.p)
        keep = (~mask).unsqueeze(-1).float()
        h = (h * keep).sum(1) / keep.sum(1)
        return self.fc(h)


class Student(nn.Module):
    def __init__(self, vocab_size, n_classes, dim=64, channels=64, kernels=(3, 4, 5)):
        super().__init__()
        self.embed = nn.Embedding(vocab_size, dim, padding_idx=PAD)
        self.convs = nn.ModuleList([nn.Conv1d(dim, channels, k, padding=k // 2) for k in kernels])
        self.fc = nn.Linear(channels * len(kernels), n_classes)

    def forward(self, x):
        h = self.embed(x).transpose(1, 2)
        h = [F.relu(conv(h)).max(dim=2)[0] for conv in self.convs]
        return self.fc(torch.cat(h, dim=1))


def autocast():
    return torch.autocast("cpu", torch.bfloat16)


def distillation_loss(student_logits, teacher_probs, labels, T, alpha):
    soft = F.kl_div(F.log_softmax(student_logits / T, dim=1), teacher_probs, reduction="batchmean") * (T * T)
    hard = F.cross_entropy(student_logits, labels)
    return alpha * soft + (1 - alpha) * hard


@torch.inference_mode()
def logits_of(model, data):
    model.eval()
    out = torch.empty(len(data.y), model.fc.out_features)
    with autocast():
        for idx in data.by_length(128):
            out[idx] = model(data.batch(idx)[0]).float()
    return out


def evaluate(model, data):
    torch.empty((), dtype=torch.int64).random_()
    return (logits_of(model, data).argmax(1) == data.y).float().mean().item()


def train_teacher(model, order, train_set, test_set, args):
    params = list(model.parameters())
    optimizer = torch.optim.Adam(params, lr=args.teacher_lr, fused=True)
    step = 0
    for epoch in range(args.teacher_epochs):
        model.train()
        total_loss = torch.zeros(())
        for idx in order:
            x, y = train_set.batch(idx)
            with autocast():
                logits = model(x)
            loss = F.cross_entropy(logits.float(), y)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(params, 1.0, foreach=True)
            optimizer.step()
            total_loss += loss.detach()
            step += 1
            if step % 10 == 0:
                print("[teacher] epoch %d step %d loss %.6f" % (epoch, step, loss.item()), flush=True)
            if args.steps and step >= args.steps:
                break
        print("[teacher] epoch %d avg loss %.6f acc %.4f" % (
            epoch, total_loss.item() / len(order), evaluate(model, test_set)), flush=True)
        if args.steps and step >= args.steps:
            break


def train_student(student, teacher, order, train_set, test_set, args):
    optimizer = torch.optim.Adam(student.parameters(), lr=args.student_lr, fused=True)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.9)
    # the teacher is frozen and the texts are fixed: its soft targets are computed once
    targets = F.softmax(logits_of(teacher, train_set) / args.temperature, dim=1)
    step = 0
    for epoch in range(args.student_epochs):
        student.train()
        total_loss = torch.zeros(())
        for idx in order:
            x, y = train_set.batch(idx)
            with autocast():
                logits = student(x)
            loss = distillation_loss(logits.float(), targets[idx], y, args.temperature, args.alpha)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            total_loss += loss.detach()
            step += 1
            if step % 10 == 0:
                print("[student] epoch %d step %d loss %.6f" % (epoch, step, loss.item()), flush=True)
            if args.steps and step >= args.steps:
                break
        scheduler.step()
        print("[student] epoch %d avg loss %.6f acc %.4f" % (
            epoch, total_loss.item() / len(order), evaluate(student, test_set)), flush=True)
        if args.steps and step >= args.steps:
            break


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--teacher_epochs", type=int, default=3)
    p.add_argument("--student_epochs", type=int, default=12)
    p.add_argument("--steps", type=int, default=0, help="cap on the steps of each phase (0 = none)")
    p.add_argument("--batch_size", type=int, default=32)
    p.add_argument("--teacher_lr", type=float, default=5e-4)
    p.add_argument("--student_lr", type=float, default=1e-3)
    p.add_argument("--temperature", type=float, default=3.0)
    p.add_argument("--alpha", type=float, default=0.7)
    p.add_argument("--seed", type=int, default=123)
    args = p.parse_args()

    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)

    vocab_size, n_classes = 3000, 8
    texts, labels = build_corpus(9000, vocab_size, n_classes, args.seed)
    train_set, test_set = Texts(texts[:8000], labels[:8000]), Texts(texts[8000:], labels[8000:])
    generator = torch.Generator().manual_seed(args.seed)
    order = DataLoader(range(8000), batch_size=args.batch_size, shuffle=True, collate_fn=torch.tensor,
                       generator=generator)

    teacher = Teacher(vocab_size, n_classes)
    student = Student(vocab_size, n_classes)
    train_teacher(teacher, order, train_set, test_set, args)
    train_student(student, teacher, order, train_set, test_set, args)
    torch.save({"teacher": teacher.state_dict(), "student": student.state_dict()}, "distill_text_by_hand.pt")


if __name__ == "__main__":
    main()
