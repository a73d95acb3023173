"""`muster pause`, and what `muster resume` shares with it: a ConfigMap stops new actions of the tainter."""

import argparse
import sys
import time

from muster_cli.cluster.client import add_kubeconfig, run_with_client
from muster_cli.cluster.tainter import NamespaceUnknown, add_namespace, find_namespace
from muster_cli.report.quantities import age
from muster_kube.api.client import KubeClient
from muster_kube.api.config import ClusterConfig
from muster_kube.api.errors import AlreadyExists, NotFound
from muster_kube.api.objects import Metadata
from muster_kube.api.times import rfc3339_whole
from muster_kube.process.command_line import EXIT_UNKNOWN
from muster_tainter.pause import NAME, PauseMap, config_maps, describe_pause

REASON_LIMIT = 200


def reason(text: str) -> str:
    """For argparse: a text that fits into Events and conditions."""
    if not text.isprintable() or len(text.encode()) > REASON_LIMIT:
        raise argparse.ArgumentTypeError(f"expected one line of at most {REASON_LIMIT} bytes")
    return text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        'The pause lasts until you run "muster resume". Existing taints stay, and recovered nodes lose theirs as usual.'
    )
    parser.add_argument(
        "--reason", metavar="TEXT", default="", type=reason, help="why, for others who look at the pause"
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
        now = time.time()
        data = {"by": current_user(config), "at": rfc3339_whole(now), "reason": arguments.reason}
        body = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": NAME, "namespace": namespace},
            "data": data,
        }
        try:
            made = await client.create(config_maps(namespace), body, type=PauseMap)
        except AlreadyExists:
            known = await read_pause(client, namespace)
            if known is None:
                print("muster: not paused: another user resumed at the same time: try again", file=sys.stderr)
                return EXIT_UNKNOWN
            print(f"already {describe_pause_with_age(known, now)}")
            return 0
        print(describe_pause_with_age(made, now))
        print('Muster starts no new taint, drain or repair; recovery continues. "muster resume" ends the pause.')
        return 0

    return run_with_client(arguments, work)


def current_user(config: ClusterConfig) -> str:
    """The user of the kubeconfig, for the record of who paused or cleared."""
    return config.user or config.origin


def describe_pause_with_age(pause: PauseMap, now: float) -> str:
    ago = f" ({age(now - pause.since)} ago)" if pause.since and now - pause.since >= 1.0 else ""
    return f"{describe_pause(pause)}{ago}"


async def read_pause(client: KubeClient, namespace: str) -> PauseMap | None:
    """None if the tainter is not paused."""
    try:
        return await client.get(f"{config_maps(namespace)}/{NAME}", type=PauseMap)
    except NotFound:
        return None


async def resume(client: KubeClient, namespace: str) -> PauseMap | None:
    """The pause that was ended; None if the tainter was not paused."""
    known = await read_pause(client, namespace)
    if known is None:
        return None
    try:
        await client.delete(f"{config_maps(namespace)}/{NAME}")
    except NotFound:
        return PauseMap(metadata=Metadata(name=NAME))
    return known
