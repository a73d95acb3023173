"""policy.yaml's section ``goodput``: the ledger of accelerator-hours.

Models only; :mod:`muster_tainter.goodput` keeps the books.
"""

from typing import Annotated

from pydantic import AfterValidator

from muster_tainter.policy import label_syntax as labels
from muster_tainter.policy.sections.heavy_checks import Duration
from muster_tainter.policy.strict_model import StrictModel


def _key(key: str) -> str:
    if not labels.is_key(key):
        raise ValueError(labels.KEY_WORDS)
    return key


LabelKey = Annotated[str, AfterValidator(_key)]


class Goodput(StrictModel):
    """checkpoint:  work of a pod that ends early is lost back to its last checkpoint; seconds between two of them for
                 pods whose annotation does not say. One hour, as in ``muster simulate``
    model_label: label of Nodes that names the model of their accelerators
    team_label:  label of namespaces that names the team; None: each namespace is a team
    """

    checkpoint: Duration = 3600.0
    model_label: LabelKey = "nvidia.com/gpu.product"
    team_label: LabelKey | None = None
