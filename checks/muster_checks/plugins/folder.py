"""Reads the folder of plug-ins: every file becomes a check, rules of the check dmesg, or an error message.

A broken file does not affect the others. A check is named after its file's ``source``, or after the file if several
files, usable or not, have the same source: a file that breaks never renames another file's check.
"""

import re
from collections import Counter
from pathlib import Path

import msgspec

from muster_checks.base.bounded_read import names_in
from muster_checks.base.declaration import Check, Cost, Parameters
from muster_checks.base.npd_json import FileRefused, read_document
from muster_checks.dmesg.catalogue.npd_rules import check_instructions, read_log_monitor, to_rows
from muster_checks.dmesg.catalogue.types import PatternRow
from muster_checks.plugins.custom import read_custom
from muster_checks.plugins.custom_probe import CustomProbe
from muster_checks.plugins.log_monitor import log_check
from muster_checks.plugins.nagios import nagios_check, read_nagios

FILES_LIMIT = 500
SPARE_S = 1.0  # a run is not aborted while its rules still keep to their timeouts
_LOGS = ("kmsg", "journald", "filelog")
_STATS = frozenset(("cpu", "disk", "gpu", "host", "memory", "net", "osFeature", "invokeInterval"))


class PluginFolder(msgspec.Struct):
    """checks: by the path of their file; kernel_rules: for the check dmesg, which reads the kernel log."""

    checks: dict[str, Check] = {}
    kernel_rules: tuple[PatternRow, ...] = ()


def load_folder(path: Path, broken: dict[str, str] | None = None) -> list[Check]:
    """The checks of a folder; see :func:`read_folder`."""
    return list(read_folder(path, broken if broken is not None else {}).checks.values())


def read_folder(path: Path, broken: dict[str, str]) -> PluginFolder:
    """Every ``*.json``, ``*.yaml`` and ``*.yml`` in alphabetical order, except hidden files.

    broken: receives the reason for each skipped file, by path
    """
    folder = PluginFolder()
    if not path.is_dir():
        broken[str(path)] = "no such folder"
        return folder
    names = [name for name in names_in(path) if name.endswith((".json", ".yaml", ".yml")) and name[0] != "."]
    for name in names[FILES_LIMIT:]:
        broken[str(path / name)] = f"the folder has {len(names)} files; expected at most {FILES_LIMIT}"
    files = [path / name for name in names[:FILES_LIMIT]]
    documents: dict[Path, object] = {}
    for file in files:
        if file.suffix == ".json":
            try:
                documents[file] = read_document(file)
            except FileRefused as error:
                broken[str(file)] = str(error)
    shared = Counter(_letters(_source(document)) for document in documents.values())
    for file in files:
        try:
            if file in documents:
                source = _letters(_source(documents[file]))
                name = source if source and shared[source] == 1 else _letters(file.stem)
                _add(folder, file, name, documents[file])
            elif file.suffix != ".json":
                folder.checks[str(file)] = nagios_check(read_nagios(file), file.parent)
        except FileRefused as error:
            broken[str(file)] = str(error)
    return _drop_doubles(folder, broken)


def _add(folder: PluginFolder, file: Path, name: str, document: object) -> None:
    if not isinstance(document, dict):
        raise FileRefused(f"a {type(document).__name__}: expected the configuration of a monitor, a JSON object")
    plugin = document.get("plugin")
    if plugin == "custom":
        folder.checks[str(file)] = _custom_check(name, file, document)
    elif plugin in _LOGS:
        monitor = read_log_monitor(document)
        if monitor.is_for_the_kernel_log:
            rules = (*folder.kernel_rules, *to_rows(monitor, file.name))
            check_instructions(rules)
            folder.kernel_rules = rules
        else:
            folder.checks[str(file)] = log_check(name, monitor, file.name)
    elif plugin is None and document and document.keys() <= _STATS:
        raise FileRefused("a system-stats monitor is not supported: it produces metrics and finds no problems")
    else:
        found = "missing" if plugin is None else f'"{plugin}"'
        raise FileRefused(f"plugin: {found}: expected custom, {', '.join(_LOGS)}")


def _custom_check(name: str, file: Path, document: object) -> Check:
    monitor = read_custom(document, file.parent)
    reasons = dict.fromkeys(rule.reason for rule in monitor.rules)
    return Check(
        name=name,
        description=f"executables of {file.name}: {', '.join(reasons)}",
        cost=Cost.LIGHT,
        parameters=Parameters,
        timeout_s=monitor.longest_s + SPARE_S,
        devices=("host",),
        period_s=monitor.period_s,
        probe=CustomProbe(monitor),
        reads=", ".join(dict.fromkeys(rule.argv[0] for rule in monitor.rules)),
        ran_on="the operator's own executables",
    )


def _drop_doubles(folder: PluginFolder, broken: dict[str, str]) -> PluginFolder:
    owners: dict[str, str] = {}
    for file, check in list(folder.checks.items()):
        owner = owners.setdefault(check.name, file)
        if owner != file:
            del folder.checks[file]
            broken[file] = f"name {check.name!r}: already used by {Path(owner).name}"
    return folder


def _source(document: object) -> str:
    source = document.get("source") if isinstance(document, dict) else None
    return source if isinstance(source, str) else ""


def _letters(text: str) -> str:
    """``text`` as a check name: lower case letters and digits, starting with a letter."""
    return re.sub(r"^[0-9]+", "", re.sub(r"[^a-z0-9]", "", text.lower()))[:63]
