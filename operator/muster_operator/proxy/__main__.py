"""``muster vipu-proxy``, also as ``python -m muster_operator.proxy``."""

import argparse
from pathlib import Path

from muster_kube.process.command_line import EXIT_UNKNOWN, EXIT_USAGE, print_error, run_part


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the proxy; each flag is a setting of the same name."""
    parser.usage = f"{parser.prog} (--controllers LIST | --controllers-file FILE) [options]"
    add = parser.add_argument
    add("--config", type=Path, metavar="FILE", help="YAML settings file; MUSTER_VIPU_PROXY_* and flags override it")
    add("--kubeconfig", type=Path, metavar="FILE", help="default: in-cluster config, $KUBECONFIG, ~/.kube/config")
    add("--backend", choices=["vipu", "sim"], help="vipu: run the vipu program (default); sim: call muster vipu-sim")
    add(
        "--controllers",
        metavar="LIST",
        help="V-IPU controllers in the order in which they are tried, separated by commas, each HOST:PORT:KEY=VALUE; "
        "KEY=VALUE is the label of the nodes that reach its IPUs (required, unless --controllers-file or the setting "
        "controllers_map is set)",
    )
    add("--controllers-file", type=Path, metavar="FILE", help="file with that list; reread every 5 seconds")
    add("--tracker", metavar="NAME", help="ConfigMap of the partitions (default ipu-partitions-tracker)")
    add("--namespace", metavar="NAME", help="namespace of the tracker (default: that of the pod or context)")
    add("--read-timeout", type=float, metavar="S", help="seconds to receive a request (default 30)")
    add("--write-timeout", type=float, metavar="S", help="seconds to send a response (default 300)")
    add("--idle-timeout", type=float, metavar="S", help="seconds between two requests of a connection (default 60)")
    add(
        "--log-level",
        metavar="LEVEL",
        help="error, warning, info or debug (default info); or a number, which includes the lower ones: 1 warnings, 2 "
        "actions, 3 reasons, 4 V-IPU calls, 5 requests, 6 everything",
    )
    add("--log-format", choices=["text", "json"], help="format of log lines (default text)")
    add("--port", type=int, metavar="N", help="port to listen on (default 8080); 0 picks a free port and prints it")
    add("--host", metavar="ADDR", help="address to listen on (default 0.0.0.0)")


def main(arguments: argparse.Namespace) -> int:
    """Run until SIGTERM or SIGINT. Exit code 64: invalid settings; 3: cannot listen; 1: a task failed."""
    import asyncio

    from muster_kube.api.errors import ConfigError
    from muster_kube.process.settings import SettingsError
    from muster_operator.proxy import settings

    flags = {name: value for name, value in vars(arguments).items() if name in settings.FLAGS}
    try:
        loaded = settings.load(arguments.config, flags)
    except SettingsError as error:
        print_error(error)
        return EXIT_USAGE
    from muster_operator.proxy import app, logs

    logs.configure(loaded.log_format, loaded.log_level)
    try:
        return asyncio.run(app.run(loaded))
    except (ConfigError, SettingsError) as error:
        print_error(error)
        return EXIT_USAGE
    except OSError as error:
        print_error(error)
        return EXIT_UNKNOWN


if __name__ == "__main__":
    run_part("muster vipu-proxy", "Manages the V-IPU partitions of IPUJobs.", add_arguments, main)
