"""`muster resume`: ends a pause."""

import argparse
import sys
import time

from muster_cli.cluster.client import add_kubeconfig, run_with_client
from muster_cli.cluster.tainter import NamespaceUnknown, add_namespace, find_namespace
from muster_cli.commands.pause import describe_pause_with_age, resume
from muster_kube.api.client import KubeClient
from muster_kube.api.config import ClusterConfig
from muster_kube.process.command_line import EXIT_UNKNOWN


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Muster then also taints nodes for faults that were found during the pause and are still open, within the "
        'budgets. To prevent that, close these faults first: "muster clear NODE", or "muster release --all" for all '
        "nodes. A check that still fails opens its fault again with its next run; to prevent that, change its rule in "
        "the policy first."
    )
    add_namespace(parser)
    add_kubeconfig(parser)


def main(arguments: argparse.Namespace) -> int:
    async def work(client: KubeClient, config: ClusterConfig) -> int:
        try:
            namespace = await find_namespace(client, config, arguments.namespace)
        except NamespaceUnknown as error:
            print(f"muster: {error}", file=sys.stderr)
            return EXIT_UNKNOWN
        known = await resume(client, namespace)
        print(
            "Muster was not paused"
            if known is None
            else f"resumed; it was {describe_pause_with_age(known, time.time())}"
        )
        return 0

    return run_with_client(arguments, work)
