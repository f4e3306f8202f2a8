"""I have a trained image classifier; which inputs should I not trust?

    python examples/which_images.py [--out picture.png]

Half a minute on one core, with the handwritten digits that scikit-learn carries. Lines that begin with # %% are cells
for editors that know them. The picture at the end shows the most and the least certain of the images.
"""

# %% A trained classifier. Yours comes from a checkpoint; this one is trained here, on a thousand digits.
import argparse
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

from richbll import RichBLL

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--out", type=Path, default=Path("out/which_images.png"))
parser.add_argument("--epochs", type=int, default=30)
options = parser.parse_args()

torch.manual_seed(0)
digits = load_digits()
x = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16  # (1797, 1, 8, 8)
y = torch.tensor(digits.target)
order = torch.randperm(len(y))
train, test = order[:1000], order[1000:]

model = nn.Sequential(
    *(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
    *(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10)),
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(options.epochs):
    for rows in torch.split(train[torch.randperm(len(train))], 50):
        optimizer.zero_grad()
        cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.step()
model.eval()

# %% Uncertainty for it: the training images are read once more, and nothing is trained. A hundred images of each class
# are too few for 513 features and a posterior of each class, so all classes share one.
uq = RichBLL(model, "classification", class_posterior="shared", progress=False)
uq.fit((x[train], y[train]))

# %% What comes in: test images, and some that nobody would call a digit (two digits on top of each other, and noise).
strange = torch.cat([(x[test[:40]] + x[test[40:80]]).clamp(max=1), torch.rand(20, 1, 8, 8)])
incoming = torch.cat([x[test], strange])
is_strange = torch.arange(len(incoming)) >= len(test)
pred = uq.predict(incoming)
doubt = pred.ood_score  # larger is stranger; here the predicted logit's variance, for features of unit length

# %% How far can it be trusted? Errors among the digits that are kept when the most doubtful are sent to a person.
wrong = pred.predicted[: len(test)] != y[test]
for share in (0.0, 0.05, 0.1, 0.2):
    kept = doubt[: len(test)].argsort()[: round((1 - share) * len(test))]
    print(f"{share:4.0%} of the digits sent to a person: {wrong[kept].double().mean():.2%} of the others are wrong")
limit = doubt[: len(test)].quantile(0.9)
caught = (doubt[is_strange] > limit).double().mean()
print(f"at the doubt of the worst tenth of digits, {caught:.0%} of the strange images are sent to a person, too")

# %% The most and the least certain images, with what the network takes them for; errors and strangers in red.
from matplotlib.figure import Figure  # noqa: E402

columns, lines = 14, 2
ranked = doubt.argsort()
chosen = torch.cat([ranked[: columns * lines], ranked.flip(0)[: columns * lines]])
figure = Figure(figsize=(columns * 0.72, lines * 2 * 0.98 + 0.6), layout="constrained")
for number, (ax, row) in enumerate(zip(figure.subplots(2 * lines, columns).flat, chosen.tolist(), strict=True)):
    bad = bool(is_strange[row]) or bool(pred.predicted[row] != y[test[row]])
    ax.imshow(incoming[row, 0], cmap="gray_r", vmin=0, vmax=1)
    ax.set_title(
        f"{int(pred.predicted[row])}: {float(pred.probs[row].max()):.0%}", fontsize=8, color="#b5442e" if bad else "0.2"
    )
    ax.set_xticks([]), ax.set_yticks([])
    if number % columns == 0:
        ax.set_ylabel("trust" if number < columns * lines else "do not trust", fontsize=8)
options.out.parent.mkdir(parents=True, exist_ok=True)
figure.savefig(options.out, dpi=110)
print(f"The most and the least certain images: {options.out}")
