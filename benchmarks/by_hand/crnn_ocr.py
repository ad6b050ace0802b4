"""
CRNN for text line recognition, trained with CTC on rendered lines.

    python crnn_ocr.py --steps 300
"""
import argparse
import random
import string

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

ALPHABET = string.digits + string.ascii_lowercase
BLANK = 0
CHAR2IDX = {ch: i + 1 for i, ch in enumerate(ALPHABET)}
IDX2CHAR = {i: ch for ch, i in CHAR2IDX.items()}


class Config:
    img_height = 32
    num_train = 3200
    num_val = 64
    min_len = 3
    max_len = 10
    batch_size = 32
    hidden_size = 128
    lr = 1e-3
    max_norm = 5.0
    log_every = 10
    val_every = 100
    seed = 42


class TextLineDataset(Dataset):
    """Each sample is a word, drawn with a random size, place, angle, contrast and noise."""

    def __init__(self, size, config, seed):
        rng = random.Random(seed)
        self.config = config
        self.texts = []
        for _ in range(size):
            length = rng.randint(config.min_len, config.max_len)
            self.texts.append("".join(rng.choice(ALPHABET) for _ in range(length)))

    def __len__(self):
        return len(self.texts)

    def render(self, text):
        font = ImageFont.load_default(size=random.randint(18, 24))
        left, top, right, bottom = font.getbbox(text)
        width, height = int(right - left) + 16, int(bottom - top) + 12
        image = Image.new("L", (width, height), color=255)
        draw = ImageDraw.Draw(image)
        x, y = random.randint(2, 14), random.randint(2, 10)
        draw.text((x - left, y - top), text, font=font, fill=random.randint(0, 110))
        image = image.rotate(random.uniform(-3, 3), resample=Image.BILINEAR, fillcolor=255)
        new_width = max(int(width * self.config.img_height / height), 24)
        return image.resize((new_width, self.config.img_height), Image.BILINEAR)

    def __getitem__(self, index):
        text = self.texts[index]
        image = np.asarray(self.render(text), dtype=np.float32)
        image = image + np.random.normal(0, 12, size=image.shape)
        image = np.clip(image, 0, 255)
        image = (image / 255.0 - 0.5) / 0.5
        image = torch.tensor(image, dtype=torch.float32).unsqueeze(0)
        target = torch.tensor([CHAR2IDX[ch] for ch in text], dtype=torch.long)
        return image, target


def collate_fn(batch):
    images, targets = zip(*batch)
    widths = torch.tensor([image.shape[2] for image in images])
    max_width = int(widths.max())
    padded = torch.ones(len(images), 1, images[0].shape[1], max_width)
    for i, image in enumerate(images):
        padded[i, :, :, :image.shape[2]] = image
    target_lengths = torch.tensor([len(t) for t in targets])
    targets = pad_sequence(targets, batch_first=True, padding_value=BLANK)
    return padded, widths, targets, target_lengths


class BidirectionalLSTM(nn.Module):
    def __init__(self, n_in, n_hidden, n_out):
        super().__init__()
        self.rnn = nn.LSTM(n_in, n_hidden, bidirectional=True)
        self.embedding = nn.Linear(n_hidden * 2, n_out)

    def forward(self, x):
        recurrent, _ = self.rnn(x)
        t, b, h = recurrent.size()
        output = self.embedding(recurrent.view(t * b, h))
        return output.view(t, b, -1)


class CRNN(nn.Module):
    def __init__(self, num_classes, hidden_size):
        super().__init__()
        self.cnn = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(True), nn.MaxPool2d(2, 2),       # 16 x W/2
            nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(True), nn.MaxPool2d(2, 2),      # 8 x W/4
            nn.Conv2d(64, 128, 3, padding=1), nn.BatchNorm2d(128), nn.ReLU(True),
            nn.Conv2d(128, 128, 3, padding=1), nn.ReLU(True),
            nn.MaxPool2d((2, 1), (2, 1)),                                            # 4 x W/4
            nn.Conv2d(128, 256, 3, padding=1), nn.BatchNorm2d(256), nn.ReLU(True),
            nn.Conv2d(256, 256, 3, padding=1), nn.BatchNorm2d(256), nn.ReLU(True),
            nn.MaxPool2d((4, 1), (4, 1)),                                            # 1 x W/4
        )
        self.rnn = nn.Sequential(
            BidirectionalLSTM(256, hidden_size, hidden_size),
            BidirectionalLSTM(hidden_size, hidden_size, num_classes),
        )

    def forward(self, x):
        features = self.cnn(x)                    # B, C, 1, T
        features = features.squeeze(2)
        features = features.permute(2, 0, 1)      # T, B, C
        return self.rnn(features)                 # T, B, num_classes


def greedy_decode(log_probs, lengths):
    texts = []
    best = log_probs.argmax(2).transpose(0, 1)
    for row, length in zip(best, lengths):
        chars, previous = [], BLANK
        for idx in row[:length].tolist():
            if idx != previous and idx != BLANK:
                chars.append(IDX2CHAR[idx])
            previous = idx
        texts.append("".join(chars))
    return texts


class Trainer:
    def __init__(self, config):
        self.config = config
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.train_loader = DataLoader(TextLineDataset(config.num_train, config, config.seed),
                                       batch_size=config.batch_size, shuffle=True, collate_fn=collate_fn)
        self.val_loader = DataLoader(TextLineDataset(config.num_val, config, config.seed + 1),
                                     batch_size=config.batch_size, collate_fn=collate_fn)
        self.model = CRNN(len(ALPHABET) + 1, config.hidden_size).to(self.device)
        self.criterion = nn.CTCLoss(blank=BLANK, zero_infinity=True)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=config.lr)
        self.step = 0
        self.losses = []

    def train_step(self, batch):
        images, widths, targets, target_lengths = batch
        images = images.to(self.device)
        targets = targets.to(self.device)
        logits = self.model(images)
        log_probs = logits.log_softmax(2)
        input_lengths = widths // 4
        loss = self.criterion(log_probs, targets, input_lengths, target_lengths)
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.max_norm)
        self.optimizer.step()
        return loss.item()

    @torch.no_grad()
    def validate(self):
        self.model.eval()
        correct, total, loss_sum = 0, 0, 0.0
        for images, widths, targets, target_lengths in self.val_loader:
            logits = self.model(images.to(self.device))
            log_probs = logits.log_softmax(2)
            loss = self.criterion(log_probs, targets.to(self.device), widths // 4, target_lengths)
            loss_sum += loss.item()
            predictions = greedy_decode(log_probs.cpu(), (widths // 4).tolist())
            for pred, target, length in zip(predictions, targets, target_lengths):
                truth = "".join(IDX2CHAR[i] for i in target[:length].tolist())
                correct += int(pred == truth)
                total += 1
        self.model.train()
        print(f"validation loss {loss_sum / len(self.val_loader):.4f} accuracy {correct / total:.4f}", flush=True)

    def fit(self, max_steps):
        self.model.train()
        while self.step < max_steps:
            for batch in self.train_loader:
                loss = self.train_step(batch)
                self.losses.append(loss)
                self.step += 1
                if self.step % self.config.log_every == 0:
                    print(f"step {self.step} loss {loss:.4f}", flush=True)
                if self.step % self.config.val_every == 0:
                    self.validate()
                if self.step >= max_steps:
                    break
        last = self.losses[-50:]
        print(f"mean loss of the last {len(last)} steps {sum(last) / len(last):.4f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=400)
    args = parser.parse_args()

    config = Config()
    random.seed(config.seed)
    np.random.seed(config.seed)
    torch.manual_seed(config.seed)
    Trainer(config).fit(args.steps)
