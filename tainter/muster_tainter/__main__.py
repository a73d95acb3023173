"""``python -m muster_tainter``: runs one replica of the tainter."""

import argparse
import asyncio
import os
import sys
from pathlib import Path

from muster_kube.process.command_line import EXIT_UNKNOWN, EXIT_USAGE, add_log_arguments, run_part


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--config", type=Path, metavar="FILE", help="YAML settings file; MUSTER_TAINTER_* and flags override it")
    add("--kubeconfig", metavar="FILE", help="default: in-cluster config, $KUBECONFIG, ~/.kube/config")
    add("--policy", metavar="FILE", help="policy file; changes apply without a restart (default: built-in policy)")
    add(
        "--dry-run",
        action="store_true",
        default=None,
        help="only log which taints the rules require: write nothing to Nodes, create no Events about them, request no "
        "checks, evict no pods, repair nothing, and quarantine no IPUs. No replica takes the Lease: each replica logs "
        "all decisions, and the commands explain, pause, resume and release need --namespace unless a tainter has led "
        "before",
    )
    add("--host", metavar="ADDR", help="address to listen on (default 0.0.0.0)")
    add("--port", type=int, metavar="N", help="port to listen on (default 3334); 0 picks a free port and prints it")
    add("--namespace", metavar="NAME", help="namespace of the Lease (default: that of the pod or context)")
    add(
        "--webhook-port",
        type=int,
        metavar="N",
        help="HTTPS port of the webhook for Kubernetes before 1.30 (default: no webhook); 0 picks a free port. The "
        "webhook enforces two rules. An agent may write only the NodeHealth of its own node. Muster's labels, "
        "annotations and taints of Nodes may be changed only by users who may patch NodeHealths, and never by a "
        "kubelet",
    )
    add(
        "--cert-dir",
        metavar="DIR",
        help="tls.crt and tls.key of the webhook (default: generated, in a Secret)",
    )
    add_log_arguments(parser)


def main(arguments: argparse.Namespace) -> int:
    from muster_kube.api.errors import ConfigError
    from muster_kube.process.settings import SettingsError
    from muster_tainter.faults.logs.audit_log import configure
    from muster_tainter.policy.file import PolicyError
    from muster_tainter.settings import FLAGS, load

    try:
        settings = load(arguments.config, {name: getattr(arguments, name) for name in FLAGS}, os.environ)
    except SettingsError as error:
        _print_error(error)
        return EXIT_USAGE
    configure(settings.log_format, settings.log_level)
    from muster_tainter.app import run

    try:
        return asyncio.run(run(settings))
    except (PolicyError, ConfigError) as error:
        _print_error(error)
        return EXIT_USAGE
    except OSError as error:
        _print_error(error)
        return EXIT_UNKNOWN


def _print_error(error: Exception) -> None:
    """Each line begins with ``muster:``, as in all commands."""
    for line in str(error).splitlines():
        print(f"muster: {line}", file=sys.stderr)


if __name__ == "__main__":
    run_part("muster-tainter", "taints nodes according to their findings and the policy", add_arguments, main)
