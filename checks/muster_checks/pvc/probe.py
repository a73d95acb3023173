"""Tries one claim, with the rights of the component that runs the check."""

from muster_checks.base.declaration import NodeView
from muster_checks.base.execution import CannotTell
from muster_checks.base.vocabulary import Finding
from muster_checks.pvc import PvcParameters
from muster_checks.pvc.judge import judge


async def probe(node: NodeView, parameters: PvcParameters) -> list[Finding]:
    if node.volumes is None:
        raise CannotTell(
            "creating a claim needs rights that an agent does not have: set the agent's tainter_url, or run "
            "`muster check pvc` with a kubeconfig",
            "NoRights",
        )
    trial = await node.volumes.try_claim(
        node.name,
        storage_class=parameters.storage_class,
        size_mib=parameters.size_mib,
        image=parameters.image,
        bind_timeout_s=parameters.bind_timeout_s,
        write_timeout_s=parameters.write_timeout_s,
    )
    return judge(trial, parameters)
