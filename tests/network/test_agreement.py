"""What several processes agree on before they read."""

import json
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import torch

from richbll.network.agreement import agreed_shapes
from richbll.network.ranks import Alone
from richbll.network.records import SiteShape


class Two(Alone):
    """This process and another one, of which it is known what it says."""

    size = 2

    def __init__(self, other: list[SiteShape]) -> None:
        self._other = [asdict(shape) for shape in other]

    def told(self, value: Any) -> list[Any]:
        return json.loads(json.dumps([value, self._other]))


def test_a_weight_that_one_process_uses_several_times_is_not_taken_by_column() -> None:
    """Its first batch is longer: there the gradient is a sum, of which some columns are no range."""
    network = SimpleNamespace(parameter_sizes={"w": 28}, model=torch.nn.Module())
    once = SiteShape(("w", 0), 28, "linear", positions=1, widths=(4, 7), columns=7)
    often = SiteShape(("w", 0), 28, "linear", positions=3, widths=(4, 7))
    for mine, other in ((once, often), (often, once)):
        (agreed,) = agreed_shapes([mine], network, Two([other]))
        assert (agreed.columns, agreed.positions) == (0, 3)
    assert agreed_shapes([once], network, Two([once]))[0].columns == 7
