"""`python -m muster_sandbox [--node]`: builds the control plane if it is not cached; installs build tools.

With ``--node``, prepares what the tests need too: Prometheus, and a real node if this machine can run one. The Makefile
calls it before the tests and the sandbox, so that the minutes of building do not count against a test's time limit.
"""

import os
import signal
import sys
from collections.abc import Sequence

from muster_sandbox.image import product
from muster_sandbox.image.layers import root_layer
from muster_sandbox.programs import requirements
from muster_sandbox.programs.binaries import NoControlPlane
from muster_sandbox.programs.control_plane import find_or_build
from muster_sandbox.programs.packages import RUNTIME, NoPackages, unpack_tree
from muster_sandbox.prometheus import find_programs
from muster_sandbox.realnode.node import find_node_obstacle


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main(arguments: Sequence[str]) -> int:
    if os.environ.get("MUSTER_SKIP_CLUSTER") == "1":
        return 0  # the tests report what this skips
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))  # clean up as after Ctrl-C
    if (code := requirements.main()) != 0:
        return code
    tests = node = "--node" in arguments
    if node and (reason := find_node_obstacle()):
        say(f"muster: TESTS ON A REAL NODE ARE SKIPPED: {reason}")
        node = False
    try:
        find_or_build(say, with_kubelet=node)
        if tests:
            find_programs(say)
        if node:
            unpack_tree(RUNTIME, say)
            root_layer(say)
            product.prepare_layers(say)
    except (NoControlPlane, NoPackages) as error:
        print(f"muster: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("muster: the build was interrupted; its files are removed", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
