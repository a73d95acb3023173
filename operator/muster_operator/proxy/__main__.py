"""``muster vipu-proxy``, also as ``python -m muster_operator.proxy``."""

import argparse
import sys
from pathlib import Path

from muster_kube.process.command_line import EXIT_FAILED, EXIT_USAGE, run_part


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The proxy's flags; each is a setting of the same name."""
    parser.add_argument("--config", type=Path, metavar="FILE", help="YAML file of settings")
    parser.add_argument(
        "--kubeconfig", type=Path, metavar="FILE", help="default: in-cluster, $KUBECONFIG, ~/.kube/config"
    )
    parser.add_argument("--backend", choices=["vipu", "sim"], help="the vipu program (default), or muster vipu-sim")
    parser.add_argument("--controllers", metavar="LIST", help="host:port:key=value,… in the order they are tried")
    parser.add_argument("--controllers-file", type=Path, metavar="FILE", help="where that list stands; read again")
    parser.add_argument("--tracker", metavar="NAME", help="ConfigMap of partitions (default ipu-partitions-tracker)")
    parser.add_argument("--namespace", metavar="NAME", help="of the tracker; default: the pod's or context's own")
    parser.add_argument("--read-timeout", type=float, metavar="S", help="seconds until a request is here (30)")
    parser.add_argument("--write-timeout", type=float, metavar="S", help="seconds until its answer is taken (300)")
    parser.add_argument("--idle-timeout", type=float, metavar="S", help="seconds between two requests (60)")
    parser.add_argument("--log-level", type=int, metavar="1..6", help="1 warnings, 2 what is done (default), 6 all")
    parser.add_argument("--log-format", choices=["text", "json"])
    parser.add_argument("--port", type=int, metavar="N", help="default 8080; 0: any free one, printed when listening")
    parser.add_argument("--host", metavar="ADDR", help="address to listen on")


def main(arguments: argparse.Namespace) -> int:
    """Run until told to stop; 64 for settings that are wrong, 1 if a part has failed."""
    import asyncio

    from muster_kube.api.errors import ConfigError
    from muster_kube.process.settings import SettingsError
    from muster_operator.proxy import settings

    flags = {name: value for name, value in vars(arguments).items() if name in settings.FLAGS}
    try:
        loaded = settings.load(arguments.config, flags)
    except SettingsError as error:
        print(error, file=sys.stderr)
        return EXIT_USAGE
    from muster_operator.proxy import app, logs

    logs.configure(loaded.log_format, loaded.log_level)
    try:
        return asyncio.run(app.run(loaded))
    except (ConfigError, SettingsError) as error:
        print(error, file=sys.stderr)
        return EXIT_USAGE
    except OSError as error:
        print(f"cannot listen on {loaded.host}:{loaded.port}: {error.strerror}", file=sys.stderr)
        return EXIT_FAILED


if __name__ == "__main__":
    run_part("muster vipu-proxy", "Keeps V-IPU partitions for IPUJobs.", add_arguments, main)
