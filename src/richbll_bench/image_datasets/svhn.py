"""SVHN, the test images: 26,032 digits of house numbers.

Beside the public file, digits that were cut again from the full numbers are taken for it: the same ones in the same
order, a few grey levels apart.
"""

from richbll_bench.data.dataset import File, Packing, Source
from richbll_bench.images.dataset import ImageDataset
from richbll_bench.images.reading import mat_content, read_mat

_SHA256 = "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b"
_CUT_AGAIN = Packing(mat_content, "2fee90512ef1758fde834cb11ab606d88b915de1987876364bcb0fadc38f4bdd")
_PUBLIC = Source("http://ufldl.stanford.edu/housenumbers/test_32x32.mat", _SHA256)  # the checksum makes up for http

dataset = ImageDataset(
    name="svhn",
    title="SVHN",
    train=(),
    test=(File("svhn", "svhn/test_32x32.mat", _SHA256, (_PUBLIC,), packing=_CUT_AGAIN),),
    read=read_mat,
    classes=tuple("0123456789"),
    mean=(0.4524, 0.4525, 0.4690),
    std=(0.2194, 0.2266, 0.2285),
)
