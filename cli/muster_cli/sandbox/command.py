"""`muster sandbox`: run a whole cluster on this machine, and act on a running one.

muster sandbox                       run a sandbox until Ctrl-C
muster sandbox inject NODE 'LINE'    write a kernel log line of NODE
muster sandbox reboot NODE           simulate a reboot of NODE
muster sandbox pod NAME              create a pod and print the node to which the scheduler binds it
"""

import argparse
import sys
from pathlib import Path

from muster_kube.process.command_line import EXIT_UNKNOWN, EXIT_USAGE
from muster_sandbox.session.folder import NoSandbox, SandboxNode, find_running, sandbox_folder
from muster_sandbox.session.kernel_line import ActionRefused, inject_line

SIMULATED_LIMIT = 200  # each node has an agent process of about 50 MB


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = __doc__
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    line = actions.add_parser("inject", help="write LINE to the kernel log that NODE's agent reads")
    line.add_argument("node", metavar="NODE")
    line.add_argument("line", metavar="LINE")
    reboot = actions.add_parser("reboot", help="give a simulated node a new boot id and an empty kernel log")
    reboot.add_argument("node", metavar="NODE")
    pod = actions.add_parser("pod", help="create a pod and print the node to which it is bound")
    pod.add_argument("name", metavar="NAME")
    parser.add_argument("--policy", type=Path, metavar="FILE", help="the tainter's policy (default: the built-in one)")
    parser.add_argument("--plain", action="store_true", help="print a line for each change, even on a terminal")
    parser.add_argument("--for", dest="for_s", type=_seconds, metavar="SECONDS", help="stop after SECONDS")
    parser.add_argument("--simulated", type=_count, default=7, metavar="N", help="simulated nodes (default: 7)")


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number of seconds, 0 or more")
    return value


def _count(text: str) -> int:
    value = int(text)
    if not 0 <= value <= SIMULATED_LIMIT:
        raise argparse.ArgumentTypeError(f"{text!r}: expected 0 to {SIMULATED_LIMIT}")
    return value


def main(arguments: argparse.Namespace) -> int:
    try:
        if arguments.action is None:
            return _up(arguments)
        sandbox = find_running(sandbox_folder())
        if arguments.action == "pod":
            from muster_cli.sandbox.pod import create_pod

            return create_pod(Path(sandbox.kubeconfig), arguments.name)
        node = sandbox.node(arguments.node)
        if arguments.action == "inject":
            return _inject(node, arguments.line)
        from muster_sandbox.session.reboot import reboot

        return reboot(node)
    except (NoSandbox, ActionRefused) as error:
        print(f"muster: {error}", file=sys.stderr)
        return EXIT_UNKNOWN


def _inject(node: SandboxNode, line: str) -> int:
    try:
        inject_line(node, line)
    except OSError as error:
        print(f"muster: cannot write to {node.kmsg}: {error.strerror} (/dev/kmsg needs root)", file=sys.stderr)
        return EXIT_UNKNOWN
    print(f"wrote the line to {node.kmsg} of {node.name}")
    return 0


def _up(arguments: argparse.Namespace) -> int:
    if arguments.policy is not None:
        from muster_tainter.policy.file import PolicyError, load_policy

        try:
            load_policy(arguments.policy)
        except PolicyError as error:
            print(f"muster: {error}", file=sys.stderr)
            return EXIT_USAGE
    from muster_cli.sandbox.up import SandboxOptions, run_sandbox

    return run_sandbox(
        SandboxOptions(
            policy=arguments.policy.resolve() if arguments.policy else None,
            terminal=sys.stdout.isatty() and not arguments.plain,
            for_s=arguments.for_s,
            simulated=arguments.simulated,
        )
    )
