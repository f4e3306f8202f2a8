"""Wine quality, red: the score (0 to 10) that tasters gave 1599 wines, by chemical analysis; 240 rows are copies."""

from richbll_bench.data.dataset import csv_dataset

dataset = csv_dataset(
    __name__,
    title="Wine quality, red",
    file="uci/winequality-red.csv",
    sha256="4a402cf041b025d4566d954c3b9ba8635a3a8a01e039005d97d6a710278cf05e",
    target="quality",
    separator=";",
    sources=["https://archive.ics.uci.edu/ml/machine-learning-databases/wine-quality/winequality-red.csv"],
)
