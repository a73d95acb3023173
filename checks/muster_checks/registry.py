"""Which checks there are: the shipped ones, those of other packages (entry-point group ``muster.checks``), and those of
a folder of plug-ins (:mod:`muster_checks.plugins`).

A shipped check is one line here and a package of its own. A plug-in that cannot be loaded is left out and named: one
broken package must not take a node's other checks with it.
"""

import logging
import re
from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from muster_checks.base.declaration import Check
from muster_checks.base.unknown_names import LIST_CHECKS, explain_unknown

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

log = logging.getLogger(__name__)

GROUP = "muster.checks"
SHIPPED = {
    "clock": "muster_checks.clock:CLOCK",
    "cpu": "muster_checks.cpu:CPU",
    "dcgm": "muster_checks.dcgm:DCGM",
    "disk": "muster_checks.disk:DISK",
    "dmesg": "muster_checks.dmesg:DMESG",
    "gpuconfig": "muster_checks.gpuconfig:GPUCONFIG",
    "gpucount": "muster_checks.gpucount:GPUCOUNT",
    "gpuecc": "muster_checks.gpuecc:GPUECC",
    "gpufabric": "muster_checks.gpufabric:GPUFABRIC",
    "gpumem": "muster_checks.gpumem:GPUMEM",
    "gpupower": "muster_checks.gpupower:GPUPOWER",
    "gputemp": "muster_checks.gputemp:GPUTEMP",
    "ib": "muster_checks.ib:IB",
    "inventory": "muster_checks.inventory:INVENTORY",
    "iperf": "muster_checks.iperf:IPERF",
    "ipmi": "muster_checks.ipmi:IPMI",
    "ipu": "muster_checks.ipu:IPU",
    "ipulink": "muster_checks.ipulink:IPULINK",
    "membw": "muster_checks.membw:MEMBW",
    "memory": "muster_checks.memory:MEMORY",
    "nccl": "muster_checks.nccl:NCCL",
    "nic": "muster_checks.nic:NIC",
    "nvlink": "muster_checks.nvlink:NVLINK",
    "os": "muster_checks.os:OS",
    "pciebw": "muster_checks.pciebw:PCIEBW",
    "pcielink": "muster_checks.pcielink:PCIELINK",
    "ping": "muster_checks.ping:PING",
    "pvc": "muster_checks.pvc:PVC",
    "remapped": "muster_checks.remapped:REMAPPED",
    "services": "muster_checks.services:SERVICES",
}
_NAME = re.compile(r"[a-z][a-z0-9]{0,62}")


class UnknownCheck(ValueError):
    """No check has this name. ``known``: the names that exist, sorted."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        self.name = name
        self.known = sorted(known)
        super().__init__(self.explain(LIST_CHECKS))

    def explain(self, how_to_list: str) -> str:
        """The message. how_to_list: as in explain_unknown."""
        return explain_unknown("check", self.name, [*self.known, "all"], how_to_list)


def load_registry(
    plug_ins: "Iterable[EntryPoint] | None" = None,
    broken: dict[str, str] | None = None,
    plugins_folder: Path | None = None,
) -> dict[str, Check]:
    """All checks by name, shipped ones first.

    plug_ins: entry points to use instead of the installed ones
    broken:   receives, by entry-point name or file, why a plug-in was left out
    plugins_folder: files that are checks (docs/plugins.md)
    """
    checks = {name: _load_shipped(place) for name, place in SHIPPED.items()}
    refused = broken if broken is not None else {}
    for plug_in in _find_installed() if plug_ins is None else plug_ins:
        try:
            check = _load(plug_in, checks)
        except Exception as error:  # anything may be raised by a stranger's import
            refused[plug_in.name] = f"{type(error).__name__}: {error}"
            log.warning("check %s (%s) is left out: %s", plug_in.name, plug_in.value, refused[plug_in.name])
        else:
            checks[check.name] = check
    if plugins_folder is not None:
        left_out = _add_folder(plugins_folder, checks)
        refused.update(left_out)
        for file, why in left_out.items() if broken is None else ():  # who asks for them tells of them
            log.warning("plug-in %s is left out: %s", file, why)
    return checks


def select_checks(names: Iterable[str], checks: Mapping[str, Check]) -> list[Check]:
    """The checks called ``names``, in that order, each once; ``all`` means all of them. Raises UnknownCheck."""
    chosen: dict[str, Check] = {}
    for name in names:
        if name == "all":
            chosen.update(checks)
        elif name in checks:
            chosen[name] = checks[name]
        else:
            raise UnknownCheck(name, checks)
    return list(chosen.values())


def _find_installed() -> "Iterable[EntryPoint]":
    # here, not above: 2 MB (it loads the email package), and only who looks for plug-ins needs it
    from importlib.metadata import entry_points

    return entry_points(group=GROUP)


def _load_shipped(place: str) -> Check:
    module, _, name = place.partition(":")
    check: Check = getattr(import_module(module), name)
    return check


def _load(plug_in: "EntryPoint", known: Mapping[str, Check]) -> Check:
    check = plug_in.load()
    if not isinstance(check, Check):
        raise TypeError(f"{plug_in.value} is a {type(check).__name__}, expected a muster_checks.base.declaration.Check")
    _take_name(check, known)
    return check


def _add_folder(folder: Path, checks: dict[str, Check]) -> dict[str, str]:
    """Adds what a folder has to ``checks``; by file, why one was left out."""
    # here, not above: they load re2 and pydantic's forms, which only who has such a folder needs
    from muster_checks.dmesg import with_rules
    from muster_checks.plugins.folder import read_folder

    broken: dict[str, str] = {}
    found = read_folder(folder, broken)
    for file, check in found.checks.items():
        try:
            _take_name(check, checks)
        except ValueError as error:
            broken[file] = str(error)
        else:
            checks[check.name] = check
    if found.kernel_rules:
        checks["dmesg"] = with_rules(checks["dmesg"], found.kernel_rules)
    return broken


def _take_name(check: Check, known: Mapping[str, Check]) -> None:
    """Raises ValueError for a name that no check may have, or that one has already."""
    if not _NAME.fullmatch(check.name) or check.name == "all":
        raise ValueError(f"name {check.name!r}: expected lower case letters and digits, not 'all'")
    if check.name in known:
        raise ValueError(f"name {check.name!r}: there is a check of that name already")
