import json
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import torch
from torch import nn


class Tracker(BaseHTTPRequestHandler):
    """Stand-in for the tracking server of the team."""

    rows = []

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        time.sleep(0.018)
        self.rows.append(json.loads(body))
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, *args):
        pass


class Run:
    def __init__(self, address, name):
        self.url = f"http://{address[0]}:{address[1]}/runs/{name}"
        self.opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def log(self, **metrics):
        body = json.dumps(metrics).encode()
        request = urllib.request.Request(self.url, data=body, method="POST")
        with self.opener.open(request, timeout=10) as answer:
            answer.read()


class TwoTower(nn.Module):
    def __init__(self, users=3000, items=2000, dim=64):
        super().__init__()
        self.user = nn.Embedding(users, dim, sparse=True)
        self.item = nn.Embedding(items, dim, sparse=True)
        self.left = nn.Sequential(nn.Linear(dim, 512), nn.ReLU(), nn.Linear(512, 128))
        self.right = nn.Sequential(nn.Linear(dim, 512), nn.ReLU(), nn.Linear(512, 128))

    def forward(self, u, i):
        return self.left(self.user(u)) @ self.right(self.item(i)).T


def main():
    torch.manual_seed(2)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Tracker)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    run = Run(server.server_address, "two-tower")
    model = TwoTower()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    users = torch.randint(0, 3000, (60_000,))
    items = (users * 7 + torch.randint(0, 40, users.shape)) % 2000
    labels = torch.arange(512)
    started = time.time()
    for step in range(150):
        pick = torch.randint(0, len(users), (512,))
        scores = model(users[pick], items[pick])
        loss = nn.functional.cross_entropy(scores, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(step=step, loss=loss.item(), elapsed=time.time() - started)
    print("last loss", loss.item(), "rows", len(Tracker.rows))
    server.shutdown()


main()
