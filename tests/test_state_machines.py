"""A state machine plays other examples in each run, and the same ones where the seed is given that a run has said."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
MACHINE = "tests/operator/vipu/test_fleet.py"


def play(*options: str) -> tuple[str, list[str]]:
    """The seed that it says, and the steps of its examples."""
    words = [sys.executable, "-m", "pytest", "-q", "-s", MACHINE, "-k", "runTest", "--examples=2", *options]
    words += ["--hypothesis-verbosity=debug", "-p", "no:cacheprovider"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (seed,) = re.findall(r"--hypothesis-seed=(\d+)$", done.stdout, re.MULTILINE)
    return seed, re.findall(r"^ *state\.\w+\(.*\)$", done.stdout, re.MULTILINE)


def test_the_seed_of_a_run_plays_its_examples_again_and_another_run_has_others() -> None:
    seed, steps = play()
    assert len(steps) > 2
    assert play(f"--hypothesis-seed={seed}") == (seed, steps)
    another, others = play()
    assert another != seed
    assert others != steps
