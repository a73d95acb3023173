"""``python -m muster_operator``: one replica of the IPU operator."""

import argparse
import asyncio
import logging
import os
import sys
from pathlib import Path

from muster_kube.process.command_line import EXIT_UNKNOWN, EXIT_USAGE, run_part

_FLAGS = (
    "kubeconfig", "vipu_proxy", "namespace", "host", "port", "metrics_port", "webhook_port", "cert_dir", "host_network",
    "launcher_image", "launcher_image_pull_policy", "kubectl_version", "devel_logs", "log_format",
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--config", type=Path, metavar="FILE", help="settings as YAML; MUSTER_OPERATOR_* and flags stand over it")
    add("--kubeconfig", metavar="FILE", help="default: in-cluster, then $KUBECONFIG, then ~/.kube/config")
    add("--vipu-proxy", metavar="URL", help="where the V-IPU proxy is, http://HOST:PORT")
    add("--namespace", metavar="NAME", help="of the lease; default: the pod's or the context's own")
    add("--host", metavar="ADDR", help="where to listen (default 0.0.0.0)")
    add("--port", type=int, metavar="N", help="health, default 8081; 0: any free one, printed")
    add("--metrics-port", type=int, metavar="N", help="metrics over https, default 8443; 0: a free one, printed")
    add("--webhook-port", type=int, metavar="N", help="admission over https, default 9443; 0: a free one, printed")
    add("--cert-dir", metavar="DIR", help="tls.crt and tls.key of the webhooks; default: made, and kept in a Secret")
    add(
        "--host-network",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="jobs' pods use their node's network (default)",
    )
    add("--launcher-image", metavar="IMAGE", help="of the container that waits for workers and brings kubectl")
    add("--launcher-image-pull-policy", metavar="POLICY", help="Always, IfNotPresent or Never (default)")
    add(
        "--kubectl-version",
        metavar="VERSION",
        help="no effect: it is the launcher image that brings kubectl",
    )
    add("--devel-logs", action="store_true", default=None, help="log what is decided about each job")
    add("--log-format", choices=("text", "json"), help="default text")


def main(arguments: argparse.Namespace) -> int:
    from muster_kube.api.errors import ConfigError
    from muster_kube.process.logs import configure_logging
    from muster_kube.process.settings import SettingsError
    from muster_operator.settings import load

    try:
        settings = load(arguments.config, {name: getattr(arguments, name) for name in _FLAGS}, os.environ)
    except SettingsError as error:
        print(error, file=sys.stderr)
        return EXIT_USAGE
    configure_logging(settings.log_format)
    if settings.devel_logs:
        logging.getLogger("muster_operator").setLevel(logging.DEBUG)
    from muster_operator.app import run

    try:
        return asyncio.run(run(settings))
    except ConfigError as error:
        print(error, file=sys.stderr)
        return EXIT_USAGE
    except OSError as error:
        print(f"muster operator: {error}", file=sys.stderr)
        return EXIT_UNKNOWN


if __name__ == "__main__":
    run_part("muster-operator", "IPUJobs: their pods and partitions", add_arguments, main)
