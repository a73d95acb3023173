"""Validates a spec and reports all of its errors at once, each with its path.

Specs arrive here after defaulting (:mod:`muster_operator.admission.defaults`). The CRD schema has already checked them,
but nothing relies on that.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from muster_operator.admission.defaults import FACTORS, NUMBER, alpha5_errors, apply_defaults, product_of
from muster_operator.admission.errors import SpecError, limit_errors, show_value, unexpected_value
from muster_operator.admission.health_policy import health_errors, health_warnings
from muster_operator.admission.numbers import RawSpec, count, is_given, mapping, positive
from muster_operator.admission.pod_security import security_errors
from muster_operator.admission.pod_template import environment_errors, launcher_errors, template_errors, words_errors
from muster_operator.job import names
from muster_operator.job.types import EXIT_CODES, INSTANCES_LIMIT, IPUJob

# RFC 1035, because pod names are host names; objects of the API may begin with a digit, but some programs reject such
# hosts
_HOST = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?", re.ASCII)
HOST_LIMIT = 63
_GENERATED = 5  # characters that the API server adds to a generateName
_SHARE = re.compile(r"[0-9]{1,3}%", re.ASCII)
_CODES = re.compile(EXIT_CODES, re.ASCII)
_CODES_LIMIT = 1024  # characters
# each worker takes 63 characters in the hostfile of a ConfigMap and twice in a Role, both limited to 1 MiB
PODS_LIMIT = 5000
# of objects and lists in each other: ten times what a pod template has, a tenth of what Python's decoders take. What is
# decoded here must be decodable wherever it is read again
NESTING_LIMIT = 100


@dataclass(frozen=True)
class SpecLimits:
    """max_ipus: of one partition, a power of two. max_pods: workers of one job. allow: what a pod template may ask for
    beyond an ordinary pod, see :mod:`muster_operator.admission.pod_security`."""

    max_ipus: int = 64
    max_pods: int = PODS_LIMIT
    allow: frozenset[str] = frozenset()


@dataclass(frozen=True)
class SpecReview:
    errors: tuple[SpecError, ...] = ()
    warnings: tuple[str, ...] = ()


def needs_review(job: RawSpec, former: RawSpec | None) -> bool:
    """Updates of metadata alone, and of a job that is being deleted, need no review, so a finalizer can always be
    removed."""
    if former is None:
        return True
    return not is_given(mapping(job.get("metadata")), "deletionTimestamp") and job.get("spec") != former.get("spec")


def review_spec(job: RawSpec, former: RawSpec | None, limits: SpecLimits) -> SpecReview:
    """Review a whole job as received, and the stored one on an update. Errors that the stored job has already do not
    block a change of something else; a changed template is reviewed anew for what it may not ask for."""
    if not needs_review(job, former):
        return SpecReview()
    spec, metadata = mapping(job.get("spec")), mapping(job.get("metadata"))
    if former is None:
        return SpecReview(limit_errors([*_find_errors(metadata, spec, limits)]), tuple(_find_warnings(spec)))
    before = mapping(former.get("spec"))
    known = set(_find_errors(metadata, before, limits))
    template = mapping(spec.get("workers")).get("template")
    if template != mapping(before.get("workers")).get("template"):
        known -= set(security_errors(template, limits.allow))
    found = [error for error in _find_errors(metadata, spec, limits) if error not in known]
    return SpecReview(limit_errors([*_check_changes(before, spec), *found]), tuple(_find_warnings(spec)))


def validate(job: IPUJob, limits: SpecLimits) -> tuple[SpecError, ...]:
    """The operator's own validation of a stored job: perhaps no webhook saw its last update."""
    spec = apply_defaults(msgspec.json.decode(msgspec.json.encode(job.spec)))  # decode again to get lists, as received
    return limit_errors([*spec.errors, *_find_errors({"name": job.metadata.name}, spec.spec, limits)])


def _find_errors(metadata: RawSpec, spec: RawSpec, limits: SpecLimits) -> Iterator[SpecError]:
    yield from _check_nesting(spec)
    yield from _check_numbers(spec, limits)
    yield from _check_name(metadata, spec)
    yield from _check_mode(spec)
    yield from _check_policies(spec)
    yield from health_errors(spec)
    workers = mapping(spec.get("workers"))
    yield from _check_strategy(workers.get("strategy"))
    yield from template_errors(workers.get("template"))
    yield from security_errors(workers.get("template"), limits.allow)
    if is_given(spec, "launcher") or is_given(spec, "interactive"):
        yield from launcher_errors(workers.get("template"))


def _check_nesting(spec: RawSpec) -> Iterator[SpecError]:
    level: list[Any] = [spec]
    for _ in range(NESTING_LIMIT):
        level = [inner for each in level if isinstance(each, dict | list) for inner in _inside(each)]
    if level:
        yield SpecError("spec", f"nested too deeply: expected at most {NESTING_LIMIT} levels")


def _inside(value: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value


def _check_numbers(spec: RawSpec, limits: SpecLimits) -> Iterator[SpecError]:
    yield from alpha5_errors(spec)
    instances, ipus = _instances(spec), positive(spec.get("ipusPerJobInstance"))
    if instances is None:
        yield unexpected_value("spec.jobInstances", spec.get("jobInstances"), f"a number from 0 to {INSTANCES_LIMIT}")
    if ipus is None or ipus & (ipus - 1) or ipus > limits.max_ipus:
        yield _size_error(spec, limits)
        ipus = None
    product = product_of(spec)
    if ipus is not None and product not in (None, ipus):
        yield SpecError(
            "spec.ipusPerJobInstance",
            f'"{ipus}": expected "{product}" (modelReplicas times ipusPerModelReplica), or leave those two out',
        )
    each = spec.get("modelReplicasPerWorker")
    if each is not None and positive(each) is None:
        yield unexpected_value("spec.modelReplicasPerWorker", each, NUMBER)
    yield from _check_workers(spec)
    workers = positive(spec.get("workersPerJobInstance"))
    if workers is None:
        return
    if ipus is not None and ipus % workers:
        yield SpecError(
            "spec.workersPerJobInstance",
            f'"{workers}": expected a divisor of spec.ipusPerJobInstance, "{ipus}", for equal shares',
        )
    if instances is not None and instances * workers > limits.max_pods:
        yield SpecError(
            "spec.jobInstances",
            f"{instances} instances of {workers} workers: expected at most {limits.max_pods} workers in total",
        )


def _check_workers(spec: RawSpec) -> Iterator[SpecError]:
    """Three fields set the number of workers of an instance."""
    workers, older = spec.get("workersPerJobInstance"), spec.get("workerPerJobInstance")
    replicas = mapping(spec.get("workers")).get("replicas")
    if positive(workers) is None and (workers is not None or (older is None and replicas is None)):
        yield unexpected_value("spec.workersPerJobInstance", workers, NUMBER)
    if older is not None and positive(older) is None:
        yield unexpected_value("spec.workerPerJobInstance", older, NUMBER)
    elif older is not None and older != workers and positive(workers) is not None:
        yield SpecError("spec.workerPerJobInstance", _describe_difference(older, "spec.workersPerJobInstance", workers))
    if replicas is not None and count(replicas) is None:
        yield unexpected_value("spec.workers.replicas", replicas, "a number of at least 1")
    elif replicas is not None and positive(workers) not in (None, replicas):
        yield SpecError("spec.workersPerJobInstance", _describe_difference(workers, "spec.workers.replicas", replicas))
    elif replicas is not None and workers is None and positive(older) not in (None, replicas):
        yield SpecError("spec.workerPerJobInstance", _describe_difference(older, "spec.workers.replicas", replicas))


def _describe_difference(found: object, other: str, value: object) -> str:
    return f"{show_value(found)}, but {other} is {show_value(value)}: expected equal values, or only one of the fields"


def _instances(spec: RawSpec) -> int | None:
    found = spec.get("jobInstances")
    if not isinstance(found, int) or isinstance(found, bool):
        return None
    return found if 0 <= found <= INSTANCES_LIMIT else None


def _size_error(spec: RawSpec, limits: SpecLimits) -> SpecError:
    found = spec.get("ipusPerJobInstance")
    expected = f'a power of two from "1" to "{limits.max_ipus}", as a string'
    if found is not None and found == str(product_of(spec)):
        factors = " times ".join(f"{key} {show_value(spec[key])}" for key in FACTORS)
        return SpecError("spec.ipusPerJobInstance", f"{show_value(found)} ({factors}): expected {expected}")
    return unexpected_value("spec.ipusPerJobInstance", found, expected)


def _check_name(metadata: RawSpec, spec: RawSpec) -> Iterator[SpecError]:
    """Checks the names of the pods; the worker with the highest index has the longest."""
    name = metadata.get("name")
    if not name and (base := metadata.get("generateName")) and isinstance(base, str):
        name = base + "x" * _GENERATED
    if not isinstance(name, str) or not name:
        yield unexpected_value("metadata.name", name, "a name")
        return
    if not _HOST.fullmatch(name):
        yield unexpected_value(
            "metadata.name",
            name,
            "a letter, then letters (a-z), digits and -, not ending in -: pod names must be valid host names",
        )
    pods = (_instances(spec) or 1) * (positive(spec.get("workersPerJobInstance")) or 1)
    longest = names.worker_pod(name, pods - 1)  # -launcher is never longer
    if len(longest) > HOST_LIMIT:
        ending = longest[len(name) :]
        room = HOST_LIMIT - len(ending)
        yield unexpected_value(
            "metadata.name", name, f"at most {room} characters: with {ending}, pod names are limited to {HOST_LIMIT}"
        )


def _check_mode(spec: RawSpec) -> Iterator[SpecError]:
    launcher, interactive = spec.get("launcher"), spec.get("interactive")
    if launcher is not None and interactive is not None:
        yield SpecError(
            "spec.interactive",
            "expected either launcher or interactive, because an interactive session starts no command",
        )
    if interactive is not None and count(ttl := mapping(interactive).get("ttl")) is None:
        yield unexpected_value("spec.interactive.ttl", ttl, "a number of seconds of at least 1")
    if launcher is not None:
        command = mapping(launcher).get("command")
        if command is None or command == []:
            yield SpecError("spec.launcher.command", "missing: expected at least one word")
        yield from words_errors(command, "spec.launcher.command")
        yield from environment_errors(mapping(launcher).get("env"), "spec.launcher.env")


def _check_policies(spec: RawSpec) -> Iterator[SpecError]:
    codes = mapping(spec.get("restartPolicy")).get("exitCodes")
    if codes is not None and not _are_exit_codes(codes):
        yield unexpected_value(
            "spec.restartPolicy.exitCodes",
            codes,
            "exit codes from 1 to 255 and ranges of them, lower number first, for example 1,3,128-255",
        )


def _are_exit_codes(codes: object) -> bool:
    if not isinstance(codes, str) or len(codes) > _CODES_LIMIT or not _CODES.fullmatch(codes):
        return False
    for part in codes.split(","):
        low, _, high = part.partition("-")
        if not 1 <= int(low) <= int(high or low) <= 255:
            return False
    return True


def _check_strategy(strategy: object) -> Iterator[SpecError]:
    rolling = mapping(mapping(strategy).get("rollingUpdate"))
    bounds = {key: rolling[key] for key in ("maxSurge", "maxUnavailable") if is_given(rolling, key)}
    for key, value in bounds.items():
        whole = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= PODS_LIMIT
        if not whole and not (isinstance(value, str) and _SHARE.fullmatch(value)):
            yield unexpected_value(
                f"spec.workers.strategy.rollingUpdate.{key}", value, f'0 to {PODS_LIMIT}, or a percentage such as "25%"'
            )
    if len(bounds) == 2 and all(value in (0, "0%") for value in bounds.values()):
        yield SpecError(
            "spec.workers.strategy.rollingUpdate",
            "maxSurge and maxUnavailable are both 0: expected at least one of them to be more",
        )


def _check_changes(before: RawSpec, after: RawSpec) -> Iterator[SpecError]:
    """Changes that require a suspended job, because its partitions and pods depend on these fields."""
    if before.get("suspend") is True:
        return
    old = apply_defaults(before).spec
    for key in ("ipusPerJobInstance", "workersPerJobInstance"):
        if old.get(key) != after.get(key):
            yield _fixed_error(f"spec.{key}", f"{show_value(after.get(key))} instead of {show_value(old.get(key))}")
    for key in ("launcher", "interactive"):
        if is_given(old, key) != is_given(after, key):
            yield _fixed_error(f"spec.{key}", "added" if is_given(after, key) else "removed")
    if is_given(old, "launcher") and is_given(after, "launcher") and old["launcher"] != after["launcher"]:
        yield _fixed_error("spec.launcher", "changed")
    with_launcher = is_given(old, "launcher") or is_given(old, "interactive")
    if after.get("suspend") is True:
        return  # Kueue suspends a job and removes what it added to the template in one update
    if with_launcher and mapping(old.get("workers")).get("template") != mapping(after.get("workers")).get("template"):
        yield _fixed_error("spec.workers.template", "changed, but with a launcher all workers run the same template")


def _fixed_error(path: str, what: str) -> SpecError:
    return SpecError(path, f"{what}: only allowed while the job is suspended (spec.suspend: true)")


def _find_warnings(spec: RawSpec) -> Iterator[str]:
    policy = mapping(spec.get("restartPolicy"))
    kind: Any = policy.get("type")
    if is_given(policy, "exitCodes") and kind != "ExitCode":
        yield f"spec.restartPolicy.exitCodes: has no effect with type {show_value(kind)}"
    if spec.get("cleanPodPolicy") == "All" and kind not in (None, "Never"):
        yield f"spec.cleanPodPolicy All: a finished job does not restart, despite type {show_value(kind)}"
    yield from health_warnings(spec)
