"""The configuration of node-problem-detector's custom plug-in monitor, validated as that program does at its start.

In addition, this module rejects a timeout, interval, length or concurrency that would stop that program (a ticker of
0 s, a channel without room), a ``type`` other than the two, and a file without rules. ``skip_initial_status`` and
``metricsReporting`` have no effect: a condition is reported once its rule has run, and the agent has its own metrics.

Checked against its source: pkg/custompluginmonitor (types/config.go, plugin/plugin.go, custom_plugin_monitor.go).
"""

from pathlib import Path
from typing import Annotated, Literal

import msgspec
from pydantic import Field, ValidationError

from muster_checks.base.commands import AFTER_KILL_S
from muster_checks.base.npd_json import Duration, FileRefused, NpdForm, Reason, first_error, is_of_windows
from muster_checks.dmesg.catalogue.npd_rules import NpdCondition

OUTPUT_BYTES = 4096  # maxCustomPluginBufferBytes: what that program reads of stdout; the rest is discarded
_ITS_OWN = ("health-checker", "log-counter")  # programs that are shipped with it


class _Global(NpdForm):
    invoke_interval: Annotated[Duration, Field(gt=0)] = 30.0
    timeout: Annotated[Duration, Field(gt=0)] = 5.0
    max_output_length: Annotated[int, Field(ge=0)] = 80
    concurrency: Annotated[int, Field(ge=1)] = 3
    enable_message_change_based_condition_update: bool = False
    skip_initial_status: bool = False


class _Rule(NpdForm):
    type: Literal["temporary", "permanent"]
    condition: str = ""
    reason: Reason
    path: Annotated[str, Field(min_length=1, max_length=4096)]
    args: Annotated[list[str], Field(default_factory=list)]
    timeout: Annotated[Duration, Field(gt=0)] | None = None
    invoke_interval: Annotated[Duration, Field(gt=0)] | None = None


class _File(NpdForm):
    plugin: Literal["custom"]
    plugin_config: Annotated[_Global, Field(alias="pluginConfig", default_factory=_Global)]
    source: str = ""
    conditions: Annotated[list[NpdCondition], Field(default_factory=list)]
    rules: Annotated[list[_Rule], Field(min_length=1, max_length=200)]


class CustomRule(msgspec.Struct, frozen=True, kw_only=True):
    """One executable and the meaning of its exit code.

    condition:  type of the condition a permanent rule sets; empty for a temporary one
    sound:      the condition's message while there is no problem
    path:       as written in the file; argv has the path where it was found
    """

    reason: str
    condition: str
    sound: str
    path: str
    argv: tuple[str, ...]
    timeout_s: float
    interval_s: float


class CustomMonitor(msgspec.Struct, frozen=True, kw_only=True):
    """max_output_bytes: of a message; follow_messages: an open condition takes each new message, not only the first."""

    rules: tuple[CustomRule, ...]
    concurrency: int
    max_output_bytes: int
    follow_messages: bool

    @property
    def period_s(self) -> float:
        return min(rule.interval_s for rule in self.rules)

    @property
    def longest_s(self) -> float:
        """The longest time that a run of all rules can take, including killing each one at its timeout."""
        batches = -(-len(self.rules) // self.concurrency)
        return batches * (max(rule.timeout_s for rule in self.rules) + AFTER_KILL_S)


def read_custom(document: object, folder: Path) -> CustomMonitor:
    """``folder``: of the file; relative paths are searched there and in the folder above, as in that program's own
    layout. Raises FileRefused."""
    try:
        file = _File.model_validate(document)
    except ValidationError as error:
        raise FileRefused(first_error(error)) from None
    overall = file.plugin_config
    sound = {condition.type: condition.message for condition in reversed(file.conditions)}  # the first of a type wins
    rules = []
    for index, rule in enumerate(file.rules):
        where = f"rules[{index}]"
        if rule.timeout is not None and rule.timeout > overall.timeout:
            raise FileRefused(
                f"{where}.timeout: {rule.timeout:g} s: expected at most the timeout of pluginConfig, "
                f"{overall.timeout:g} s"
            )
        permanent = rule.type == "permanent"
        if permanent and rule.condition not in sound:
            raise FileRefused(
                f'{where}.condition: "{rule.condition}": a permanent rule needs a type listed in conditions: '
                f"{', '.join(sorted(sound)) or 'none'}"
            )
        rules.append(
            CustomRule(
                reason=rule.reason,
                condition=rule.condition if permanent else "",
                sound=sound[rule.condition] if permanent else "",
                path=rule.path,
                argv=(str(_find_script(f"{where}.path", rule.path, folder)), *rule.args),
                timeout_s=rule.timeout or overall.timeout,
                interval_s=rule.invoke_interval or overall.invoke_interval,
            )
        )
    return CustomMonitor(
        rules=tuple(rules),
        concurrency=overall.concurrency,
        max_output_bytes=overall.max_output_length,
        follow_messages=overall.enable_message_change_based_condition_update,
    )


def _find_script(where: str, path: str, folder: Path) -> Path:
    places = [folder / path, folder.parent / path] if not path.startswith("/") else [Path(path)]
    for place in places:
        try:
            if place.exists():
                return place.absolute()
        except (OSError, ValueError):  # ValueError: not a valid file name
            continue
    if is_of_windows(path):
        raise FileRefused(f'{where}: "{path}": a Windows path; expected an executable on Linux')
    hint = "; it is part of node-problem-detector" if Path(path).name in _ITS_OWN else ""
    raise FileRefused(f'{where}: "{path}": does not exist; searched {" and ".join(map(str, places))}{hint}')
