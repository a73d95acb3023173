"""What can go wrong with a call to the API server, each with its own type: who catches decides by type, not by number.

Names are the API's own reasons. ``Unreachable`` is the one without an answer: the write may or may not have happened.
"""

import msgspec


class ConfigError(Exception):
    """The way to the cluster is not configured as it should be: where, what was found, what is allowed."""


class ApiError(Exception):
    """An answer that is not the one asked for.

    status:  HTTP status, 0 where there was no answer
    reason:  the API's CamelCase word (``NotFound``), or one of ours
    message: for people
    path:    the API path asked for
    """

    def __init__(self, status: int, reason: str, message: str, path: str) -> None:
        super().__init__(f"{path}: {status or 'no answer'} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message
        self.path = path


class Unauthorized(ApiError):
    """401: the token or certificate is not accepted (any more)."""


class Forbidden(ApiError):
    """403: RBAC or an admission plug-in says no."""


class NotFound(ApiError):
    """404: no such object, or no such resource (a CRD that is not installed)."""


class Conflict(ApiError):
    """409: the object is not the one the write was decided on, or a field belongs to another manager."""


class AlreadyExists(Conflict):
    """409 to a create."""


class Gone(ApiError):
    """410: the resourceVersion or the continue token is too old; list again."""


class Invalid(ApiError):
    """422: the object breaks its schema, or a validation."""


class TooManyRequests(ApiError):
    """429: asked to slow down; or, for an eviction, a disruption budget is used up.

    retry_after_s: seconds the server asks for; 0 where it says nothing
    """

    def __init__(self, status: int, reason: str, message: str, path: str, retry_after_s: float = 0.0) -> None:
        super().__init__(status, reason, message, path)
        self.retry_after_s = retry_after_s


class Unreachable(ApiError):
    """No answer: refused, timeout, TLS, connection lost. A write may have happened or not."""

    def __init__(self, message: str, path: str) -> None:
        super().__init__(0, "Unreachable", message, path)


class BadAnswer(ApiError):
    """An answer of success that does not hold what it should; ``message`` says what and where in it."""

    def __init__(self, status: int, message: str, path: str) -> None:
        super().__init__(status, "BadAnswer", message, path)


class _Cause(msgspec.Struct):
    reason: str | None = None
    message: str | None = None


class _Details(msgspec.Struct, rename="camel"):
    causes: list[_Cause] | None = None
    retry_after_seconds: float | None = None


class ApiFailure(msgspec.Struct):
    """The API's ``Status`` object as it comes in answers and in a watch's ERROR events."""

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
_TEXT_LIMIT = 512  # bytes of an answer that is no Status (a proxy's HTML page) shown to people


def read_failure(body: bytes | memoryview) -> ApiFailure | None:
    """``body`` as a Status object, or None where it is none (proxies answer in HTML)."""
    try:
        return _failure.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def api_error(status: int, body: bytes | memoryview, path: str, retry_after: str | None = None) -> ApiError:
    """The typed error for an HTTP answer. ``retry_after``: the header, in seconds (dates are not used by the API)."""
    failure = read_failure(body)
    if failure is None:
        text = bytes(body[:_TEXT_LIMIT]).decode("utf-8", "replace").strip()
        failure = ApiFailure(message=text or "empty answer")
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
