"""Wine quality, white: the score (0 to 10) that tasters gave 4898 wines, by chemical analysis; 937 rows are copies."""

from richbll_bench.data.dataset import csv_dataset

dataset = csv_dataset(
    __name__,
    title="Wine quality, white",
    file="uci/winequality-white.csv",
    sha256="76c3f809815c17c07212622f776311faeb31e87610d52c26d87d6e361b169836",
    target="quality",
    separator=";",
    sources=["https://archive.ics.uci.edu/ml/machine-learning-databases/wine-quality/winequality-white.csv"],
)
