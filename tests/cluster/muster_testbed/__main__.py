"""`python -m muster_testbed`: have a control plane ready; installs what its build needs, builds it once, says so.

Before the tests and the sandbox, so that minutes of building count against no test's time limit.
"""

import os
import signal
import sys

from muster_testbed import requirements
from muster_testbed.binaries import NoControlPlane, find_or_build


def main() -> int:
    if os.environ.get("MUSTER_SKIP_CLUSTER") == "1":
        return 0  # the tests say what that skips
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))  # tidied up as after Ctrl-C
    if (code := requirements.main()) != 0:
        return code
    try:
        find_or_build(lambda line: print(line, file=sys.stderr, flush=True))
    except NoControlPlane as error:
        print(f"muster: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("muster: the build was interrupted; nothing is left of it", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
