"""What all cluster commands share: the flag --kubeconfig, an API client, and one-line error messages."""

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

from muster_cli.cluster.login import load_user_config
from muster_cli.cluster.node_snapshot import NotInCluster
from muster_kube.api.client import KubeClient
from muster_kube.api.config import ClusterConfig, ConfigError
from muster_kube.api.errors import ApiError
from muster_kube.process.command_line import EXIT_UNKNOWN

ANSWER_S = 15.0  # for each request: an API server under load answers late, and a person has nothing that takes over


def add_kubeconfig(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--kubeconfig",
        type=Path,
        metavar="FILE",
        help="default: the in-cluster configuration, then $KUBECONFIG, then ~/.kube/config",
    )


def run_with_client(
    arguments: argparse.Namespace,
    work: Callable[[KubeClient, ClusterConfig], Awaitable[int]],
    run: Callable[[Coroutine[Any, Any, int]], int] = asyncio.run,
) -> int:
    """Run ``work`` with a client for the cluster of ``arguments``. Returns 3 (UNKNOWN) if the API server does not
    answer, refuses the request, or knows no such node."""

    async def connected(config: ClusterConfig) -> int:
        async with KubeClient(config, user_agent="muster-cli", timeout_s=ANSWER_S) as client:
            return await work(client, config)

    try:
        config = load_user_config(arguments.kubeconfig)
        return run(connected(config))
    except (ConfigError, ApiError, NotInCluster) as error:
        print(f"muster: {error}", file=sys.stderr)
        return EXIT_UNKNOWN
