"""Memory that stays: what a step frees is there for the next one, and nothing is written to keep it."""

import os
import platform
import subprocess
import sys

import pytest

_ROUNDS = """
import resource, sys, torch
from richbll.room import keep_freed_memory

def faults(run):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    run()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def step():
    blocks = [torch.ones(2**21) for _ in range(6)]  # 48 MiB in all

own = faults(keep_freed_memory) if sys.argv[1] == "keep" else 0
step(), step()
print(own, faults(step))
"""


def _faults(word: str) -> tuple[int, int]:
    """Pages that keeping touches by itself, and that a third step has to ask for again."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "LD_PRELOAD"))}
    command = [sys.executable, "-c", _ROUNDS, word]
    told = subprocess.run(command, capture_output=True, text=True, check=True, env=plain)
    own, again = told.stdout.split()
    return int(own), int(again)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library, with habits of its own")
def test_what_a_step_frees_is_there_for_the_next_one() -> None:
    pages = 48 * 2**20 // os.sysconf("SC_PAGE_SIZE")
    own, again = _faults("keep")
    assert own < pages / 20
    assert again < pages / 20
