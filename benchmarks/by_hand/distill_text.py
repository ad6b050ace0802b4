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
from torch.utils.data import Dataset, DataLoader

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


class TextDataset(Dataset):
    def __init__(self, texts, labels):
        self.texts = texts
        self.labels = labels

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, i):
        return torch.tensor(self.texts[i]), torch.tensor(self.labels[i])


def collate_fn(batch):
    tokens, labels = zip(*batch)
    return pad_sequence(tokens, batch_first=True, padding_value=PAD), torch.stack(labels)


class Teacher(nn.Module):
    def __init__(self, vocab_size, n_classes, d_model=128, nhead=4, layers=2, dropout=0.1):
        super().__init__()
        self.embed = nn.Embedding(vocab_size, d_model, padding_idx=PAD)
        self.pos = nn.Embedding(64, d_model)
        layer = nn.TransformerEncoderLayer(d_model, nhead, 4 * d_model, dropout, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers)
        self.fc = nn.Linear(d_model, n_classes)

    def forward(self, x):
        mask = x == PAD
        h = self.embed(x) + self.pos(torch.arange(x.size(1), device=x.device))
        h = self.encoder(h, src_key_padding_mask=mask)
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


def distillation_loss(student_logits, teacher_logits, labels, T, alpha):
    soft = F.kl_div(F.log_softmax(student_logits / T, dim=1),
                    F.softmax(teacher_logits / T, dim=1), reduction="batchmean") * (T * T)
    hard = F.cross_entropy(student_logits, labels)
    return alpha * soft + (1 - alpha) * hard


def evaluate(model, loader, device):
    model.eval()
    correct, total = 0, 0
    with torch.no_grad():
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            pred = model(x).argmax(dim=1)
            correct += (pred == y).sum().item()
            total += y.size(0)
    return correct / total


def train_teacher(model, train_loader, test_loader, device, args):
    optimizer = torch.optim.Adam(model.parameters(), lr=args.teacher_lr)
    step = 0
    for epoch in range(args.teacher_epochs):
        model.train()
        total_loss = 0.0
        for x, y in train_loader:
            x, y = x.to(device), y.to(device)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            total_loss += loss.item()
            step += 1
            if step % 10 == 0:
                print("[teacher] epoch %d step %d loss %.6f" % (epoch, step, loss.item()), flush=True)
            if args.steps and step >= args.steps:
                break
        print("[teacher] epoch %d avg loss %.6f acc %.4f" % (
            epoch, total_loss / len(train_loader), evaluate(model, test_loader, device)), flush=True)
        if args.steps and step >= args.steps:
            break


def train_student(student, teacher, train_loader, test_loader, device, args):
    optimizer = torch.optim.Adam(student.parameters(), lr=args.student_lr)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.9)
    teacher.eval()
    step = 0
    for epoch in range(args.student_epochs):
        student.train()
        total_loss = 0.0
        for x, y in train_loader:
            x, y = x.to(device), y.to(device)
            with torch.no_grad():
                teacher_logits = teacher(x)
            student_logits = student(x)
            loss = distillation_loss(student_logits, teacher_logits, y, args.temperature, args.alpha)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total_loss += loss.item()
            step += 1
            if step % 10 == 0:
                print("[student] epoch %d step %d loss %.6f" % (epoch, step, loss.item()), flush=True)
            if args.steps and step >= args.steps:
                break
        scheduler.step()
        print("[student] epoch %d avg loss %.6f acc %.4f" % (
            epoch, total_loss / len(train_loader), evaluate(student, test_loader, device)), flush=True)
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
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    vocab_size, n_classes = 3000, 8
    texts, labels = build_corpus(9000, vocab_size, n_classes, args.seed)
    train_set = TextDataset(texts[:8000], labels[:8000])
    test_set = TextDataset(texts[8000:], labels[8000:])
    generator = torch.Generator().manual_seed(args.seed)
    train_loader = DataLoader(train_set, batch_size=args.batch_size, shuffle=True,
                              collate_fn=collate_fn, generator=generator)
    test_loader = DataLoader(test_set, batch_size=args.batch_size, collate_fn=collate_fn)

    teacher = Teacher(vocab_size, n_classes).to(device)
    student = Student(vocab_size, n_classes).to(device)
    train_teacher(teacher, train_loader, test_loader, device, args)
    train_student(student, teacher, train_loader, test_loader, device, args)
    torch.save({"teacher": teacher.state_dict(), "student": student.state_dict()}, "distill_text.pt")


if __name__ == "__main__":
    main()
