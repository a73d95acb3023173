"""The models of the policy's section ``sources``.

The default label names are those of an OpenTelemetry collector (``k8s.node.name`` etc., with the dots that Loki turns
into underscores), as in Konduktor's installation guide.
"""

import re
from fnmatch import translate
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, Field, field_validator, model_validator

from muster_checks.base.vocabulary import FaultClass, Verdict
from muster_checks.containerlog.line_pattern import (
    PATTERNS_LIMIT,
    Known,
    LinePattern,
    Raised,
    check_patterns,
    check_unique,
    reason_word,
)
from muster_tainter.policy.sections.heavy_checks import DAY_S, AnyDuration, Checks, Duration, check_names
from muster_tainter.policy.strict_model import StrictModel

QUERY_LIMIT = 5120  # characters: Loki's own default for a query
ENTRIES_LIMIT = 16

_LABEL = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_CONDITION = re.compile(r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_TENANT = re.compile(r"[A-Za-z0-9!_.*'()|-]{1,600}")  # Loki's characters; | between several
_USER = re.compile(r"[\x21-\x39\x3b-\x7e]{1,128}")
_OWN_CONDITION = "muster.dev/Healthy"

Status = Literal["True", "False", "Unknown"]


SuspendedKind = Literal["Job", "JobSet", "TrainJob", "PyTorchJob", "MPIJob", "RayJob", "IPUJob"]


def _listed(value: object) -> object:
    return (value,) if isinstance(value, str) else value


def _statuses(value: object) -> object:
    """YAML reads a bare True as a boolean; the API's status is a string."""
    if isinstance(value, (list, tuple)):
        return tuple(str(one) if isinstance(one, bool) else one for one in value)
    return (str(value),) if isinstance(value, bool) else _listed(value)


def _suspended(value: object) -> object:
    if isinstance(value, bool):
        return ("Job",) if value else ()
    return _listed(value)


def _label_name(label: str) -> str:
    if not _LABEL.fullmatch(label):
        raise ValueError("expected the name of a label: letters, digits and _, no digit first")
    return label


class _Lines(StrictModel):
    """query: a LogQL query that returns lines, not numbers. node_label: the label with the node's name."""

    query: Annotated[str, Field(max_length=QUERY_LIMIT)]
    node_label: str = "k8s_node_name"
    patterns: Annotated[tuple[LinePattern, ...], Field(max_length=PATTERNS_LIMIT)] = ()

    @field_validator("query")
    @classmethod
    def _selector(cls, query: str) -> str:
        if not query.lstrip().startswith("{"):
            raise ValueError('expected a log query, which begins with a selector such as {k8s_daemonset_name="dmesg"}')
        return query.strip()

    _label = field_validator("node_label", "pod_label", "namespace_label", check_fields=False)(_label_name)

    @model_validator(mode="after")
    def _names_once(self) -> Self:
        check_patterns("patterns", self.patterns)
        return self


class KernelLines(_Lines):
    """Lines of kernel logs, judged by the catalogue of the check ``dmesg``.

    patterns: for lines that match nothing in the catalogue
    """


class PodLines(_Lines):
    """Lines that pods write.

    known:  pattern sets that are part of Muster (known_patterns.yaml), all of them warnings
    pod_label, namespace_label: of the pod whose node is looked up if a stream has no ``node_label``
    """

    known: Annotated[tuple[Known, ...], BeforeValidator(_listed)] = ()
    pod_label: str = "k8s_pod_name"
    namespace_label: str = "k8s_namespace_name"

    @model_validator(mode="after")
    def _something(self) -> Self:
        if not self.patterns and not self.known:
            raise ValueError("expected patterns, or known: a list of cuda, nccl and poplar")
        return self


def check_matchers(text: str) -> str:
    """Label matchers of PromQL, without braces. Raises ValueError."""
    at = 0
    while at < len(text):
        found = _MATCHER.match(text, at)
        if found is None or (found.end() < len(text) and text[found.end()] != ","):
            raise ValueError('expected label matchers without braces, such as job="training", cluster=~"gpu-.*"')
        at = found.end() + 1
    return text.strip().rstrip(",")


class HttpSource(StrictModel):
    """A server's address and credentials.

    tenant:     X-Scope-OrgID; several separated by |
    token_file: a token: sent as Bearer, or with ``user`` as the password (Basic); read for every request
    ca_file:    certificates that verify the server's, instead of the system's
    """

    url: str
    tenant: str | None = None
    user: str | None = None
    token_file: Path | None = None
    ca_file: Path | None = None

    @field_validator("url")
    @classmethod
    def _http(cls, url: str) -> str:
        words = "expected http://HOST[:PORT][/PATH] or https://…, without user, query or fragment"
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise ValueError(words) from error
        if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc or port == 0:
            raise ValueError(words)
        if parts.query or parts.fragment or not url.isascii() or not url.isprintable() or " " in url:
            raise ValueError(words)
        return url.rstrip("/")

    @field_validator("tenant")
    @classmethod
    def _tenant(cls, tenant: str | None) -> str | None:
        if tenant is not None and not _TENANT.fullmatch(tenant):
            raise ValueError("expected letters, digits and ! - _ . * ' ( ), several tenants separated by |")
        return tenant

    @field_validator("user")
    @classmethod
    def _user(cls, user: str | None) -> str | None:
        if user is not None and not _USER.fullmatch(user):
            raise ValueError("expected printable ASCII without spaces and colons")
        return user

    @model_validator(mode="after")
    def _usable(self) -> Self:
        if self.user is not None and self.token_file is None:
            raise ValueError("user: expected tokenFile as well, which holds the password")
        if self.ca_file is not None and not self.url.startswith("https://"):
            raise ValueError("caFile: has no effect without https")
        return self


class LokiSource(HttpSource):
    """Loki's queries.

    every:      seconds between two queries while there are no new lines
    overlap:    period that each query reads again, for lines that reach Loki late
    lookback:   how far back a first start, or one long after the last leader, reads at most
    """

    kernel: Annotated[tuple[KernelLines, ...], Field(max_length=ENTRIES_LIMIT)] = ()
    pods: Annotated[tuple[PodLines, ...], Field(max_length=ENTRIES_LIMIT)] = ()
    every: Duration = 5.0
    overlap: Duration = 60.0
    lookback: Duration = 3600.0

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if not self.kernel and not self.pods:
            raise ValueError("expected kernel or pods, with at least one entry")
        if self.overlap > self.lookback:
            raise ValueError("overlap: expected no more than lookback")
        return self


PromQL = Annotated[str, Field(min_length=1, max_length=QUERY_LIMIT)]


class MetricQuery(StrictModel):
    """A node that ``query`` (a PromQL instant query) returns has the finding (``prometheus``, ``host``, ``name``).

    node_label: the label with the node's name
    hold:       how long the query has to return the node until then
    verdict:    WARN by default, because any scraped target can claim to be about any node
    end_query:  the finding ends when this query returns the node
    end_after:  the finding ends when ``query`` has not returned the node for this long
    """

    name: str
    query: PromQL
    node_label: str = "node"
    hold: AnyDuration = Field(default=0.0, alias="for")
    fault_class: FaultClass = Field(default=FaultClass.NONE, alias="class")
    verdict: Raised = "WARN"
    end_query: PromQL | None = None
    end_after: Duration | None = None

    _reason = field_validator("name")(reason_word)
    _label = field_validator("node_label")(_label_name)

    @model_validator(mode="after")
    def _ends(self) -> Self:
        if (self.end_query is None) == (self.end_after is None):
            raise ValueError(
                "expected endQuery (a query that returns nodes that are good again) or endAfter (a time, such as 10m), "
                "and not both"
            )
        return self

    @property
    def judged(self) -> Verdict:
        return Verdict(self.verdict)


class PrometheusSource(HttpSource):
    """every: seconds between two evaluations of a query"""

    queries: Annotated[tuple[MetricQuery, ...], Field(min_length=1, max_length=ENTRIES_LIMIT)]
    every: Duration = 30.0

    @model_validator(mode="after")
    def _names_once(self) -> Self:
        check_unique("queries", [query.name for query in self.queries])
        return self


_METRIC = re.compile(r"[A-Za-z_:][A-Za-z0-9_:]{0,127}")
_MATCHER = re.compile(r'\s*[A-Za-z_][A-Za-z0-9_]*\s*(=~|!~|!=|=)\s*"(?:[^"\\\n]|\\.)*"\s*')
LEAST_WINDOW_S = 300.0
# labels of pods as a scrape configuration copies them (each character that is not a letter, digit or _ becomes _), from
# the outermost owner to the innermost. job_name is also the label that batch Jobs had before Kubernetes 1.27
_JOB_LABELS = (
    "jobset_sigs_k8s_io_jobset_name",
    "training_kubeflow_org_job_name",
    "ray_io_cluster",
    "muster_dev_ipujob",
    "batch_kubernetes_io_job_name",
    "job_name",
)


class StepTimesSource(HttpSource):
    """Step times of running jobs, from a Prometheus.

    metric:   a summary or histogram: its series METRIC_sum and METRIC_count are read
    work_metric: a counter of how much work these steps had, in the job's own unit; a job need not have it
    matchers: further label matchers of PromQL, separated by commas
    job_labels: the first of these that a series has names its job, within the namespace
    namespace_label, pod_label: of the pod that a rank runs in
    rank_label, stage_label, gpu_label: what the program says
    window:   a job is judged once for each; windows do not overlap
    jobs:     judged at most, those with most ranks first
    heavy_checks: requested on the node of a slow rank when it is idle
    evict: whether a slow pod is evicted if its owner asks for that
    suspend: kinds of jobs that are suspended if their owner asks for that; true: Job
    """

    metric: str = "muster_step_seconds"
    work_metric: str = "muster_step_work_total"
    matchers: Annotated[str, Field(max_length=QUERY_LIMIT)] = ""
    job_labels: Annotated[tuple[str, ...], BeforeValidator(_listed), Field(min_length=1, max_length=ENTRIES_LIMIT)] = (
        _JOB_LABELS
    )
    namespace_label: str = "namespace"
    pod_label: str = "pod"
    rank_label: str = "rank"
    stage_label: str = "stage"
    gpu_label: str = "gpu"
    window: Duration = 1800.0
    jobs: Annotated[int, Field(ge=1, le=1000)] = 100
    heavy_checks: Checks = ("gpumem", "pciebw", "dcgm")
    evict: bool = False
    suspend: Annotated[tuple[SuspendedKind, ...], BeforeValidator(_suspended), Field(max_length=ENTRIES_LIMIT)] = ()

    _names = field_validator("heavy_checks")(check_names)
    _label = field_validator("namespace_label", "pod_label", "rank_label", "stage_label", "gpu_label")(_label_name)

    @field_validator("job_labels")
    @classmethod
    def _label_names(cls, labels: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(labels)) < len(labels):
            raise ValueError("expected each label once")
        return tuple(map(_label_name, labels))

    @field_validator("metric")
    @classmethod
    def _family(cls, metric: str) -> str:
        if not _METRIC.fullmatch(metric):
            raise ValueError("expected the name of a metric: letters, digits, _ and :, no digit first")
        if metric.endswith(("_sum", "_count", "_bucket", "_total")):
            raise ValueError("expected the name of a summary or histogram, without _sum, _count or _bucket")
        return metric

    @field_validator("work_metric")
    @classmethod
    def _counter(cls, metric: str) -> str:
        if not _METRIC.fullmatch(metric) or metric.endswith(("_sum", "_count", "_bucket")):
            raise ValueError("expected the name of a counter: letters, digits, _ and :, no digit first")
        return metric

    _valid_matchers = field_validator("matchers")(check_matchers)

    @field_validator("window")
    @classmethod
    def _long_enough(cls, window: float) -> float:
        if not LEAST_WINDOW_S <= window <= DAY_S:
            raise ValueError("expected a time from 5m to 1d")
        return window


class ConditionRule(StrictModel):
    """A Node condition that another agent sets (node-problem-detector, a cloud's agent, a device plug-in).

    While it has one of ``status`` and its reason matches, the node has the finding (``condition``, ``host``,
    ``type``).
    """

    type: str
    status: Annotated[tuple[Status, ...], BeforeValidator(_statuses), Field(min_length=1)] = ("True",)
    reason: Annotated[tuple[str, ...], BeforeValidator(_listed), Field(min_length=1, max_length=64)] = ("*",)
    fault_class: FaultClass = Field(default=FaultClass.NONE, alias="class")
    verdict: Raised = "FAIL"

    @field_validator("type")
    @classmethod
    def _foreign(cls, name: str) -> str:
        if not _CONDITION.fullmatch(name) or len(name) > 128:
            raise ValueError("expected the type of a condition: a word, or DOMAIN/word (128 characters at most)")
        if name == _OWN_CONDITION:
            raise ValueError("expected another agent's condition: this one is set by the tainter itself")
        return name

    @field_validator("reason")
    @classmethod
    def _globs(cls, globs: tuple[str, ...]) -> tuple[str, ...]:
        for glob in globs:
            if not glob or len(glob) > 253:
                raise ValueError(f"{glob[:40]!r}: expected a pattern of 1 to 253 characters")
        return globs

    @cached_property
    def _compiled(self) -> "re.Pattern[str]":
        # fnmatch translates to atomic groups: linear time for any pattern
        return re.compile("|".join(translate(glob) for glob in self.reason))

    def covers(self, status: str, reason: str) -> bool:
        return status in self.status and ("*" in self.reason or self._compiled.match(reason) is not None)


class DeviceHealthSource(StrictModel):
    """Devices that the status of a running pod reports as unhealthy (``allocatedResourcesStatus``).

    While a pod reports one, its node has the finding (``devicehealth``, the device, ``DeviceUnhealthy``).
    verdict: WARN by default: the device plug-in or driver says so, and not why; Kubernetes itself calls it temporary
    """

    fault_class: FaultClass = Field(default=FaultClass.NONE, alias="class")
    verdict: Raised = "WARN"


class Sources(StrictModel):
    """Sources in addition to NodeHealth, which needs no entry."""

    conditions: Annotated[tuple[ConditionRule, ...], Field(max_length=64)] = ()
    loki: LokiSource | None = None
    prometheus: PrometheusSource | None = None
    step_times: StepTimesSource | None = None
    device_health: DeviceHealthSource | None = None

    @model_validator(mode="after")
    def _types_once(self) -> Self:
        types = [rule.type for rule in self.conditions]
        for i, name in enumerate(types):
            if name in types[:i]:
                raise ValueError(f'conditions[{i}].type: "{name}": expected each type once')
        return self

    @cached_property
    def condition_types(self) -> frozenset[str]:
        """Condition types that a cached Node has to keep."""
        return frozenset(rule.type for rule in self.conditions)

    @cached_property
    def by_type(self) -> dict[str, ConditionRule]:
        return {rule.type: rule for rule in self.conditions}


# the model under each key, for errors that list the allowed keys
SOURCE_MODELS: dict[tuple[type[BaseModel], str], type[BaseModel]] = {
    (Sources, "conditions"): ConditionRule,
    (Sources, "loki"): LokiSource,
    (Sources, "prometheus"): PrometheusSource,
    (Sources, "stepTimes"): StepTimesSource,
    (Sources, "deviceHealth"): DeviceHealthSource,
    (PrometheusSource, "queries"): MetricQuery,
    (LokiSource, "kernel"): KernelLines,
    (LokiSource, "pods"): PodLines,
    (KernelLines, "patterns"): LinePattern,
    (PodLines, "patterns"): LinePattern,
}
