"""What HolisticTraceAnalysis says of these traces, as JSON: run in a process of its own."""

from __future__ import annotations

import json
import logging
import sys
import warnings

logging.disable(logging.CRITICAL)
warnings.simplefilter("ignore")


def reading(path: str) -> dict:
    from hta.trace_analysis import TraceAnalysis

    found = TraceAnalysis(trace_files={0: path}, include_last_profiler_step=True)
    times = found.get_temporal_breakdown(visualize=False).to_dict("records")[0]
    kinds, kernels = found.get_gpu_kernel_breakdown(
        visualize=False, include_memory_kernels=True, num_kernels=10**6, duration_ratio=1.0
    )
    overlap = found.get_comm_comp_overlap(visualize=False).to_dict("records")[0]
    return {
        "times": {name: float(value) for name, value in times.items()},
        "kinds": {row["kernel_type"]: float(row["sum"]) for row in kinds.to_dict("records")},
        "kernels": {row["name"]: float(row["sum (us)"]) for row in kernels.to_dict("records")},
        "overlap": float(overlap["comp_comm_overlap_pctg"]),
    }


if __name__ == "__main__":
    # NaN where there is no communication.
    json.dump({path: reading(path) for path in sys.argv[1:]}, sys.stdout)
