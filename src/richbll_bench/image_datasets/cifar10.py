"""CIFAR-10: 50,000 and 10,000 colour images of ten kinds of animals and vehicles."""

from richbll_bench.data.archive import member
from richbll_bench.data.dataset import File, Source
from richbll_bench.images.dataset import ImageDataset
from richbll_bench.images.reading import read_cifar

_ARCHIVE = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
_ARCHIVE_SHA256 = "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"
_BATCHES = (
    "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
)
_TEST = "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"


def _file(name: str, sha256: str) -> File:
    path = f"cifar-10-batches-bin/{name}.bin"
    return File("cifar10", path, sha256, (Source(_ARCHIVE, _ARCHIVE_SHA256, member(path), shared=True),))


dataset = ImageDataset(
    name="cifar10",
    title="CIFAR-10",
    train=tuple(_file(f"data_batch_{number}", sha256) for number, sha256 in enumerate(_BATCHES, start=1)),
    test=(_file("test_batch", _TEST),),
    read=read_cifar,
    classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2470, 0.2435, 0.2616),
)
