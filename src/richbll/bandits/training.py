"""How a sampler trains its network, unless you bring a function of your own."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

Predict = Callable[[Tensor, Tensor], Tensor]  # contexts (n, …), actions (n,) → rewards (n,), differentiable
Train = Callable[[nn.Module, Predict, Tensor, Tensor, Tensor], None]  # and contexts, actions, rewards of all rows


def fit_network(
    model: nn.Module,
    predict: Predict,
    contexts: Tensor,
    actions: Tensor,
    rewards: Tensor,
    *,
    steps: int = 200,
    batch_size: int = 256,
    learning_rate: float = 3e-3,
    clip: float = 1.0,
    seed: int = 0,
) -> None:
    """AdamW on the mean squared error of the chosen actions, the rate falling to nothing by a cosine.

    Options are bound with `functools.partial(fit_network, steps=500)`.

    Examples:
        >>> model, x = nn.Linear(1, 2), torch.linspace(-1, 1, 64)[:, None]
        >>> chosen = torch.arange(64) % 2
        >>> predict = lambda x, a: model(x).gather(1, a[:, None]).squeeze(1)
        >>> fit_network(model, predict, x, chosen, x[:, 0] * chosen, learning_rate=0.1)
        >>> bool((predict(x, chosen) - x[:, 0] * chosen).abs().max() < 0.1)
        True
    """
    weights = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        rows = torch.randint(len(rewards), (min(batch_size, len(rewards)),), generator=generator).to(rewards.device)
        optimizer.zero_grad()
        error = nn.functional.mse_loss(predict(contexts[rows], actions[rows]), rewards[rows])
        error.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(weights, clip)
        optimizer.step()
        schedule.step()
    optimizer.zero_grad()
