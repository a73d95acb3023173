"""Errors of calls to the API server, with one type for each reason, so that callers need not compare status codes.

The types have the names of the API's reasons. ``Unreachable`` means that there was no response: a write may or may not
have happened.
"""

import msgspec


class ConfigError(Exception):
    """The cluster configuration is invalid; the message names the place, what was found and what is allowed."""


class ApiError(Exception):
    """A call failed.

    status:  HTTP status; 0 without a response
    reason:  the API's CamelCase reason (``NotFound``), or one of Muster's
    message: for people
    path:    the requested API path
    """

    def __init__(self, status: int, reason: str, message: str, path: str) -> None:
        found = f"{status} {reason}: " if status else ""
        super().__init__(f"{path}: {found}{message}")
        self.status = status
        self.reason = reason
        self.message = message
        self.path = path


class Unauthorized(ApiError):
    """401: the token or certificate is invalid or has expired."""


class Forbidden(ApiError):
    """403: RBAC or an admission plug-in rejects the request."""


class NotFound(ApiError):
    """404: the object does not exist, or the resource does not (its CRD is not installed)."""


class Conflict(ApiError):
    """409: the object has changed since it was read, or another manager owns a field."""


class AlreadyExists(Conflict):
    """409 in response to a create."""


class Gone(ApiError):
    """410: the resourceVersion or the continue token is too old; list again."""


class Invalid(ApiError):
    """422: the object violates its schema or a validation rule."""


class TooManyRequests(ApiError):
    """429: the server throttles the client; or, for an eviction, a PodDisruptionBudget does not allow it.

    retry_after_s: from the Retry-After header; 0 without one
    """

    def __init__(self, status: int, reason: str, message: str, path: str, retry_after_s: float = 0.0) -> None:
        super().__init__(status, reason, message, path)
        self.retry_after_s = retry_after_s


class Unreachable(ApiError):
    """No response: connection refused or lost, timeout, TLS error. A write may or may not have happened."""

    def __init__(self, message: str, path: str) -> None:
        super().__init__(0, "Unreachable", message, path)


class BadAnswer(ApiError):
    """A successful response with unexpected content; ``message`` says what is wrong."""

    def __init__(self, status: int, message: str, path: str) -> None:
        super().__init__(status, "BadAnswer", message, path)


def is_outcome_unknown(error: BaseException) -> bool:
    """Whether a write that ended with ``error`` may have been made all the same."""
    return isinstance(error, Unreachable | BadAnswer) or (isinstance(error, ApiError) and error.status >= 500)


class _Cause(msgspec.Struct):
    reason: str | None = None
    message: str | None = None


class _Details(msgspec.Struct, rename="camel"):
    causes: list[_Cause] | None = None
    retry_after_seconds: float | None = None


class ApiFailure(msgspec.Struct):
    """The API's ``Status`` object, in responses and in ERROR events of a watch."""

    code: int | None = None
    reason: str | None = None
    message: str | None = None
    details: _Details | None = None

    def has_cause(self, reason: str) -> bool:
        causes = (self.details and self.details.causes) or []
        return any(cause.reason == reason for cause in causes)


_failure = msgspec.json.Decoder(ApiFailure)
_BY_STATUS: dict[int, type[ApiError]] = {
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    422: Invalid,
}
_TEXT_LIMIT = 512  # bytes to show of a response that is not a Status, such as a proxy's HTML page


def read_failure(body: bytes | memoryview) -> ApiFailure | None:
    """``body`` as a Status object, or None if it is not one (proxies send HTML)."""
    try:
        return _failure.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def api_error(status: int, body: bytes | memoryview, path: str, retry_after: str | None = None) -> ApiError:
    """The error for an HTTP response. ``retry_after``: the header, in seconds (the API does not use dates)."""
    failure = read_failure(body)
    if failure is None:
        text = bytes(body[:_TEXT_LIMIT]).decode("utf-8", "replace").strip()
        failure = ApiFailure(message=text or "empty response")
    reason = failure.reason or "Unknown"
    message = failure.message or "no message"
    if status == 429:
        return TooManyRequests(status, reason, message, path, _seconds(retry_after, failure))
    if status == 409 and reason == "AlreadyExists":
        return AlreadyExists(status, reason, message, path)
    if status == 504 and failure.has_cause("ResourceVersionTooLarge"):
        reason = "ResourceVersionTooLarge"
    return _BY_STATUS.get(status, ApiError)(status, reason, message, path)


def _seconds(header: str | None, failure: ApiFailure) -> float:
    if header is not None:
        try:
            return min(max(float(header), 0.0), 3600.0)
        except ValueError:
            pass
    return (failure.details and failure.details.retry_after_seconds) or 0.0
