"""The bandwidths in the verbose output of DCGM's test ``pcie``.

Source: github.com/NVIDIA/DCGM, nvvs/plugin_src/pcie: "GPU to Host bandwidth:", tabs, "26.02 GB/s"; before DCGM 4 with
the GPU in front ("GPU 5 GPU to Host bandwidth"), as a list or as one text. DCGM 4.0 drops them after the 16th (its
issue 215).
No other dcgmi command measures bandwidth: `dcgmi dmon` only counts existing traffic on the link.
"""

import re

from muster_checks.base.bounded_read import number
from muster_checks.dcgm.parse import GPU, Diagnosis
from muster_checks.pciebw.bandwidth import Bandwidth

ARGUMENTS = ("-r", "pcie", "-j", "-v")
_BANDWIDTH = re.compile(r"(?:GPU (\d{1,3}) )?(GPU to Host|Host to GPU) bandwidth:\s*([0-9.]{1,12}) GB/s")


def read_bandwidths(diagnosis: Diagnosis) -> dict[int, Bandwidth]:
    """By DCGM's number of the GPU; empty if the test did not run."""
    found: dict[int, dict[str, float]] = {}
    for outcome in diagnosis.outcomes:
        own = [entity.number for entity in outcome.entities if entity.group == GPU]
        for text in outcome.info:
            for named, way, figure in _BANDWIDTH.findall(text):
                gpu = int(named) if named else own[0] if len(own) == 1 else None
                value = number(figure)
                if gpu is not None and value:
                    found.setdefault(gpu, {})[way] = value
    return {
        gpu: Bandwidth(f"gpu/{gpu}", ways.get("Host to GPU"), ways.get("GPU to Host")) for gpu, ways in found.items()
    }
