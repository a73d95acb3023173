"""Write the time of each training step of a PyTorch DDP job for `muster stragglers steps-*.csv` (docs/in-flight.md).

times = StepTimes(ddp_model)
for step, batch in enumerate(loader):
    times.begin(step)
    loss(ddp_model(batch)).backward()
    optimizer.step()
"""

import time

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook


class StepTimes:
    def __init__(self, ddp_model, file="steps-{rank}.csv"):
        self.rank, self.step = dist.get_rank(), 0
        self.file = open(file.format(rank=self.rank), "w", buffering=1)  # noqa: PTH123, SIM115  # open as long as the job
        self.file.write("rank,step,seconds\n")
        ddp_model.register_comm_hook(None, self.before_all_reduce)

    def begin(self, step):
        self.step, self.began = step, time.monotonic()

    def before_all_reduce(self, state, bucket):
        if bucket.is_last():  # the gradients are ready; what follows is waiting for other ranks
            if torch.cuda.is_available():
                torch.cuda.current_stream().synchronize()
            self.file.write(f"{self.rank},{self.step},{time.monotonic() - self.began:.6f}\n")
        return allreduce_hook(state, bucket)
