"""What ends a sandbox, whatever it was started from."""

import signal
from collections.abc import Iterator

import pytest

from muster_cli.sandbox.up import interruptible


@pytest.fixture
def background_job() -> Iterator[None]:
    """As a shell's script starts what ends in ``&``: SIGINT is ignored; with nohup SIGHUP, too."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("background_job")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_background_jobs_sandbox_ends_by_int_and_term(number: signal.Signals) -> None:
    with pytest.raises(KeyboardInterrupt), interruptible():
        signal.raise_signal(number)


@pytest.mark.usefixtures("background_job")
def test_nohup_holds() -> None:
    with interruptible():
        signal.raise_signal(signal.SIGHUP)
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_foreground_sandbox_ends_by_any_of_them(number: signal.Signals) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        with pytest.raises(KeyboardInterrupt), interruptible():
            signal.raise_signal(number)
    finally:
        signal.signal(signal.SIGHUP, before)
