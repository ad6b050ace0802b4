"""Translate human dates ("tue, 3rd of march 1987") to ISO dates with a GRU encoder-decoder with additive attention."""
import datetime
import random
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import optim

random.seed(0)
torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

hidden_size = 192
embed_size = 64
batch_size = 64
n_iters = 300
print_every = 25
learning_rate = 0.001
teacher_forcing_ratio = 0.5
clip = 1.0
MAX_IN = 30
MAX_OUT = 11      # 10 characters + EOS

PAD, SOS, EOS = 0, 1, 2
CHARS = ["<pad>", "<sos>", "<eos>"] + sorted(set("abcdefghijklmnopqrstuvwxyz0123456789 ,-/"))
stoi = {c: i for i, c in enumerate(CHARS)}

FORMATS = ["%d %B %Y", "%A %d %B %Y", "%b %d, %Y", "%B %d %Y", "%a, %d %b %y", "%d/%m/%Y", "%Y %b %d", "%d of %B, %Y"]


def random_pair():
    d = datetime.date.fromordinal(random.randint(datetime.date(1950, 1, 1).toordinal(),
                                                 datetime.date(2049, 12, 31).toordinal()))
    return d.strftime(random.choice(FORMATS)).lower(), d.isoformat()


def encode(s, n):
    ids = [stoi[c] for c in s] + [EOS]
    return ids + [PAD] * (n - len(ids))


pairs = [random_pair() for _ in range(20000)]
test_pairs = [random_pair() for _ in range(256)]


def get_batch(pairs, n):
    chosen = [random.choice(pairs) for _ in range(n)]
    x = torch.tensor([encode(a, MAX_IN) for a, _ in chosen], device=device)
    y = torch.tensor([encode(b, MAX_OUT) for _, b in chosen], device=device)
    return x, y


class Encoder(nn.Module):
    def __init__(self, vocab, embed_size, hidden_size):
        super().__init__()
        self.embedding = nn.Embedding(vocab, embed_size)
        self.gru = nn.GRU(embed_size, hidden_size, batch_first=True, bidirectional=True)
        self.fc = nn.Linear(hidden_size * 2, hidden_size)

    def forward(self, x):
        outputs, hidden = self.gru(self.embedding(x))
        hidden = torch.tanh(self.fc(torch.cat((hidden[0], hidden[1]), dim=1)))
        return outputs, hidden


class BahdanauAttention(nn.Module):
    def __init__(self, hidden_size):
        super().__init__()
        self.Wa = nn.Linear(hidden_size, hidden_size)
        self.Ua = nn.Linear(hidden_size * 2, hidden_size)
        self.Va = nn.Linear(hidden_size, 1)

    def forward(self, query, keys, mask):
        scores = self.Va(torch.tanh(self.Wa(query).unsqueeze(1) + self.Ua(keys))).squeeze(2)
        scores = scores.masked_fill(mask, -1e9)
        weights = F.softmax(scores, dim=1)
        return torch.bmm(weights.unsqueeze(1), keys), weights


class AttnDecoder(nn.Module):
    def __init__(self, vocab, embed_size, hidden_size):
        super().__init__()
        self.embedding = nn.Embedding(vocab, embed_size)
        self.attention = BahdanauAttention(hidden_size)
        self.gru = nn.GRU(embed_size + hidden_size * 2, hidden_size, batch_first=True)
        self.out = nn.Linear(hidden_size, vocab)

    def forward_step(self, token, hidden, encoder_outputs, mask):
        embedded = self.embedding(token).unsqueeze(1)
        context, weights = self.attention(hidden[0], encoder_outputs, mask)
        output, hidden = self.gru(torch.cat((embedded, context), dim=2), hidden)
        return self.out(output.squeeze(1)), hidden, weights

    def forward(self, encoder_outputs, hidden, mask, target=None, max_len=MAX_OUT):
        token = torch.full((encoder_outputs.size(0),), SOS, dtype=torch.long, device=device)
        hidden = hidden.unsqueeze(0)
        logits = []
        for t in range(max_len):
            out, hidden, _ = self.forward_step(token, hidden, encoder_outputs, mask)
            logits.append(out)
            if target is not None:
                token = target[:, t]                     # teacher forcing
            else:
                token = out.argmax(dim=1).detach()       # own prediction
        return torch.stack(logits, dim=1)


def train_step(x, y, encoder, decoder, enc_opt, dec_opt, criterion):
    enc_opt.zero_grad()
    dec_opt.zero_grad()
    mask = x == PAD
    encoder_outputs, hidden = encoder(x)
    use_tf = random.random() < teacher_forcing_ratio
    logits = decoder(encoder_outputs, hidden, mask, y if use_tf else None)
    loss = criterion(logits.reshape(-1, logits.size(-1)), y.reshape(-1))
    loss.backward()
    nn.utils.clip_grad_norm_(encoder.parameters(), clip)
    nn.utils.clip_grad_norm_(decoder.parameters(), clip)
    enc_opt.step()
    dec_opt.step()
    return loss.item()


def evaluate(encoder, decoder):
    encoder.eval()
    decoder.eval()
    with torch.no_grad():
        x = torch.tensor([encode(a, MAX_IN) for a, _ in test_pairs], device=device)
        y = torch.tensor([encode(b, MAX_OUT) for _, b in test_pairs], device=device)
        enc, hidden = encoder(x)
        pred = decoder(enc, hidden, x == PAD).argmax(2)
    encoder.train()
    decoder.train()
    for i in range(3):
        out = "".join(CHARS[c] for c in pred[i].tolist() if c > EOS)
        print(f"   {test_pairs[i][0]!r:40} -> {out}   ({test_pairs[i][1]})")
    return (pred == y).float().mean().item(), (pred == y).all(1).float().mean().item()


encoder = Encoder(len(CHARS), embed_size, hidden_size).to(device)
decoder = AttnDecoder(len(CHARS), embed_size, hidden_size).to(device)
enc_opt = optim.Adam(encoder.parameters(), lr=learning_rate)
dec_opt = optim.Adam(decoder.parameters(), lr=learning_rate)
criterion = nn.CrossEntropyLoss(ignore_index=PAD)

start = time.time()
total = 0.0
for it in range(1, n_iters + 1):
    x, y = get_batch(pairs, batch_size)
    total += train_step(x, y, encoder, decoder, enc_opt, dec_opt, criterion)
    if it % print_every == 0:
        print(f"{it:4d}/{n_iters} ({time.time() - start:.1f}s)  loss {total / print_every:.4f}")
        total = 0.0
char_acc, seq_acc = evaluate(encoder, decoder)
print(f"char accuracy {char_acc:.3f}  sequence accuracy {seq_acc:.3f}")
torch.save({"encoder": encoder.state_dict(), "decoder": decoder.state_dict()}, "seq2seq_dates.pt")
