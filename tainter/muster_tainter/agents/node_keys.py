"""Who may change Muster's labels, annotations and taints of a Node: whoever has the right to patch NodeHealths.

A kubelet may change the labels and annotations of its own Node, and Muster's are what its tainter goes by. So they are
guarded by who writes, and never by what a request says of itself, such as its field manager. The tainter's account and
people on call have the right; no kubelet is let through, whatever its rights. The taint ``muster.dev/startup`` may be
added by anybody who may write the Node, since whoever registers a node sets it.
"""

import re
from collections.abc import Callable, Iterator, Mapping

import msgspec

from muster_kube.api.errors import ApiError, ConfigError
from muster_kube.api.objects import Api
from muster_kube.api.reviews import Reviews
from muster_kube.nodehealth import GROUP, PLURAL
from muster_kube.webhook.review import ALLOWED, AdmissionRequest, ReviewAnswer
from muster_tainter.agents.refusals import RefusalLog
from muster_tainter.policy.rules import OUR_PREFIX, STARTUP_KEY

KUBELETS = "system:nodes"  # the group of all kubelets: Kubernetes documentation, "Using Node Authorization"
VERB = "patch"  # of NodeHealths: the right that also clears faults
_SHOWN = 3  # keys in a message
# The API server compares resourceVersions as numbers, where 0 is none; so "07" may be the current one, "8" is not
_VERSION = re.compile(r"[1-9]\d*", re.ASCII)


class _Taint(Api, frozen=True):
    key: str
    effect: str = ""
    value: str = ""


class _Metadata(Api, frozen=True):
    resource_version: str = ""
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    annotations: dict[str, str] = msgspec.field(default_factory=dict)


class _Spec(Api, frozen=True):
    taints: tuple[_Taint, ...] = ()


class _Node(Api, frozen=True):
    metadata: _Metadata = _Metadata()
    spec: _Spec = _Spec()


_decoder = msgspec.json.Decoder(_Node | None)


def changed_keys(before: bytes | msgspec.Raw, after: bytes | msgspec.Raw) -> list[str]:
    """Muster's keys that a write of a Node changes, as ``label muster.dev/managed``; sorted. before: ``null`` for a new
    Node. None if the write is of an outdated copy: a mutating webhook is called before the API server rejects it as a
    conflict, on which clients try again with a new copy. Raises ValueError."""
    old, new = _decoder.decode(before) or _Node(), _decoder.decode(after) or _Node()
    versions = {old.metadata.resource_version, new.metadata.resource_version}
    if len(versions) == 2 and all(map(_VERSION.fullmatch, versions)):
        return []
    return sorted(
        {
            *_differing("label", old.metadata.labels, new.metadata.labels),
            *_differing("annotation", old.metadata.annotations, new.metadata.annotations),
            *(f"taint {taint.key}" for taint in _ours(old) - _ours(new)),
            *(f"taint {taint.key}" for taint in _ours(new) - _ours(old) if taint.key != STARTUP_KEY),
        }
    )


def _differing(kind: str, old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[str]:
    for key in old.keys() | new.keys():
        if key.startswith(OUR_PREFIX) and old.get(key) != new.get(key):
            yield f"{kind} {key}"


def _ours(node: _Node) -> set[_Taint]:
    return {taint for taint in node.spec.taints if taint.key.startswith(OUR_PREFIX)}


class NodeKeysRule:
    """The webhook's reviewer. tell, clock: as of :class:`RefusalLog`; writes that change no key are not told."""

    def __init__(self, reviews: Reviews, *, tell: Callable[[str], None], clock: Callable[[], float]) -> None:
        self._reviews = reviews
        self._refusals = RefusalLog(tell, clock)

    async def review(self, request: AdmissionRequest) -> ReviewAnswer:
        if (request.resource.group, request.resource.resource) != ("", "nodes"):
            return ALLOWED
        try:
            keys = changed_keys(request.old_object, request.object)
        except ValueError as error:
            answer = ReviewAnswer(False, 400, "BadRequest", f"not a Node: {error}")
        else:
            if not keys:
                return ALLOWED
            answer = await self._judge(request, keys)
        self._refusals.note(f"Node {request.name[:253]!r}", answer)
        return answer

    async def _judge(self, request: AdmissionRequest, keys: list[str]) -> ReviewAnswer:
        user = request.user_info
        shown = ", ".join(keys[:_SHOWN]) + (f" and {len(keys) - _SHOWN} more" if len(keys) > _SHOWN else "")
        refused = f"{user.user[:253]!r} may not change {shown} of a Node"
        if KUBELETS in user.groups:
            return ReviewAnswer(False, message=f"{refused}: no kubelet may (group {KUBELETS})")
        try:
            allowed = await self._reviews.may(user, VERB, GROUP, PLURAL)
        except (ApiError, ConfigError) as error:
            message = f"cannot look up whether {user.user[:253]!r} may {VERB} {PLURAL}.{GROUP}: {error}; try again"
            return ReviewAnswer(False, 503, "ServiceUnavailable", message)
        if allowed:
            return ALLOWED
        return ReviewAnswer(False, message=f"{refused}: this needs the right to {VERB} {PLURAL}.{GROUP}")
