"""`muster doctor`: finds problems of the installation and shows how to fix them."""

import argparse
from collections.abc import Iterable

from muster_checks.base.vocabulary import severity
from muster_cli.cluster.client import add_kubeconfig, run_with_client
from muster_cli.cluster.node_arguments import node_name
from muster_cli.doctor.findings import DoctorFinding
from muster_cli.exit_codes import worst_exit_code
from muster_cli.report.columns import print_table
from muster_cli.report.output_format import TABLE, add_output, print_document
from muster_kube.api.client import KubeClient
from muster_kube.api.config import ClusterConfig

ANY_NODE = ""
HEAD = ("AREA", "VERDICT", "FINDING, AND HOW TO FIX IT")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "It changes nothing in the cluster, except with --canary."
    parser.add_argument(
        "--canary",
        metavar="NODE",
        nargs="?",
        const=ANY_NODE,
        type=node_name,
        help="instead of examining the installation, send a made-up finding from the agent of NODE to the tainter, and "
        "show where it stops. Without NODE, the command chooses a node. This taints nothing, but writes the node's "
        "NodeHealth: you need the right to patch NodeHealths",
    )
    parser.add_argument(
        "--namespace", metavar="NAME", help="look for parts of Muster in this namespace only; default: in all"
    )
    add_output(parser)
    add_kubeconfig(parser)


def main(arguments: argparse.Namespace) -> int:
    from muster_cli.doctor.bounded_reads import BoundedReader
    from muster_cli.doctor.canary import judge_canary, send_canary
    from muster_cli.doctor.collector import examine_installation

    async def work(client: KubeClient, config: ClusterConfig) -> int:
        await client.get("/version")  # fails here if the API server cannot be reached
        if arguments.canary is not None:
            found = judge_canary(await send_canary(client, arguments.canary, config.user))
        else:
            found = sort_findings(await examine_installation(BoundedReader(client), arguments.namespace))
        if arguments.output != TABLE:
            print_document({"findings": found}, arguments.output)
        else:
            print_table(HEAD, list(finding_rows(found)))
            print(summary(found))
        return worst_exit_code([finding.verdict for finding in found])

    return run_with_client(arguments, work)


def sort_findings(found: Iterable[DoctorFinding]) -> list[DoctorFinding]:
    """The worst first; findings of one verdict stay in the order of the areas."""
    return sorted(found, key=lambda finding: -severity(finding.verdict))


def finding_rows(found: Iterable[DoctorFinding]) -> Iterable[tuple[str, str, str]]:
    for finding in found:
        yield finding.area, finding.verdict.value, finding.what
        if finding.mend:
            yield finding.area, "fix:", finding.mend


def summary(found: Iterable[DoctorFinding]) -> str:
    numbers = dict.fromkeys(("FAIL", "WARN", "UNKNOWN"), 0)
    for finding in found:
        if finding.verdict.value in numbers:
            numbers[finding.verdict.value] += 1
    if not any(numbers.values()):
        return "no problem found"
    return ", ".join(f"{number} {verdict}" for verdict, number in numbers.items())
