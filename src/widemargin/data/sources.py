"""Where the official files live, and the checksums by which they are known.

MD5 sums are those their publishers list; SHA-256 is what a download is held to.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class OfficialFile:
    """One published file: its name, the addresses to try in turn, and its checksums."""

    name: str
    urls: tuple[str, ...]
    md5: str
    sha256: str


def _file(name: str, mirrors: tuple[str, ...], md5: str, sha256: str) -> OfficialFile:
    return OfficialFile(name, tuple(mirror + name for mirror in mirrors), md5, sha256)


_MNIST = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
_FASHION = (
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
)
_TORONTO = ("https://www.cs.toronto.edu/~kriz/",)

_CIFAR10 = _file(
    "cifar-10-binary.tar.gz",
    _TORONTO,
    "c32a1d4ab5d03f1284b67883e8d87530",
    "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
)

# dataset -> split -> files; of an idx pair, images come first and labels second.
SOURCES: dict[str, dict[str, tuple[OfficialFile, ...]]] = {
    "mnist": {
        "train": (
            _file(
                "train-images-idx3-ubyte.gz",
                _MNIST,
                "f68b3c2dcbeaaa9fbdd348bbdeb94873",
                "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            ),
            _file(
                "train-labels-idx1-ubyte.gz",
                _MNIST,
                "d53e105ee54ea40749a09fcbcd1e9432",
                "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            ),
        ),
        "test": (
            _file(
                "t10k-images-idx3-ubyte.gz",
                _MNIST,
                "9fb629c4189551a2d022fa330f9573f3",
                "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            ),
            _file(
                "t10k-labels-idx1-ubyte.gz",
                _MNIST,
                "ec29112dd5afa0611ce80d1b7f02629c",
                "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
            ),
        ),
    },
    "fashion-mnist": {
        "train": (
            _file(
                "train-images-idx3-ubyte.gz",
                _FASHION,
                "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
                "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            ),
            _file(
                "train-labels-idx1-ubyte.gz",
                _FASHION,
                "25c81989df183df01b3e8a0aad5dffbe",
                "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            ),
        ),
        "test": (
            _file(
                "t10k-images-idx3-ubyte.gz",
                _FASHION,
                "bef4ecab320f06d8554ea6380940ec79",
                "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            ),
            _file(
                "t10k-labels-idx1-ubyte.gz",
                _FASHION,
                "bb300cfdad3c16e7a12a480ee83cd310",
                "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
            ),
        ),
    },
    "cifar10": {"train": (_CIFAR10,), "test": (_CIFAR10,)},
}

# MNIST and Fashion-MNIST use the same file names; the first labels tell one from the other.
FIRST_LABELS: dict[str, dict[str, tuple[int, ...]]] = {
    "mnist": {"train": (5, 0, 4, 1, 9, 2, 1, 3, 1, 4), "test": (7, 2, 1, 0, 4, 1, 4, 9, 5, 9)},
    "fashion-mnist": {"train": (9, 0, 0, 3, 0, 2, 7, 2, 5, 5), "test": (9, 2, 1, 1, 6, 1, 4, 6, 5, 7)},
}
