"""API reads with a time limit. A failed read is returned as a ReadFailure, not raised."""

import asyncio
from collections.abc import Mapping
from typing import TypeVar

import msgspec

from muster_checks.base.vocabulary import shorten
from muster_cli.doctor.findings import ReadFailure
from muster_kube.api.client import KubeClient
from muster_kube.api.errors import ApiError, Forbidden, NotFound
from muster_kube.api.objects import Api, Object

CALL_S = 5.0
LIST_S = 20.0  # all pages together
_LINES = 64  # of a plain-text response

T = TypeVar("T", bound=Api)
L = TypeVar("L", bound=Object)


class _Reviewed(Api, frozen=True):
    allowed: bool = False


class _Review(Api, frozen=True):
    status: _Reviewed = _Reviewed()


class BoundedReader:
    """Reads with the rights of the user who runs the doctor."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client

    async def read(self, path: str, kind: type[T]) -> T | ReadFailure | None:
        """None if the object does not exist."""
        try:
            return await self._client.get(path, type=kind, timeout_s=CALL_S)
        except NotFound:
            return None
        except ApiError as error:
            return read_failure(path, error)

    async def list(
        self, path: str, kind: type[L], params: Mapping[str, str | int] | None = None
    ) -> list[L] | ReadFailure:
        """All objects; those that cannot be decoded are left out."""
        items: list[L] = []
        try:
            async with asyncio.timeout(LIST_S):
                pages = self._client.list_pages(path, kind, params=params, timeout_s=CALL_S)
                async for page in pages:
                    items += page.items
                return items
        except NotFound:
            return []
        except ApiError as error:
            return read_failure(path, error)
        except TimeoutError:
            return ReadFailure(path, f"the list took longer than {LIST_S:g} s")

    async def read_text(self, path: str) -> str | ReadFailure:
        """The first lines of a plain-text response. A 503 is a ReadFailure with its text."""
        lines: list[str] = []
        try:
            async with asyncio.timeout(CALL_S), self._client.stream(path, silence_s=CALL_S) as batches:
                async for batch in batches:
                    lines += [line.decode("utf-8", "replace") for line in batch]
                    if len(lines) > _LINES:
                        break
        except ApiError as error:
            return read_failure(path, error)
        except TimeoutError:
            return ReadFailure(path, f"no answer within {CALL_S:g} s")
        return "\n".join(lines)

    async def post(self, path: str, body: object, kind: type[msgspec.Struct]) -> msgspec.Struct | ReadFailure:
        """A query by POST that changes nothing."""
        try:
            return await self._client.create(path, body, type=kind, timeout_s=CALL_S)
        except ApiError as error:
            return read_failure(path, error)

    async def is_allowed(self, user: str, attributes: Mapping[str, str]) -> bool | ReadFailure:
        """Whether the service account ``user`` has a right, by a SubjectAccessReview."""
        namespace = user.split(":")[2]
        groups = ["system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"]
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {"user": user, "groups": groups, "resourceAttributes": attributes},
        }
        path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
        answer = await self.post(path, body, _Review)
        if isinstance(answer, ReadFailure):
            return answer
        return isinstance(answer, _Review) and answer.status.allowed

    async def server_date(self) -> str:
        """The Date header of the API server; empty without one."""
        try:
            return await self._client.date("/version", timeout_s=CALL_S)
        except ApiError:
            return ""


def read_failure(path: str, error: ApiError) -> ReadFailure:
    return ReadFailure(path, shorten(f"{error.reason}: {error.message}", 400), isinstance(error, Forbidden))


__all__ = ["BoundedReader", "read_failure"]
