"""Print the time of each training step of a PyTorch DDP job, for the node's agent to read (docs/in-flight.md).

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
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook


class StepTimes:
    def __init__(self, ddp_model, file=None):
        self.rank, self.step, self.file = dist.get_rank(), 0, file  # file: opened for appending; None: standard output
        self.labels = f'job="{os.environ["JOB_NAME"]}",gpu="{os.environ.get("LOCAL_RANK", "0")}"'
        ddp_model.register_comm_hook(None, self.before_all_reduce)

    def begin(self):
        self.began = time.monotonic()

    def before_all_reduce(self, state, bucket):
        if bucket.is_last():  # the gradients are ready; what follows is waiting for other ranks
            if torch.cuda.is_available():
                torch.cuda.current_stream().synchronize()
            seconds = time.monotonic() - self.began
            line = f'muster_step{{rank="{self.rank}",step="{self.step}",seconds="{seconds:.6f}",{self.labels}}}'
            print(line, file=self.file, flush=True)
            self.step += 1
        return allreduce_hook(state, bucket)
