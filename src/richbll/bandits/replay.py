"""All that was seen: contexts of any shape, actions and rewards, in tensors that grow by doubling."""

import torch
from torch import Tensor

from richbll.checks import finite_rows
from richbll.errors import DataError, ShapeError


class Replay:
    """Rows, oldest first.

    Examples:
        >>> replay = Replay(num_actions=3)
        >>> replay.add(torch.zeros(2, 1, 8, 8), torch.tensor([0, 2]), torch.tensor([1.0, 0.0]))
        >>> len(replay), replay.contexts.shape
        (2, torch.Size([2, 1, 8, 8]))
    """

    def __init__(self, num_actions: int) -> None:
        self.num_actions = num_actions
        self._kept: tuple[Tensor, Tensor, Tensor] | None = None
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, contexts: Tensor, actions: Tensor, rewards: Tensor) -> None:
        """Keep n more rows; wrong ones are refused, and nothing is kept of them."""
        actions, rewards = self._checked(contexts, actions, rewards)
        if not len(actions):
            return
        new = (contexts.detach(), actions, rewards)
        if self._kept is None:
            self._kept = (new[0].clone(), actions.clone(), rewards.clone())
            self._count = len(actions)
            return
        count = self._count + len(actions)
        whole = torch.promote_types(self._kept[0].dtype, contexts.dtype)  # whole numbers first, and fractions later
        self._kept = (self._kept[0].to(whole), *self._kept[1:])
        while count > len(self._kept[1]):
            first, second, third = (torch.cat([kept, torch.empty_like(kept)]) for kept in self._kept)
            self._kept = (first, second, third)
        for kept, rows in zip(self._kept, new, strict=True):
            kept[self._count : count] = rows
        self._count = count

    def _checked(self, contexts: Tensor, actions: Tensor, rewards: Tensor) -> tuple[Tensor, Tensor]:
        actions, rewards = torch.as_tensor(actions), torch.as_tensor(rewards).detach()
        n = len(contexts)
        if actions.shape != (n,) or rewards.shape != (n,):
            raise ShapeError(
                f"{n} contexts need actions and rewards of shape ({n},), but these have {tuple(actions.shape)} and "
                f"{tuple(rewards.shape)}."
            )
        if self._kept is not None and contexts.shape[1:] != self._kept[0].shape[1:]:
            raise ShapeError(
                f"Contexts have shape {tuple(contexts.shape[1:])} each, but those before had "
                f"{tuple(self._kept[0].shape[1:])}."
            )
        if actions.is_floating_point() or (n and not 0 <= int(actions.min()) <= int(actions.max()) < self.num_actions):
            raise DataError(f"Actions must be whole numbers from 0 to {self.num_actions - 1}, as `act` gives them.")
        if n:
            finite_rows("rewards", "observe", rewards.unsqueeze(1))
            finite_rows("contexts", "observe", contexts)
        return actions.long().to(contexts.device), rewards.float().to(contexts.device)

    def _rows(self, number: int) -> Tensor:
        if self._kept is None:
            raise DataError("Nothing was observed yet.")
        return self._kept[number][: self._count]

    @property
    def contexts(self) -> Tensor:
        """(N, …)."""
        return self._rows(0)

    @property
    def actions(self) -> Tensor:
        """(N,)."""
        return self._rows(1)

    @property
    def rewards(self) -> Tensor:
        """(N,)."""
        return self._rows(2)
