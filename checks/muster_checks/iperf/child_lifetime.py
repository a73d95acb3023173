"""Ties the life of iperf3 to the process that started it, even if that process is killed."""

from collections.abc import Sequence

from muster_checks.base.declaration import NodeView


def with_parent_death(node: NodeView, argv: Sequence[str]) -> list[str]:
    """``argv`` wrapped so that the kernel kills it when its parent dies (PR_SET_PDEATHSIG, set by util-linux's setpriv,
    which needs no privilege for it); unchanged if setpriv is not installed."""
    return ["setpriv", "--pdeathsig", "KILL", *argv] if node.commands.which("setpriv") is not None else [*argv]
