"""``muster vipu-sim``, also as ``python -m muster_operator.vipu.simulator``: one simulated V-IPU controller."""

import argparse
import asyncio
import os
from pathlib import Path

from muster_kube.process.command_line import EXIT_UNKNOWN, EXIT_USAGE, add_log_arguments, print_error, run_part
from muster_kube.process.logs import configure_logging


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = f"{parser.prog} --state DIR [options]"
    add = parser.add_argument
    add("--config", type=Path, metavar="FILE", help="YAML settings file; MUSTER_VIPU_SIM_* and flags override it")
    add(
        "--ipus",
        type=int,
        metavar="N",
        help="number of IPUs, a multiple of 4 (default: as in the saved state, or 64)",
    )
    add("--state", type=Path, metavar="DIR", help="directory for the saved state (required, or the setting state)")
    add("--delay", type=float, metavar="SECONDS", help="time to create, reset or remove a partition (default 1)")
    add("--first-rack", type=int, metavar="N", help="third octet of the IPU-Machine addresses (default 1)")
    add("--host", metavar="ADDR", help="address to listen on (default 127.0.0.1)")
    add(
        "--port",
        type=int,
        metavar="N",
        help="port to listen on (default 8090); 0 picks a free port and prints it",
    )
    add_log_arguments(parser)


def main(arguments: argparse.Namespace) -> int:
    from muster_kube.process.settings import SettingsError
    from muster_operator.vipu.simulator.settings import FLAGS, load

    try:
        settings = load(arguments.config, {name: getattr(arguments, name) for name in FLAGS}, os.environ)
    except SettingsError as error:
        print_error(error)
        return EXIT_USAGE
    configure_logging(settings.log_format, settings.log_level)
    from muster_operator.vipu.simulator.app import run
    from muster_operator.vipu.simulator.disk import StateError

    try:
        return asyncio.run(run(settings))
    except StateError as error:
        print_error(error)
        return EXIT_USAGE
    except OSError as error:
        print_error(error)
        return EXIT_UNKNOWN


if __name__ == "__main__":
    run_part("muster vipu-sim", "Simulates a V-IPU controller.", add_arguments, main)
