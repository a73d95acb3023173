"""What the proxy's routes take as bodies, checked for its form; what it means is judged elsewhere."""

from pydantic import BaseModel, ConfigDict, Field

from muster_operator.job.partition_api import PartitionRequest


class CapacityQuery(BaseModel):
    """The body of ``POST /query``. Other fields are passed over, as published clients may send some."""

    model_config = ConfigDict(frozen=True, strict=True)
    size: int = Field(description="IPUs of a partition: a power of two")


class PartitionBody(BaseModel):
    """A partition_api.PartitionRequest, as the operator sends it."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")
    job: str = Field(description="the job's uid")
    namespace: str = Field(description="the job's namespace")
    name: str = Field(description="the job's name")
    instance: int = Field(description="which of the job's instances, from 0")
    attempt: int = Field(description="which of the job's attempts, from 0; a higher one resets the partition once")
    size: int = Field(description="IPUs of the partition: a power of two")
    gcds: int = Field(description="graph compilation domains: workers of the instance")

    def request(self) -> PartitionRequest:
        return PartitionRequest(**self.model_dump())
