"""CIFAR-100, the test images: 10,000 of a hundred kinds that are not CIFAR-10's."""

from functools import partial

from richbll_bench.data.archive import member
from richbll_bench.data.dataset import File, Source
from richbll_bench.images.dataset import ImageDataset
from richbll_bench.images.reading import read_cifar

_PATH = "cifar-100-binary/test.bin"
_ARCHIVE = Source(
    "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
    "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
    member(_PATH),
)

dataset = ImageDataset(
    name="cifar100",
    title="CIFAR-100",
    train=(),
    test=(File("cifar100", _PATH, "d8b1e6b7b3bee4020055f0699b111f60b1af1e262aeb93a0b659061746f8224a", (_ARCHIVE,)),),
    read=partial(read_cifar, num_label_bytes=2),  # the coarse class, then the fine one
    classes=tuple(str(number) for number in range(100)),
    mean=(0.5071, 0.4865, 0.4409),
    std=(0.2673, 0.2564, 0.2762),
)
