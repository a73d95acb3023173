"""Syntax of Kubernetes label keys and values (apimachinery, pkg/util/validation: IsQualifiedName and
IsValidLabelValue), and its description in error messages."""

import re

_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_SUBDOMAIN_LIMIT = 253

KEY_WORDS = (
    "expected a label key: an optional lower-case DNS name and '/', then 1 to 63 letters, digits, "
    "'-', '_' or '.', beginning and ending with a letter or digit"
)
VALUE_WORDS = (
    "expected a label value: at most 63 letters, digits, '-', '_' or '.', beginning and ending with a "
    "letter or digit, or empty"
)


def is_key(key: str) -> bool:
    prefix, slash, name = key.rpartition("/")
    if not _NAME.fullmatch(name):
        return False
    return not slash or (len(prefix) <= _SUBDOMAIN_LIMIT and bool(_SUBDOMAIN.fullmatch(prefix)))


def is_value(value: str) -> bool:
    return not value or bool(_NAME.fullmatch(value))
