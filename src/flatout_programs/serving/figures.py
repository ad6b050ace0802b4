"""What Prometheus reads at /metrics."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


class Histogram:
    def __init__(self, name: str, text: str, bounds: Iterable[float]) -> None:
        self.name, self.text, self.bounds = name, text, list(bounds)
        self.counts, self.sum = [0] * (len(self.bounds) + 1), 0.0

    def add(self, value: float) -> None:
        self.counts[sum(value > bound for bound in self.bounds)] += 1
        self.sum += value

    def lines(self) -> list[str]:
        rows = zip([*self.bounds, "+Inf"], itertools.accumulate(self.counts), strict=True)
        return [
            f"# HELP {self.name} {self.text}",
            f"# TYPE {self.name} histogram",
            *(f'{self.name}_bucket{{le="{bound}"}} {count}' for bound, count in rows),
            f"{self.name}_sum {self.sum}",
            f"{self.name}_count {sum(self.counts)}",
        ]


class Figures:
    def __init__(self) -> None:
        self.answers: Counter[int] = Counter()
        self.request = Histogram("serve_request_seconds", "From head to answer.", SECONDS)
        self.model = Histogram("serve_model_seconds", "A call of the model.", SECONDS)
        bounds = [2**power for power in range(9)]
        self.rows = Histogram("serve_batch_rows", "Rows in a call of the model.", bounds)

    def text(self, gauges: dict[str, float]) -> str:
        lines = ["# HELP serve_answers_total By status.", "# TYPE serve_answers_total counter"]
        for status, count in sorted(self.answers.items()):
            lines.append(f'serve_answers_total{{code="{status}"}} {count}')
        for name, value in gauges.items():
            lines += [f"# TYPE serve_{name} gauge", f"serve_{name} {value}"]
        for histogram in (self.request, self.model, self.rows):
            lines += histogram.lines()
        return "\n".join(lines) + "\n"
