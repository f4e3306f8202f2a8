"""Images that are strange in known ways, made of validation images or of nothing: to choose scores and options by.

Whatever is chosen is chosen on these, so that the sets of other images of the tables stay unseen until the end.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, conv2d, interpolate, pad

from richbll_bench.images.reading import Images

Change = Callable[[Tensor, torch.Generator], Tensor]  # pixels (n, 3, 32, 32) from 0 to 255 → the same


def _noisy(x: Tensor, generator: torch.Generator) -> Tensor:
    return x + 40 * torch.randn(x.shape, generator=generator)


def _blurred(x: Tensor, generator: torch.Generator | None = None, std: float = 2.0) -> Tensor:
    reach = int(3 * std)
    weights = torch.exp(-0.5 * (torch.arange(-reach, reach + 1) / std).square())
    weights = (weights / weights.sum()).expand(x.shape[1], 1, -1)
    framed = pad(x, (reach,) * 4, mode="replicate")
    once = conv2d(framed, weights.unsqueeze(2), groups=x.shape[1])
    return conv2d(once, weights.unsqueeze(3), groups=x.shape[1])


def _pale(x: Tensor, generator: torch.Generator) -> Tensor:
    center = x.mean(dim=(1, 2, 3), keepdim=True)
    return center + 0.2 * (x - center)


def _coarse(x: Tensor, generator: torch.Generator) -> Tensor:
    return interpolate(avg_pool2d(x, 4), scale_factor=4.0, mode="nearest")


def _inverted(x: Tensor, generator: torch.Generator) -> Tensor:
    return 255 - x


def _jumbled(x: Tensor, generator: torch.Generator) -> Tensor:
    """The sixteen patches of 8 × 8 pixels in another order, for each image its own."""
    n, channels, side = len(x), x.shape[1], 8
    patches = x.unfold(2, side, side).unfold(3, side, side).reshape(n, channels, 16, side, side)
    order = torch.rand(n, 16, generator=generator).argsort(dim=1).view(n, 1, 16, 1, 1)
    mixed = patches.gather(2, order.expand_as(patches)).view(n, channels, 4, 4, side, side)
    return mixed.permute(0, 1, 2, 4, 3, 5).reshape(x.shape)


def _mixed(x: Tensor, generator: torch.Generator) -> Tensor:
    """The mean of an image and the next one; they are in random order."""
    return 0.5 * (x + x.roll(1, dims=0))


def _noise(x: Tensor, generator: torch.Generator) -> Tensor:
    return 255 * torch.rand(x.shape, generator=generator)


def _smooth_noise(x: Tensor, generator: torch.Generator) -> Tensor:
    smooth = _blurred(torch.randn(x.shape, generator=generator))
    return 127.5 + 60 * smooth / smooth.std()


PROXIES: dict[str, tuple[str, Change]] = {
    "noisy": ("noise added", _noisy),
    "blurred": ("blurred", _blurred),
    "pale": ("little contrast", _pale),
    "coarse": ("coarse pixels", _coarse),
    "inverted": ("inverted", _inverted),
    "jumbled": ("patches jumbled", _jumbled),
    "mixed": ("two images mixed", _mixed),
    "noise": ("noise alone", _noise),
    "smooth_noise": ("smooth noise alone", _smooth_noise),
}


def proxy(name: str, images: Images, seed: int) -> Images:
    """As many strange images as there are images, of which those made of nothing keep the number only.

    Examples:
        >>> images = Images(torch.full((2, 3, 32, 32), 255, dtype=torch.uint8), torch.tensor([0, 1]))
        >>> int(proxy("inverted", images, seed=0).pixels.max())
        0
    """
    change = PROXIES[name][1]
    made = change(images.pixels.float(), torch.Generator().manual_seed(seed))
    return Images(made.round().clamp(0, 255).to(torch.uint8), images.labels)
