"""`muster simulate --from-cluster FOLDER`: writes the fleet and the faults of a cluster's last months."""

import argparse
import sys
from pathlib import Path

from pydantic import ValidationError

from muster_cli.cluster.active_policy import read_active_policy
from muster_cli.cluster.client import add_kubeconfig, run_with_client
from muster_cli.cluster.tainter import add_namespace
from muster_cli.exit_codes import EXIT_OK
from muster_cli.report.quantities import plural
from muster_cli.simulate.past_notes import notes
from muster_cli.usage import UsageError
from muster_kube.api.client import KubeClient
from muster_kube.api.config import ClusterConfig
from muster_kube.api.times import rfc3339_whole
from muster_kube.process.command_line import EXIT_UNKNOWN
from muster_tainter.policy import label_syntax
from muster_tainter.policy.file import load_policy
from muster_tainter.policy.sections.heavy_checks import parse_duration
from muster_tainter.policy.sections.sources import HttpSource, check_matchers
from muster_tainter.simulation.history.cluster_history import FleetHistory, HistoryRequest, read_history
from muster_tainter.simulation.history.files import fleet_document, fleet_text, write_faults
from muster_tainter.sources.http_client import SourceError

FLEET_FILE, FAULT_FILE = "fleet.yaml", "faults.csv"
SINCE = "90d"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("from a cluster")
    group.add_argument(
        "--from-cluster",
        metavar="FOLDER",
        type=Path,
        help=f"instead of a simulation, write {FLEET_FILE} and {FAULT_FILE} of this cluster's past into FOLDER. The "
        "pools of the POLICY files, or else of the active policy, decide which labels of nodes are kept",
    )
    group.add_argument(
        "--prometheus",
        metavar="URL",
        help="address of a Prometheus that scrapes Muster's agents or kube-state-metrics; without it, the "
        "command covers only the last day, with the faults that Nodes and NodeHealths record",
    )
    group.add_argument(
        "--since", metavar="TIME", type=_since, default=parse_duration(SINCE), help=f"how far back; default: {SINCE}"
    )
    group.add_argument(
        "--match", metavar="MATCHERS", type=_matchers, default="",
        help="PromQL matchers for the series of Muster's agents, such as 'namespace=\"muster\"': needed if the "
        "Prometheus has several clusters, or metrics of tenants",
    )  # fmt: skip
    group.add_argument("--prometheus-token", metavar="FILE", type=Path, help="file with a bearer token for Prometheus")
    group.add_argument("--prometheus-ca", metavar="FILE", type=Path, help="file with the certificates to trust")
    group.add_argument("--prometheus-tenant", metavar="NAME", help="value of X-Scope-OrgID")
    add_kubeconfig(parser)
    add_namespace(parser)
    group.add_argument(
        "--domain", metavar="LABEL", type=_label,
        help="node label that names the failure domain; default: that of the policy's pools",
    )  # fmt: skip


def _since(text: str) -> float:
    try:
        return parse_duration(text, least_s=3600.0)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None


def _matchers(text: str) -> str:
    try:
        return check_matchers(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None


def _label(text: str) -> str:
    if not label_syntax.is_key(text):
        raise argparse.ArgumentTypeError(f"{text!r}: {label_syntax.KEY_WORDS}")
    return text


def write_files(arguments: argparse.Namespace) -> int:
    """The exit code. Raises UsageError, PolicyError, OSError."""
    folder: Path = arguments.from_cluster
    for flag in ("fleet", "faults", "jobs", "html"):
        if getattr(arguments, flag) is not None:
            raise UsageError(f"--{flag}: not together with --from-cluster, which writes files for a simulation")
    if arguments.vary:
        raise UsageError("--vary: not together with --from-cluster, which writes files for a simulation")
    policies = [load_policy(None if word == "-" else Path(word)) for word in arguments.policies]
    where = _where(arguments)
    folder.mkdir(exist_ok=True)
    for name in (FLEET_FILE, FAULT_FILE):
        if (folder / name).exists():
            raise UsageError(f"{folder / name}: exists already: expected a folder without it")

    async def work(client: KubeClient, config: ClusterConfig) -> int:
        known = policies or [(await read_active_policy(client, config, arguments.namespace))[0]]
        domain = arguments.domain or next((pool.domain for each in known for pool in each.pools if pool.domain), "")
        keys = frozenset(key for each in known for pool in each.pools for key in pool.selector.match_labels)
        request = HistoryRequest(where, arguments.match, arguments.since, keys, domain)
        try:
            history = await read_history(client, request, progress=_show_progress)
        except SourceError as error:
            print(f"muster: --prometheus: {error}", file=sys.stderr)
            return EXIT_UNKNOWN
        return _write(folder, history, domain)

    return run_with_client(arguments, work)


def _where(arguments: argparse.Namespace) -> HttpSource | None:
    flags = {
        "url": ("prometheus", arguments.prometheus),
        "tokenFile": ("prometheus-token", arguments.prometheus_token),
        "caFile": ("prometheus-ca", arguments.prometheus_ca),
        "tenant": ("prometheus-tenant", arguments.prometheus_tenant),
    }
    given = {key: value for key, (_, value) in flags.items() if value is not None}
    if not given:
        return None
    if "url" not in given:
        raise UsageError(f"--{flags[next(iter(given))][0]}: expected --prometheus URL beside it")
    try:
        return HttpSource.model_validate(given)
    except ValidationError as error:
        detail = error.errors()[0]
        text = detail.get("ctx", {}).get("error", detail["msg"])
        raise UsageError(f"--{flags[str(detail['loc'][0])][0]}: {str(detail['input'])[:200]!r}: {text}") from None


def _show_progress(at: float) -> None:
    if sys.stderr.isatty():
        print(f"\rread until {rfc3339_whole(at)}", end="", file=sys.stderr, flush=True)


def _write(folder: Path, history: FleetHistory, domain: str) -> int:
    if sys.stderr.isatty():
        print(file=sys.stderr)
    if not history.fleet.groups:
        print("muster: no node of this cluster lists accelerators or has a NodeHealth", file=sys.stderr)
        return EXIT_UNKNOWN
    known = [*notes(history, domain)]
    when = f"{rfc3339_whole(history.begin)} to {rfc3339_whole(history.end)}"
    head = [f"Written by `muster simulate --from-cluster`: {when}. What the cluster could not tell:", *known]
    document = fleet_document(history.fleet.groups, history.begin, history.end)
    fleet, faults = folder / FLEET_FILE, folder / FAULT_FILE
    fleet.write_text(fleet_text(document, head), encoding="utf-8")
    groups = plural(len(history.fleet.groups), "group")
    print(f"{fleet}: {plural(len(history.fleet.names), 'node')} in {groups}, {when}")
    for line in known:
        print(f"note: {line}")
    if not history.faults.rows:
        print(f"muster: no faults are known, so there is no {faults}", file=sys.stderr)
        return EXIT_UNKNOWN
    write_faults(faults, history.faults.rows)
    nodes = len({row.node for row in history.faults.rows})
    print(f"{faults}: {plural(len(history.faults.rows), 'fault')} of {plural(nodes, 'node')}")
    print(f"next: muster simulate - POLICY --fleet {fleet} --faults {faults}")
    return EXIT_OK
