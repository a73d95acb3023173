"""The rows of thresholds.yaml and models.yaml."""

from functools import cache
from importlib.resources import files

import msgspec
import yaml

from muster_checks.base.vocabulary import FaultClass, Verdict


class CounterRow(
    msgspec.Struct, frozen=True, rename={"fault_class": "class"}, forbid_unknown_fields=True, kw_only=True
):
    """A rise by more than ``more_than`` within ``within_s`` seconds gives ``verdict``. ``full_at``: its maximum."""

    counter: str
    folder: str
    more_than: float
    within_s: float
    verdict: Verdict
    fault_class: FaultClass
    reason: str
    says: str
    advice: str
    source: str
    full_at: int | None = None


class ModelRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """See models.yaml."""

    model: str
    name: str = ""
    rate_gb_per_s: float | None = None
    min_rate_gb_per_s: float | None = None
    source: str = ""


@cache
def load_counter_rows() -> tuple[CounterRow, ...]:
    text = files("muster_checks.ib").joinpath("thresholds.yaml").read_bytes()
    return tuple(msgspec.convert(yaml.safe_load(text), list[CounterRow]))
