"""Whether the user who submits a job may create pods in its namespace.

The operator creates the job's pods with its own account, and RBAC never sees who asked for them. The right to create
IPUJobs alone must not become the right to run pods.

The user is the authenticated one of the API server's request. Who reaches the webhook past the API server can name any
user, but then no object is stored.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import Any

from muster_kube.api.errors import ApiError
from muster_kube.api.reviews import Identity
from muster_kube.webhook.review import AdmissionRequest, ReviewAnswer
from muster_operator.admission.numbers import RawSpec, is_given, mapping

log = logging.getLogger(__name__)

MayCreatePods = Callable[[Identity, str], Awaitable[bool]]


def what_runs(spec: RawSpec) -> tuple[Any, ...]:
    """The fields that say what the job's pods run. Other fields, such as jobInstances and suspend, say when and how
    often."""
    health = mapping(spec.get("healthPolicy"))
    template = mapping(spec.get("workers")).get("template")
    return template, spec.get("launcher"), is_given(spec, "interactive"), health.get("checkpoint")


async def refuse_submitter(request: AdmissionRequest, may_create_pods: MayCreatePods) -> ReviewAnswer | None:
    """The refusal; None if the user may create pods."""
    user, namespace = request.user_info, request.namespace
    try:
        if await may_create_pods(user, namespace):
            return None
    except ApiError as error:
        # not an HTTP error, which would let the job pass where the failurePolicy is Ignore
        log.warning("cannot check whether %s may create pods in %s: %s", user.user[:253], namespace, error)
        return ReviewAnswer(False, 503, "ServiceUnavailable", f"cannot check who may create pods: {error.message}")
    what = f'user "{user.user[:253]}" may not create pods in the namespace "{namespace}"'
    return ReviewAnswer(
        False, 403, "Forbidden", f"{what}: this right is needed, because the operator creates the pods of an IPUJob"
    )
