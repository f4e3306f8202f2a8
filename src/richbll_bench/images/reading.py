"""The file formats that image data sets are shipped in: CIFAR's records, MATLAB's matrices, and IDX."""

import gzip
import hashlib
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from richbll_bench.errors import ContentError

_SIDE = 32  # pixels, of every image that networks are given


@dataclass(frozen=True)
class Images:
    """Pixels as they are in the file, and class numbers."""

    pixels: Tensor  # (N, channels, height, width) uint8
    labels: Tensor  # (N,) int64

    def __len__(self) -> int:
        return len(self.labels)

    def rows(self, chosen: Tensor | slice) -> "Images":
        """Some of them."""
        return Images(self.pixels[chosen], self.labels[chosen])

    def as_color(self) -> "Images":
        """With three channels and 32 × 32 pixels: grey is repeated, smaller images get a black frame."""
        _, channels, height, width = self.pixels.shape
        top, left = (_SIDE - height) // 2, (_SIDE - width) // 2
        framed = torch.nn.functional.pad(
            self.pixels, (left, _SIDE - width - left, top, _SIDE - height - top)
        )  # (N, channels, 32, 32)
        return replace(self, pixels=framed.expand(-1, 3, -1, -1) if channels == 1 else framed)


def read_cifar(paths: Sequence[Path], *, num_label_bytes: int = 1) -> Images:
    """Records of label bytes, the last of which is the class, and 3 × 32 × 32 bytes of pixels, red first."""
    size = num_label_bytes + 3 * _SIDE * _SIDE
    parts = []
    for path in paths:
        content = np.fromfile(path, dtype=np.uint8)
        if len(content) == 0 or len(content) % size:
            raise ContentError(f"{path} has {len(content):,} bytes, which is not a number of records of {size:,}.")
        parts.append(content.reshape(-1, size))
    records = np.concatenate(parts)
    pixels = records[:, num_label_bytes:].reshape(-1, 3, _SIDE, _SIDE)
    return Images(torch.from_numpy(pixels.copy()), torch.from_numpy(records[:, num_label_bytes - 1].astype(np.int64)))


def read_mat(paths: Sequence[Path]) -> Images:
    """SVHN's X (32, 32, 3, N) and y (N, 1), where 10 stands for the digit 0."""
    pixels, labels = zip(*map(_matrices, paths), strict=True)
    return Images(torch.from_numpy(np.concatenate(pixels)), torch.from_numpy(np.concatenate(labels)))


def mat_content(path: Path) -> bytes:
    """A checksum of pixels and labels, whatever the file's own header and compression."""
    pixels, labels = _matrices(path)
    return hashlib.sha256(pixels.tobytes() + labels.astype("<i8").tobytes()).digest()


def _matrices(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    try:
        found = loadmat(path)
        X, y = found["X"], found["y"]
    except (OSError, KeyError, ValueError, TypeError, NotImplementedError, zlib.error, MatReadError) as error:
        raise ContentError(f"{path} has no matrices X and y ({type(error).__name__}: {error}).") from error
    if X.ndim != 4 or X.shape[:3] != (_SIDE, _SIDE, 3) or X.dtype != np.uint8 or y.size != X.shape[3]:
        raise ContentError(f"{path}: X is {X.dtype} {X.shape} and y {y.shape}, not uint8 (32, 32, 3, N) and (N, 1).")
    labels = y.reshape(-1).astype(np.int64) % 10
    return np.ascontiguousarray(X.transpose(3, 2, 0, 1)), labels


def read_idx(paths: Sequence[Path]) -> Images:
    """MNIST's format: a file of images, then one of labels, both gzipped."""
    if len(paths) != 2:
        raise ContentError(f"IDX needs a file of images and one of labels, not {len(paths)} files.")
    pixels, labels = (_idx(path, idx_content(path)) for path in paths)
    if pixels.ndim != 3 or labels.ndim != 1 or len(pixels) != len(labels):
        raise ContentError(f"{paths[0]} and {paths[1]} have shapes {pixels.shape} and {labels.shape}.")
    return Images(torch.from_numpy(pixels.copy()).unsqueeze(1), torch.from_numpy(labels.astype(np.int64)))


def idx_content(path: Path) -> bytes:
    """What is inside, however it was compressed."""
    try:
        with gzip.open(path) as file:
            return file.read()
    except (OSError, EOFError, zlib.error) as error:
        raise ContentError(f"{path} is not a gzipped file ({error}).") from error


def _idx(path: Path, content: bytes) -> NDArray[np.uint8]:
    """Two zero bytes, the type (8: bytes), the number of axes, each axis as a big-endian word, and the bytes."""
    if len(content) < 4 or content[:3] != b"\0\0\x08":
        raise ContentError(f"{path} does not begin like an IDX file of bytes: {content[:4]!r}.")
    num_axes = content[3]
    start = 4 + 4 * num_axes
    shape = struct.unpack(f">{num_axes}I", content[4:start])
    body = np.frombuffer(content, np.uint8, offset=start)
    if len(body) != int(np.prod(shape)):
        raise ContentError(f"{path} has {len(body):,} bytes for the shape {shape}.")
    return body.reshape(shape)
