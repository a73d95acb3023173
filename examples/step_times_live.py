"""Serve the time of each training step of a PyTorch DDP job to Prometheus (docs/in-flight.md).

times = StepTimes(ddp_model)
for batch in loader:
    times.begin()
    loss(ddp_model(batch)).backward()
    optimizer.step()
"""

import os
import time

import torch
import torch.distributed as dist
from prometheus_client import Summary, start_http_server
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook


class StepTimes:
    def __init__(self, ddp_model, port=9400):
        local = int(os.environ.get("LOCAL_RANK", "0"))  # of the processes in this pod, each of which has its own port
        summary = Summary("muster_step_seconds", "A rank's own work in a training step", ["rank", "gpu"])
        self.seconds = summary.labels(dist.get_rank(), local)
        start_http_server(port + local)
        ddp_model.register_comm_hook(None, self.before_all_reduce)

    def begin(self):
        self.began = time.monotonic()

    def before_all_reduce(self, state, bucket):
        if bucket.is_last():  # the gradients are ready; what follows is waiting for other ranks
            if torch.cuda.is_available():
                torch.cuda.current_stream().synchronize()
            self.seconds.observe(time.monotonic() - self.began)
        return allreduce_hook(state, bucket)
