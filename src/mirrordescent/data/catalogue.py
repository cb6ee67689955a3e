"""The datasets this project can read: their files, checksums, terms and origin."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DataFile:
    """One file of a dataset.

    ``checksum`` is "algorithm:hex digits": SHA-256, except where only an MD5 sum was published. ``size`` counts bytes
    and is None where that was not published.
    """

    path: str
    size: int | None
    checksum: str
    url: str | None = None


@dataclass(frozen=True)
class Dataset:
    """A dataset: ``name`` is also its folder, ``source`` says where to get it."""

    name: str
    title: str
    files: tuple[DataFile, ...]
    terms: str
    citation: str
    source: str


_HASH = {64: "sha256", 32: "md5"}  # by the number of hex digits


def _files(*entries: tuple[str, int | None, str], base: str | None = None) -> tuple[DataFile, ...]:
    """Return files by path, size and checksum, with the address below ``base`` if they can be fetched from there."""
    return tuple(
        DataFile(path, size, f"{_HASH[len(digest)]}:{digest}", base and base + path) for path, size, digest in entries
    )


MNIST = Dataset(
    name="mnist",
    title="MNIST handwritten digits: 60000 training and 10000 test images, 28×28",
    files=_files(
        ("train-images-idx3-ubyte.gz", 9912422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
        ("train-labels-idx1-ubyte.gz", 28881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
        ("t10k-images-idx3-ubyte.gz", 1648877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
        ("t10k-labels-idx1-ubyte.gz", 4542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
        base="https://ossci-datasets.s3.amazonaws.com/mnist/",
    ),
    terms="Creative Commons Attribution-Share Alike 3.0, as commonly stated",
    citation="LeCun, Bottou, Bengio, Haffner. Gradient-based learning applied to document recognition. "
    "Proceedings of the IEEE 86 (1998) 2278-2324.",
    source="https://ossci-datasets.s3.amazonaws.com/mnist/ or https://storage.googleapis.com/cvdf-datasets/mnist/",
)

FASHION_MNIST = Dataset(
    name="fashion-mnist",
    title="Fashion-MNIST articles of clothing: 60000 training and 10000 test images, 28×28",
    files=_files(
        ("train-images-idx3-ubyte.gz", 26421880, "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"),
        ("train-labels-idx1-ubyte.gz", 29515, "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"),
        ("t10k-images-idx3-ubyte.gz", 4422102, "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"),
        ("t10k-labels-idx1-ubyte.gz", 5148, "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"),
        base="http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    ),
    terms="MIT, copyright 2017 Zalando SE",
    citation="Xiao, Rasul, Vollgraf. Fashion-MNIST: a novel image dataset for benchmarking machine learning "
    "algorithms. arXiv:1708.07747 (2017).",
    source="https://github.com/zalandoresearch/fashion-mnist",
)

OMNIGLOT = Dataset(
    name="omniglot",
    title="Omniglot: 1623 characters of 50 alphabets, 20 drawings each, 105×105",
    files=_files(
        ("images_background.npz", 3340794, "8bf84167413cd00beacdce3fe582f780ab538d8dbef043a6d688f2527bbce199"),
        ("images_evaluation.npz", 2415269, "0b84c7ffd94c4841c0040e529c86a82eaaccb986d8eadad5673f7991b7475276"),
    )
    + _files(
        ("images_background.zip", None, "68d2efa1b9178cc56df9314c21c6e718"),
        ("images_evaluation.zip", None, "6b91aef0f799c5bb55b94e3f2daec811"),
        base="https://raw.githubusercontent.com/brendenlake/omniglot/master/python/",
    ),
    terms="MIT, copyright 2015 Brenden Lake",
    citation="Lake, Salakhutdinov, Tenenbaum. Human-level concept learning through probabilistic program "
    "induction. Science 350 (2015) 1332-1338.",
    source="https://github.com/brendenlake/omniglot (folder python; the two .zip files are enough), "
    "or packed as .npz in https://github.com/bitsandscraps/omniglot",
)

STL10 = Dataset(
    name="stl10",
    title="STL-10 photographs, 96×96: 5000 training, 8000 test, 100000 unlabelled; or 196 of the latter",
    files=_files(("stl10_subset.zip", 3636383, "8ca1f6ef49d33c3a208f384acde0c12c184d13a432c5e440d997de954d999be8"))
    + _files(
        ("stl10_binary.tar.gz", 2640397119, "91f7769df0f17e558f3565bffb0c7dfb"),
        base="http://ai.stanford.edu/~acoates/stl10/",
    )
    + _files(
        ("stl10_binary/train_X.bin", 5000 * 27648, "918c2871b30a85fa023e0c44e0bee87f"),
        ("stl10_binary/test_X.bin", 8000 * 27648, "7f263ba9f9e0b06b93213547f721ac82"),
        ("stl10_binary/unlabeled_X.bin", 100000 * 27648, "5242ba1fed5e4be9e1e742405eb56ca4"),
    ),
    terms="no licence stated; the images, drawn from ImageNet, are their photographers': research use only",
    citation="Coates, Lee, Ng. An analysis of single-layer networks in unsupervised feature learning. AISTATS (2011).",
    source="http://ai.stanford.edu/~acoates/stl10/stl10_binary.tar.gz (2.6 GB, fetched only when asked "
    'for by mirrordescent.data.require("stl10", "stl10_binary.tar.gz")), read packed or unpacked; '
    "any zip or folder of photographs serves as well: see mirrordescent.data.photographs",
)

BSDS500 = Dataset(
    name="bsds500",
    title="BSDS500 photographs, 481×321 or 321×481: 200 training, 100 validation, 100 of the test images",
    files=_files(
        ("BSDS500_images.zip", 29629559, "885202e5c043cc2d89ae2d32bbb8d22e964f0e65f361c892a6748cf63700b1c9"),
        ("cbsd68.txt", 1011, "642da3832c5c4412f191263251f542fddd2109978207e8b7ea119b7288303888"),
    ),
    terms="non-commercial research and educational purposes only",
    citation="Arbelaez, Maire, Fowlkes, Malik. Contour detection and hierarchical image segmentation. "
    "IEEE TPAMI 33 (2011) 898-916.",
    source="https://github.com/BIDS/BSDS500, or BSR_bsds500.tgz of UC Berkeley's Computer Vision Group, "
    "which is read as it is when it lies in the same folder",
)

DATASETS = {dataset.name: dataset for dataset in (MNIST, FASHION_MNIST, OMNIGLOT, STL10, BSDS500)}
