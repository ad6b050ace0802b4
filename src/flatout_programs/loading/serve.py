"""Serves the model of this folder over HTTP: an example for you to start from and change.

    python serve.py 8000
    curl localhost:8000                                       # what the model takes and returns
    curl localhost:8000 -d '{"images": [[0.5, 0.25, 0.125]]}' # what it returns for these

One request at a time, in JSON. It has neither TLS nor passwords, and it does not batch requests:
for many clients, give the model to a server that does, such as Triton Inference Server.
"""

from __future__ import annotations

import json
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any


class ModelHandler(BaseHTTPRequestHandler):
    """GET describes the model; POST runs it on arrays by name."""

    model: Any
    timeout = 30  # seconds: a slower sender holds up the others

    def do_GET(self) -> None:
        self.answer(200, {"inputs": self.model.inputs, "outputs": self.model.outputs})

    def do_POST(self) -> None:
        try:
            outputs = self.outputs(self.rfile.read(int(self.headers["Content-Length"])))
        except Exception as error:  # no JSON, or arrays that do not fit
            self.answer(400, {"error": f"{type(error).__name__}: {error}"})
        else:
            self.answer(200, outputs)

    def outputs(self, body: bytes) -> dict[str, Any]:
        """The model's outputs as lists."""
        import numpy

        types = {item["name"]: item["dtype"] for item in self.model.inputs}
        given = json.loads(body)
        arrays = {name: numpy.asarray(given[name], types.get(name)) for name in given}
        return {name: array.tolist() for name, array in self.model(**arrays).items()}

    def answer(self, status: int, document: dict[str, Any]) -> None:
        """Send a document."""
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def main(port: str = "8000", address: str = "127.0.0.1") -> None:
    """Serve until the process is ended; 0.0.0.0 as the address opens it to the network."""
    from load import load  # type: ignore[import-not-found]  # the file beside this one

    # In the thread that also answers: some runtimes keep their settings for each thread.
    ModelHandler.model = load(check=True)
    with HTTPServer((address, int(port)), ModelHandler) as server:
        print(f"listening on http://{address}:{server.server_port}", flush=True)  # noqa: T201
        server.serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
