"""Finds all checks: the shipped ones, those of other packages (entry-point group ``muster.checks``), and those of a
plug-in folder (:mod:`muster_checks.plugins`).

A shipped check is a package plus one line here. A plug-in that fails to load is skipped and reported, so that one
broken package does not disable a node's other checks.
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
    "containerlog": "muster_checks.containerlog:CONTAINERLOG",
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
    "ncclras": "muster_checks.ncclras:NCCLRAS",
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
    broken:   receives the reason for each skipped plug-in, by entry-point name or file
    plugins_folder: folder of plug-in files (docs/plugins.md)
    """
    checks = {name: _load_shipped(place) for name, place in SHIPPED.items()}
    refused = broken if broken is not None else {}
    for plug_in in _find_installed() if plug_ins is None else plug_ins:
        try:
            check = _load(plug_in, checks)
        except Exception as error:  # importing third-party code may raise anything
            refused[plug_in.name] = f"{type(error).__name__}: {error}"
            log.warning("check %s (%s) skipped: %s", plug_in.name, plug_in.value, refused[plug_in.name])
        else:
            checks[check.name] = check
    if plugins_folder is not None:
        left_out = _add_folder(plugins_folder, checks)
        refused.update(left_out)
        for file, why in left_out.items() if broken is None else ():  # a caller that passes `broken` reports them
            log.warning("plug-in %s skipped: %s", file, why)
    return checks


def select_checks(names: Iterable[str], checks: Mapping[str, Check]) -> list[Check]:
    """The checks called ``names``, in that order, without repeats. Raises UnknownCheck.

    ``all`` selects every check, except those that are off by default.
    """
    chosen: dict[str, Check] = {}
    for name in names:
        if name == "all":
            chosen.update((name, check) for name, check in checks.items() if check.enabled)
        elif name in checks:
            chosen[name] = checks[name]
        else:
            raise UnknownCheck(name, checks)
    return list(chosen.values())


def _find_installed() -> "Iterable[EntryPoint]":
    # imported late: it costs 2 MB (it loads the email package), and only the search for plug-ins needs it
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
    """Add a folder's checks to ``checks``. Returns the reason for each skipped file, by file."""
    # imported late: these load re2 and pydantic models that only a plug-in folder needs
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
    """Raises ValueError if the name is invalid or already taken."""
    if not _NAME.fullmatch(check.name) or check.name == "all":
        raise ValueError(f"name {check.name!r}: expected lower case letters and digits, not 'all'")
    if check.name in known:
        raise ValueError(f"name {check.name!r}: already used by another check")
