"""What a spec says without saying it, and what older forms of it mean. Doing it twice changes nothing.

What cannot be understood is left as it is: schema and validating webhook say so, with the path that was written.
"""

from dataclasses import dataclass
from typing import Any

from muster_operator.admission.findings import Error, wrong
from muster_operator.admission.reading import Spec, count, given, mapping, positive

CLEAN_POD_POLICY = "None"
RESTART_TYPE = "Never"
BACK_OFF_LIMIT = 3
EXIT_CODES = "128-255"
NUMBER = 'a number from "1", as text'
_WORKERS = "workersPerJobInstance"
_OLDER = "workerPerJobInstance"  # of 1.0.3
_FACTORS = ("modelReplicas", "ipusPerModelReplica")  # of 1.0.0-alpha-5


@dataclass(frozen=True)
class Defaulted:
    """errors: of the alpha-5 form, where it cannot be translated; the schema would only miss what it should become."""

    spec: dict[str, Any]
    warnings: tuple[str, ...] = ()
    errors: tuple[Error, ...] = ()


def defaulted(spec: Spec, former: Spec | None = None) -> Defaulted:
    """The spec that is meant. former: what is stored, when it is updated: where two fields say the same, the one that
    was changed counts. ``spec`` itself is left alone; what is not changed is shared with it."""
    made, warnings = dict(spec), list[str]()
    stored: Spec = former or {}
    _older_spelling(made, stored, warnings)
    errors = _alpha5(made, stored, warnings)
    _workers(made, stored)
    if not given(made, "cleanPodPolicy"):
        made["cleanPodPolicy"] = CLEAN_POD_POLICY
    _restart_policy(made)
    return Defaulted(made, tuple(warnings), errors)


def _older_spelling(spec: dict[str, Any], stored: Spec, warnings: list[str]) -> None:
    older, known = spec.get(_OLDER), spec.get(_WORKERS)
    if older is None:
        spec.pop(_OLDER, None)
    elif isinstance(older, str) and (known is None or known == older or known == stored.get(_WORKERS)):
        del spec[_OLDER]
        spec[_WORKERS] = older
        warnings.append(f"spec.{_OLDER} is an older spelling: stored as spec.{_WORKERS}")


def _alpha5(spec: dict[str, Any], stored: Spec, warnings: list[str]) -> tuple[Error, ...]:
    """The factors stay: POPDIST's variables are made of them, and applying the same file again changes nothing."""
    if not any(given(spec, key) for key in _FACTORS):
        return ()
    product = product_of(spec)
    known = spec.get("ipusPerJobInstance")
    changed = any(spec.get(key) != stored.get(key) for key in _FACTORS)
    follows = known is not None and known == stored.get("ipusPerJobInstance") and changed
    if product is not None and (known is None or (follows and known != str(product))):
        spec["ipusPerJobInstance"] = str(product)
        replicas, ipus = (spec[key] for key in _FACTORS)
        warnings.append(
            f"spec.modelReplicas and spec.ipusPerModelReplica are of 1.0.0-alpha-5: "
            f'{replicas} times {ipus} is spec.ipusPerJobInstance "{product}"'
        )
    if not given(spec, "jobInstances"):
        spec["jobInstances"] = 1
    return alpha5_errors(spec) if known is None else ()


def product_of(spec: Spec) -> int | None:
    """IPUs of one instance by the alpha-5 form; None where it cannot be told."""
    replicas, ipus = (positive(spec.get(key)) for key in _FACTORS)
    return None if replicas is None or ipus is None else replicas * ipus


def alpha5_errors(spec: Spec) -> tuple[Error, ...]:
    """Empty for a spec that does not have this form, too."""
    one, other = _FACTORS
    if not given(spec, one) and not given(spec, other):
        return ()
    return tuple(
        wrong(f"spec.{key}", spec[key], NUMBER)
        if given(spec, key)
        else Error(f"spec.{key}", f"missing: expected beside spec.{beside}")
        for key, beside in ((one, other), (other, one))
        if positive(spec.get(key)) is None
    )


def _workers(spec: dict[str, Any], stored: Spec) -> None:
    workers = spec.get("workers")
    if not isinstance(workers, dict):
        return
    said, replicas = positive(spec.get(_WORKERS)), count(workers.get("replicas"))
    if said is None and replicas is None and not given(spec, _WORKERS) and not given(workers, "replicas"):
        said = replicas = 1
    elif not given(workers, "replicas"):
        replicas = said
    elif not given(spec, _WORKERS):
        said = replicas
    elif said is not None and replicas is not None and said != replicas:
        same_said = spec[_WORKERS] == stored.get(_WORKERS)
        same_replicas = replicas == mapping(stored.get("workers")).get("replicas")
        if same_said and not same_replicas:
            said = replicas
        elif same_replicas and not same_said:
            replicas = said
    if said is not None and positive(spec.get(_WORKERS)) != said:
        spec[_WORKERS] = str(said)
    if replicas is not None and workers.get("replicas") != replicas:
        spec["workers"] = {**workers, "replicas": replicas}


def _restart_policy(spec: dict[str, Any]) -> None:
    policy = spec.get("restartPolicy")
    if policy is None:
        spec["restartPolicy"] = {"type": RESTART_TYPE, "backOffLimit": BACK_OFF_LIMIT}
    elif isinstance(policy, dict):
        missing: dict[str, Any] = {}
        if not given(policy, "backOffLimit"):
            missing["backOffLimit"] = BACK_OFF_LIMIT
        if policy.get("type") == "ExitCode" and not given(policy, "exitCodes"):
            missing["exitCodes"] = EXIT_CODES
        if missing:
            spec["restartPolicy"] = policy | missing
