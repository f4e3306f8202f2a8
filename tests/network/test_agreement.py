"""What several processes agree on before they read."""

import json
from dataclasses import asdict
from types import SimpleNamespace

import torch

from richbll.network.agreement import agreed_shapes
from richbll.network.records import SiteShape


def said(*shapes: SiteShape) -> list[list[dict]]:
    """By processes that have one each, through JSON."""
    return json.loads(json.dumps([[asdict(shape)] for shape in shapes]))


def test_a_weight_that_one_process_uses_several_times_is_not_taken_by_column() -> None:
    """Its first batch is longer: there the gradient is a sum, of which some columns are no range."""
    network = SimpleNamespace(parameter_sizes={"w": 28}, model=torch.nn.Module())
    once = SiteShape(("w", 0), 28, "linear", positions=1, widths=(4, 7), columns=7)
    often = SiteShape(("w", 0), 28, "linear", positions=3, widths=(4, 7))
    for mine, other in ((once, often), (often, once)):
        (agreed,) = agreed_shapes(said(mine, other), network)
        assert (agreed.columns, agreed.positions) == (0, 3)
    assert agreed_shapes(said(once, once), network)[0].columns == 7
