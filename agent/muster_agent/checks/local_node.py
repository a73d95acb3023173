"""The agent's own node, as its checks see it."""

import logging

import msgspec

from muster_agent.clock import SYSTEM_CLOCK, AgentClock
from muster_checks.base.declaration import NodeView

log = logging.getLogger(__name__)


class LocalNode(msgspec.Struct, frozen=True, kw_only=True):
    """name: name in the cluster; boot_id: ID of the current boot, empty if unknown."""

    name: str
    view: NodeView
    boot_id: str
    clock: AgentClock = SYSTEM_CLOCK


def read_boot_id(view: NodeView) -> str:
    try:
        return view.path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        log.warning("cannot read the boot ID, so a reboot looks like a restart of the agent: %s", error)
        return ""
