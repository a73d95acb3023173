"""The groups of equal nodes in a fleet file: a number of nodes, or their names."""

from collections.abc import Iterable
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from muster_tainter.policy import label_syntax
from muster_tainter.policy.strict_model import StrictModel

NODES_LIMIT = 100_000
DEVICES_LIMIT = 1024
GROUP_NAME = r"^[a-z0-9]([-a-z0-9]{0,40}[a-z0-9])?$"

# names of Nodes: DNS subdomains (apimachinery, pkg/util/validation: IsDNS1123Subdomain), and those of fault files
NodeName = Annotated[str, Field(min_length=1, max_length=253)]
Names = tuple[NodeName, ...]


class Domain(StrictModel):
    """label: of Nodes; nodes: how many share one value, such as a rack; names: instead of a number, by value."""

    label: str
    nodes: Annotated[int, Field(ge=1, le=NODES_LIMIT)] | None = None
    names: Annotated[dict[str, Names], Field(max_length=NODES_LIMIT)] | None = None

    @field_validator("label")
    @classmethod
    def _is_label(cls, label: str) -> str:
        if not label_syntax.is_key(label):
            raise ValueError(label_syntax.KEY_WORDS)
        return label

    @field_validator("names")
    @classmethod
    def _values(cls, names: dict[str, Names] | None) -> dict[str, Names] | None:
        for value in names or {}:
            if not value or not label_syntax.is_value(value):
                raise ValueError(f"{value[:80]!r}: {label_syntax.VALUE_WORDS}")
        return names

    @model_validator(mode="after")
    def _either(self) -> Self:
        if (self.nodes is None) == (self.names is None):
            raise ValueError("expected either nodes or names")
        return self


class Group(StrictModel):
    """Equal nodes: ``NAME-1``, ``NAME-2`` …, or with ``namesFrom: faults`` the names of the fault file; or the nodes in
    ``names`` or ``domain.names``, without a number.

    devices: accelerators of a node; model: of the machine, for rates
    """

    name: Annotated[str, Field(pattern=GROUP_NAME)]
    nodes: Annotated[int, Field(ge=1, le=NODES_LIMIT)] | None = None
    names: Annotated[Names, Field(max_length=NODES_LIMIT)] = ()
    devices: Annotated[int, Field(ge=1, le=DEVICES_LIMIT)] = 8
    model: Annotated[str, Field(max_length=63)] = ""
    labels: dict[str, str] = Field(default_factory=dict, max_length=16)
    domain: Domain | None = None
    names_from: Literal["faults"] | None = None

    @field_validator("labels")
    @classmethod
    def _labels(cls, labels: dict[str, str]) -> dict[str, str]:
        for key, value in labels.items():
            if not label_syntax.is_key(key):
                raise ValueError(f"{key[:80]!r}: {label_syntax.KEY_WORDS}")
            if not label_syntax.is_value(value):
                raise ValueError(f"{value[:80]!r}: {label_syntax.VALUE_WORDS}")
        return labels

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        """Exactly one thing says which nodes there are."""
        in_domains = self.domain is not None and self.domain.names is not None
        if [self.nodes is not None, bool(self.names), in_domains].count(True) != 1:
            raise ValueError("expected one of nodes, names and domain.names")
        if self.nodes is None and self.names_from is not None:
            raise ValueError("namesFrom: expected nodes beside it")
        if self.names and self.domain is not None:
            raise ValueError("names: expected them in domain.names")
        if not self.size:
            raise ValueError("domain.names: expected at least one node")
        return self

    @property
    def size(self) -> int:
        """Nodes."""
        return self.nodes if self.nodes is not None else sum(1 for _ in self.named())

    def named(self) -> Iterable[tuple[str, str]]:
        """(name, value of the domain label) of the nodes that the file names; empty without a domain."""
        yield from ((name, "") for name in self.names)
        if self.domain is not None:
            for value, names in (self.domain.names or {}).items():
                yield from ((name, value) for name in names)
