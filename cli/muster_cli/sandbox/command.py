"""`muster sandbox`: run a whole cluster on this machine, and act on a running one."""

import argparse
import sys
from pathlib import Path

from muster_kube.process.command_line import EXIT_UNKNOWN, EXIT_USAGE
from muster_sandbox.session.folder import NoSandbox, SandboxNode, find_running, sandbox_folder
from muster_sandbox.session.kernel_line import ActionRefused, inject_line

SIMULATED_LIMIT = 200  # each node has an agent process of about 50 MB
INJECT = "write LINE to the kernel log that NODE's agent reads"
REBOOT = "give a simulated node a new boot ID and an empty kernel log"
POD = "create a pod and print the node to which it is bound"
DESCRIPTION = f"""\
Needs the control plane that "make sandbox" builds in a checkout of the sources; that command also starts the sandbox.

Without an action it runs until Ctrl-C. The actions act on the running sandbox, from another terminal:

  muster sandbox inject NODE 'LINE'    {INJECT}
  muster sandbox reboot NODE           {REBOOT}
  muster sandbox pod NAME              {POD}"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    actions = parser.add_subparsers(dest="action", metavar="[ACTION]", prog=parser.prog)
    line = actions.add_parser("inject", help=INJECT, description=_sentence(INJECT))
    line.add_argument("node", metavar="NODE", help="name of the node, as in the table of the sandbox")
    line.add_argument("line", metavar="LINE", help="text of the kernel message, in quotes")
    reboot = actions.add_parser("reboot", help=REBOOT, description=_sentence(REBOOT))
    reboot.add_argument("node", metavar="NODE", help="name of a simulated node")
    pod = actions.add_parser("pod", help=POD, description=_sentence(POD))
    pod.add_argument("name", metavar="NAME", help="name of the new pod")
    parser.add_argument("--policy", type=Path, metavar="FILE", help="the tainter's policy (default: the built-in one)")
    parser.add_argument("--plain", action="store_true", help="print a line for each change, even on a terminal")
    parser.add_argument("--for", dest="for_s", type=_seconds, metavar="SECONDS", help="stop after SECONDS")
    parser.add_argument("--simulated", type=_count, default=7, metavar="N", help="simulated nodes (default: 7)")


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


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
