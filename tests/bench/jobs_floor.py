"""The floor under "1,000 IPUJobs": a client that makes the same objects as fast as it can, and does nothing else.

It makes what the operator makes for a job, in the operator's order, for 24 jobs at once. It watches nothing,
decides nothing, writes no status, and asks for no partition. A program of its own, as the operator is one:

    python jobs_floor.py KUBECONFIG FILE JOBS    FILE: a JSON list of one job's objects, each [path, body]

It prints its processor seconds.
"""

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

from muster_kube.api.client import KubeClient
from muster_kube.api.config import load_config
from muster_kube.api.errors import ApiError
from muster_sandbox.simulation.nodes import CONCURRENCY, for_each

TRIES = 50  # a pod is refused until Kubernetes has made a token for its account
OWN_PREFIX = "bare-"
TEMPLATE = "template"  # the name of the job that FILE's objects are of


def renamed(text: str, number: int) -> str:
    return text.replace(f'"{TEMPLATE}-', f'"{OWN_PREFIX}{number}-')


async def make(kubeconfig: Path, text: str, jobs: int) -> None:
    async with KubeClient(load_config(kubeconfig), user_agent="muster-bench-floor", timeout_s=60) as client:

        async def one(number: int) -> None:
            for path, body in json.loads(renamed(text, number)):
                await _made(client, path, body)

        await for_each(range(jobs), one, concurrency=CONCURRENCY)


async def _made(client: KubeClient, path: str, body: dict[str, Any]) -> None:
    for left in reversed(range(TRIES)):
        try:
            await client.create(path, body)
        except ApiError:
            if not left:
                raise
            await asyncio.sleep(0.2)
        else:
            return


if __name__ == "__main__":
    asyncio.run(make(Path(sys.argv[1]), Path(sys.argv[2]).read_text(), int(sys.argv[3])))
    print(f"{time.process_time():.2f}")
