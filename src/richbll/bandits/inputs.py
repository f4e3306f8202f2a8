"""What a model of rewards is given: a context with an action's code behind it."""

import torch
from torch import Tensor


def with_action(contexts: Tensor, actions: Tensor, num_actions: int) -> Tensor:
    """(x, e_a): contexts (n, …) made flat, then the one-hot code of each row's action.

    Examples:
        >>> with_action(torch.tensor([[0.5], [0.7]]), torch.tensor([1, 0]), 2)
        tensor([[0.5000, 0.0000, 1.0000],
                [0.7000, 1.0000, 0.0000]])
    """
    codes = torch.nn.functional.one_hot(actions, num_actions).to(contexts)
    return torch.cat([contexts.flatten(1), codes], dim=1)
