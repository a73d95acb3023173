"""The files of `muster simulate`: policies, the fleet, faults in one of several formats, and jobs."""

from collections.abc import Sequence
from pathlib import Path

from muster_cli.simulate.variants import NamedPolicy, Variation, make_variants
from muster_cli.usage import UsageError
from muster_tainter.policy.file import load_policy
from muster_tainter.simulation.run import Scenario, make_scenario
from muster_tainter.simulation.scenario.fault_file import FaultFile, FaultHistory, RecordedFaults, open_text
from muster_tainter.simulation.scenario.fault_generator import generate_faults
from muster_tainter.simulation.scenario.fleet_file import FleetError, FleetFile, load_fleet
from muster_tainter.simulation.scenario.job_file import read_jobs
from muster_tainter.simulation.scenario.nodes import make_nodes
from muster_tainter.simulation.scenario.public_traces import read_gpu_cluster, read_hpc_outages

CSV, GPU_CLUSTER, HPC_OUTAGES = "csv", "infinitehbd", "lanl"
FORMATS = (CSV, GPU_CLUSTER, HPC_OUTAGES)
_LOOK_CHARACTERS = 64 << 10  # of a file, to recognise its format
BUILT_IN = "built-in"
POLICIES_MOST = 16


def read_policies(words: list[str], variations: Sequence[Variation] = ()) -> list[NamedPolicy]:
    """``-``: the built-in policy. variations: of the first one, which they follow. Raises PolicyError, UsageError,
    OSError."""
    policies: list[NamedPolicy] = []
    number = len(words) + sum(len(each.values) for each in variations)
    if number > POLICIES_MOST:
        raise UsageError(f"{number} policies: expected at most {POLICIES_MOST}")
    for word in words:
        path = None if word == "-" else Path(word)
        name = BUILT_IN if path is None else path.name.removesuffix(".yaml").removesuffix(".yml")
        if any(name == other.name for other in policies):
            raise UsageError(f"{word}: another policy has the name {name}: expected files with different names")
        policies.append(NamedPolicy(name, load_policy(path)))
        if len(policies) == 1:
            first = policies[0].policy
            policies += [made for each in variations for made in make_variants(path, first, each)]
    names = [each.name for each in policies]
    if len(set(names)) < len(names):
        raise UsageError("--vary: a value is there twice: expected different ones")
    return policies


def read_scenario(
    fleet_path: Path, faults: Path | None, fault_format: str | None, jobs: Path | None, seed: int
) -> Scenario:
    """Raises FleetError, UsageError, OSError."""
    fleet = load_fleet(fleet_path)
    for path in (faults, jobs):
        if path is not None and not path.is_file():
            path.open("rb").close()  # OSError says what is wrong
            raise UsageError(f"{path}: expected a file, because it is read once for each run")
    if faults is None:
        return _generated(fleet_path, fleet, jobs, seed)
    if fleet.faults is not None:
        raise FleetError(f"{fleet_path}: faults: expected none beside --faults {faults}: leave out one of them")
    history = _history(faults, fault_format, fleet)
    nodes = make_nodes(fleet, history.summary.nodes)
    _require_known(faults, history, {node.name for node in nodes})
    return make_scenario(fleet, nodes, history, read_jobs(jobs, fleet) if jobs is not None else (), seed)


def _generated(path: Path, fleet: FleetFile, jobs: Path | None, seed: int) -> Scenario:
    if fleet.faults is None:
        raise FleetError(f"{path}: faults: missing: expected rates to generate faults from, or --faults FILE")
    if fleet.start is None or fleet.end is None:
        raise FleetError(f"{path}: start, end: missing: expected both, because the faults are generated")
    nodes = make_nodes(fleet)
    history = generate_faults(fleet.faults, nodes, fleet.start, fleet.end, seed)
    return make_scenario(fleet, nodes, history, read_jobs(jobs, fleet) if jobs is not None else (), seed)


def _history(path: Path, fault_format: str | None, fleet: FleetFile) -> FaultHistory:
    named = any(group.names_from is not None for group in fleet.groups)
    match fault_format or _recognised(path):
        case "infinitehbd":
            return read_gpu_cluster(path)
        case "lanl":
            return read_hpc_outages(path)
        case _:
            return FaultFile(path, None if named else {node.name for node in make_nodes(fleet)})


def _recognised(path: Path) -> str:
    with open_text(path) as text:
        head = text.read(_LOOK_CHARACTERS)
    if head.lstrip().startswith("["):
        return GPU_CLUSTER
    return HPC_OUTAGES if "Prob Started" in head.partition("\n")[0] else CSV


def _require_known(path: Path, history: FaultHistory, known: set[str]) -> None:
    unknown = [name for name in history.summary.nodes if name not in known]
    if unknown:
        if isinstance(history, RecordedFaults):
            advice = "give a group namesFrom: faults"
            raise FleetError(f"{path}: node: {unknown[0][:80]!r}: expected a node of the fleet file, or {advice}")
        raise FleetError(f"{path}: node: {unknown[0][:80]!r}: expected a node of the fleet file")
