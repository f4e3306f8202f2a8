"""The four files of MNIST and of the data sets made in its image."""

from collections.abc import Sequence

from richbll_bench.data.dataset import File, Packing, Source
from richbll_bench.images.reading import idx_content

_FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
Pair = tuple[File, File]


def idx_files(name: str, folder: str, address: str, packed: Sequence[str], inside: Sequence[str]) -> tuple[Pair, Pair]:
    """Train and test, each images and labels; checksums of the gzipped files, and of what is in them."""
    made = [
        File(
            name,
            f"{folder}/{file}.gz",
            packed_sha256,
            (Source(f"{address}/{file}.gz", packed_sha256),),
            packing=Packing(idx_content, inside_sha256),
        )
        for file, packed_sha256, inside_sha256 in zip(_FILES, packed, inside, strict=True)
    ]
    return (made[0], made[1]), (made[2], made[3])
