"""On the meta device, which has shapes and no values: what routes, moments and sketches give, at sizes nobody holds."""

import pytest
import torch
from torch import Tensor

from richbll.core.moments import batch_moments
from richbll.network.ranks import Alone
from richbll.network.records import SiteShape
from richbll.network.structure import Dense, Outer
from richbll.sketches import make_sketch, sketch_names
from richbll.solvers.routes.explicit import kept_energy
from richbll.solvers.routes.gram import Rowwise, energy_in
from richbll.solvers.routes.ranges import ranges_of

N, C, RHO, WIDTH = 20_000, 3, 1_000, 100_000


def empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(*shape, dtype=dtype, device="meta")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_energy_of_wide_layers(dtype: torch.dtype) -> None:
    """Whatever the gradients' dtype, sums are float64."""
    outer = Outer(empty(C, N, 1, WIDTH, dtype=dtype), empty(1, N, 1, WIDTH, dtype=dtype))
    dense = Dense(empty(C, N, WIDTH, dtype=dtype))
    working = torch.promote_types(dtype, torch.float32)
    rows = Rowwise({("w", 0): [outer]}, {("b", 0): dense})
    H, trace = energy_in(rows, empty(N, RHO, dtype=working), C, Alone(), working)
    assert (H.shape, trace.shape) == ((C, RHO, RHO), (C,))
    assert {t.dtype for t in (H, trace)} == {torch.float64}
    assert {t.device.type for t in (H, trace)} == {"meta"}


@pytest.mark.parametrize("most", [WIDTH // 7, 10 * WIDTH])
def test_energy_of_formed_gradients(most: int) -> None:
    shapes = [SiteShape(("w", 0), WIDTH, "vector"), SiteShape(("v", 0), 2 * WIDTH, "vector")]
    sizes = [N // 2, N - N // 2]
    parts = [{shape.site: [Dense(empty(C, n, shape.size))] for shape in shapes} for n in sizes]
    H, norms = kept_energy(parts, ranges_of(shapes, most), empty(N, RHO), C, Alone())
    assert (H.shape, H.dtype) == ((C, RHO, RHO), torch.float64)
    assert norms.shape == (C, N)


def test_moments() -> None:
    found = batch_moments(empty(N, WIDTH, dtype=torch.bfloat16), residuals=empty(N, C))
    assert (found.gram_projection.shape, found.gram_projection.dtype) == ((WIDTH, WIDTH), torch.float64)
    assert found.residual_sq is not None
    assert found.residual_sq.shape == (C,)


@pytest.mark.parametrize("name", sketch_names())
def test_sketches(name: str) -> None:
    sketch = make_sketch(name, 64, 0)
    assert sketch.flat("w", empty(N, 1_000)).shape == (N, 64)
    assert sketch.outer("w", empty(N, 3, 20), empty(N, 3, 30)).shape == (N, 64)
