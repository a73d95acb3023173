"""`muster release --all`, `muster release NODE…`: removes everything that Muster has set on nodes. `--ipus`: only the
numbers of IPUs, which the others leave to the operator."""

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

from muster_cli.cluster.active_policy import read_policy_map
from muster_cli.cluster.client import add_kubeconfig, run_with_client
from muster_cli.cluster.node_arguments import node_name
from muster_cli.cluster.tainter import NamespaceUnknown, NoTainterYet, add_namespace, find_leader, find_namespace
from muster_cli.commands.pause import current_user, read_pause
from muster_cli.exit_codes import EXIT_WARN
from muster_cli.release.nodes import NodeRelease, ReleaseTarget, find_targets
from muster_cli.report.columns import print_table
from muster_cli.report.quantities import plural
from muster_kube.api.client import KubeClient
from muster_kube.api.config import ClusterConfig
from muster_kube.api.errors import Forbidden
from muster_kube.process.command_line import EXIT_UNKNOWN, EXIT_USAGE
from muster_tainter.pause import describe_pause
from muster_tainter.policy.file import PolicyError, load_policy
from muster_tainter.policy.rules import Policy

HEAD = ("NODE", "CARRIED", "FAULTS", "RESULT")
PRINTED_EVERY_S = 2.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "If a tainter leads, it removes the label muster.dev/faulty and the taints that Muster set for faults, and "
        "returns quarantined IPUs to use. Muster's other labels and annotations and its condition stay. "
        "Spares keep the taint muster.dev/spare.\n\n"
        "If no tainter leads, as in a dry run, the command itself removes Muster's condition, and all taints, labels "
        "and annotations that Muster has set. The labels muster.dev/managed and muster.dev/spare, which people set, "
        "stay, and so do the numbers of IPUs (see --ipus). The next tainter that leads returns the quarantined IPUs to "
        "use.\n\n"
        "In both cases, the command also removes the taint muster.dev/startup, so new nodes that Muster has not "
        "checked yet accept pods.\n\n"
        "A fault that occurs again afterwards taints its node again; a check that still fails reports it with its "
        'next run. "muster pause" delays these taints until "muster resume".\n\n'
        "With --ipus, the command removes only the labels and resources muster.dev/ipus-free and muster.dev/ipus-total "
        "from all nodes. The operator writes them again while the chart value ipuVisibility is on."
    )
    parser.add_argument("nodes", metavar="NODE", nargs="*", type=node_name, help="release these nodes")
    parser.add_argument("--all", action="store_true", help="release every node of the cluster")
    parser.add_argument(
        "--ipus", action="store_true", help="only remove muster.dev/ipus-free and muster.dev/ipus-total from all nodes"
    )
    parser.add_argument("--yes", action="store_true", help="do not ask for confirmation")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument(
        "--policy",
        type=Path,
        metavar="FILE",
        help="policy whose taints are removed, in addition to those whose key begins with muster.dev/; default: "
        "the ConfigMap muster-policy, or the built-in policy if there is no such ConfigMap",
    )
    add_namespace(parser)
    add_kubeconfig(parser)


def main(arguments: argparse.Namespace) -> int:
    if bool(arguments.all) + bool(arguments.nodes) + bool(arguments.ipus) != 1:
        print("muster: release: expected either NODE…, --all or --ipus", file=sys.stderr)
        return EXIT_USAGE
    if not arguments.yes and not sys.stdin.isatty():
        print("muster: release: cannot ask for confirmation, as stdin is not a terminal: add --yes", file=sys.stderr)
        return EXIT_USAGE

    def confirm(question: str) -> bool:
        return arguments.yes or _confirm(question)

    if arguments.ipus:
        from muster_cli.release.ipus import release_ipus

        return run_with_client(
            arguments, lambda client, _config: release_ipus(client, confirm=confirm, as_document=arguments.json)
        )

    given_policy = None
    if arguments.policy is not None:
        try:
            given_policy = load_policy(arguments.policy)
        except PolicyError as error:
            print("\n".join(f"muster: {line}" for line in str(error).splitlines()), file=sys.stderr)
            return EXIT_USAGE

    async def work(client: KubeClient, config: ClusterConfig) -> int:
        try:
            leader, paused = await _state(client, config, arguments.namespace)
        except NamespaceUnknown as error:
            print(f"muster: release: {error}", file=sys.stderr)
            return EXIT_UNKNOWN
        try:
            policy = given_policy or await _policy(client, config, arguments.namespace)
        except (PolicyError, Forbidden) as error:
            # by the built-in policy, taints with other keys would stay, and no record would say any more whose they are
            print(f"muster: release: which taints are Muster's is unknown: {error}: add --policy FILE", file=sys.stderr)
            return EXIT_UNKNOWN
        targets = await find_targets(client, None if arguments.all else arguments.nodes, policy, led=bool(leader))
        if leader:
            targets = [
                target for target in targets if target.heavy
            ]  # the tainter needs the labels and annotations of healthy nodes
        if not targets:
            _show([], as_document=arguments.json)
            return 0
        if not confirm(_question(targets, leader, paused)):
            print("nothing was released", file=sys.stderr)
            return EXIT_WARN
        progress = ReleaseProgress(sys.stderr.isatty())
        release = NodeRelease(client, current_user(config), policy, progress=progress)
        results = await (release.by_tainter(targets) if leader else release.by_hand(targets))
        _show(results, as_document=arguments.json)
        if release.unread_rules:
            print(f"muster: release: DeviceTaintRules of Muster may be left: {release.unread_rules}", file=sys.stderr)
        return 0 if all(target.done for target in results) and not release.unread_rules else EXIT_UNKNOWN

    return run_with_client(arguments, work)


async def _policy(client: KubeClient, config: ClusterConfig, given: str | None) -> Policy:
    try:
        return (await read_policy_map(client, config, given))[0] or load_policy(None)
    except NoTainterYet:
        return load_policy(None)


async def _state(client: KubeClient, config: ClusterConfig, given: str | None) -> tuple[str, str]:
    """(the tainter that leads, why it is paused); empty: none leads, it is not paused."""
    try:
        namespace = await find_namespace(client, config, given)
    except NoTainterYet:
        return "", ""
    pause = await read_pause(client, namespace)
    return await find_leader(client, namespace), describe_pause(pause) if pause is not None else ""


def _question(targets: list[ReleaseTarget], leader: str, paused: str) -> str:
    tainted = sum(bool(target.taints) for target in targets)
    waiting = sum(bool(target.faults) and not target.taints for target in targets)
    lines = [f"{plural(tainted, 'node')} with taints of Muster, {waiting} more with open faults and no taint"]
    lines.append(
        f"The tainter {leader} leads: it removes the taints, and taints a node again only for a new fault."
        if leader
        else "No tainter leads: this command removes everything."
    )
    if not paused and leader:
        lines.append('Muster is not paused: a new fault is tainted at once ("muster pause" prevents that).')
    elif paused:
        lines.append(paused)
    return "\n".join(lines) + f"\nRelease {plural(len(targets), 'node')}? [y/N] "


def _confirm(question: str) -> bool:
    try:
        return input(question).strip().lower() in ("y", "yes")
    except EOFError:
        return False


class ReleaseProgress:
    """Progress on stderr: one line that is repainted on a terminal, otherwise a line every two seconds."""

    def __init__(self, terminal: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._terminal = terminal
        self._clock = clock
        self._printed_at = clock()

    def __call__(self, done: int, of: int) -> None:
        if self._terminal:
            end = "\n" if done == of else ""
            print(f"\r\x1b[2Kreleased {done} of {of}", end=end, file=sys.stderr, flush=True)
        elif self._clock() - self._printed_at >= PRINTED_EVERY_S:
            self._printed_at = self._clock()
            print(f"released {done} of {of}", file=sys.stderr, flush=True)


def _show(results: list[ReleaseTarget], *, as_document: bool) -> None:
    released = sum(target.done for target in results)
    if as_document:
        nodes = [
            {
                "node": target.name,
                "carried": target.taints,
                "faults": target.faults,
                "released": target.done,
                **({"left": target.left} if target.left else {}),
                **({"why": target.why} if target.why else {}),
            }
            for target in results
        ]
        document = {"released": released, "failed": len(results) - released, "nodes": nodes}
        print(json.dumps(document, indent=2))
        return
    rows = [
        (target.name, ", ".join(target.taints) or "-", str(target.faults), "released" if target.done else target.why)
        for target in sorted(results, key=lambda target: (target.done, target.name))
        if target.heavy or not target.done
    ]
    if rows:
        print_table(HEAD, rows)
    light = sum(target.done and not target.heavy for target in results)
    if light:
        print(f"{plural(light, 'node')} had only labels or annotations, which are removed")
    for target in results:
        if target.left:
            print(
                f"{target.name}: left {', '.join(target.left)}: no rule of the policy sets it; if an earlier one did, "
                "list it in formerTaints"
            )
    failed = len(results) - released
    print(f"released {plural(released, 'node')}{f'; {failed} not released' if failed else ''}")
