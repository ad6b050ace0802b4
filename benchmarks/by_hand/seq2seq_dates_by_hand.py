"""Human dates to ISO dates, GRU encoder-decoder with additive attention: hand-optimised version of seq2seq_dates.py.

Same data and random streams, initial weights, optimizers, teacher-forcing coin.  What is different:
  * all pairs encoded once; a batch is an index_select;
  * the vocabulary is tiny, so embedding + input projection of the GRUs is one small table, then a gather;
  * both directions of the encoder run in one loop (bmm), with the backward pass written out by hand, so that all weight
    gradients are one big matmul after the loop instead of one per time step;
  * decoder likewise: keys are projected once, not at every output step; hidden state goes through attention query and
    recurrent weights in one matmul; hand-written backward; the output layer outside the loop with teacher forcing;
  * pointwise parts compiled; fused Adam.
"""
import datetime
import random
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import optim

random.seed(0)
torch.manual_seed(0)
device = torch.device("cpu")

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
H = hidden_size

PAD, SOS, EOS = 0, 1, 2
CHARS = ["<pad>", "<sos>", "<eos>"] + sorted(set("abcdefghijklmnopqrstuvwxyz0123456789 ,-/"))
stoi = {c: i for i, c in enumerate(CHARS)}
V = len(CHARS)

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
all_x = torch.tensor([encode(a, MAX_IN) for a, _ in pairs])
all_y = torch.tensor([encode(b, MAX_OUT) for _, b in pairs])
_range = range(len(pairs))


def get_batch(n):
    idx = torch.tensor([random.choice(_range) for _ in range(n)])
    return all_x.index_select(0, idx), all_y.index_select(0, idx)


# modules only for the initial weights and the state dict
class Encoder(nn.Module):
    def __init__(self, vocab, embed_size, hidden_size):
        super().__init__()
        self.embedding = nn.Embedding(vocab, embed_size)
        self.gru = nn.GRU(embed_size, hidden_size, batch_first=True, bidirectional=True)
        self.fc = nn.Linear(hidden_size * 2, hidden_size)

    def forward(self, x):
        g = self.gru
        xt = x.t()
        tab_f = F.linear(self.embedding.weight, g.weight_ih_l0, g.bias_ih_l0)
        tab_b = F.linear(self.embedding.weight, g.weight_ih_l0_reverse, g.bias_ih_l0_reverse)
        gi = torch.stack([F.embedding(xt, tab_f), F.embedding(xt.flip(0), tab_b)], 1)       # T, 2, B, 3H
        w = torch.stack([g.weight_hh_l0, g.weight_hh_l0_reverse])
        b = torch.stack([g.bias_hh_l0, g.bias_hh_l0_reverse])
        hs = BiGRU.apply(gi, w, b)                                                           # T, 2, B, H
        outputs = torch.cat([hs[:, 0], hs[:, 1].flip(0)], 2).transpose(0, 1).contiguous()    # B, T, 2H
        hidden = torch.tanh(self.fc(torch.cat((hs[-1, 0], hs[-1, 1]), dim=1)))
        return outputs, hidden


class BahdanauAttention(nn.Module):
    def __init__(self, hidden_size):
        super().__init__()
        self.Wa = nn.Linear(hidden_size, hidden_size)
        self.Ua = nn.Linear(hidden_size * 2, hidden_size)
        self.Va = nn.Linear(hidden_size, 1)


class AttnDecoder(nn.Module):
    def __init__(self, vocab, embed_size, hidden_size):
        super().__init__()
        self.embedding = nn.Embedding(vocab, embed_size)
        self.attention = BahdanauAttention(hidden_size)
        self.gru = nn.GRU(embed_size + hidden_size * 2, hidden_size, batch_first=True)
        self.out = nn.Linear(hidden_size, vocab)

    def forward(self, enc, hidden, mask, target=None):
        a, g = self.attention, self.gru
        w_ih = g.weight_ih_l0
        table = F.linear(self.embedding.weight, w_ih[:, :embed_size], g.bias_ih_l0)      # V, 3H
        w_c = w_ih[:, embed_size:]
        w_h = torch.cat([g.weight_hh_l0, a.Wa.weight])                                   # 4H, H
        b_h = torch.cat([g.bias_hh_l0, a.Wa.bias])
        keys = a.Ua(enc)
        bias = torch.zeros(mask.shape).masked_fill_(mask, -1e9)
        hs = Decode.apply(enc, keys, bias, hidden, table, w_c, w_h, b_h, a.Va.weight[0],
                          self.out.weight.detach(), self.out.bias.detach(), target)
        return self.out(hs).transpose(0, 1)                                              # B, T, V


@torch.compile(dynamic=False)
def cell(gi, gh, h):
    r = torch.sigmoid(gi[..., :H] + gh[..., :H])
    z = torch.sigmoid(gi[..., H:2 * H] + gh[..., H:2 * H])
    n = torch.tanh(gi[..., 2 * H:] + r * gh[..., 2 * H:3 * H])
    return n + z * (h - n), torch.cat([r, z, n], -1)


@torch.compile(dynamic=False)
def cell_back(dh, rzn, ghn, h_prev, dgi, dgh):
    r, z, n = rzn[..., :H], rzn[..., H:2 * H], rzn[..., 2 * H:]
    dz = dh * (h_prev - n) * z * (1 - z)
    dn = dh * (1 - z) * (1 - n * n)
    dr = dn * ghn * r * (1 - r)
    dgi[..., :H] = dr
    dgi[..., H:2 * H] = dz
    dgi[..., 2 * H:] = dn
    dgh[..., :H] = dr
    dgh[..., H:2 * H] = dz
    dgh[..., 2 * H:3 * H] = dn * r
    return dh * z


class BiGRU(torch.autograd.Function):
    @staticmethod
    def forward(ctx, gi, w, b):
        T, _, B, _ = gi.shape
        hs = gi.new_zeros(T + 1, 2, B, H)
        rzn, ghn = [], []
        wt, b = w.transpose(1, 2), b[:, None]
        h = hs[0]
        for t in range(T):
            gh = torch.baddbmm(b, h, wt)
            h, s = cell(gi[t], gh, h)
            hs[t + 1] = h
            rzn.append(s)
            ghn.append(gh)
        ctx.save_for_backward(w, hs)
        ctx.saved = rzn, ghn
        return hs[1:]

    @staticmethod
    def backward(ctx, g):
        w, hs = ctx.saved_tensors
        rzn, ghn = ctx.saved
        T, _, B, _ = g.shape
        dgi = g.new_empty(T, 2, B, 3 * H)
        dgh = g.new_empty(2, T, B, 3 * H)
        dh = g[T - 1]
        for t in range(T - 1, -1, -1):
            d = dgh[:, t]
            carry = cell_back(dh, rzn[t], ghn[t][..., 2 * H:], hs[t], dgi[t], d)
            dh = torch.baddbmm(carry, d, w)
            if t:
                dh += g[t - 1]
        dw = torch.bmm(dgh.view(2, T * B, 3 * H).transpose(1, 2), hs[:-1].transpose(0, 1).reshape(2, T * B, H))
        return dgi, dw, dgh.sum((1, 2))


@torch.compile(dynamic=False)
def attend(q, keys, bias, va):
    th = torch.tanh(q[:, None] + keys)
    return torch.softmax((th * va).sum(2) + bias, 1), th


@torch.compile(dynamic=False)
def attend_back(dw, w, th, va, dkeys, dq, dva):
    de = w * (dw - (w * dw).sum(1, keepdim=True))
    du = de[:, :, None] * va * (1 - th * th)
    dkeys += du
    dq.copy_(du.sum(1))
    dva += (de[:, :, None] * th).sum((0, 1))


class Decode(torch.autograd.Function):
    @staticmethod
    def forward(ctx, enc, keys, bias, hidden, table, w_c, w_h, b_h, va, w_out, b_out, target):
        B = enc.size(0)
        hs = enc.new_empty(MAX_OUT + 1, B, H)
        hs[0] = hidden
        tokens = torch.empty(MAX_OUT, B, dtype=torch.long)
        tokens[0] = SOS
        if target is not None:
            tokens[1:] = target.t()[:-1]
        ctxs, ws, ths, rzn, ghs = [], [], [], [], []
        w_ct, w_ht = w_c.t(), w_h.t()
        h = hs[0]
        for t in range(MAX_OUT):
            gh = torch.addmm(b_h, h, w_ht)
            w, th = attend(gh[:, 3 * H:], keys, bias, va)
            c = torch.bmm(w[:, None], enc)[:, 0]
            gi = torch.addmm(table.index_select(0, tokens[t]), c, w_ct)
            h, s = cell(gi, gh, h)
            hs[t + 1] = h
            if target is None and t + 1 < MAX_OUT:
                torch.argmax(torch.addmm(b_out, h, w_out.t()), 1, out=tokens[t + 1])
            ctxs.append(c)
            ws.append(w)
            ths.append(th)
            rzn.append(s)
            ghs.append(gh)
        ctx.save_for_backward(enc, table, w_c, w_h, va)
        ctx.saved = hs, tokens, ctxs, ws, ths, rzn, ghs
        return hs[1:]

    @staticmethod
    def backward(ctx, g):
        enc, table, w_c, w_h, va = ctx.saved_tensors
        hs, tokens, ctxs, ws, ths, rzn, ghs = ctx.saved
        B = enc.size(0)
        dgi = g.new_empty(MAX_OUT, B, 3 * H)
        dgh = g.new_empty(MAX_OUT, B, 4 * H)
        dctx = g.new_empty(B, MAX_OUT, 2 * H)
        dkeys = torch.zeros_like(ths[0])
        dva = torch.zeros_like(va)
        dh = g[MAX_OUT - 1]
        for t in range(MAX_OUT - 1, -1, -1):
            d = dgh[t]
            carry = cell_back(dh, rzn[t], ghs[t][:, 2 * H:3 * H], hs[t], dgi[t], d)
            dc = dgi[t] @ w_c
            dctx[:, t] = dc
            dw = torch.bmm(enc, dc[:, :, None])[:, :, 0]
            attend_back(dw, ws[t], ths[t], va, dkeys, d[:, 3 * H:], dva)
            dh = torch.addmm(carry, d, w_h)
            if t:
                dh += g[t - 1]
        denc = torch.bmm(torch.stack(ws, 2), dctx)
        flat_i, flat_h = dgi.view(-1, 3 * H), dgh.view(-1, 4 * H)
        dtable = torch.zeros_like(table).index_add_(0, tokens.view(-1), flat_i)
        dw_c = flat_i.t() @ torch.stack(ctxs).view(-1, 2 * H)
        dw_h = flat_h.t() @ hs[:-1].reshape(-1, H)
        return denc, dkeys, None, dh, dtable, dw_c, dw_h, flat_h.sum(0), dva, None, None, None


def train_step(x, y, encoder, decoder, enc_opt, dec_opt, criterion):
    enc_opt.zero_grad()
    dec_opt.zero_grad()
    enc, hidden = encoder(x)
    use_tf = random.random() < teacher_forcing_ratio
    logits = decoder(enc, hidden, x == PAD, y if use_tf else None)
    loss = criterion(logits.reshape(-1, V), y.reshape(-1))
    loss.backward()
    nn.utils.clip_grad_norm_(encoder.parameters(), clip)
    nn.utils.clip_grad_norm_(decoder.parameters(), clip)
    enc_opt.step()
    dec_opt.step()
    return loss.detach()


def evaluate(encoder, decoder):
    with torch.no_grad():
        x = torch.tensor([encode(a, MAX_IN) for a, _ in test_pairs])
        y = torch.tensor([encode(b, MAX_OUT) for _, b in test_pairs])
        pred = []
        for i in range(0, len(x), batch_size):          # the shape the compiled parts know
            enc, hidden = encoder(x[i:i + batch_size])
            pred.append(decoder(enc, hidden, x[i:i + batch_size] == PAD).argmax(2))
        pred = torch.cat(pred)
    for i in range(3):
        out = "".join(CHARS[c] for c in pred[i].tolist() if c > EOS)
        print(f"   {test_pairs[i][0]!r:40} -> {out}   ({test_pairs[i][1]})")
    return (pred == y).float().mean().item(), (pred == y).all(1).float().mean().item()


encoder = Encoder(V, embed_size, hidden_size)
decoder = AttnDecoder(V, embed_size, hidden_size)
enc_opt = optim.Adam(encoder.parameters(), lr=learning_rate, fused=True)
# (the bias of Va shifts all scores of a softmax alike: its gradient is zero)
dec_opt = optim.Adam(decoder.parameters(), lr=learning_rate, fused=True)
criterion = nn.CrossEntropyLoss(ignore_index=PAD)

start = time.time()
total = torch.zeros(())
for it in range(1, n_iters + 1):
    x, y = get_batch(batch_size)
    total += train_step(x, y, encoder, decoder, enc_opt, dec_opt, criterion)
    if it % print_every == 0:
        print(f"{it:4d}/{n_iters} ({time.time() - start:.1f}s)  loss {total.item() / print_every:.4f}")
        total.zero_()
char_acc, seq_acc = evaluate(encoder, decoder)
print(f"char accuracy {char_acc:.3f}  sequence accuracy {seq_acc:.3f}")
torch.save({"encoder": encoder.state_dict(), "decoder": decoder.state_dict()}, "seq2seq_dates.pt")
