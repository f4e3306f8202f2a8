"""What reading the gradients will cost, part by part, before any work; and the cheapest way that fits.

Counts multiply-adds. For N rows, ρ directions, c outputs, and a parameter of m elements that acts at T positions:

    explicit   C = Φ^mᵀU and CᵀC             c (N T m + N m ρ + m ρ²)
    hadamard   (a aᵀ) ∘ (g gᵀ)               N² T² (d_in + c d_out + c p) / 2
    gram       Φ^mΦ^mᵀ of formed gradients   c (N (T + f) m + N² m / 2)

with p = 64 for passing the products through memory and f = 128 for putting gradients there; a weight and its bias share
g gᵀ. The last two give K, and UᵀKU costs c (N²ρ/2 + Nρ²) more, once for all layers.
"""

from dataclasses import dataclass
from typing import Protocol

from richbll.checks import human_bytes
from richbll.errors import MemoryBudgetError
from richbll.network.capture import Site
from richbll.network.records import SiteShape
from richbll.solvers.routes.explicit import is_sparse

_PER_PAIR = 64
_PER_FORMED = 128  # multiply-adds that take as long as to put one number of a gradient into fresh memory, twice
_APART = 5e7  # multiply-adds that fit into the time which it takes to begin a route of its own for one layer


@dataclass(frozen=True)
class Step:
    """One part of a parameter."""

    shape: SiteShape
    route: str  # "explicit", "hadamard", "gram", "cross" or "sketch"
    multiply_adds: float
    num_bytes: int  # kept while the data is read


@dataclass(frozen=True)
class Plan:
    """Which solver, which route for each part, and what that takes."""

    solver: str
    steps: tuple[Step, ...]
    shared_multiply_adds: float  # for UᵀKU and the forward and backward passes that give the gradients
    cached: bool  # gradients are kept, so that the data is read once
    num_passes: int  # over the data with gradients
    num_rows: int | None
    yard: float  # multiply-adds of one forward and backward pass over the same rows

    @property
    def multiply_adds(self) -> float:
        """In all."""
        return self.shared_multiply_adds + sum(step.multiply_adds for step in self.steps)

    @property
    def num_bytes(self) -> int:
        """Kept at the same time, at most."""
        return sum(step.num_bytes for step in self.steps) // self.num_passes

    def by_route(self, *routes: str) -> list[SiteShape]:
        """The parts that take one of these routes."""
        return [step.shape for step in self.steps if step.route in routes]

    @property
    def formed(self) -> set[Site]:
        """Where K takes gradients that are formed, and not their factors."""
        return {shape.site for shape in self.by_route("gram")}

    def __str__(self) -> str:
        rows = "an unknown number of" if self.num_rows is None else f"{self.num_rows:,}"
        how = {
            "exact": "gradients kept from one pass"
            if self.cached
            else f"a pass for features, {self.num_passes} for gradients",
            "cross": "one pass, additive",
            "sketch": "one pass, additive, not exact",
        }.get(self.solver, "one pass")
        lines = [f"{self.solver}: {rows} rows, {how}", ""]
        lines.append(f"{'parameter':40} {'kind':12} {'route':9} {'elements':>12} {'multiply-adds':>14} {'bytes':>10}")
        for step in self.steps:
            name, start = step.shape.site
            place = name if start == 0 else f"{name}[{start}:]"
            place = place if len(place) <= 40 else "…" + place[-39:]
            lines.append(
                f"{place:40} {step.shape.kind:12} {step.route:9} {step.shape.size:12,} {step.multiply_adds:14.3g} "
                f"{human_bytes(step.num_bytes):>10}"
            )
        lines.append(f"{'forward, backward, UᵀKU':40} {'':12} {'':9} {'':12} {self.shared_multiply_adds:14.3g}")
        ratio = self.multiply_adds / self.yard if self.yard else float("nan")
        lines.append(
            f"{'total':40} {'':12} {'':9} {sum(s.shape.size for s in self.steps):12,} {self.multiply_adds:14.3g} "
            f"{human_bytes(self.num_bytes):>10}"
        )
        lines.append(f"{ratio:.2f} × the multiply-adds of one forward and backward pass ({self.yard:.3g})")
        return "\n".join(lines)


@dataclass(frozen=True)
class Size:
    """What all costs depend on."""

    num_rows: int | None  # N
    rank: int  # ρ, or r before it is known
    num_gradients: int  # c
    memory: int


def exact_plan(shapes: list[SiteShape], size: Size, may_cache: bool) -> Plan:
    """The cheapest exact routes that fit; gradients are kept where they can be."""
    N, c = size.num_rows or 0, size.num_gradients
    kept = {shape.site: kept_bytes(shape, N, c) for shape in shapes}
    cached = may_cache and can_be_kept(shapes, size)
    routes = cheapest_routes(shapes, size, size.memory // 2 if cached else size.memory // 4)
    steps, met = [], set()
    for shape in shapes:
        route = routes[shape.site]
        again = route == "hadamard" and shape.group in met
        met.add(shape.group)
        price = cost(shape, route, size) if not again else N * N * shape.positions**2 * shape.widths[1] / 2
        held = kept[shape.site] if cached or route != "explicit" else 8 * c * shape.size * size.rank
        held += joined_bytes(shape, route, N, c) if route == "gram" else 0
        steps.append(Step(shape, route, price, held))
    in_blocks = sum(8 * c * s.size * size.rank for s in shapes if routes[s.site] == "explicit")
    num_passes = 1 if cached else max(1, -(-in_blocks // max(1, size.memory // 4)))
    yard = forward_backward(shapes, N)
    has_gram = any(route != "explicit" for route in routes.values())
    shared = 2 / 3 * yard * (c + 1) / 2 * num_passes + (0 if cached else yard / 3)
    shared += c * (N * N * size.rank / 2 + N * size.rank**2) if has_gram else 0
    return Plan("exact", tuple(steps), shared, cached, num_passes, size.num_rows, yard)


def can_be_kept(shapes: list[SiteShape], size: Size) -> bool:
    """Whether what all gradients are made from takes, with the features, at most half of the memory."""
    N = size.num_rows or 0
    kept = sum(kept_bytes(shape, N, size.num_gradients) for shape in shapes)
    return N > 0 and kept + 2 * 8 * N * size.rank <= size.memory // 2


def cheapest_routes(shapes: list[SiteShape], size: Size, most_kept: int) -> dict[tuple[str, int], str]:
    """Explicit everywhere, or K wherever that is cheaper, the price of UᵀKU included; small layers then join it."""
    explicit = {shape.site: "explicit" for shape in shapes}
    if size.num_rows is None:
        return explicit
    N, c = size.num_rows, size.num_gradients
    mixed, kept, saved = dict(explicit), 0, 0.0
    cheaper = [(group, *_cheapest_of_K(group, size)) for group in _groups(shapes)]
    for group, best, gain in sorted(cheaper, key=lambda found: found[2] <= 0):  # those that only join come last
        needed = sum(joined_bytes(shape, best, N, c) for shape in group)
        if gain > -_APART and kept + needed <= most_kept:
            mixed |= {shape.site: best for shape in group}
            kept += needed
            saved += max(0.0, gain)
    return mixed if saved > c * (N * N * size.rank / 2 + N * size.rank**2) else explicit


def _cheapest_of_K(group: list[SiteShape], size: Size) -> tuple[str, float]:
    """The best of the routes to K, and what it saves against the explicit one."""
    prices = {route: group_cost(group, route, size) for route in allowed_routes(group[0])}
    explicit = prices.pop("explicit")
    best = min(prices, key=lambda route: prices[route], default="explicit")
    return best, explicit - prices.get(best, float("inf"))


def _groups(shapes: list[SiteShape]) -> list[list[SiteShape]]:
    """Linear sites with the same left factor together, every other site alone."""
    groups: dict[object, list[SiteShape]] = {}
    for shape in shapes:
        groups.setdefault(shape.group if shape.kind == "linear" else shape.site, []).append(shape)
    return list(groups.values())


def group_cost(group: list[SiteShape], route: str, size: Size) -> float:
    """Multiply-adds of a group: the products of a factor that it shares are formed once."""
    again = sum(shape.widths[0] + _PER_PAIR for shape in group[1:]) if route == "hadamard" else 0
    N, T, c = size.num_rows or 0, group[0].positions, size.num_gradients
    return sum(cost(shape, route, size) for shape in group) - c * N * N * T * T * again / 2


def allowed_routes(shape: SiteShape) -> list[str]:
    """Which routes there are for a part."""
    if shape.kind == "linear":
        return ["explicit", "hadamard", "gram"]
    return ["explicit"] if is_sparse(shape) else ["explicit", "gram"]


def cost(shape: SiteShape, route: str, size: Size) -> float:
    """Multiply-adds of one part by one route."""
    N, rho, c, m, T = size.num_rows or 0, size.rank, size.num_gradients, shape.size, shape.positions
    if route == "hadamard":
        return N * N * T * T * (c * shape.widths[0] + shape.widths[1] + c * _PER_PAIR) / 2
    if route == "gram":
        return c * (N * (T + _PER_FORMED) * m + N * N * m / 2)
    if is_sparse(shape):
        tokens = N * T * shape.widths[1]
        return c * (tokens * rho + min(m, tokens) * rho**2)
    formed = N * m if shape.kind in ("vector", "embedding") else N * T * m
    if route == "sketch":
        return c * formed
    # float64, at half the speed, and squared only after it has been multiplied by the whitener
    return c * (formed + (2 * N * m * rho + 2 * m * rho**2 if route == "cross" else N * m * rho + m * rho**2))


def kept_bytes(shape: SiteShape, num_rows: int, num_gradients: int) -> int:
    """To keep what a part's gradients are made from, for all rows."""
    return num_rows * (shape.row_bytes + num_gradients * shape.output_bytes)


def joined_bytes(shape: SiteShape, route: str, num_rows: int, num_gradients: int) -> int:
    """For all rows together, as K needs them: factors, or gradients that are formed and copied once."""
    if route == "gram":
        return 8 * num_gradients * num_rows * shape.size
    return kept_bytes(shape, num_rows, num_gradients)


def forward_backward(shapes: list[SiteShape], num_rows: int) -> float:
    """Multiply-adds of one forward and backward pass: three products of every weight at every position."""
    products = (s for s in shapes if s.kind in ("linear", "convolution", "general"))
    return 3.0 * num_rows * sum(shape.positions * shape.size for shape in products)


def additive_plan(shapes: list[SiteShape], size: Size, num_features: int, sketch: "HasSize | None") -> Plan:
    """One pass that adds up Φ^mᵀΦ^r, or a sketch of it."""
    N, c = size.num_rows or 0, size.num_gradients
    total = max(1, sum(shape.size for shape in shapes))
    route = "cross" if sketch is None else "sketch"
    steps = []
    for shape in shapes:
        kept = shape.size if sketch is None else sketch.size * shape.size / total
        steps.append(Step(shape, route, cost(shape, route, size), int(8 * c * num_features * kept)))
    yard = forward_backward(shapes, N)
    return Plan(route, tuple(steps), 2 / 3 * yard * (c + 1) / 2, False, 1, size.num_rows, yard)


class HasSize(Protocol):
    """A sketching solver."""

    @property
    def size(self) -> int:
        """q."""


def must_fit(what: str, needed: int, memory: int, advice: str) -> None:
    """A typed error with the numbers, before any work."""
    if needed > memory:
        raise MemoryBudgetError(
            f"{what} takes {human_bytes(needed)}, but memory_budget leaves {human_bytes(memory)}. {advice}"
        )
