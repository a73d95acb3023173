"""`muster doctor`: what is wrong with the installation, and how to mend it. Changes nothing.

Exit code 0: all is well; 1: something is wrong; 3: nothing wrong was seen, but not all could be looked at.
"""

import argparse
import sys
from collections.abc import Iterable

import msgspec

from muster_checks.base.vocabulary import severity
from muster_cli.cluster.client import add_kubeconfig, run_with_client
from muster_cli.doctor.findings import DoctorFinding, exit_code
from muster_cli.report.columns import print_table
from muster_kube.api.client import KubeClient
from muster_kube.api.config import ClusterConfig

HEAD = ("AREA", "VERDICT", "WHAT IS SO, AND HOW TO MEND IT")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = __doc__
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--json", action="store_true", help="one JSON document")
    parser.add_argument("--namespace", metavar="NAME", help="look for the parts there only; default: in all namespaces")
    add_kubeconfig(parser)


def main(arguments: argparse.Namespace) -> int:
    from muster_cli.doctor.bounded_reads import BoundedReader
    from muster_cli.doctor.collector import examine_installation

    async def work(client: KubeClient, _config: ClusterConfig) -> int:
        await client.get("/version")  # nothing can be said of a cluster that does not answer
        found = sort_findings(await examine_installation(BoundedReader(client), arguments.namespace))
        if arguments.json:
            print(msgspec.json.format(msgspec.json.encode({"findings": found})).decode())
        else:
            print_table(HEAD, list(finding_rows(found)))
            print(summary(found), file=sys.stdout)
        return exit_code(found)

    return run_with_client(arguments, work)


def sort_findings(found: Iterable[DoctorFinding]) -> list[DoctorFinding]:
    """The worst first; areas stay together within a verdict."""
    return sorted(found, key=lambda finding: -severity(finding.verdict))


def finding_rows(found: Iterable[DoctorFinding]) -> Iterable[tuple[str, str, str]]:
    for finding in found:
        yield finding.area, finding.verdict.value, finding.what
        if finding.mend:
            yield finding.area, "mend:", finding.mend


def summary(found: Iterable[DoctorFinding]) -> str:
    numbers = dict.fromkeys(("FAIL", "WARN", "UNKNOWN"), 0)
    for finding in found:
        if finding.verdict.value in numbers:
            numbers[finding.verdict.value] += 1
    if not any(numbers.values()):
        return "nothing is wrong"
    words = (f"{numbers['FAIL']} wrong", f"{numbers['WARN']} to know of", f"{numbers['UNKNOWN']} not looked at")
    return ", ".join(words)
