"""`muster explain NODE`: the chain of evidence behind a taint, from the cluster alone; `muster explain ipujob JOB`: the
story of a job."""

import argparse
import sys
import time
from pathlib import Path

import msgspec

from muster_cli.cluster.client import add_kubeconfig, node_name, run_with_client
from muster_cli.cluster.tainter import NamespaceUnknown, add_namespace, find_namespace
from muster_cli.commands.explain_ipujob import KIND, explain_job, job_name, read_jobs_of_node
from muster_cli.report.paragraphs import fold_lines
from muster_kube.api.client import KubeClient
from muster_kube.api.config import ClusterConfig
from muster_kube.api.errors import ApiError, NotFound
from muster_kube.process.command_line import EXIT_USAGE

POLICY_MAP, POLICY_KEY = "muster-policy", "policy.yaml"  # the tainter's, in its namespace


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "muster explain [options] NODE | ipujob [NAMESPACE/]NAME"
    parser.add_argument("node", metavar="NODE", type=node_name, help="whose faults, taints and proofs; or: ipujob")
    parser.add_argument("job", metavar="[NAMESPACE/]NAME", nargs="?", type=job_name, help="of an IPUJob: its story")
    parser.add_argument("--policy", type=Path, metavar="FILE", help="the policy in force; default: the tainter's own")
    parser.add_argument("--json", action="store_true", help="one JSON document")
    add_namespace(parser)
    add_kubeconfig(parser)


def main(arguments: argparse.Namespace) -> int:
    from muster_cli.cluster.node_snapshot import exit_code, read_node_state
    from muster_tainter.explain.node import explain_node, format_explanation
    from muster_tainter.policy.file import PolicyError, load_policy, parse_policy

    if (arguments.job is not None) != (arguments.node == KIND):
        typed = " ".join(filter(None, (arguments.node, arguments.job)))
        print(f"muster: explain {typed}: expected NODE, or ipujob [NAMESPACE/]NAME", file=sys.stderr)
        return EXIT_USAGE
    given = None
    if arguments.policy is not None:
        try:
            given = load_policy(arguments.policy)
        except PolicyError as error:
            print("\n".join(f"muster: {line}" for line in str(error).splitlines()), file=sys.stderr)
            return EXIT_USAGE

    async def work(client: KubeClient, config: ClusterConfig) -> int:
        if arguments.job is not None:
            return await explain_job(client, config, arguments.job, as_document=arguments.json)
        state = await read_node_state(client, arguments.node)
        maps = await _maps(client, config, arguments.namespace)
        policy, notes = given, list[str]()
        if policy is None and maps.policy:
            try:
                policy = parse_policy(maps.policy, f"ConfigMap {POLICY_MAP}: {POLICY_KEY}")
            except PolicyError as error:
                notes.append(str(error).splitlines()[0])
        if policy is None:
            policy = load_policy(None)
            notes.append("rules are told by the built-in policy: the one in force may differ (--policy FILE)")
        told = explain_node(state.node, state.health, policy, time.time(), paused=maps.paused)
        told = msgspec.structs.replace(
            told, notes=(*told.notes, *notes, *await read_jobs_of_node(client, arguments.node))
        )
        if arguments.json:
            print(msgspec.json.format(msgspec.json.encode(told)).decode())
        else:
            print("\n".join(fold_lines(format_explanation(told))))
        return exit_code(state.health.status.verdict if state.health else "")

    return run_with_client(arguments, work)


class _Maps(msgspec.Struct):
    """paused: why nothing new is tainted; policy: text of the one in force. Empty where it is not, or cannot be had."""

    paused: str = ""
    policy: str = ""


async def _maps(client: KubeClient, config: ClusterConfig, given: str | None) -> _Maps:
    """Whoever may not read ConfigMaps still gets the rest told."""
    from muster_cli.commands.pause import read_pause
    from muster_tainter.pause import PauseMap, config_maps, describe_pause

    try:
        namespace = await find_namespace(client, config, given)
        pause = await read_pause(client, namespace)
        paused = describe_pause(pause) if pause is not None else ""
    except (NamespaceUnknown, ApiError):
        return _Maps()
    try:
        found = await client.get(f"{config_maps(namespace)}/{POLICY_MAP}", type=PauseMap)
    except (NotFound, ApiError):
        return _Maps(paused)
    return _Maps(paused, found.data.get(POLICY_KEY, ""))
