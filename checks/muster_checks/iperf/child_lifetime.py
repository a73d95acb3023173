"""iperf3 dies with whoever has started it, also when that is killed and can end nothing any more."""

from collections.abc import Sequence

from muster_checks.base.declaration import NodeView


def with_parent_death(node: NodeView, argv: Sequence[str]) -> list[str]:
    """``argv`` so that the kernel kills it with its parent (PR_SET_PDEATHSIG, by util-linux' setpriv, which needs no
    right for it); as it is where there is no setpriv."""
    return ["setpriv", "--pdeathsig", "KILL", *argv] if node.commands.which("setpriv") is not None else [*argv]
