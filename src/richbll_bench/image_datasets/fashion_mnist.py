"""Fashion-MNIST: 60,000 and 10,000 grey images of ten kinds of clothing. Debian has it as dataset-fashion-mnist."""

from richbll_bench.images.dataset import ImageDataset
from richbll_bench.images.idx_files import idx_files
from richbll_bench.images.reading import read_idx

_PACKED = (
    "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
    "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
    "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
    "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
)
_INSIDE = (
    "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
)
_ADDRESS = "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion"
_TRAIN, _TEST = idx_files("fashion_mnist", "fashion-mnist", _ADDRESS, _PACKED, _INSIDE)

dataset = ImageDataset(
    name="fashion_mnist",
    title="Fashion-MNIST",
    train=_TRAIN,
    test=_TEST,
    read=read_idx,
    classes=("T-shirt", "trousers", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "boot"),
    mean=(0.2860,),
    std=(0.3530,),
)
