"""HDF5 files that people already have: their three shapes, and what is refused."""

from __future__ import annotations

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seqpipe.errors import RawFormatError
from tests.raw_files import FIXTURE_OK, plain, read

FLOATS = h5py.vlen_dtype(np.float32)
BYTES = h5py.vlen_dtype(np.uint8)


def made(tmp_path, fill):
    """Return a new file that ``fill`` has written."""
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        fill(file)
    return path


def datasets(**values):
    """Return what writes these datasets."""
    def fill(file):
        for name, value in values.items():
            file[name] = value
    return fill


SEQUENCES = st.lists(st.lists(st.integers(0, 255), min_size=1, max_size=5), min_size=2, max_size=6)


@settings(FIXTURE_OK, max_examples=40)
@given(SEQUENCES, st.booleans(), st.sampled_from(["group", "vlen", "padded"]))
def test_sequences_of_every_shape_come_back(tmp_path, sequences, floats, how):
    """One dataset per sequence, variable length or padded: integers are tokens, floats are features."""
    dtype = "f8" if floats else "i4"

    def fill(file):
        if how == "group":
            for number, sequence in enumerate(sequences):
                file.create_dataset(f"reads/r{number}", data=np.array(sequence, dtype)).attrs["label"] = number
            return
        file["name"], file["label"] = [f"r{number}" for number in range(len(sequences))], np.arange(len(sequences))
        if how == "vlen":
            data = file.create_dataset("x", (len(sequences),), h5py.vlen_dtype(np.dtype(dtype)))
            for number, sequence in enumerate(sequences):
                data[number] = np.array(sequence, dtype)
        else:
            padded = np.full((len(sequences), 7), -1, dtype)
            for row, sequence in zip(padded, sequences, strict=True):
                row[: len(sequence)] = sequence
            file.create_dataset("x", data=padded, compression="gzip")
            file["lengths"] = [len(sequence) for sequence in sequences]

    expected = [[[value] for value in sequence] for sequence in sequences] if floats else sequences
    assert [plain(record) for record in read(made(tmp_path, fill))] == [
        (f"r{number}", sequence, {"label": str(number)}) for number, sequence in enumerate(expected)]


def test_texts_and_channels_come_back(tmp_path):
    """A dataset of texts, one text a dataset, and padded rows of channels."""
    path = made(tmp_path, datasets(seq=["ACGT", "GGé"], q=[1, 2]))
    assert [plain(record) for record in read(path)] == [(None, "ACGT", {"q": "1"}), (None, "GGé", {"q": "2"})]
    assert [plain(record) for record in read(made(tmp_path, datasets(a="AC")))] == [("a", "AC", {})]
    values = np.arange(12.0).reshape(2, 3, 2)
    values[1, 2] = 0
    path = made(tmp_path, datasets(x=values, Lengths=[3, 2]))
    assert [plain(record)[1] for record in read(path)] == [values[0].tolist(), values[1, :2].tolist()]


def test_several_candidates_need_a_name(tmp_path):
    """The message lists them; --sequence-column takes one, by its path."""
    def fill(file):
        for name in ("a/x", "b/x"):
            file.create_dataset(name, (1,), BYTES)[0] = np.array([1, 2 if name[0] == "a" else 3], "u1")

    path = made(tmp_path, fill)
    with pytest.raises(RawFormatError, match=r"cannot be told; there are sequences at ./a/x. .variable length., ./b/x"):
        read(path)
    assert plain(read(path, sequence="/b/x")[0])[1] == [1, 3] and plain(read(path, sequence="a/x")[0])[1] == [1, 2]
    with pytest.raises(RawFormatError, match="there are no sequences at 'c'; .*--sequence-column"):
        read(path, sequence="c")


def external(file):
    file.create_dataset("x/a", (4,), "u1", external=[("/etc/passwd", 0, 4)])


def virtual(file):
    layout = h5py.VirtualLayout((4,), "u1")
    layout[:] = h5py.VirtualSource("/etc/passwd", "x", (4,))
    file.create_virtual_dataset("a", layout)


REFUSED = {
    "soft link": (lambda file: file.__setitem__("a", h5py.SoftLink("/b")), "/a: is a link to another place"),
    "external link": (lambda file: file.__setitem__("a", h5py.ExternalLink("y.h5", "/b")), "/a: is a link to another"),
    "external data": (external, "/x/a: keeps its data in another file"),
    "virtual data": (virtual, "/a: keeps its data in another file"),
    "a group in itself": (lambda file: file.create_group("g").__setitem__("h", file["g"]), "/g/h: is a group that"),
    "a size that is not there": (lambda file: file.create_dataset("a", (10**12,), "u1", chunks=(1024,)),
                                 "/a: claims 1,000,000,000,000 bytes, and 0 are stored"),
    "nothing": (lambda file: None, "expected a group of one dataset per sequence, a variable-length dataset"),
    "a negative length": (datasets(x=[[1, 2]], lengths=[-1]), r"/x\[0\]: its length is -1; expected 0 <= length <= 2"),
    "a large length": (datasets(x=[[1, 2], [1, 2]], lengths=[2, 3]), r"/x\[1\]: its length is 3"),
    "data behind the length": (
        datasets(x=[[1, 2, 3]], lengths=[1]), r"/x\[0\]: holds different values behind its length, 1"),
    "a number that is not finite": (
        datasets(x=[[1.5, np.nan]], lengths=[2]), r"/x\[0\]: number nan at step 1, channel 0"),
    "a large integer": (
        datasets(x=np.array([[2**63]], "u8"), lengths=[1]), r"/x\[0\]: integer 9223372036854775808 is out of"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_safe_or_not_whole_is_refused(tmp_path, name):
    """Path inside the file and index are named; no other file is opened."""
    fill, message = REFUSED[name]
    with pytest.raises(RawFormatError, match=message) as caught:
        read(made(tmp_path, fill))
    assert str(caught.value).startswith(f"{tmp_path / 'x.h5'}: ") and caught.value.line is None


def test_a_file_cut_at_every_byte_is_an_error(tmp_path):
    """HDF5 finds most cuts itself; none gives fewer records."""
    path = made(tmp_path, datasets(x=[[1, 2], [3, 4]], lengths=[2, 1]))
    content = path.read_bytes()
    assert len(read(path)) == 2
    for size in range(0, len(content), 7):
        path.write_bytes(content[:size])
        with pytest.raises(RawFormatError):
            read(path, "h5")
