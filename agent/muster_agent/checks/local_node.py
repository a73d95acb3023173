"""The node that this agent watches, as its checks see it."""

import logging

import msgspec

from muster_agent.clock import SYSTEM_CLOCK, AgentClock
from muster_checks.base.declaration import NodeView

log = logging.getLogger(__name__)


class LocalNode(msgspec.Struct, frozen=True, kw_only=True):
    """name: in the cluster; boot_id: of the boot under way, empty where it is not known."""

    name: str
    view: NodeView
    boot_id: str
    clock: AgentClock = SYSTEM_CLOCK


def read_boot_id(view: NodeView) -> str:
    try:
        return view.path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        log.warning("no boot id, so a reboot cannot be told from a restart: %s", error)
        return ""
