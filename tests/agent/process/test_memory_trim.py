"""Memory that is given back is not counted any more, and the process goes on as before."""

import json
import subprocess
import sys

PROGRAM = """
import hashlib, json, ssl
import psutil, pydantic
import re2
from muster_agent.process.memory_trim import trim_memory

def mapped_from_files():
    return psutil.Process().memory_info().shared

class Model(pydantic.BaseModel):
    number: int

def work():
    ssl.create_default_context()
    return [Model(number="7").number, bool(re2.search("(a+)b", "caab")), hashlib.sha256(b"x").hexdigest()]

before, file = work(), mapped_from_files()
trim_memory()
after = mapped_from_files()
assert work() == before
print(json.dumps([file, after]))
"""


def test_code_that_only_the_start_needed_is_not_counted_any_more_and_still_works():
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=300, check=False, cwd="/"
    )
    assert ended.returncode == 0, ended.stderr
    before, after = json.loads(ended.stdout)
    assert after < before / 2
