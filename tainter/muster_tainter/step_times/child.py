"""The child process that judges one job. It has a low priority, and limits its own memory and CPU time.

stdin: the question, a line of JSON, and Prometheus' answer; stdout: the verdict as JSON.
"""

import contextlib
import os
import resource
import sys
import time
from pathlib import Path

import msgspec

from muster_tainter.step_times.job_verdict import JobQuestion, judge_job

MEMORY_LIMIT = 256 << 20  # bytes of address space; 5,000 ranks take 130 MB
CPU_LIMIT_S = 120  # a verdict on 1,024 ranks, one of them slow, takes 43 s
NICE = 10  # a tenth of the usual share where others need the CPU


def main() -> None:
    os.nice(NICE)
    with contextlib.suppress(OSError):  # if memory is short, the kernel ends this process, not the tainter
        Path("/proc/self/oom_score_adj").write_text("1000")
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_LIMIT_S, CPU_LIMIT_S))
    head, _, body = sys.stdin.buffer.read().partition(b"\n")
    verdict = judge_job(msgspec.json.decode(head, type=JobQuestion), body)
    verdict = msgspec.structs.replace(verdict, cpu_s=time.process_time())
    sys.stdout.buffer.write(msgspec.json.encode(verdict))


if __name__ == "__main__":
    main()
