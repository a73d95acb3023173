"""`muster completion`: each shell loads its script and completes with it."""

import os
import select
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.cli.recorded_agent import GUARD_S
from tests.machine import needs

from muster_cli.__main__ import main
from muster_cli.commands.completion import completion_script

# calls the completion function as bash does
BASH = """
function=$(complete -p muster | sed 's/.*-F \\([^ ]*\\).*/\\1/')
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMP_LINE="$*"
COMP_POINT=${#COMP_LINE}
$function muster "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""
LINES = [
    (["muster", "stat"], "status"),
    (["muster", "check", "gputem"], "gputemp"),
    (["muster", "check", "--set", "gputemp.min_m"], "gputemp.min_margin_c="),
    (["muster", "clear", "node-1", "--check", "dme"], "dmesg"),
    (["muster", "doctor", "-o", "ya"], "yaml"),
    (["muster", "completion", "fi"], "fish"),
]


def run(*command: str, script: str) -> list[str]:
    done = subprocess.run(command, input=script, capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""
    return done.stdout.splitlines()


@pytest.mark.parametrize(("words", "expected"), LINES)
def test_bash_completes(words: list[str], expected: str) -> None:
    script = completion_script("bash")
    assert run("bash", "--norc", "-s", "--", *words, script=script + BASH) == [expected]


@needs("fish")
@pytest.mark.parametrize(("words", "expected"), LINES)
def test_fish_completes(words: list[str], expected: str) -> None:
    script = completion_script("fish") + f'\ncomplete -C "{" ".join(words)}"\n'
    assert [line.partition("\t")[0] for line in run("fish", "--no-config", script=script)] == [expected]


@needs("zsh")
@pytest.mark.parametrize(("words", "expected"), LINES)
def test_zsh_completes(words: list[str], expected: str, tmp_path: Path) -> None:
    script = tmp_path / "muster.zsh"
    script.write_text(completion_script("zsh"))
    with terminal("zsh", "-f", "-i") as (send, wait_for):
        send(f"PROMPT=; unsetopt beep; autoload -U compinit; compinit -u -D; eval \"$(<{script})\"; print 'RE''ADY'\n")
        wait_for("READY")
        send(" ".join(words) + "\t")
        wait_for(" ".join([*words[:-1], expected]))


@contextmanager
def terminal(*command: str) -> Iterator[tuple[Callable[[str], object], Callable[[str], None]]]:
    """(send, wait for a text) of a shell on a terminal; zsh completes nowhere else."""
    master, slave = os.openpty()
    process = subprocess.Popen(
        command, stdin=slave, stdout=slave, stderr=slave, env=os.environ | {"TERM": "dumb"}, start_new_session=True
    )
    os.close(slave)
    received = ""

    def wait_for(text: str) -> None:
        nonlocal received
        ends = time.monotonic() + GUARD_S
        while text not in received:
            ready, _, _ = select.select([master], [], [], max(0.0, ends - time.monotonic()))
            assert ready, received
            received += os.read(master, 4096).decode()

    try:
        yield lambda text: os.write(master, text.encode()), wait_for
    finally:
        process.kill()
        process.wait()
        os.close(master)


def test_commands_of_every_shell_are_complete() -> None:
    for shell in ("bash", "zsh", "fish"):
        script = completion_script(shell)
        assert all(word in script for word in ("wait-workers", "gputemp.min_margin_c=", "--kubeconfig"))


def test_an_unknown_shell_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["completion", "csh"])
    assert ended.value.code == 64
    assert "'csh'" in capsys.readouterr().err
