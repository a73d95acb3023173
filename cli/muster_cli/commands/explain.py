"""`muster explain NODE…`: why a node is tainted or not, from what the cluster holds; `muster explain ipujob JOB`: the
history of a job."""

import argparse
import sys
import time
from pathlib import Path

import msgspec

from muster_cli.cluster.client import add_kubeconfig, run_with_client
from muster_cli.cluster.node_arguments import add_host, named_nodes, node_name
from muster_cli.cluster.tainter import NamespaceUnknown, add_namespace, find_namespace
from muster_cli.commands.explain_ipujob import KIND, explain_job, job_name, read_jobs_of_node
from muster_cli.report.output_format import TABLE, add_output, print_document
from muster_cli.report.paragraphs import fold_lines
from muster_kube.api.client import KubeClient
from muster_kube.api.config import ClusterConfig
from muster_kube.api.errors import ApiError
from muster_kube.process.command_line import EXIT_USAGE

POLICY_HELP = (
    "policy file; default: the ConfigMap muster-policy as it is now. If the ConfigMap is missing, unreadable or "
    "invalid, the output shows the rules of the built-in policy and says so (the tainter itself keeps its last valid "
    "policy)"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "muster explain [options] NODE… | ipujob [NAMESPACE/]NAME"
    parser.add_argument(
        "nodes",
        metavar="NODE",
        nargs="*",
        type=_node_or_job,
        help="explain the faults, taints and verification of these nodes; or: ipujob [NAMESPACE/]NAME, the history of "
        "an IPUJob. Without NAMESPACE/, the namespace is that of the kubeconfig's context (--namespace does not apply)",
    )
    add_host(parser)
    parser.add_argument("--policy", type=Path, metavar="FILE", help=POLICY_HELP)
    add_output(parser)
    add_namespace(parser)
    add_kubeconfig(parser)


def _node_or_job(text: str) -> str:
    return job_name(text) if "/" in text else node_name(text)


def main(arguments: argparse.Namespace) -> int:
    from muster_cli.cluster.active_policy import read_active_policy
    from muster_cli.cluster.device_rules import read_rule_reports
    from muster_cli.cluster.node_devices import read_node_devices
    from muster_cli.cluster.node_snapshot import read_node_state
    from muster_cli.cluster.node_warnings import read_node_warnings
    from muster_cli.cluster.spare_roles import read_common_taints
    from muster_cli.exit_codes import worst_exit_code
    from muster_cli.report.fleet.rows import parse_verdict
    from muster_tainter.devices.slices.nic_names import nic_names, with_nic_names
    from muster_tainter.explain.explanation import format_explanation
    from muster_tainter.explain.node import explain_node
    from muster_tainter.policy.file import PolicyError, load_policy

    job = arguments.nodes[1] if len(arguments.nodes) == 2 and arguments.nodes[0] == KIND else None
    names = [] if job else named_nodes(arguments)
    if not job and (not names or arguments.nodes[:1] == [KIND] or any("/" in name for name in names)):
        given = " ".join(["explain", *names])
        print(f"muster: {given}: expected NODE…, or ipujob [NAMESPACE/]NAME", file=sys.stderr)
        return EXIT_USAGE
    given_policy = None
    if arguments.policy is not None:
        try:
            given_policy = load_policy(arguments.policy)
        except PolicyError as error:
            print("\n".join(f"muster: {line}" for line in str(error).splitlines()), file=sys.stderr)
            return EXIT_USAGE

    async def work(client: KubeClient, config: ClusterConfig) -> int:
        if job is not None:
            return await explain_job(client, config, job, arguments.output)
        states = [await read_node_state(client, name) for name in names]
        paused = await _read_pause(client, config, arguments.namespace)
        policy, notes = given_policy, list[str]()
        if policy is None:
            policy, missing = await read_active_policy(client, config, arguments.namespace)
            if missing:
                notes.append(missing)
                notes.append(
                    "The rules shown are those of the built-in policy. If the tainter reads a file of its own, "
                    "name it with --policy FILE."
                )
        explanations = []
        for state in states:
            common = await read_common_taints(client, state.node, policy, time.time())
            read, unread = await read_node_devices(client, state.node.metadata.name)
            devices = with_nic_names(read, nic_names(state.memory, state.health))
            found = explain_node(
                state.node, state.health, policy, time.time(), paused=paused, common=common, devices=devices
            )
            known = {chain.fault for chain in (*found.chains, *found.findings)}
            warnings, unseen = await read_node_warnings(client, state.node.metadata.name, time.time(), known)
            jobs = await read_jobs_of_node(client, state.node.metadata.name)
            reports = await read_rule_reports(client, state.node.metadata.name, state.memory)
            more = (*notes, *(note for note in (unread, unseen) if note), *reports, *jobs)
            explanations.append(
                msgspec.structs.replace(found, findings=(*found.findings, *warnings), notes=(*found.notes, *more))
            )
        if arguments.output != TABLE:
            print_document(explanations[0] if len(explanations) == 1 else explanations, arguments.output)
        else:
            blocks = ["\n".join(fold_lines(format_explanation(each))) for each in explanations]
            print("\n\n".join(blocks))
        return worst_exit_code([parse_verdict(each.health.status.verdict if each.health else "") for each in states])

    return run_with_client(arguments, work)


async def _read_pause(client: KubeClient, config: ClusterConfig, namespace: str | None) -> str:
    """Who paused the tainter and why. Users who may not read ConfigMaps still get the rest of the explanation."""
    from muster_cli.commands.pause import read_pause
    from muster_tainter.pause import describe_pause

    try:
        pause = await read_pause(client, await find_namespace(client, config, namespace))
    except (NamespaceUnknown, ApiError):
        return ""
    return describe_pause(pause) if pause is not None else ""
