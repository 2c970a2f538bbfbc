"""What all tests share: the data, small stores made of them, and one torch thread."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from seqpipe.ingest import preprocess
from seqpipe.options import PreprocessOptions

CSV = """id,sequence,label,part,mass,note
a,ACGT,x,train,1.5,first
b,AC,y,train,2,é ☃
c,GGT,x,test,3,
d,T,y,test,4.25,last
"""
ROOT = Path(__file__).parents[1]
DATA = ROOT / "data"
SHARED = ROOT.parent / "shared" / "data"


@pytest.fixture(scope="session", autouse=True)
def one_torch_thread() -> None:
    """Small tensors gain nothing from more threads, and lose much where the cores are busy."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of data sets that may not be put into the repository; skip where it is absent."""
    if not SHARED.is_dir():
        pytest.skip("the data sets whose licences keep them out of the repository are not here")
    return SHARED


@pytest.fixture(scope="session")
def amp_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """4,620 peptides: tokens, two classes, train, valid and test."""
    out = tmp_path_factory.mktemp("amp") / "amp.h5"
    preprocess(PreprocessOptions(raw=(DATA / "amp" / "amp.fasta",), labels=DATA / "amp" / "labels.tsv",
                                 split="column:split", out=out))
    return out


@pytest.fixture(scope="session")
def vowels_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """640 utterances of 12 channels: features, nine classes, train and test."""
    out = tmp_path_factory.mktemp("vowels") / "vowels.h5"
    preprocess(PreprocessOptions(raw=tuple(sorted((DATA / "vowels").glob("*.ts"))), split="file", out=out))
    return out


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four sequences with classes, splits, numbers and texts: a store of a few KB."""
    folder = tmp_path_factory.mktemp("small")
    (folder / "a.csv").write_text(CSV, encoding="utf-8")
    preprocess(PreprocessOptions(raw=(folder / "a.csv",), split="column:part", out=folder / "a.h5"))
    return folder / "a.h5"


@pytest.fixture(scope="session")
def odd_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """101 sequences of 1 to 59 bases; class b has 7 of them; the column heavy is 1 for the rows 0 to 9, else 0."""
    folder = tmp_path_factory.mktemp("odd")
    rng = np.random.default_rng(1)
    lines = [f"s{i},{''.join(rng.choice(list('ACGT'), n))},{'b' if i % 14 == 3 else 'a'},{int(i < 10)}"
             for i, n in enumerate(np.random.default_rng(7).integers(1, 60, 101).tolist())]
    (folder / "odd.csv").write_text("\n".join(["id,sequence,label,heavy", *lines, ""]))
    preprocess(PreprocessOptions(raw=(folder / "odd.csv",), out=folder / "odd.h5", split="none", alphabet="dna"))
    return folder / "odd.h5"


@pytest.fixture
def copy(small: Path, tmp_path: Path) -> Path:
    """A copy of the small store, to be spoiled."""
    return Path(shutil.copy(small, tmp_path / "copy.h5"))


@pytest.fixture
def make_store(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes a raw text file and imports it: ``make_store("a.fasta", ">x\\nACGT\\n")``."""

    def make(name: str, content: str, **options: object) -> Path:
        raw = tmp_path / name
        raw.write_text(content, encoding="utf-8", newline="")
        out = tmp_path / (Path(name).stem + ".h5")
        chosen = {"split": "none", "overwrite": True, **options}
        preprocess(PreprocessOptions(raw=(raw,), out=out, **chosen))  # type: ignore[arg-type]
        return out

    return make
