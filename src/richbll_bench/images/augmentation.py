"""Random crop and flip of a whole batch of bytes, by one gather."""

import torch
from torch import Tensor
from torch.nn.functional import pad

_MARGIN = 4  # pixels that an image may be moved by, each way


def augmented(pixels: Tensor, generator: torch.Generator) -> Tensor:
    """Every image moved by up to four pixels, with black where it is moved from, and mirrored with probability ½.

    Examples:
        >>> batch = torch.randint(0, 256, (8, 3, 32, 32), dtype=torch.uint8)
        >>> augmented(batch, torch.Generator().manual_seed(0)).shape
        torch.Size([8, 3, 32, 32])
    """
    n, channels, height, width = pixels.shape
    moves = torch.randint(0, 2 * _MARGIN + 1, (2, n, 1), generator=generator)
    mirrored = torch.rand(n, 1, generator=generator) < 0.5
    rows = torch.arange(height) + moves[0]  # (n, height)
    columns = torch.arange(width).expand(n, -1)
    columns = torch.where(mirrored, columns.flip(1), columns) + moves[1]  # (n, width)
    framed = pad(pixels, (_MARGIN,) * 4)  # (n, channels, height + 8, width + 8)
    stride = width + 2 * _MARGIN
    places = (rows.unsqueeze(2) * stride + columns.unsqueeze(1)).view(n, 1, -1)  # (n, 1, height·width)
    return framed.flatten(2).gather(2, places.expand(-1, channels, -1)).view(pixels.shape)
