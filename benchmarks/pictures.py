"""The pictures of the docs: python benchmarks/pictures.py (half a minute on one core)."""

import warnings
from pathlib import Path

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from sklearn.datasets import make_moons
from torch import Tensor, nn

from richbll import RichBLL
from richbll.bandits import RollingNoise, ThompsonSampler
from richbll.errors import RichBLLWarning

IMAGES = Path(__file__).parent.parent / "docs" / "images"
BLUE, RED = "#2a6fbb", "#b5442e"


def trained(model: nn.Module, x: Tensor, y: Tensor, loss: nn.Module, epochs: int) -> nn.Module:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=1e-3)
    for _ in range(epochs):
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()
    return model.eval()


def mlp(num_inputs: int, num_outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(num_inputs, 50), nn.Tanh(), nn.Linear(50, 50), nn.Tanh(), nn.Linear(50, num_outputs))


def classification() -> None:
    """Two moons: the network's own confidence, the probabilities with uncertainty, and what more data would teach."""
    torch.manual_seed(0)
    points, labels = make_moons(300, noise=0.12, random_state=0)
    x, y = torch.as_tensor(points, dtype=torch.float32), torch.as_tensor(labels)
    model = trained(mlp(2, 2), x, y, nn.CrossEntropyLoss(), 300)
    uq = RichBLL(model, "classification", curvature="ggn").fit((x, y))
    side = torch.linspace(-3, 4, 140)
    grid = torch.cartesian_prod(side, side - 0.3)
    pred = uq.predict(grid, num_samples=200)
    with torch.no_grad():
        alone = model(grid).softmax(1)
    shown = {
        "network alone: confidence": (alone.amax(1), 0.5, 1.0),
        "Rich-BLL: confidence": (pred.probs.amax(1), 0.5, 1.0),
        "mutual information": (pred.mutual_information, 0.0, None),
    }
    figure = Figure(figsize=(11, 3.6), layout="constrained")
    for ax, (title, (value, low, high)) in zip(figure.subplots(1, 3), shown.items(), strict=True):
        image = ax.pcolormesh(side, side - 0.3, value.reshape(140, 140).mT.numpy(), vmin=low, vmax=high, cmap="viridis")
        for number, color in ((0, "white"), (1, RED)):
            ax.plot(*x[y == number].mT.numpy(), ".", ms=3, color=color)
        ax.set(title=title, xticks=[], yticks=[])
        figure.colorbar(image, ax=ax, shrink=0.85)
    figure.savefig(IMAGES / "classification.png", dpi=110)


def band(ax: Axes, grid: Tensor, uq: RichBLL, title: str) -> None:
    pred = uq.predict(grid)
    lower, upper = pred.interval(0.9)
    mean, x = pred.mean.flatten().numpy(), grid.flatten().numpy()
    half = 1.645 * pred.epistemic_variance.sqrt().flatten().numpy()
    ax.fill_between(x, lower.flatten().numpy(), upper.flatten().numpy(), color=BLUE, alpha=0.15, lw=0)
    ax.fill_between(x, mean - half, mean + half, color=BLUE, alpha=0.4, lw=0)
    ax.plot(x, mean, color=BLUE, lw=1.5)
    ax.set(title=title, ylim=(-3, 3))
    ax.spines[["top", "right"]].set_visible(False)


def curve(x: Tensor) -> Tensor:
    return torch.cos(2.2 * x) + 0.3 * x


def online() -> None:
    """A curve with a gap, before and after eight points in it; and the draws of functions afterwards."""
    torch.manual_seed(0)
    x = torch.cat([-2 + 1.3 * torch.rand(60, 1), 0.7 + 1.3 * torch.rand(60, 1)])
    y = curve(x) + 0.2 * torch.randn(120, 1)
    model = trained(mlp(1, 1), x, y, nn.MSELoss(), 800)
    uq = RichBLL(model, noise_variance=0.04, ridge=1e-3).fit((x, y))
    grid, new = torch.linspace(-3, 3, 200)[:, None], torch.linspace(-0.6, 0.6, 8)[:, None]
    figure = Figure(figsize=(11, 3.4), layout="constrained")
    axes = figure.subplots(1, 3, sharey=True)
    band(axes[0], grid, uq, "fitted")
    uq.update((new, curve(new) + 0.2 * torch.randn(8, 1)))
    band(axes[1], grid, uq, "after update() with 8 points")
    draws = uq.sample_functions(20, seed=0)(grid)[:, :, 0]
    axes[2].plot(grid.numpy(), draws.mT.numpy(), color=BLUE, lw=0.7, alpha=0.7)
    axes[2].set(title="20 functions drawn then")
    axes[2].spines[["top", "right"]].set_visible(False)
    for number, ax in enumerate(axes):
        ax.plot(x.numpy(), y.numpy(), ".", color="black", ms=3, alpha=0.5)
        ax.plot(grid.numpy(), curve(grid).numpy(), ":", color="black", lw=1)
        if number:
            ax.plot(new.numpy(), curve(new).numpy(), "o", color=RED, ms=4)
    figure.savefig(IMAGES / "online.png", dpi=110)


def tuning() -> None:
    """How often intervals cover, against what they promise: by training residuals, tuned, and conformal."""
    torch.manual_seed(0)
    x = torch.randn(3000, 4)
    y = torch.sin(2 * x[:, :1]) + 0.3 * x[:, 1:2] ** 2 + 0.3 * torch.randn(3000, 1)
    train, val, cal, test = (
        (x[rows], y[rows]) for rows in (slice(0, 150), slice(150, 350), slice(350, 550), slice(550, 3000))
    )
    model = trained(mlp(4, 1), *train, nn.MSELoss(), 400)  # far too long: the residuals are tiny
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RichBLLWarning)
        uq = RichBLL(model).fit(train)
        levels = torch.linspace(0.05, 0.99, 40).tolist()

        def covered() -> list[float]:
            pred = uq.predict(test[0])
            pairs = [pred.interval(level) for level in levels]
            return [float(((test[1] >= low) & (test[1] <= high)).double().mean()) for low, high in pairs]

        lines = {"noise from training residuals": covered()}
        uq.tune(val)
        lines["tune(val_loader)"] = covered()
        uq.conformalize(cal)
        lines["conformalize(cal_loader)"] = covered()
    figure = Figure(figsize=(4.6, 4.2), layout="constrained")
    ax = figure.subplots()
    ax.plot([0, 1], [0, 1], color="0.7", lw=1)
    for (name, values), style in zip(lines.items(), (":", "-", "--"), strict=True):
        ax.plot(levels, values, style, lw=2, label=name)
    ax.set(xlabel="level asked for", ylabel="share of test points inside", xlim=(0, 1), ylim=(0, 1))
    ax.legend(frameon=False)
    ax.spines[["top", "right"]].set_visible(False)
    figure.savefig(IMAGES / "tuning.png", dpi=110)


def diagnosis() -> None:
    """The eNTK spectrum of a trained network, as `diagnose` plots it."""
    torch.manual_seed(0)
    x = torch.randn(800, 8)
    y = torch.sin(x[:, :1]) + x[:, 1:2] * x[:, 2:3] + 0.1 * torch.randn(800, 1)
    model = trained(mlp(8, 1), x, y, nn.MSELoss(), 300)
    found = RichBLL(model, noise_variance=0.05).fit((x, y)).diagnose((x, y))
    print(found)
    found.plot(str(IMAGES / "diagnosis.png"))


def bandits() -> None:
    """Three actions on a square: what was played, how often it was the best, and where the posterior still doubts."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 3))
    sampler = ThompsonSampler(model, num_actions=3, noise=RollingNoise(prior=1.0), restart=1.5)

    def expected(x: Tensor) -> Tensor:
        return torch.stack([torch.ones(len(x)), 3.0 * (x[:, 0] > 0.5), 3.0 * (x[:, 1] > 0.5)], dim=1)

    share, played = [], []
    for _ in range(60):
        x = 2 * torch.rand(20, 2) - 1
        actions = sampler.act(x)
        value = expected(x).gather(1, actions[:, None])[:, 0]
        share.append(float((value == expected(x).amax(1)).double().mean()))
        played.append(actions)
        sampler.observe(x, actions, value + 0.1 * torch.randn(len(x)))
    figure = Figure(figsize=(11, 3.4), layout="constrained")
    axes = figure.subplots(1, 3)
    contexts, actions = sampler.replay.contexts, torch.cat(played)
    for number, color in enumerate(("0.7", BLUE, RED)):
        chosen = contexts[-600:][actions[-600:] == number]
        axes[0].plot(*chosen.mT.numpy(), ".", ms=4, color=color, label=f"action {number}")
    axes[0].set(title="the last 600 actions", xlabel="x₁", ylabel="x₂")
    axes[0].legend(frameon=False, fontsize=8, loc="lower left")
    axes[1].plot(range(10, 1200, 20), share, color=BLUE, lw=1.5)
    axes[1].set(title="share of best actions, by twenties", xlabel="contexts", ylim=(0, 1.02))
    side = torch.linspace(-1, 1, 60)
    grid = torch.cartesian_prod(side, side)
    doubt = torch.stack([sampler.draw(grid).argmax(1) for _ in range(40)])
    usual = (doubt == doubt.mode(dim=0).values).double().mean(dim=0)
    image = axes[2].pcolormesh(side, side, (1 - usual).reshape(60, 60).mT.numpy(), vmin=0, cmap="viridis")
    axes[2].set(title="share of draws that would play another", xlabel="x₁")
    figure.colorbar(image, ax=axes[2], shrink=0.85)
    figure.savefig(IMAGES / "bandits.png", dpi=110)


if __name__ == "__main__":
    torch.set_num_threads(1)
    for draw in (classification, online, tuning, diagnosis, bandits):
        draw()
