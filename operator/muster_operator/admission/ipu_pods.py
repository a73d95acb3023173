"""Answers AdmissionReviews of pods: one with the annotation ``graphcore.ai/ipus`` gets what it needs to wait for its
partition. Every other pod passes unchanged.

The webhook grants nothing that its user may not do: it only changes pods that the user may create, and adds no
privileges. Whatever of the operator's is there already, copied from another pod or written by a user, is replaced.
"""

import logging
import re
import secrets
from collections.abc import Awaitable, Callable, Collection
from typing import Any

import msgspec

from muster_kube.api.client import KubeClient
from muster_kube.api.errors import ApiError, BadAnswer
from muster_kube.webhook.review import ALLOWED, AdmissionRequest, BadReview, ReviewAnswer
from muster_operator.admission.errors import show_value
from muster_operator.admission.json_patch import make_patch
from muster_operator.admission.numbers import mapping, positive
from muster_operator.job.ipu_pod import ANNOTATION
from muster_operator.job.snapshot import JobSetup
from muster_operator.job.types import GROUP, KIND
from muster_operator.proxy.partition_limits import is_power_of_two, list_sizes
from muster_operator.resources.ipu_pods import inject

log = logging.getLogger(__name__)

GATES_MINOR = 27  # scheduling gates are enabled by default from this version
FIELD = f"metadata.annotations[{ANNOTATION}]"
_decoder = msgspec.json.Decoder(dict[str, Any])


async def read_minor(client: KubeClient) -> int:
    """Of the API server's version 1.x. Raises ApiError."""
    found = str(mapping(await client.get("/version")).get("minor"))
    if (match := re.match(r"[0-9]{1,4}", found, re.ASCII)) is None:
        raise BadAnswer(200, f"minor: {found[:40]!r}: expected a number", "/version")
    return int(match[0])


class PodReviewer:
    """minor: of the API server. scope: only pods of these namespaces are changed; empty: all. count: called with the
    answer (allowed, refused)."""

    def __init__(
        self,
        setup: JobSetup,
        minor: Callable[[], Awaitable[int]],
        scope: Collection[str],
        count: Callable[[str], None],
    ) -> None:
        self._setup = setup
        self._read_minor = minor
        self._minor: int | None = None  # a newer API server takes what an older one takes
        self._scope = frozenset(scope)
        self._count = count

    async def mutate(self, request: AdmissionRequest) -> ReviewAnswer:
        """Raises BadReview if the object is not a pod."""
        answer = await self._answer(request)
        self._count("allowed" if answer.allowed else "refused")
        return answer

    async def _answer(self, request: AdmissionRequest) -> ReviewAnswer:
        if (request.resource.group, request.resource.resource) != ("", "pods"):
            raise BadReview(f"a review of {request.resource.resource[:64]!r}: expected pods")
        if request.operation != "CREATE" or request.sub_resource:
            return ALLOWED
        if self._scope and request.namespace not in self._scope:
            return ALLOWED
        try:
            pod = _decoder.decode(request.object)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise BadReview(f"not a Pod: {error}") from error
        metadata = mapping(pod.get("metadata"))
        wanted = mapping(metadata.get("annotations")).get(ANNOTATION)
        if wanted is None:
            return ALLOWED
        if _is_of_a_job(metadata):
            return ReviewAnswer(True, warnings=(f"{FIELD}: ignored, because the pod is an {KIND}'s and has its IPUs",))
        ipus = positive(wanted)
        if ipus is None or not is_power_of_two(ipus) or ipus > self._setup.max_ipus:
            return _refuse_number(wanted, metadata, self._setup.max_ipus)
        try:
            minor = self._minor = await self._read_minor() if self._minor is None else self._minor
        except ApiError as error:
            log.warning("cannot read the version of the API server: %s", error)
            return ReviewAnswer(
                False, 503, "ServiceUnavailable", f"cannot read the version of the API server: {error.message}"
            )
        # the API server takes no gates for a pod that bypasses the scheduler
        gated = minor >= GATES_MINOR and not mapping(pod.get("spec")).get("nodeName")
        injected = inject(pod, ipus, secrets.token_hex(8), self._setup, gated=gated)
        return ReviewAnswer(True, patch=make_patch(pod, injected, ""))


def _is_of_a_job(metadata: Any) -> bool:
    owners = metadata.get("ownerReferences")
    return any(
        owner.get("controller") and owner.get("kind") == KIND and str(owner.get("apiVersion")).startswith(f"{GROUP}/")
        for owner in (owners if isinstance(owners, list) else ())
    )


def _refuse_number(wanted: object, metadata: Any, limit: int) -> ReviewAnswer:
    message = f"{show_value(wanted)}: expected one of {list_sizes(limit)}, as a string"
    name = metadata.get("name")
    cause = {"reason": "FieldValueInvalid", "field": FIELD, "message": message}
    details = {"kind": "Pod", "name": name[:253] if isinstance(name, str) else "", "causes": [cause]}
    return ReviewAnswer(False, 422, "Invalid", f"{FIELD}: {message}", details)
