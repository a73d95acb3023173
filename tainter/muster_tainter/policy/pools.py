"""policy.yaml's ``pools``: groups of nodes and their limits.

Pools may overlap: the budgets of all pools that select a node apply; the first one decides how the node is tested,
drained and repaired.
"""

from collections.abc import Mapping
from typing import Annotated, Self

from pydantic import Field, field_validator, model_validator

from muster_tainter.policy import label_syntax as kubernetes_labels
from muster_tainter.policy.budgets import Budget
from muster_tainter.policy.repair import Drain, Repair
from muster_tainter.policy.sections.heavy_checks import PoolTesting
from muster_tainter.policy.spares import Spares
from muster_tainter.policy.strict_model import StrictModel


class Selector(StrictModel):
    """Selects nodes that have all these labels; without labels, every node."""

    match_labels: dict[str, str] = Field(default_factory=dict, max_length=16)

    @field_validator("match_labels")
    @classmethod
    def _labels(cls, labels: dict[str, str]) -> dict[str, str]:
        for key, value in labels.items():
            if not kubernetes_labels.is_key(key):
                raise ValueError(f"{key[:80]!r}: {kubernetes_labels.KEY_WORDS}")
            if not kubernetes_labels.is_value(value):
                raise ValueError(f"{value[:80]!r}: {kubernetes_labels.VALUE_WORDS}")
        return labels

    def chooses(self, labels: Mapping[str, str]) -> bool:
        return all(labels.get(key) == value for key, value in self.match_labels.items())


class Pool(StrictModel):
    """domain: label of Nodes; nodes with the same value fail together (a rack, a switch, a power feed)
    drain, repair: None: tainted nodes are not drained, not repaired
    spares: None: every node is for work
    """

    name: Annotated[str, Field(min_length=1, max_length=63)]
    selector: Selector
    domain: str | None = None
    budget: Budget = Budget()
    testing: PoolTesting = PoolTesting()
    drain: Drain | None = None
    repair: Repair | None = None
    spares: Spares | None = None

    @field_validator("domain")
    @classmethod
    def _is_label(cls, domain: str | None) -> str | None:
        if domain is not None and not kubernetes_labels.is_key(domain):
            raise ValueError(kubernetes_labels.KEY_WORDS)
        return domain

    @model_validator(mode="after")
    def _spares_per_domain_need_one(self) -> Self:
        if self.spares is not None and self.spares.per_domain is not None and self.domain is None:
            raise ValueError("spares.perDomain: expected the pool to have a domain, the label that tells them apart")
        return self

    def domain_of(self, labels: Mapping[str, str]) -> str:
        """Empty for a node without the label, or if the pool has no domain."""
        return labels.get(self.domain, "") if self.domain else ""
