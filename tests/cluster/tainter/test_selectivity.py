"""Fatal findings among many harmless ones, written as fast as the server takes them: the fatal ones taint, no other."""

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

from tests.cluster.tainter import test_end_to_end as end_to_end
from tests.cluster.tainter.fleet_findings import FATAL, HARMLESS, finding_of_each, healths, publish, recording

from muster_kube.api.client import KubeClient
from muster_sandbox.simulation.nodes import SimulatedNodes

tainters = end_to_end.tainters  # a fixture

NODES, FATALS, HARMLESSES = 600, 40, 360  # `make bench` does it with 10,000, 200 and 1,800


async def test_exactly_the_nodes_with_a_fatal_finding_are_ever_tainted(
    tainters: Any, fleet: SimulatedNodes, api: KubeClient, tmp_path: Path
) -> None:
    names = await fleet.create(NODES, prefix="select")
    chance = random.Random(7)
    chosen = chance.sample(names, FATALS + HARMLESSES)
    fatal, harmless = chosen[:FATALS], chosen[FATALS:]
    said = finding_of_each(fatal, FATAL) | finding_of_each(harmless, HARMLESS)
    await healths(api, chosen)
    await tainters.start()
    async with recording(api, names) as seen:
        await publish(api, {name: said[name] for name in chance.sample(chosen, len(chosen))})

        def all_are_taken_in() -> bool:
            wanted = {name: found["verdict"].lower() for name, found in said.items()}
            return all(name in seen.now and seen.now[name].health == wanted[name] for name in chosen)

        await seen.until(all_are_taken_in, "each node has the label of its finding")
        assert set(seen.first_tainted) == seen.tainted == set(fatal)
        assert seen.released == []
    opened = Counter(fault["reason"] for name in fatal for fault in json.loads(seen.now[name].memory)["open"])
    assert opened == Counter(said[name]["reason"] for name in fatal)
    assert {seen.now[name].memory for name in harmless} == {""}
