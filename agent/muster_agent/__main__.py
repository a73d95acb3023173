"""The command ``muster agent``. It loads only argparse until the arguments are known to be valid."""

import argparse
import sys
from pathlib import Path

from muster_kube.process.command_line import EXIT_USAGE, add_log_arguments, run_part


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The agent's flags. Each overrides the setting of the same name."""
    parser.add_argument("--config", type=Path, metavar="FILE", help="YAML file with settings")
    parser.add_argument(
        "--kubeconfig",
        type=Path,
        metavar="FILE",
        help="kubeconfig file (default: the pod's service account, $KUBECONFIG or ~/.kube/config)",
    )
    parser.add_argument("--node", metavar="NAME", help="name of this node in the cluster (default: the host name)")
    parser.add_argument("--root", type=Path, metavar="DIR", help="root directory for /proc, /sys and /dev (default /)")
    parser.add_argument("--kmsg", type=Path, metavar="FILE", help="kernel log to read: a device or a plain file")
    parser.add_argument(
        "--port", type=int, metavar="N", help="port to listen on (default 3333); 0 chooses a free port and prints it"
    )
    parser.add_argument("--host", metavar="ADDR", help="address to listen on (default 0.0.0.0)")
    parser.add_argument(
        "--state-dir",
        type=Path,
        metavar="DIR",
        help="directory for the agent's state (default /var/lib/muster under --root)",
    )
    parser.add_argument(
        "--pod-uid",
        metavar="UID",
        help="UID of the agent's pod; if two agents run on a node, only one of them publishes (the chart sets this)",
    )
    add_log_arguments(parser)


def main(arguments: argparse.Namespace) -> int:
    """Run until SIGTERM or SIGINT. Returns 64 for invalid settings, 1 if a part of the agent has failed."""
    from muster_agent import settings
    from muster_kube.process.logs import configure_logging
    from muster_kube.process.settings import SettingsError

    flags = {name: value for name, value in vars(arguments).items() if name in settings.FLAGS}
    try:
        loaded = settings.load_agent_settings(arguments.config, flags)
        configure_logging(loaded.log_format, loaded.log_level)

        import asyncio

        from muster_agent import app
        from muster_agent.idle.pod_resources import PodResources
        from muster_agent.process import pod_logs, privileges

        kubelet = None
        helper = pod_logs.start_log_helper(loaded)
        if loaded.run_as is not None:
            kubelet = PodResources(loaded.pod_resources)
            kubelet.open_now()
        return asyncio.run(app.run(loaded, privileges.drop_privileges(loaded), kubelet, helper))
    except SettingsError as error:
        print("\n".join(f"muster: {line}" for line in str(error).splitlines()), file=sys.stderr)
        return EXIT_USAGE


if __name__ == "__main__":
    run_part("muster agent", "Watches the health of one node.", add_arguments, main)
