"""`muster resume`: takes the brake off."""

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
        "Faults are tainted again, within the budgets; those that were found while it was paused, too. To have them "
        "stay free: muster release, before."
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
        print("it was not paused" if known is None else f"resumed; was {describe_pause_with_age(known, time.time())}")
        return 0

    return run_with_client(arguments, work)
