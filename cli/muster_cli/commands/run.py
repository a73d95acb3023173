"""`muster run [NODE…]`: runs checks on all or on chosen nodes. One agent receives the request and asks the others."""

import argparse
import asyncio
import contextlib
import json
import sys
from collections.abc import Sequence
from typing import Any

import msgspec

from muster_checks.base.vocabulary import Verdict
from muster_cli.cluster import agent_routes
from muster_cli.cluster.agent_routes import AgentRoute
from muster_cli.cluster.client import add_kubeconfig
from muster_cli.cluster.node_arguments import add_nodes, named_nodes
from muster_cli.exit_codes import exit_code
from muster_cli.interrupt import run_interruptibly
from muster_cli.report.columns import print_table
from muster_cli.report.fleet.answer import ALL_ROWS, HEAD, FleetAnswers
from muster_cli.report.fleet.progress import FleetProgress
from muster_cli.report.quantities import plural
from muster_cli.usage import UsageError
from muster_kube.api.client import KubeClient
from muster_kube.api.errors import ApiError, ConfigError, Forbidden
from muster_kube.nodehealth import PATH, NodeHealth
from muster_kube.process.command_line import EXIT_UNKNOWN, EXIT_USAGE
from muster_kube.run_permit import HEADER, delete_permit, write_permit

_TEXT_SHOWN = 500  # bytes of a response that an ApiError holds
_NO_PROOF = (
    "with --url, the command proves no right; in Jobs of the chart, run.heavyChecks=true lets it, and helm test runs "
    "only what needs none"
)
_OWN = ("check", "host", "batch", "job", "nodelabel", "force", "format", "serverspernode", "clientsperiface", "plane")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "One agent receives the request and asks the agents of the other nodes. The command reaches it through the API "
        "server with your kubeconfig; in a pod, through the Service of the agents; or at --url.\n\n"
        'Heavy checks ("muster checks" lists them) run only on idle nodes. --force also runs them on nodes that are in '
        "use, which can slow down or break the jobs there. Heavy checks and --force need the right to patch "
        "nodehealths.muster.dev. To prove that you have it, the command writes an annotation to a NodeHealth, and "
        "deletes it afterwards. If you lack this right but may create pods/portforward in the namespace of the agents, "
        "use a port-forward, whose requests the agent trusts. Run the second command in another terminal:\n\n"
        f"  {agent_routes.PORT_FORWARD}\n"
        f"  muster run node-1 --check pciebw --force --url http://127.0.0.1:{agent_routes.PORT}"
    )
    add_nodes(parser, "run on these nodes; default: all nodes")
    parser.add_argument(
        "--check",
        action="append",
        default=[],
        metavar="A,B",
        help='names of the checks to run, or "all" for all light and heavy checks; default, as in Autopilot: run the '
        "light checks, and show the last results of pciebw and dcgm",
    )
    parser.add_argument(
        "--batch",
        type=_positive,
        metavar="N",
        help="ask this many nodes at the same time; default and upper bound: the agent's setting fleet_at_once (64)",
    )
    parser.add_argument("--job", metavar="NAMESPACE:KEY=VALUE", help="only nodes that run a pod with this label")
    parser.add_argument(
        "--nodelabel",
        metavar="KEY=VALUE",
        help="only nodes with this label; with a comma-separated list, only nodes with all of the labels",
    )
    parser.add_argument(
        "--force", action="store_true", help="also run heavy checks on nodes that are in use: disturbs their jobs"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="[CHECK.]PARAMETER=VALUE",
        help='set a parameter of one check, or of all checks that have it; run "muster checks" for a list',
    )
    parser.add_argument("--r", metavar="N", help="dcgm: run level of dcgmi diag, 1 to 4; default: 1")
    parser.add_argument(
        "--plane", metavar="data|mgmt", help="iperf: data (secondary interfaces) or mgmt (eth0); default: data"
    )
    parser.add_argument(
        "--serverspernode", metavar="N", help="iperf: servers on each node; default: one for each secondary interface"
    )
    parser.add_argument(
        "--clientsperiface", metavar="N", help="iperf: clients for each server (see --serverspernode); default: 8"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document, as /status?format=json does")
    parser.add_argument("--all", action="store_true", help=ALL_ROWS)
    parser.add_argument(
        "--timeout",
        type=_seconds,
        metavar="SECONDS",
        help="stop waiting after this time; default: until each node has answered, or has exceeded the time limits of "
        "its checks",
    )
    agent_routes.add_arguments(parser)
    add_kubeconfig(parser)


def _positive(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number from 1")
    return int(text)


def _seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number of seconds above 0")
    return number


def main(arguments: argparse.Namespace) -> int:
    try:
        query = query_of(arguments)
        route = agent_routes.find_route(arguments)
        print(f"sending the request to {route.description}", file=sys.stderr)
        return run_interruptibly(_Run(route, query, arguments).run())
    except UsageError as error:
        print(f"muster: {error}", file=sys.stderr)
        return EXIT_USAGE
    except (ConfigError, ApiError) as error:
        code = _refused(error)
        if isinstance(error, ApiError) and error.status == 401 and route.permits is None and not arguments.token_file:
            print(f"muster: {_NO_PROOF}", file=sys.stderr)
        return code


def query_of(arguments: argparse.Namespace) -> dict[str, str]:
    """The query parameters of /status. Raises UsageError."""
    query: dict[str, str] = {}
    checks = [name for given in arguments.check for part in given.split(",") if (name := part.strip())]
    if checks:
        query["check"] = ",".join(dict.fromkeys(checks))
    elif arguments.check:
        raise UsageError("--check: expected the names of checks, separated by commas")
    if nodes := named_nodes(arguments):
        query["host"] = ",".join(nodes)
    for name in ("batch", "job", "nodelabel", "r", "plane", "serverspernode", "clientsperiface"):
        value = getattr(arguments, name)
        if value is not None:
            query[name] = str(value)
    if arguments.force:
        query["force"] = "true"
    for word in arguments.set:
        name, sign, value = word.partition("=")
        if not sign or not name:
            raise UsageError(f"--set {word}: expected [CHECK.]PARAMETER=VALUE")
        if name in _OWN:
            raise UsageError(f"--set {word}: {name} is not a parameter of a check: use --{name}")
        if name in query:
            raise UsageError(f"--set {word}: {name} is set twice")
        query[name] = value
    return query


class _Run:
    def __init__(self, route: AgentRoute, query: dict[str, str], arguments: argparse.Namespace) -> None:
        self._route = route
        self._query = query
        self._arguments = arguments
        self._answers = FleetAnswers()
        hosts = query.get("host", "all")
        self._progress = FleetProgress(self._answers, total=len(hosts.split(",")) if hosts != "all" else None)
        self._written = 0
        self._headers: dict[str, str] = {}

    async def run(self) -> int:
        """Returns the exit code. Raises ApiError if no agent has answered at all."""
        showing = asyncio.create_task(self._progress.show())
        late = ""
        try:
            async with asyncio.timeout(self._arguments.timeout):
                late = await self._ask()
        except TimeoutError:
            late = f"not all nodes have answered within {self._arguments.timeout:g} s"
        finally:
            showing.cancel()
            await asyncio.gather(showing, return_exceptions=True)
            self._progress.clear()
        self._report(late)
        return exit_code(self._answers.verdict())

    async def _ask(self) -> str:
        """Read the answer to its end. Returns why it ended early, or "". Raises ApiError before the first line."""
        async with KubeClient(self._route.config, user_agent="muster-cli", timeout_s=10.0) as client:
            counting = asyncio.create_task(self._count(client))
            try:
                for left in reversed(range(self._route.tries)):
                    try:
                        return await self._take_permitted(client)
                    except ApiError as error:
                        if left and error.status == 503 and not self._answers.verdicts:
                            continue  # the proxy could not reach the agent that it picked
                        if not (self._answers.verdicts or self._answers.garbage):
                            raise
                        return error.message
                raise AssertionError("unreachable: the last try returns or raises")  # pragma: no cover
            finally:
                counting.cancel()
                await asyncio.gather(counting, return_exceptions=True)

    async def _take_permitted(self, client: KubeClient) -> str:
        """As _take; if the agent requires a permission, prove it."""
        try:
            return await self._take(client)
        except ApiError as error:
            if error.status != 401 or self._route.permits is None or self._headers:
                raise
            refusal = error
        async with KubeClient(self._route.permits, user_agent="muster-cli", timeout_s=10.0) as api:
            try:
                permit = await write_permit(api, await self._node_for_permit(api))
            except Forbidden:
                raise refusal from None  # it names the right and the other ways
            self._headers = {HEADER: permit.header}
            try:
                return await self._take(client)
            finally:
                with contextlib.suppress(ApiError):  # it expires soon anyway
                    await delete_permit(api, permit)

    async def _node_for_permit(self, api: KubeClient) -> str:
        """Any node with a NodeHealth. Raises ApiError."""
        if (named := self._query.get("host", "all").partition(",")[0]) != "all":
            return named
        page = await api.list_page(PATH, NodeHealth, params={"limit": 1})
        return page.items[0].metadata.name if page.items else "none"

    async def _take(self, client: KubeClient) -> str:
        params = {**self._query, "format": "jsonl"}
        async with client.stream(self._route.path, params, silence_s=None, headers=self._headers) as batches:
            async for batch in batches:
                for line in batch:
                    node = self._answers.take(line)
                    if node is not None:
                        self._progress.print_bad(node.node)
                        if self._arguments.json:
                            self._write(line)
        return ""

    async def _count(self, client: KubeClient) -> None:
        """Set the number of nodes that the progress line shows, if all nodes run and the API server can be asked."""
        if not self._route.cluster or {"host", "job", "nodelabel"} & self._query.keys():
            return
        try:
            page: dict[str, Any] = await client.get(PATH, params={"limit": 1})
            self._progress.total = len(page["items"]) + int(page["metadata"].get("remainingItemCount", 0))
        except (ApiError, ConfigError, KeyError, TypeError, ValueError):
            return

    def _write(self, line: bytes) -> None:
        """Append one node to the JSON document as soon as it has answered."""
        print("," if self._written else '{"nodes":[', line.decode("utf-8", "replace").strip(), sep="\n", flush=True)
        self._written += 1

    def _report(self, late: str) -> None:
        answers = self._answers
        trouble = answers.trouble()
        if late and answers.ending is None:
            trouble[-1] = f"{trouble[-1]}: {late}"
        for line in [*(answers.ending.notes if answers.ending else ()), *trouble]:
            print(f"muster: {line}", file=sys.stderr)
        if self._arguments.json:
            self._end_document("; ".join(trouble))
            return
        rows, rest = answers.table(every=self._arguments.all)
        if rows:
            print_table(HEAD, rows)
        if rest:
            print(rest)
        if answers.ending is not None:
            print(_summary(answers))

    def _end_document(self, trouble: str) -> None:
        """Close the JSON document, also if the answer is incomplete."""
        ending = self._answers.ending
        rest: dict[str, Any] = msgspec.to_builtins(ending) if ending is not None else {"summary": {}}
        rest["verdict"] = self._answers.verdict().value
        if trouble:
            rest["error"] = trouble
        begun = "" if self._written else '{"nodes":['
        print(f"{begun}\n],{json.dumps(rest)[1:]}")


def _summary(answers: FleetAnswers) -> str:
    counts = [f"{number} {verdict.value}" for verdict in Verdict if (number := answers.count(verdict))]
    runtime_s = answers.ending.runtime_seconds if answers.ending else 0.0
    nodes = plural(len(answers.verdicts), "node") if answers.verdicts else "no nodes"
    return f"{nodes}{': ' + ', '.join(counts) if counts else ''}; {runtime_s:.1f} s"


def _refused(error: ApiError | ConfigError) -> int:
    if isinstance(error, ApiError) and error.status == 400:
        lines: Sequence[str] = error.message.splitlines() or [str(error)]
        cut = "…" if len(error.message) >= _TEXT_SHOWN else ""
        print("\n".join(f"muster: {line}" for line in lines) + cut, file=sys.stderr)
        return EXIT_USAGE
    print(f"muster: {error}", file=sys.stderr)
    return EXIT_UNKNOWN
