"""`muster check [NAME…]`: runs checks on this machine without an agent or a cluster, or judges recorded output."""

import argparse
import asyncio
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from pydantic import ValidationError

from muster_checks.base.declaration import Check, Cost, NodeView, Parameters
from muster_checks.base.unknown_names import LIST_PARAMETERS, explain_unknown
from muster_checks.base.vocabulary import Result
from muster_checks.registry import UnknownCheck, load_registry, select_checks
from muster_cli.cluster.client import add_kubeconfig
from muster_cli.cluster.local_checks import run_checks
from muster_cli.cluster.node_arguments import node_name
from muster_cli.cluster.user_rights import UserVolumes
from muster_cli.exit_codes import worst_exit_code
from muster_cli.report.samples import BadSample, judge_sample
from muster_cli.report.verdicts import print_results
from muster_cli.usage import UsageError
from muster_kube.process.command_line import EXIT_USAGE
from muster_kube.process.settings import explain


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "names",
        metavar="NAME",
        nargs="*",
        help='names of the checks to run, or "all" for all light and heavy checks; default: the light checks',
    )
    parser.add_argument("--json", action="store_true", help="print the results as a JSON list")
    parser.add_argument(
        "--sample",
        type=Path,
        metavar="FILE",
        help="judge this file: recorded output of a tool, a kernel log or a tar file of /sys. The command recognises "
        "the format by the content, and runs every check that can judge it; with NAME, only the checks named. For a "
        "file of an unknown format, it lists all formats",
    )
    parser.add_argument(
        "--root", type=Path, default=Path("/"), help="read /proc, /sys and /dev below this directory; default: /"
    )
    parser.add_argument("--details", action="store_true", help="show every component with its measurements")
    parser.add_argument("--plugins", type=Path, metavar="DIR", help="directory of plug-in checks, see docs/plugins.md")
    parser.add_argument(
        "--node",
        type=node_name,
        default=socket.gethostname().lower(),
        metavar="NAME",
        help="name of this machine in its cluster (the check pvc creates its test pod on this node); "
        "default: the host name",
    )
    add_kubeconfig(parser)
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="[CHECK.]PARAMETER=VALUE",
        help='set a parameter of one check, or of all checks that have it; run "muster checks" for a list',
    )


def main(arguments: argparse.Namespace) -> int:
    try:
        chosen = _chosen(arguments)
        parameters = read_parameters(chosen, arguments.set)
        if arguments.sample is not None:
            named = bool(arguments.names) and "all" not in arguments.names
            report = judge_sample(arguments.sample, chosen, parameters, named=named)
            results = report.results
            # JSON goes to stdout alone, so that a program can read it
            for line in report.heading:
                print(f"muster: {line}" if arguments.json else line, file=sys.stderr if arguments.json else sys.stdout)
        else:
            view = NodeView(arguments.root, name=arguments.node, volumes=UserVolumes(arguments.kubeconfig))
            results = asyncio.run(_run_to_the_end(chosen, view, parameters))
    except (UsageError, BadSample, UnknownCheck) as error:
        print("\n".join(f"muster: {line}" for line in str(error).splitlines()), file=sys.stderr)
        return EXIT_USAGE
    if arguments.json:
        print(msgspec.json.format(msgspec.json.encode(results)).decode())
    else:
        print_results(results, details=arguments.details or len(results) == 1)
    return worst_exit_code([result.verdict for result in results])


async def _run_to_the_end(
    checks: Sequence[Check], view: NodeView, parameters: Mapping[str, Parameters]
) -> list[Result]:
    """On SIGTERM (`timeout 60 muster check`) and SIGHUP (a closed terminal), end the running tools first."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None  # noqa: S101 - a coroutine of asyncio.run has one
    ended: list[int] = []

    def end(number: int) -> None:
        ended.append(number)
        task.cancel()

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # nohup ignores SIGHUP; keep that
            loop.add_signal_handler(number, end, number)
    try:
        return await run_checks(checks, view, parameters)
    except asyncio.CancelledError:
        if ended:
            raise SystemExit(128 + ended[0]) from None
        raise


def _chosen(arguments: argparse.Namespace) -> list[Check]:
    broken: dict[str, str] = {}
    checks = load_registry(None, broken, arguments.plugins)
    for name, why in broken.items():
        print(f"muster: plug-in {name} was not loaded: {why}", file=sys.stderr)
    if arguments.names:
        return select_checks([name for word in arguments.names for name in word.split(",") if name], checks)
    if arguments.sample is not None:
        return list(checks.values())
    return [check for check in checks.values() if check.cost is Cost.LIGHT and check.enabled]


def read_parameters(checks: Sequence[Check], words: Sequence[str]) -> Mapping[str, Parameters]:
    """The parameters of each check, parsed from ``[CHECK.]PARAMETER=VALUE``. Raises UsageError."""
    given: dict[str, dict[str, str]] = {check.name: {} for check in checks}
    for word in words:
        name, sign, value = word.partition("=")
        owner, _, parameter = name.rpartition(".")
        if not sign:
            raise UsageError(f"--set {word}: expected [CHECK.]PARAMETER=VALUE")
        having = [
            check.name for check in checks if parameter in check.parameters.model_fields and owner in ("", check.name)
        ]
        if not having:
            raise UsageError(f"--set {word}: {_explain_unknown_parameter(name, checks)}")
        for check_name in having:
            given[check_name][parameter] = value
    chosen: dict[str, Parameters] = {}
    wrong: list[str] = []
    for check in checks:
        try:
            chosen[check.name] = check.parameters.model_validate(given[check.name])
        except ValidationError as error:
            wrong += explain(error, check.name, check.parameters)
    if wrong:
        raise UsageError("\n".join(wrong))
    return chosen


def _explain_unknown_parameter(name: str, checks: Sequence[Check]) -> str:
    parameters = {field for check in checks for field in check.parameters.model_fields}
    full_names = {f"{check.name}.{field}" for check in checks for field in check.parameters.model_fields}
    return explain_unknown("parameter", name, full_names if "." in name else parameters, LIST_PARAMETERS)
