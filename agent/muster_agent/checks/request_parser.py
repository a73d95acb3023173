"""Parses and validates an entry of ``NodeHealth.spec.requests`` before anything runs, as query/status_query.py does for
/status.
"""

import math
import re
from collections.abc import Mapping
from typing import Any

import msgspec
from pydantic import ValidationError

from muster_agent.checks.node_check import NodeCheck
from muster_agent.idle.occupancy import WHOLE_NODE, RunScope
from muster_checks.base.declaration import Cost, Parameters
from muster_checks.base.unknown_names import explain_unknown
from muster_checks.hardware.pci import PCI_ADDRESS
from muster_checks.registry import UnknownCheck, select_checks
from muster_kube.api.times import seconds
from muster_kube.nodehealth import CheckRequest
from muster_kube.process.settings import explain

RUNS_LIMIT = 100
LONGEST_INTERVAL_S = 86_400.0
RESERVED = ("runs", "passes", "interval_s", "sees", "beside", "device", "held_as", "if_installed")
_DIGEST = re.compile(r"[0-9a-f]{7}")
LIST_PARAMETERS = f'use {", ".join(RESERVED)} or a parameter of the checks, which "muster checks" lists'


class BadRequest(ValueError):
    """The request is invalid. The message names the field, the value found and the values allowed."""


class RunSeries(msgspec.Struct, frozen=True):
    """A series of runs of some checks. It is PASS once ``passes`` of at most ``runs`` runs have passed.

    checks:     a run consists of all of them, in this order
    interval_s: from the end of one run to the start of the next
    sees:       components of interest: a run passes if it has findings for them and those pass, whatever it finds for
                others
    expires:    seconds since the epoch by which it must start; 0: not given
    force:      run heavy checks on busy nodes too
    optional:   checks that do not count if they report that what they need is not installed on this node
    disabled:   those of them that are not enabled on this node
    scope:      what the heavy checks use, and which work on the node does not matter to them
    """

    checks: tuple[tuple[NodeCheck, Parameters], ...]
    runs: int = 1
    passes: int = 1
    interval_s: float = 0.0
    sees: tuple[str, ...] = ()
    expires: float = 0.0
    force: bool = False
    scope: RunScope = WHOLE_NODE
    optional: tuple[str, ...] = ()
    disabled: tuple[str, ...] = ()


def read_request(request: CheckRequest, running: Mapping[str, NodeCheck]) -> RunSeries:
    """Raises BadRequest. Guarded parameters are accepted, because the API server has authorized the author of the
    request."""
    optional = _optional(request)
    disabled = tuple(name for name in optional if name not in running)
    try:
        checks = select_checks(
            [each for each in request.checks if each not in disabled],
            {name: each.check for name, each in running.items()},
        )
    except UnknownCheck as error:
        raise BadRequest(f"checks: {error}") from error
    if not checks:
        raise BadRequest(f"checks: empty; expected all or some of {', '.join(sorted(running))}")
    chosen = [running[check.name] for check in checks]
    given = _by_check(request.params, chosen)
    device = _device(request.params, chosen, given)
    runs = _whole(request.params, "runs", 1, RUNS_LIMIT)
    expires = seconds(request.expires)
    if request.expires and not expires:
        raise BadRequest(f"expires: {request.expires!r}: expected a time such as 2026-01-31T12:00:00Z")
    return RunSeries(
        checks=tuple((each, _parameters(each, given[each.name])) for each in chosen),
        runs=runs,
        passes=_whole(request.params, "passes", runs, runs),
        interval_s=_interval_s(request.params.get("interval_s", "0")),
        sees=_sees(request.params),
        expires=expires,
        force=request.force,
        scope=RunScope(_beside(request.params), device, _held_as(request.params)),
        optional=optional,
        disabled=disabled,
    )


def _by_check(params: Mapping[str, str], chosen: list[NodeCheck]) -> dict[str, dict[str, str]]:
    """``param`` applies to every check that has it, ``check.param`` to that check only; it overrides ``param``."""
    given: dict[str, dict[str, str]] = {each.name: {} for each in chosen}
    takers = {each.name: each.check.parameters.model_fields.keys() for each in chosen}
    for name, value in sorted(params.items(), key=lambda item: "." in item[0]):
        check, dot, bare = name.rpartition(".")
        if name in RESERVED:
            continue
        if dot and check not in takers:
            raise BadRequest(
                f"params.{name}: {check!r} is not one of the requested checks; expected {', '.join(takers)}"
            )
        names = [each for each in ([check] if dot else takers) if bare in takers[each]]
        if not names:
            known = [check] if dot else list(takers)
            allowed = sorted({field for each in known for field in takers[each]})
            message = explain_unknown("parameter", name, [*RESERVED, *allowed], LIST_PARAMETERS)
            raise BadRequest(f"params: {message}")
        for each in names:
            given[each][bare] = value
    return given


def _parameters(running: NodeCheck, given: Mapping[str, str]) -> Parameters:
    if not given:
        return running.parameters
    model = running.check.parameters
    if fixed := sorted(model.configured & given.keys()):
        raise BadRequest(
            f"params.{running.name}.{fixed[0]}: only the configuration sets it "
            f"(checks.{running.name}.parameters.{fixed[0]}); leave it out"
        )
    values: dict[str, Any] = {**running.parameters.model_dump(exclude_unset=True), **given}
    try:
        parameters = model.model_validate(values)
    except ValidationError as error:
        raise BadRequest("; ".join(explain(error, f"params.{running.name}", model))) from error
    if running.check.stream is not None and parameters != running.parameters:
        raise BadRequest(
            f"params.{running.name}: {', '.join(given)}: {running.name} runs all the time, so a request cannot change "
            f"its parameters; set them in the agent's configuration (checks.{running.name}.parameters)"
        )
    return parameters


def _whole(params: Mapping[str, str], name: str, default: int, most: int) -> int:
    text = params.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= most and len(text) <= 9):
        raise BadRequest(f"params.{name}: {text!r}: expected a whole number from 1 to {most}")
    return int(text)


def _sees(params: Mapping[str, str]) -> tuple[str, ...]:
    if "sees" not in params:
        return ()
    components = tuple(params["sees"].split(","))
    if "" in components:
        raise BadRequest("params.sees: empty component; expected a comma-separated list of components")
    return components


def _optional(request: CheckRequest) -> tuple[str, ...]:
    text = request.params.get("if_installed")
    if text is None:
        return ()
    names = tuple(text.split(","))
    if not set(names) < set(request.checks):
        raise BadRequest(f"params.if_installed: {text!r}: expected some, but not all, of {', '.join(request.checks)}")
    return names


def _beside(params: Mapping[str, str]) -> str:
    text = params.get("beside", "")
    namespace, slash, name = text.partition("/")
    if text and not (namespace and slash and name):  # a shorter prefix would match other pods too
        raise BadRequest(f"params.beside: {text!r}: expected a prefix of NAMESPACE/NAME of the pods")
    return text


def _device(params: Mapping[str, str], chosen: list[NodeCheck], given: Mapping[str, dict[str, str]]) -> str:
    """The PCI address of the only device that the heavy checks are to use, which is added to what they are ``given``;
    empty: all."""
    text = params.get("device", "")
    if not text:
        return ""
    address = text.removeprefix("gpu/")
    if address == text or not PCI_ADDRESS.fullmatch(address):
        raise BadRequest(f"params.device: {text!r}: expected a component such as gpu/0000:3b:00.0")
    for each in chosen:
        if each.check.cost is Cost.HEAVY and not each.check.one_device:
            raise BadRequest(f"params.device: {each.name} cannot test one device alone; leave out the check or device")
        if each.check.one_device:
            given[each.name][each.check.one_device] = address
    return address


def _held_as(params: Mapping[str, str]) -> tuple[str, ...]:
    text = params.get("held_as", "")
    digests = tuple(text.split(",")) if text else ()
    if not all(map(_DIGEST.fullmatch, digests)):
        raise BadRequest(f"params.held_as: {text!r}: expected digests of 12 hexadecimal digits, comma-separated")
    return digests


def _interval_s(text: str) -> float:
    try:
        interval_s = float(text)
    except ValueError:
        interval_s = math.nan
    if not 0 <= interval_s <= LONGEST_INTERVAL_S:
        raise BadRequest(f"params.interval_s: {text!r}: expected seconds from 0 to {LONGEST_INTERVAL_S:g}")
    return interval_s
