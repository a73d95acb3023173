"""What the commands for a cluster share: the --kubeconfig flag, a client for one call, errors in one line."""

import argparse
import asyncio
import re
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from muster_cli.cluster.login import load_user_config
from muster_kube.api.client import KubeClient
from muster_kube.api.config import ClusterConfig, ConfigError
from muster_kube.api.errors import ApiError
from muster_kube.process.command_line import EXIT_UNKNOWN

_NODE = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")  # RFC 1123


def node_name(text: str) -> str:
    """For argparse: what Kubernetes takes as a Node's name."""
    if len(text) > 253 or not _NODE.fullmatch(text):
        raise argparse.ArgumentTypeError(
            f"{text!r}: expected a node's name: lower-case letters, digits, '-' and '.', at most 253"
        )
    return text


def add_kubeconfig(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--kubeconfig", type=Path, metavar="FILE", help="default: in-cluster, then $KUBECONFIG, then ~/.kube/config"
    )


def run_with_client(arguments: argparse.Namespace, work: Callable[[KubeClient, ClusterConfig], Awaitable[int]]) -> int:
    """Run ``work`` with a client for the cluster that the arguments name; 3 (UNKNOWN) where it cannot be asked."""

    async def connected(config: ClusterConfig) -> int:
        async with KubeClient(config, user_agent="muster-cli") as client:
            return await work(client, config)

    try:
        config = load_user_config(arguments.kubeconfig)
        return asyncio.run(connected(config))
    except (ConfigError, ApiError) as error:
        print(f"muster: {error}", file=sys.stderr)
        return EXIT_UNKNOWN
