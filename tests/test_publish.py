"""Publishing: one live writer of a name, whole files only, and what killed writers leave is swept."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from seqpipe.errors import OptionError, SeqpipeError
from seqpipe.ingest import preprocess
from seqpipe.options import PreprocessOptions
from seqpipe.publish import parts_folder, published, temporary_name, working_folder, writing

needs_locks = pytest.mark.skipif(sys.platform == "win32", reason="files are not locked here")

HOLD = """
import sys, time
from pathlib import Path
from seqpipe.publish import parts_folder, temporary_name, writing
out = Path(sys.argv[1])
with writing(out):
    temporary_name(out).write_bytes(b"half")
    folder = temporary_name(out)
    folder.mkdir()
    (folder / "inside").write_bytes(b"half")
    parts_folder(out).mkdir()
    (parts_folder(out) / "part").write_bytes(b"whole")
    print("ready", flush=True)
    time.sleep(600)
"""


@contextmanager
def writer_of(out: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run another process that writes ``out``, with unfinished files, until it is killed."""
    with subprocess.Popen([sys.executable, "-c", HOLD, str(out)], stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None and child.stdout.readline() == b"ready\n"
            yield child
        finally:
            child.kill()


def kill_writer_of(out: Path) -> None:
    """Leave behind what a writer of ``out`` leaves that is killed."""
    with writer_of(out) as child:
        child.send_signal(signal.SIGKILL)
        child.wait()


@needs_locks
def test_a_second_live_writer_is_refused_and_told_who_the_first_is(tmp_path: Path) -> None:
    """By number; whatever the path is spelled like, and none of the first one's files are touched."""
    out, raw = tmp_path / "a.h5", tmp_path / "a.fasta"
    raw.write_text(">a\nACGT\n")
    with writer_of(out) as child:
        before = sorted(tmp_path.rglob("*"))
        for spelling in (out, tmp_path / ".." / tmp_path.name / "a.h5"):
            with pytest.raises(OptionError, match=rf"a\.h5: process {child.pid} on .* is writing this file; wait"):
                preprocess(PreprocessOptions(raw=(raw,), out=spelling))
            with pytest.raises(OptionError, match=f"process {child.pid}"), published(spelling):
                pass
        assert sorted(tmp_path.rglob("*")) == before


@needs_locks
@pytest.mark.parametrize("name", ["a.h5", "x" * 250, "é" * 120, "a[0-9].h5"])
def test_what_a_killed_writer_leaves_is_swept_by_the_next_writer(tmp_path: Path, name: str) -> None:
    """Files, folders, parts and the lock; names too long to be added to, and such as a pattern, among them."""
    out = tmp_path / name
    kill_writer_of(out)
    assert len(list(tmp_path.iterdir())) == 4
    with writing(out):
        assert [path.suffix for path in tmp_path.iterdir()] == [".lock"]
    assert list(tmp_path.iterdir()) == []


@needs_locks
def test_a_writer_that_resumes_keeps_the_parts(tmp_path: Path) -> None:
    """Only the unfinished files go."""
    out = tmp_path / "a.h5"
    kill_writer_of(out)
    with writing(out, resume=True):
        pass
    assert list(tmp_path.rglob("*")) == [parts_folder(out), parts_folder(out) / "part"]


@needs_locks
def test_an_import_sweeps_what_a_killed_import_left(tmp_path: Path) -> None:
    """The store is alone in its folder."""
    out, raw = tmp_path / "out" / "a.h5", tmp_path / "a.fasta"
    out.parent.mkdir()
    raw.write_text(">a\nACGT\n")
    kill_writer_of(out)
    preprocess(PreprocessOptions(raw=(raw,), out=out))
    assert list(out.parent.iterdir()) == [out]


def test_files_of_other_outputs_are_never_swept(tmp_path: Path) -> None:
    """Neither those of a longer or shorter name, nor such as only look alike, nor what a link points to."""
    out = tmp_path / "a.h5"
    kept = [temporary_name(tmp_path / name) for name in ("a", "a.h5.h5", "b.h5", "a.h5.tmp", "A.h5")]
    kept += [tmp_path / name for name in (".a.h5.tmp", ".a.h5.0123456789ab.tmp.txt", "a.h5.0123456789ab.tmp")]
    precious = tmp_path / "precious" / "file"
    for path in [*kept, precious]:
        path.parent.mkdir(exist_ok=True)
        path.write_text("precious")
    for name in (temporary_name(out), parts_folder(out)):
        name.symlink_to(precious.parent)
    with writing(out):
        pass
    assert all(path.exists() for path in [*kept, precious])
    if sys.platform != "win32":
        assert sorted(tmp_path.iterdir()) == sorted([*kept, precious.parent])


def test_a_writer_may_enter_again(tmp_path: Path) -> None:
    """It is the same writer until it has left as often; it sweeps none of its own files."""
    out = tmp_path / "a.bin"
    with working_folder(out) as folder, published(out) as file:
        file.write(b"new")
        with published(out) as inner:
            inner.write(b"inner")
        assert folder.is_dir() and out.read_bytes() == b"inner"
    assert out.read_bytes() == b"new" and list(tmp_path.iterdir()) == [out]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked here")
@needs_locks
def test_a_link_in_the_place_of_the_lock_is_not_followed(tmp_path: Path) -> None:
    """Whoever may write into a folder could have a writer empty any file of its own."""
    precious = tmp_path / "precious"
    precious.write_text("precious")
    (tmp_path / ".a.h5.lock").symlink_to(precious)
    with pytest.raises(SeqpipeError, match="no file can be made beside it"), writing(tmp_path / "a.h5"):
        pass
    assert precious.read_text() == "precious"


@needs_locks
def test_a_lock_ends_with_the_process_that_took_it(tmp_path: Path) -> None:
    """A child that outlives a killed parent, as a worker may, holds nothing."""
    out = tmp_path / "a.h5"
    code = HOLD.replace('print("ready"', 'import os\n    if not os.fork():\n        time.sleep(600)\n    print("ready"')
    with subprocess.Popen([sys.executable, "-c", code, str(out)], stdout=subprocess.PIPE, process_group=0) as child:
        try:
            assert child.stdout is not None and child.stdout.readline() == b"ready\n"
            child.kill()
            child.wait()
            with writing(out):
                pass
            assert list(tmp_path.iterdir()) == []
        finally:
            os.killpg(child.pid, signal.SIGKILL)


def test_a_folder_that_is_gone_is_told(tmp_path: Path) -> None:
    """By writing and by what enters it."""
    for enter in (writing, working_folder, published):
        with pytest.raises(SeqpipeError, match=r"a\.h5: "), enter(tmp_path / "gone" / "a.h5"):
            pass


def test_an_exception_while_publishing_leaves_the_old_file(tmp_path: Path) -> None:
    """The old content stays, and no temporary file."""
    path = tmp_path / "a.txt"
    path.write_text("old")
    for error in (ValueError, KeyboardInterrupt):
        with pytest.raises(error), published(path, "w", encoding="utf-8") as file:
            file.write("new")
            raise error
        assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_a_published_file_has_its_name_only_at_the_end(tmp_path: Path) -> None:
    """Inside the block the old file is there; after it the new one."""
    path = tmp_path / "a.bin"
    path.write_bytes(b"old")
    with published(path) as file:
        file.write(b"new")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new" and list(tmp_path.iterdir()) == [path]


def test_two_threads_that_write_one_name_do_not_mix(tmp_path: Path) -> None:
    """The file is what one of them wrote, whole."""
    path = tmp_path / "a.bin"

    def write(number: int) -> None:
        with published(path) as file:
            for _ in range(20):
                file.write(bytes([number]) * 10_000)
                file.flush()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(8)))
    content = path.read_bytes()
    assert len(content) == 200_000 and len(set(content)) == 1 and list(tmp_path.iterdir()) == [path]
