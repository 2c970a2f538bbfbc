"""Which raw files a command line names: patterns are expanded, standard input becomes a file.

Place in the flow: command line -> [inputs] -> slices -> readers.
"""

from __future__ import annotations

import glob
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from seqpipe.errors import OptionError, SeqpipeError
from seqpipe.publish import temporary_name, writing

STDIN = Path("-")


def expand(raw: Sequence[Path]) -> list[Path]:
    """Return the files named, in the order given; those of a pattern sorted by name.

    A path that exists is itself, whatever its characters. ``*``, ``?``, ``[...]`` and ``**`` are those
    of ``glob``: without a leading dot they leave out hidden files.

    Raises:
        OptionError: a pattern fits no file.
    """
    files: list[Path] = []
    for path in raw:
        if path.exists() or not glob.has_magic(str(path)):
            files.append(path)
            continue
        found = sorted(Path(name) for name in glob.glob(str(path), recursive=True) if not Path(name).is_dir())
        if not found:
            raise OptionError(f"{path}: no file fits this pattern; check the folder and the pattern")
        files += found
    return files


@contextmanager
def raw_files(raw: Sequence[Path], out: Path) -> Iterator[tuple[Path, ...]]:
    """Give the raw files of a command for the time of its run.

    Standard input ("-") is copied to a file beside the output, since an import may read its input twice
    (and tells its format by the first bytes); its name is ``stdin`` in the store and in messages.

    Args:
        raw: as given.
        out: the output of the command; its folder exists.

    Raises:
        OptionError: a pattern fits no file, or standard input is named twice or closed.
    """
    files = expand(raw)
    if STDIN not in files:
        yield tuple(files)
        return
    if files.count(STDIN) > 1:
        raise OptionError("- (standard input) is given twice; it can be read once")
    if sys.stdin is None:
        raise OptionError("- (standard input) is closed; give a file, or a pipe: zcat RAW | seqpipe preprocess - ...")
    with writing(out):
        folder = temporary_name(out)
        folder.mkdir()
        copy = folder / "stdin"
        try:
            with open(copy, "wb") as file:
                shutil.copyfileobj(sys.stdin.buffer, file)
            yield tuple(copy if path == STDIN else path for path in files)
        except SeqpipeError as error:
            path = Path("stdin") if error.path == copy else error.path
            raise type(error)(str(error).replace(str(copy), "stdin"), path=path, line=error.line) from None
        finally:
            shutil.rmtree(folder, ignore_errors=True)
