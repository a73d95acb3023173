"""``muster operator``, also as ``python -m muster_operator``: one replica of the IPUJob operator."""

import argparse
import asyncio
import logging
import os
from pathlib import Path

from muster_kube.process.command_line import EXIT_UNKNOWN, EXIT_USAGE, add_log_arguments, print_error, run_part
from muster_kube.process.logs import configure_logging

_FLAGS = (
    "kubeconfig", "vipu_proxy", "proxy_token", "namespace", "host", "port", "metrics_port", "webhook_port", "cert_dir",
    "host_network", "launcher_image", "launcher_image_pull_policy", "kubectl_version", "devel_logs", "log_level",
    "log_format",
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = f"{parser.prog} --vipu-proxy URL --proxy-token FILE [options]"
    add = parser.add_argument
    add("--config", type=Path, metavar="FILE", help="YAML settings file; MUSTER_OPERATOR_* and flags override it")
    add("--kubeconfig", metavar="FILE", help="default: in-cluster config, $KUBECONFIG, ~/.kube/config")
    add("--vipu-proxy", metavar="URL", help="http://HOST:PORT of the V-IPU proxy (required, or the setting vipu_proxy)")
    add("--proxy-token", metavar="FILE", help="token for the V-IPU proxy (required, or the setting proxy_token)")
    add("--namespace", metavar="NAME", help="namespace of the Lease (default: that of the pod or context)")
    add("--host", metavar="ADDR", help="address to listen on (default 0.0.0.0)")
    add("--port", type=int, metavar="N", help="health port (default 8081); 0 picks a free port and prints it")
    add("--metrics-port", type=int, metavar="N", help="HTTPS metrics port (default 8443); 0 picks a free port")
    add("--webhook-port", type=int, metavar="N", help="HTTPS webhook port (default 9443); 0 picks a free port")
    add(
        "--cert-dir",
        metavar="DIR",
        help="tls.crt and tls.key for webhooks and metrics (default: generated; for webhooks in a Secret, for metrics "
        "in memory)",
    )
    add(
        "--host-network",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="run the pods of jobs on the host network, or not (default: --host-network)",
    )
    add(
        "--launcher-image",
        metavar="IMAGE",
        help="image of the launchers' init container: muster and kubectl (default launcher:latest)",
    )
    add("--launcher-image-pull-policy", metavar="POLICY", help="Always, IfNotPresent or Never (default: Never)")
    add(
        "--kubectl-version",
        metavar="VERSION",
        help="ignored: the launcher image contains kubectl",
    )
    add("--devel-logs", action="store_true", default=None, help="log the decisions about each job (debug level)")
    add_log_arguments(parser)


def main(arguments: argparse.Namespace) -> int:
    from muster_kube.api.errors import ConfigError
    from muster_kube.process.settings import SettingsError
    from muster_operator.settings import load

    try:
        settings = load(arguments.config, {name: getattr(arguments, name) for name in _FLAGS}, os.environ)
    except SettingsError as error:
        print_error(error)
        return EXIT_USAGE
    configure_logging(settings.log_format, settings.log_level)
    if settings.devel_logs:
        logging.getLogger("muster_operator").setLevel(logging.DEBUG)
    from muster_operator.app import run

    try:
        return asyncio.run(run(settings))
    except ConfigError as error:
        print_error(error)
        return EXIT_USAGE
    except OSError as error:
        print_error(error)
        return EXIT_UNKNOWN


if __name__ == "__main__":
    run_part("muster operator", "Runs IPUJobs: creates their pods and V-IPU partitions.", add_arguments, main)
