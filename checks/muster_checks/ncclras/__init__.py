"""The check ``ncclras``: which ranks of a job do not answer, by NCCL's own RAS service.

RAS listens on the loopback address of the job's network namespace. So an agent with the node's network can ask jobs
with host network. Others cannot be asked from outside: entering a pod's network namespace takes a right that the agent
gives up. client.py asks, parse_json.py and parse_text.py read the two formats into report.py's types, judge.py decides.

The job itself answers, so nothing here is more than a warning.
"""

from collections.abc import Sequence
from ipaddress import ip_address

from pydantic import Field, field_validator

from muster_checks.base.declaration import Check, Cost, NodeView, Parameters
from muster_checks.base.vocabulary import Finding

STALLED_S = 600.0  # PyTorch's default time-out for collectives of NCCL


class NcclRasParameters(Parameters):
    configured = frozenset({"address", "ras_port", "answer_timeout_s", "again_after_s", "stalled_after_s"})
    address: str = Field(default="127.0.0.1", description="IP address of the RAS service (NCCL_RAS_ADDR of the job)")
    ras_port: int = Field(default=28028, ge=1, le=65535, description="its port")
    # RAS gives up on unresponsive processes after 10 s
    answer_timeout_s: float = Field(default=16.0, ge=0.1, le=20, description="seconds for a whole answer")
    again_after_s: float = Field(
        default=5.0, ge=0, le=8, description="a silent rank is reported if it is still silent after these seconds"
    )
    stalled_after_s: float = Field(
        default=STALLED_S,
        ge=60,
        le=86_400,
        description="a communicator that has launched no operation for this long is stalled, and ranks that others "
        "wait for are named",
    )

    @field_validator("address")
    @classmethod
    def _literal(cls, text: str) -> str:
        return str(ip_address(text))  # a name could be resolved to anything


async def _probe(node: NodeView, parameters: NcclRasParameters) -> Sequence[Finding]:
    from muster_checks.ncclras.probe import probe

    return await probe(node, parameters)


def _recorded(text: bytes, _parameters: NcclRasParameters) -> Sequence[Finding] | None:
    from muster_checks.ncclras.probe import judge_recorded

    return judge_recorded(text)


NCCLRAS = Check(
    name="ncclras",
    description="ranks of NCCL jobs with host network that do not answer, or that the others wait for",
    cost=Cost.LIGHT,
    parameters=NcclRasParameters,
    timeout_s=45.0,
    period_s=60.0,
    devices=("host", "peer"),
    probe=_probe,
    recorded=_recorded,
    enabled=False,
    reads="NCCL's RAS service (127.0.0.1:28028, NCCL 2.24 or later; JSON from 2.28.7, otherwise text)",
    ran_on="answers in the form that NCCL's documentation and source publish, not a real NCCL",
)
