"""A ValidatingAdmissionPolicy, judged as the API server judges it: its CEL on Google's own evaluator (cel-cpp).

It lacks Kubernetes' own libraries (quantities, URLs, IP addresses), which no policy of ours uses, the types of a
request's fields at compile time, and the limits of cost. A question to the authorizer becomes a look into ``rights``.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cel_expr_python import cel

Object = dict[str, Any]
GIVEN = ("object", "oldObject", "request", "namespaceObject", "rights")
_QUESTION = re.compile(r"authorizer\.group\('([^']*)'\)\.resource\('([^']*)'\)\.check\('([^']*)'\)\.allowed\(\)")
ERROR = cel.Type.ERROR


class CelError(Exception):
    """An expression that does not compile, is not of the type that stands there, or ends in an error."""


@dataclass(frozen=True)
class Refusal:
    reason: str
    message: str


class Policy:
    """Raises CelError, as the API server refuses a policy whose expressions do not compile."""

    def __init__(self, body: Object) -> None:
        spec = body["spec"]
        self._fails = spec["failurePolicy"] == "Fail"
        types = dict.fromkeys(GIVEN, cel.Type.DYN)
        self._conditions = [_compiled(each["expression"], types, "BOOL") for each in spec.get("matchConditions", [])]
        self._variables: dict[str, cel.Expression] = {}
        for each in spec["variables"]:  # in their order: one may use those before it
            name = f"variables.{each['name']}"
            self._variables[name] = made = _compiled(each["expression"], types)
            types[name] = made.return_type()
        self._validations = [
            (
                _compiled(each["expression"], types, "BOOL"),
                each["reason"],
                _compiled(each["messageExpression"], types, "STRING")
                if "messageExpression" in each
                else each["message"],
            )
            for each in spec["validations"]
        ]

    def refusals(self, given: Mapping[str, Any]) -> list[Refusal]:
        """Empty: it is let through. given: what GIVEN names; rights: of the user, such as ``patch nodes``, or
        ``patch nodehealths.muster.dev``."""
        values: Object = {name: given.get(name) for name in GIVEN}
        try:
            if not all(_value(condition, values) for condition in self._conditions):
                return []
            for name, variable in self._variables.items():
                values[name] = _value(variable, values)
            return [
                Refusal(reason, message if isinstance(message, str) else _value(message, values))
                for expression, reason, message in self._validations
                if not _value(expression, values)
            ]
        except CelError as error:
            return [Refusal("Invalid", str(error))] if self._fails else []


def _compiled(text: str, types: Mapping[str, cel.Type], wanted: str = "") -> cel.Expression:
    text = _QUESTION.sub(lambda ask: f"('{ask[3]} {ask[2]}{ask[1] and '.'}{ask[1]}' in rights)", text)
    try:
        found = cel.NewEnv(variables=types).compile(text)
    except RuntimeError as error:
        raise CelError(str(error)) from error
    if wanted and found.return_type().name() != wanted:
        raise CelError(f"{text}: {found.return_type().name()}, expected {wanted}")
    return found


def _value(expression: cel.Expression, values: Object) -> Any:
    found = expression.eval(data=values)
    if found.type() == ERROR:
        raise CelError(str(found.value()))
    return found.plain_value()
