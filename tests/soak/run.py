"""`make soak`: state machines with thousands of random examples, then IPUJobs under random faults of everything around
them, on a real API server.

    --examples N  that each state machine plays, and jobs without a slow rank of each kind (default 2000)
    --jobs N      how many (default 500)
    --rounds N    of each kind of end of pods with accelerators, for the goodput ledger (default 30)
    --minutes M   of faults (default 10); jobs are submitted over the first four fifths of it
    --seed N      of the examples, the faults and the jobs; default: a new one, printed (the order of events stays the
                  machine's)

Ends by itself, some time after the faults: 0 when no example has failed, every job has ended with a true reason,
nothing is left, and the goodput ledger, beside the jobs, has closed its books within 1 %, with 99 % of the faults under
their true cause and with the hours that `muster simulate` has for the same faults and jobs. What operator and proxy
have to say meanwhile goes to build/soak.log.
"""

import argparse
import asyncio
import logging
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.soak.goodput import goodput_soak
from tests.soak.goodput_bed import Truth
from tests.soak.soak import SPACE, Tally, soak

from muster_kube.api.config import ClusterConfig, load_config
from muster_sandbox.controlplane.cluster import ControlPlane
from muster_sandbox.controlplane.install import install
from muster_sandbox.programs.control_plane import find_or_build

ROOT = Path(__file__).parents[2]
LEDGER_SPACE = "goodput"
LOG = ROOT / "build" / "soak.log"
MACHINES = ("RuleBasedStateMachine", "hypothesis_seed")  # by either a file of random examples is known
RANDOM = "runTest or random_lives"  # which of its tests play them


def play_machines(examples: int, seed: int) -> int:
    """pytest's exit code."""
    tests = sorted((ROOT / "tests").glob("*/**/test_*.py"))
    files = [str(file) for file in tests if any(word in file.read_text() for word in MACHINES)]
    options = ["--timeout=0", "-k", RANDOM, f"--examples={examples}", f"--hypothesis-seed={seed}"]
    words = [sys.executable, "-m", "pytest", "-q", *options, *files]
    return subprocess.run(words, cwd=ROOT, check=False).returncode


async def both(
    config: ClusterConfig, arguments: argparse.Namespace, folder: Path, say: Callable[[str], None]
) -> tuple[Tally, Truth]:
    """IPUJobs, and beside them Jobs and bare pods with accelerators. If one fails, the other ends."""
    seed = arguments.seed
    async with asyncio.TaskGroup() as group:
        jobs = group.create_task(soak(config, jobs=arguments.jobs, faults_s=60 * arguments.minutes, seed=seed, say=say))
        pods = group.create_task(
            goodput_soak(config, LEDGER_SPACE, rounds=arguments.rounds, seed=seed, folder=folder, say=say)
        )
    return jobs.result(), pods.result()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=2000)
    parser.add_argument("--jobs", type=int, default=500)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31))
    arguments = parser.parse_args()
    begun = time.monotonic()
    LOG.parent.mkdir(exist_ok=True)
    logging.basicConfig(filename=LOG, filemode="w", format="%(asctime)s %(name)s %(levelname)s %(message)s")

    def say(line: str) -> None:
        print(f"{time.monotonic() - begun:6.0f} s  {line}", flush=True)

    say(f"{arguments.examples} examples of each state machine, --seed {arguments.seed}")
    failed = play_machines(arguments.examples, arguments.seed)
    say(f"{arguments.jobs} jobs, {arguments.minutes:g} minutes of faults, --seed {arguments.seed}")
    with ControlPlane(find_or_build(say)) as plane:
        install(plane.admin)
        plane.admin.create_namespace(SPACE)
        config = load_config(plane.kubeconfig)
        plane.admin.create_namespace(LEDGER_SPACE)
        say(f"goodput ledger: {arguments.rounds} rounds of each kind of end, --seed {arguments.seed}")
        with tempfile.TemporaryDirectory() as folder:
            tally, truth = asyncio.run(both(config, arguments, Path(folder), say))
    tally.wrong += truth.judge()
    say(f"goodput ledger: {truth.held / 3600:.0f} accelerator-hours of pods, {truth.closed:.3%} booked")
    say(f"goodput ledger: {truth.attributed:.2%} of the lost hours, {truth.faults_attributed:.2%} of the faults right")
    for kind, number in sorted(tally.faults.items()):
        say(f"{number:5}  {kind}")
    say(f"{tally.processes} processes ended and followed, {tally.met} requests met a fault")
    ends = ", ".join(f"{number} {how}" for how, number in sorted(tally.ends.items()))
    say(f"{tally.jobs} jobs: {ends}; {tally.restarts} restarts, {tally.moves} moves")
    say(f"all at rest {tally.settled_s:.0f} s after the faults")
    for line in tally.wrong:
        say(f"WRONG: {line}")
    return 1 if failed or tally.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
