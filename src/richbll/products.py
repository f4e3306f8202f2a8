"""Large float32 products on a CPU, by the library that uses all of its width.

torch gives them to MKL, which leaves half of AVX-512 idle on AMD's processors from Zen 5 on. oneDNN, which torch has
for convolutions, uses all of it; but it cannot add to a sum in place, so that there is nothing to gain where MKL does
too. Which library it is follows from the processor, the sizes and torch's own switch (`torch.backends.mkldnn.enabled`),
never from a clock, so that a fit that is resumed finds the same numbers to the bit.
"""

from functools import cache

import torch
from torch import Tensor

from richbll.room import Room

_WORTH_IT = 2**21  # multiply-adds: below that a call of oneDNN costs more than it saves
_AT_ONCE = 2**22  # numbers that oneDNN adds at a time: for more, fresh memory would cost as much as the product


def product(a: Tensor, b: Tensor, room: Room | None = None, place: int = 0) -> Tensor:
    """a b for matrices, or for many of them, perhaps in a place of a room, whose content is then lost.

    Examples:
        >>> product(torch.ones(2, 3), torch.ones(3, 4))[0]
        tensor([3., 3., 3., 3.])
    """
    by_onednn = _is_for_onednn(a, b)
    if by_onednn and a.dim() == 2:
        return _by_onednn(a, b)
    if room is None and not by_onednn:
        return torch.matmul(a, b)
    shape = (*max(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])
    products = a.new_empty(shape) if room is None else room.take(shape, like=a, place=place)
    if not by_onednn:
        return torch.matmul(a, b, out=products)
    for one, left, right in zip(products, a, b, strict=True):  # the memory of one product is that of the next
        one.copy_(_by_onednn(left, right))
    return products


def add_to(total: Tensor, a: Tensor, b: Tensor, fresh: bool = False) -> None:
    """total += a b for matrices, in place. A fresh total holds nothing yet, not even zeros.

    Examples:
        >>> total = torch.ones(2, 4)
        >>> add_to(total, torch.ones(2, 3), torch.ones(3, 4))
        >>> total[0]
        tensor([4., 4., 4., 4.])
    """
    if not _is_for_onednn(a, b):
        total.addmm_(a, b, beta=0 if fresh else 1)
        return
    width = max(1, _AT_ONCE // len(a))
    for place, columns in zip(torch.split(total, width, dim=1), torch.split(b, width, dim=1), strict=True):
        found = _by_onednn(a, columns)
        place.copy_(found) if fresh else place.add_(found)


def _by_onednn(a: Tensor, b: Tensor) -> Tensor:
    """What torch's compiler makes of a linear layer."""
    if not (b.is_contiguous() or b.mT.is_contiguous()):  # of any other layout oneDNN makes a thousand times as much
        b = b.contiguous()
    found: Tensor = torch.ops.mkldnn._linear_pointwise(a, b.mT, None, "none", [], "")
    return found


def _is_for_onednn(a: Tensor, b: Tensor) -> bool:
    shape, other = a.shape, b.shape
    return (
        a.dtype == b.dtype == torch.float32
        and (len(shape) == len(other) == 2 or (len(shape) == len(other) == 3 and shape[0] == other[0] > 0))
        and shape[-2] * shape[-1] * other[-1] >= _WORTH_IT
        and type(a) is type(b) is Tensor
        and a.device.type == b.device.type == "cpu"
        and not (a.requires_grad or b.requires_grad)  # oneDNN's function has no derivative
        and bool(torch.backends.mkldnn.enabled)
        and _is_there()
    )


@cache
def _is_there() -> bool:
    """Whether this is such a processor, and this torch has the function, with the right result."""
    a, b = (torch.ones(shape, dtype=torch.float32, device="cpu").cumsum(1) for shape in ((2, 3), (3, 4)))
    try:
        told = torch.cpu.get_capabilities()
        is_wide = "AMD" in told["cpu_name"] and told["avx512_vp2intersect"]  # of AMD's, those from Zen 5 on have it
        return bool(is_wide) and torch.equal(_by_onednn(a, b), a @ b)
    except (AttributeError, KeyError, RuntimeError, TypeError):
        return False
