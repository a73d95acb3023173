"""The request bodies of the proxy's routes. They are checked for their form only."""

from pydantic import BaseModel, ConfigDict, Field

from muster_operator.job.partition_api import PartitionRequest


class CapacityQuery(BaseModel):
    """The body of ``POST /query``. Other fields are ignored, because published clients may send some."""

    model_config = ConfigDict(frozen=True, strict=True)
    size: int = Field(description="IPUs of a partition: a power of two")


class PartitionBody(BaseModel):
    """A partition_api.PartitionRequest, as the operator sends it."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")
    job: str = Field(description="the job's uid")
    namespace: str = Field(description="the job's namespace")
    name: str = Field(description="the job's name")
    instance: int = Field(description="index of the job's instance, from 0")
    attempt: int = Field(description="number of the job's attempt, from 0; a higher one resets the partition once")
    size: int = Field(description="IPUs of the partition: a power of two")
    gcds: int = Field(description="graph compilation domains: workers of the instance")

    def request(self) -> PartitionRequest:
        return PartitionRequest(**self.model_dump())
