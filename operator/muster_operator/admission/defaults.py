"""Fills in defaults and translates older forms of a spec. The operation is idempotent.

Values that it cannot interpret stay unchanged: the schema and the validating webhook report them with the path that the
user wrote.
"""

from dataclasses import dataclass
from typing import Any

from muster_operator.admission.errors import SpecError, unexpected_value
from muster_operator.admission.numbers import RawSpec, count, is_given, mapping, positive

CLEAN_POD_POLICY = "None"
RESTART_TYPE = "Never"
BACK_OFF_LIMIT = 3
EXIT_CODES = "128-255"
NUMBER = 'a number of at least "1", as a string'
_WORKERS = "workersPerJobInstance"
_OLDER = "workerPerJobInstance"  # of 1.0.3
FACTORS = ("modelReplicas", "ipusPerModelReplica")  # of 1.0.0-alpha-5


@dataclass(frozen=True)
class DefaultedSpec:
    """errors: alpha-5 fields that cannot be translated; the schema would only report that the new field is missing."""

    spec: dict[str, Any]
    warnings: tuple[str, ...] = ()
    errors: tuple[SpecError, ...] = ()


def apply_defaults(spec: RawSpec, former: RawSpec | None = None) -> DefaultedSpec:
    """The complete spec. former: the stored spec of an update: if two fields contradict each other, the changed one
    counts. ``spec`` itself is not modified; the result shares unchanged parts with it."""
    made, warnings = dict(spec), list[str]()
    stored: RawSpec = former or {}
    errors = _translate_alpha5(made, stored, warnings)
    _fill_in_workers(made, stored, warnings)
    if not is_given(made, "cleanPodPolicy"):
        made["cleanPodPolicy"] = CLEAN_POD_POLICY
    _fill_in_restart_policy(made)
    return DefaultedSpec(made, tuple(warnings), errors)


def _translate_alpha5(spec: dict[str, Any], stored: RawSpec, warnings: list[str]) -> tuple[SpecError, ...]:
    """The alpha-5 factors stay in the spec: the POPDIST variables derive from them, and applying the same file again
    changes nothing."""
    if not any(is_given(spec, key) for key in FACTORS):
        return ()
    product = product_of(spec)
    known = spec.get("ipusPerJobInstance")
    changed = any(spec.get(key) != stored.get(key) for key in FACTORS)
    follows = known is not None and known == stored.get("ipusPerJobInstance") and changed
    if product is not None and (known is None or (follows and known != str(product))):
        spec["ipusPerJobInstance"] = str(product)
        replicas, ipus = (spec[key] for key in FACTORS)
        warnings.append(
            f"spec.modelReplicas and spec.ipusPerModelReplica are deprecated (1.0.0-alpha-5): "
            f'{replicas} times {ipus} sets spec.ipusPerJobInstance to "{product}"'
        )
    if not is_given(spec, "jobInstances"):
        spec["jobInstances"] = 1
    return alpha5_errors(spec) if known is None else ()


def product_of(spec: RawSpec) -> int | None:
    """IPUs of one instance according to the alpha-5 fields; None if unknown."""
    replicas, ipus = (positive(spec.get(key)) for key in FACTORS)
    return None if replicas is None or ipus is None else replicas * ipus


def alpha5_errors(spec: RawSpec) -> tuple[SpecError, ...]:
    """Also empty for a spec without these fields."""
    one, other = FACTORS
    if not is_given(spec, one) and not is_given(spec, other):
        return ()
    return tuple(
        unexpected_value(f"spec.{key}", spec[key], NUMBER)
        if is_given(spec, key)
        else SpecError(f"spec.{key}", f"missing: required together with spec.{beside}")
        for key, beside in ((one, other), (other, one))
        if positive(spec.get(key)) is None
    )


def _fill_in_workers(spec: dict[str, Any], stored: RawSpec, warnings: list[str]) -> None:
    """Three fields set the number of workers of an instance. The older spelling stays where the user wrote it, for the
    same reason as the factors."""
    workers = spec.get("workers")
    if is_given(spec, _OLDER) and spec[_OLDER] != stored.get(_OLDER):
        warnings.append(f"spec.{_OLDER} is deprecated: it sets spec.{_WORKERS}")
    if not isinstance(workers, dict):
        return
    given = {key: positive(spec[key]) for key in (_WORKERS, _OLDER) if is_given(spec, key)}
    changed = {number for key, number in given.items() if spec[key] != stored.get(key)}
    if is_given(workers, "replicas"):
        given["replicas"] = count(workers["replicas"])
        if workers["replicas"] != mapping(stored.get("workers")).get("replicas"):
            changed.add(given["replicas"])
    numbers = set(given.values()) or {1}
    if len(numbers) > 1:
        numbers = changed
    if len(numbers) != 1 or (number := numbers.pop()) is None:
        return
    for key in (_WORKERS, _OLDER) if is_given(spec, _OLDER) else (_WORKERS,):
        spec[key] = str(number)
    if workers.get("replicas") != number:
        spec["workers"] = {**workers, "replicas": number}


def _fill_in_restart_policy(spec: dict[str, Any]) -> None:
    policy = spec.get("restartPolicy")
    if policy is None:
        spec["restartPolicy"] = {"type": RESTART_TYPE, "backOffLimit": BACK_OFF_LIMIT}
    elif isinstance(policy, dict):
        missing: dict[str, Any] = {}
        if not is_given(policy, "backOffLimit"):
            missing["backOffLimit"] = BACK_OFF_LIMIT
        if policy.get("type") == "ExitCode" and not is_given(policy, "exitCodes"):
            missing["exitCodes"] = EXIT_CODES
        if missing:
            spec["restartPolicy"] = policy | missing
