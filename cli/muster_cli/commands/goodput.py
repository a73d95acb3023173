"""`muster goodput`: where the accelerator-hours of the cluster went, from the record that the tainter keeps."""

import argparse
import sys
import time

from muster_cli.cluster.client import add_kubeconfig, run_with_client
from muster_cli.cluster.tainter import NamespaceUnknown, add_namespace, find_namespace
from muster_cli.report.goodput import print_report
from muster_cli.report.output_format import TABLE, add_output, print_document
from muster_kube.api.client import KubeClient
from muster_kube.api.config import ClusterConfig
from muster_kube.api.errors import NotFound
from muster_kube.process.command_line import EXIT_UNKNOWN
from muster_tainter.goodput.report import By, make_report
from muster_tainter.goodput.state import NAME, BadState
from muster_tainter.goodput.store import GoodputMap
from muster_tainter.pause import config_maps
from muster_tainter.policy.sections.heavy_checks import parse_duration

HOUR_S = 3600.0


def since(text: str) -> float:
    """For argparse: seconds."""
    try:
        return parse_duration(text, least_s=HOUR_S)
    except ValueError:
        raise argparse.ArgumentTypeError(f'"{text}": expected a time of 1h to 366d, such as 24h or 7d') from None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "The tainter records this if the policy has a section goodput. The record lags by five minutes, and contains "
        "a job's work up to its last checkpoint. Later work is shown as at risk, because a failure would lose it."
    )
    parser.add_argument(
        "--since",
        metavar="TIME",
        type=since,
        default=7 * 24 * HOUR_S,
        help="how far back, such as 24h or 7d; rounded to whole hours, and beyond 8 days to whole days; default: 7d",
    )
    parser.add_argument(
        "--by", choices=[str(each) for each in By], default=str(By.CAUSE), help="rows of the table; default: cause"
    )
    add_output(parser)
    add_namespace(parser)
    add_kubeconfig(parser)


def main(arguments: argparse.Namespace) -> int:
    async def work(client: KubeClient, config: ClusterConfig) -> int:
        try:
            namespace = await find_namespace(client, config, arguments.namespace)
            found = await client.get(f"{config_maps(namespace)}/{NAME}", type=GoodputMap)
            state = found.state(time.time())
        except NamespaceUnknown as error:
            print(f"muster: {error}", file=sys.stderr)
            return EXIT_UNKNOWN
        except NotFound:
            print(
                f"muster: there is no ConfigMap {namespace}/{NAME}: the tainter keeps no record unless its policy has "
                "a section goodput, such as: goodput: {}",
                file=sys.stderr,
            )
            return EXIT_UNKNOWN
        except BadState as error:
            print(f"muster: ConfigMap {namespace}/{NAME}: cannot read the record: {error}", file=sys.stderr)
            return EXIT_UNKNOWN
        report = make_report(state, time.time() - arguments.since, By(arguments.by))
        if arguments.output == TABLE:
            print_report(report, time.time())
        else:
            print_document(report, arguments.output)
        return 0

    return run_with_client(arguments, work)
