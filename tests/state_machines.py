"""State machines play new random examples in every run: few in `make test`, thousands in `make soak`.

The run says its seed; with ``--hypothesis-seed`` and that number the same examples come again. Every other property
test has the same examples in each run.
"""

import random

import pytest
from hypothesis import HealthCheck, settings


def is_state_machine(item: pytest.Item) -> bool:
    return hasattr(getattr(item, "obj", None), "_hypothesis_state_machine_class")


def choose_seed(config: pytest.Config) -> None:
    """Unless one was given. Processes that this one starts have the same."""
    if config.getoption("hypothesis_seed") is None:
        config.option.hypothesis_seed = str(random.SystemRandom().randrange(1 << 32))


def randomize(item: pytest.Item, examples: int | None) -> None:
    """examples: how many; None: as many as its file says."""
    machine = item.cls  # type: ignore[attr-defined]  # a unittest.TestCase of hypothesis
    given: settings = machine.settings
    machine.settings = settings(
        given,
        derandomize=False,
        max_examples=examples or given.max_examples,
        # what is drawn hangs on chance, and how fast on the machine
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


def describe_seed(config: pytest.Config) -> str:
    return f"state machines: --hypothesis-seed={config.getoption('hypothesis_seed')}"
