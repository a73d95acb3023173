"""``python -m muster_tainter``: one replica of the tainter."""

import argparse
import asyncio
import os
import sys
from pathlib import Path

from muster_kube.process.command_line import EXIT_UNKNOWN, EXIT_USAGE, run_part


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--config", type=Path, metavar="FILE", help="settings as YAML; MUSTER_TAINTER_* and flags stand over it")
    add("--kubeconfig", metavar="FILE", help="default: in-cluster, then $KUBECONFIG, then ~/.kube/config")
    add("--policy", metavar="FILE", help="what findings do to their nodes; followed while running")
    add("--dry-run", action="store_true", default=None, help="decide and log, write nothing on Nodes")
    add("--host", metavar="ADDR", help="where to listen (default 0.0.0.0)")
    add("--port", type=int, metavar="N", help="default 3334; 0: any free one, printed")
    add("--namespace", metavar="NAME", help="of the lease; default: the pod's or the context's own")
    add("--webhook-port", type=int, metavar="N", help="serve the own-node rule (before Kubernetes 1.30); 0: a free one")
    add("--cert-dir", metavar="DIR", help="its tls.crt and tls.key; default: made, and kept in a Secret")
    add("--log-format", choices=("text", "json"), help="default text")


def main(arguments: argparse.Namespace) -> int:
    from muster_kube.api.errors import ConfigError
    from muster_kube.process.settings import SettingsError
    from muster_tainter.faults.audit_log import configure
    from muster_tainter.policy.file import PolicyError
    from muster_tainter.settings import load

    names = ("kubeconfig", "policy", "dry_run", "host", "port", "namespace", "webhook_port", "cert_dir", "log_format")
    try:
        settings = load(arguments.config, {name: getattr(arguments, name) for name in names}, os.environ)
    except SettingsError as error:
        print(error, file=sys.stderr)
        return EXIT_USAGE
    configure(settings.log_format)
    from muster_tainter.app import run

    try:
        return asyncio.run(run(settings))
    except (PolicyError, ConfigError) as error:
        print(error, file=sys.stderr)
        return EXIT_USAGE
    except OSError as error:
        print(f"muster tainter: {error}", file=sys.stderr)
        return EXIT_UNKNOWN


if __name__ == "__main__":
    run_part("muster-tainter", "findings of a fleet to taints, and back", add_arguments, main)
