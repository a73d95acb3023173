"""`muster explain NODE`: the chain of evidence behind a taint, from the cluster alone."""

import argparse

from muster_cli.cluster import add_kubeconfig, call, node_name
from muster_kube.client import KubeClient
from muster_kube.config import ClusterConfig


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("node", metavar="NODE", type=node_name)
    add_kubeconfig(parser)


def main(arguments: argparse.Namespace) -> int:
    from muster_cli.report import exit_code, fetch

    async def work(client: KubeClient, _: ClusterConfig) -> int:
        from muster_tainter.explain import explain

        state = await fetch(client, arguments.node)
        print("\n".join(explain(state.node, state.health, state.memory)))
        return exit_code(state.health.status.verdict if state.health else "")

    return call(arguments, work)
