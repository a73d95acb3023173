"""Progress goes to stderr: stdout has the tables and nothing else."""

import sys


def say(text: str) -> None:
    print(f"[bench] {text}", file=sys.stderr, flush=True)
