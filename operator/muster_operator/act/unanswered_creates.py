"""Pods whose creation got no answer: they may exist although the watch has not shown them yet.

A watch that is down for a moment must not let the operator release the partition of a pod that it has made itself.
"""

from collections.abc import Collection

from muster_kube.api.errors import ApiError


class UnansweredCreates:
    """By uid of the job. Kept over a loss of the leadership, but not over a restart: a new process lists all pods."""

    def __init__(self) -> None:
        self._by_job: dict[str, set[str]] = {}

    def note(self, uid: str, name: str) -> None:
        self._by_job.setdefault(uid, set()).add(name)

    def names(self, uid: str) -> Collection[str]:
        return sorted(self._by_job.get(uid, ()))

    def settle(self, uid: str, name: str) -> None:
        """The server has shown whether the pod exists."""
        if (names := self._by_job.get(uid)) is not None:
            names.discard(name)
            if not names:
                del self._by_job[uid]

    def forget_job(self, uid: str) -> None:
        self._by_job.pop(uid, None)


def may_have_happened(error: BaseException) -> bool:
    """Whether the server may have done what the failed call asked for: without an answer, after an error of its own, or
    if the call was cancelled."""
    return not isinstance(error, ApiError) or error.status == 0 or error.status >= 500
