"""The same by hand: the whole step, optimizer and all, is one CUDA graph."""

import torch
import torch.nn as nn
from table_mlp import arguments, build_model, make_table, sizes

EAGER_STEPS = 3
"""Before the graph is recorded: everything has been allocated by then."""


def main():
    args = arguments()
    torch.manual_seed(42)
    torch.set_float32_matmul_precision("high")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    cuda = device.type == "cuda"
    rows, features, width, depth, batch = sizes(args.small)
    x_train, y_train = (part.to(device) for part in make_table(rows, features))

    model = build_model(features, width, depth, 4).to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(
        model.parameters(), lr=1e-3, weight_decay=1e-5, fused=True, capturable=cuda
    )
    chosen = torch.zeros(batch, dtype=torch.long, device=device)
    total = torch.zeros((), device=device)
    last = torch.zeros((), device=device)

    def train_step():
        optimizer.zero_grad(set_to_none=True)
        loss = criterion(model(x_train[chosen]), y_train[chosen])
        loss.backward()
        optimizer.step()
        last.copy_(loss.detach())
        total.add_(last)

    graph, side = None, torch.cuda.Stream() if cuda else None
    step = 0
    while step < args.steps:
        order = torch.randperm(rows, device=device)
        for i in range(0, rows, batch):
            chosen.copy_(order[i : i + batch])
            step += 1
            if not cuda:
                train_step()
            elif step <= EAGER_STEPS:
                side.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(side):
                    train_step()
                torch.cuda.current_stream().wait_stream(side)
            else:
                if graph is None:
                    graph = torch.cuda.CUDAGraph()
                    with torch.cuda.graph(graph):
                        train_step()
                graph.replay()
            if step <= 3 or step % 100 == 0:
                print(f"step {step} loss {last.item():.6f}")
            if step >= args.steps:
                break


if __name__ == "__main__":
    main()
