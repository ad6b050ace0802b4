"""The same by hand: bf16, decoder and loss compiled as one, fused SGD, nothing read in the loop."""

import torch
from lstm_words import RNNModel, arguments, batchify, fresh_state, make_words, sizes
from torch.nn import functional as F


def main():
    args = arguments()
    torch.manual_seed(1111)
    torch.set_float32_matmul_precision("high")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    known, width, layers, batch, bptt, count = sizes(args.small)
    train_data = batchify(make_words(count, known), batch).to(device)
    model = RNNModel(known, width, width, layers, 0.2).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, fused=True)
    model.train()

    def head(output, targets):
        with torch.autocast(device.type, torch.bfloat16):
            logits = model.decoder(model.drop(output))
            return F.cross_entropy(logits.view(-1, known), targets)

    if device.type == "cuda":
        head = torch.compile(head)
    total_loss = torch.zeros((), device=device)
    step = 0
    while step < args.steps:
        hidden = fresh_state(model, batch, device)
        for i in range(0, len(train_data) - bptt - 1, bptt):
            with torch.autocast(device.type, torch.bfloat16):
                emb = model.drop(model.encoder(train_data[i : i + bptt]))
                output, hidden = model.rnn(emb, hidden)  # cuDNN's kernels: nothing to compile
            loss = head(output, train_data[i + 1 : i + 1 + bptt].view(-1))
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            hidden = tuple(state.detach() for state in hidden)
            total_loss += loss.detach()
            step += 1
            if step <= 3 or step % 10 == 0:
                print(f"step {step} loss {total_loss.item() / step:.6f}")
            if step >= args.steps:
                break


if __name__ == "__main__":
    main()
