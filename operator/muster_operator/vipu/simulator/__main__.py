"""``python -m muster_operator.vipu.simulator``: one simulated V-IPU controller."""

import argparse
import asyncio
import os
import sys
from pathlib import Path

from muster_kube.process.command_line import EXIT_UNKNOWN, EXIT_USAGE, run_part


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--config", type=Path, metavar="FILE", help="settings as YAML; MUSTER_VIPU_SIM_* and flags stand over it")
    add("--ipus", type=int, metavar="N", help="how many IPUs, a multiple of 4; default: as the state has it, else 64")
    add("--state", type=Path, metavar="DIR", help="the folder that it keeps its fleet in")
    add("--delay", type=float, metavar="SECONDS", help="what making, resetting and removing take (default 1)")
    add("--first-rack", type=int, metavar="N", help="third part of the IPU-Machines' addresses (default 1)")
    add("--host", metavar="ADDR", help="where to listen (default 127.0.0.1)")
    add("--port", type=int, metavar="N", help="default 8090, as V-IPU's; 0: any free one, printed")
    add("--log-format", choices=("text", "json"), help="default text")


def main(arguments: argparse.Namespace) -> int:
    from muster_kube.process.logs import configure_logging
    from muster_kube.process.settings import SettingsError
    from muster_operator.vipu.simulator.settings import FLAGS, load

    try:
        settings = load(arguments.config, {name: getattr(arguments, name) for name in FLAGS}, os.environ)
    except SettingsError as error:
        print(error, file=sys.stderr)
        return EXIT_USAGE
    configure_logging(settings.log_format)
    from muster_operator.vipu.simulator.app import run
    from muster_operator.vipu.simulator.disk import StateError

    try:
        return asyncio.run(run(settings))
    except StateError as error:
        print(error, file=sys.stderr)
        return EXIT_USAGE
    except OSError as error:
        print(f"muster vipu-sim: {error}", file=sys.stderr)
        return EXIT_UNKNOWN


if __name__ == "__main__":
    run_part("muster-vipu-sim", "a V-IPU controller without IPUs", add_arguments, main)
