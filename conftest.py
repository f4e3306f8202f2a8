"""What every test starts from: doctests see torch and nn, seeds are fixed, runs are small."""

import os

import hypothesis
import pytest
import torch

torch.set_num_threads(1)
num_examples = int(os.environ.get("RICHBLL_EXAMPLES", "30"))
hypothesis.settings.register_profile("suite", deadline=None, derandomize=True, max_examples=num_examples)
hypothesis.settings.load_profile("suite")
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Virtual machines may announce AMX and not have it: torch's products in bfloat16 then end the process.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")


@pytest.fixture(autouse=True)
def _fixed_seed(request: pytest.FixtureRequest) -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _doctest_names(doctest_namespace: dict) -> None:
    doctest_namespace["torch"] = torch
    doctest_namespace["nn"] = torch.nn
