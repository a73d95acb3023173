"""Errors and warnings of a job's healthPolicy."""

import re
from collections.abc import Iterator
from typing import Any, get_args

from muster_operator.admission.errors import SpecError, show_value, unexpected_value
from muster_operator.admission.numbers import RawSpec, is_given, mapping
from muster_operator.admission.pod_template import words_errors
from muster_operator.job.types import CheckpointSignal

GRACE_LIMIT_S = 86400
WORDS_LIMIT = 64
SIZE_LIMIT = 8192  # characters of a command
CHECKS_LIMIT = 16
TIMEOUT_S = 10, 3600
_AT = "spec.healthPolicy"
_CHECK = re.compile(r"[a-z][a-z0-9]{0,62}")
_SIGNALS = get_args(CheckpointSignal)


def health_errors(spec: RawSpec) -> Iterator[SpecError]:
    policy = mapping(spec.get("healthPolicy"))
    grace_s = policy.get("gracePeriodSeconds")
    if grace_s is not None and not (type(grace_s) is int and 1 <= grace_s <= GRACE_LIMIT_S):
        yield unexpected_value(f"{_AT}.gracePeriodSeconds", grace_s, f"a number of seconds from 1 to {GRACE_LIMIT_S}")
    if is_given(policy, "checkpoint"):
        yield from _check_checkpoint(spec, mapping(policy["checkpoint"]))
    if is_given(policy, "preFlight"):
        yield from _check_pre_flight(spec, mapping(policy["preFlight"]))


def health_warnings(spec: RawSpec) -> Iterator[str]:
    policy = mapping(spec.get("healthPolicy"))
    kind = policy.get("onFault", "Keep")
    for key in ("checkpoint", "gracePeriodSeconds"):
        if is_given(policy, key) and kind != "Move":
            yield f"{_AT}.{key}: has no effect with onFault {show_value(kind)}"
    if policy.get("tolerateFaulty") is True and kind != "Keep":
        yield f"{_AT}.onFault {kind}: with tolerateFaulty only lost nodes and bad IPUs are faults, not tainted nodes"


def _check_pre_flight(spec: RawSpec, found: RawSpec) -> Iterator[SpecError]:
    at = f"{_AT}.preFlight"
    if not is_given(spec, "launcher") and not is_given(spec, "interactive"):
        # their workers start as soon as they are created, so there is nothing to hold back
        yield SpecError(
            at, "set without launcher or interactive: preFlight needs a job whose workers wait for one of them"
        )
    checks = found.get("checks")
    if not isinstance(checks, list) or not 0 < len(checks) <= CHECKS_LIMIT:
        yield unexpected_value(f"{at}.checks", checks, f"1 to {CHECKS_LIMIT} check names")
    else:
        for index, name in enumerate(checks):
            if not isinstance(name, str) or not _CHECK.fullmatch(name):
                yield unexpected_value(
                    f"{at}.checks[{index}]", name, "the name of a check: lower-case letters and digits"
                )
            elif name in checks[:index]:
                yield unexpected_value(f"{at}.checks[{index}]", name, "each check once")
    timeout_s = found.get("timeoutSeconds")
    if timeout_s is not None and not (type(timeout_s) is int and TIMEOUT_S[0] <= timeout_s <= TIMEOUT_S[1]):
        yield unexpected_value(
            f"{at}.timeoutSeconds", timeout_s, f"a number of seconds from {TIMEOUT_S[0]} to {TIMEOUT_S[1]}"
        )


def _check_checkpoint(spec: RawSpec, found: RawSpec) -> Iterator[SpecError]:
    at = f"{_AT}.checkpoint"
    command, signal = found.get("command"), found.get("signal")
    if (command is None) == (signal is None):
        yield SpecError(
            at,
            f"{'neither' if command is None else 'both'} set: expected either command or signal",
        )
    if command is not None:
        yield from words_errors(command, f"{at}.command")
        words: list[Any] = command if isinstance(command, list) else []
        if isinstance(command, list) and not 0 < len(words) <= WORDS_LIMIT:
            yield SpecError(f"{at}.command", f"{len(words)} words: expected 1 to {WORDS_LIMIT}")
        if sum(len(word) for word in words if isinstance(word, str)) > SIZE_LIMIT:
            yield SpecError(f"{at}.command", f"too long: expected at most {SIZE_LIMIT} characters")
    if signal is not None and signal not in _SIGNALS:
        yield unexpected_value(f"{at}.signal", signal, f"one of {', '.join(_SIGNALS)}")
    template = mapping(mapping(mapping(spec.get("workers")).get("template")).get("spec"))
    for key in ("hostPID", "shareProcessNamespace"):
        # with these settings, process 1 is another process, even the init of the host
        if signal in _SIGNALS and signal != "SIGTERM" and template.get(key) is True:
            yield unexpected_value(f"{at}.signal", signal, f"SIGTERM or a command, because workers.template sets {key}")
    containers = template.get("containers")
    if is_given(spec, "launcher") or is_given(spec, "interactive") or not isinstance(containers, list):
        return
    for index, container in enumerate(containers):
        if is_given(mapping(mapping(container).get("lifecycle")), "preStop"):
            path = f"spec.workers.template.spec.containers[{index}].lifecycle.preStop"
            yield SpecError(path, f"set together with {at}: expected one of them, because both use the preStop hook")
