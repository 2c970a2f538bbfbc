"""Give a file its name only when it is whole: temp file, fsync, rename, fsync of the folder.

A kill at any moment leaves the old file or the new one.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from seqpipe.errors import OptionError, SeqpipeError


def check_output(out: Path, overwrite: bool, inputs: list[Path], *, option: str = "--out") -> None:
    """Refuse an output that exists (unless told to replace it), is an input, or has no folder."""
    if not out.parent.is_dir():
        raise OptionError(f"{option} {out}: the folder {out.parent} does not exist; make it first")
    if out.exists() and any(path.exists() and path.samefile(out) for path in inputs):
        raise OptionError(f"{option} {out}: this is one of the inputs; choose another name")
    if out.is_dir():
        raise OptionError(f"{option} {out}: this is a folder; expected a file name")
    if out.exists() and not out.is_file():
        raise OptionError(f"{option} {out}: this is a device or a pipe; expected a file name")
    if (out.exists() or out.is_symlink()) and not overwrite:
        raise OptionError(f"{option} {out}: the file exists; choose another name, or replace it with --overwrite")
    if not os.access(out.parent, os.W_OK):
        raise OptionError(f"{option} {out}: the folder {out.parent} cannot be written; choose another")


@contextmanager
def published(path: Path, mode: str = "wb", *, overwrite: bool = True, **options: Any) -> Iterator[IO[Any]]:
    """Open a temporary file beside ``path``; it takes the name ``path`` when the block ends well.

    Args:
        path: the file to write.
        mode: ``wb`` or ``w``.
        overwrite: replace what has the name by then.
        options: further arguments of ``open``, such as ``encoding``.

    Raises:
        SeqpipeError: the file cannot be written: a full disk, say.
        OptionError: without ``overwrite``, a file has taken the name meanwhile.
    """
    # Not the process id: two containers that share a folder may have the same.
    temporary = path.with_name(f".{path.name[:40]}.{uuid.uuid4().hex[:12]}.tmp")
    try:
        with open(temporary, mode, **options) as file:
            yield file
        move_into_place(temporary, path, overwrite=overwrite)
    except OSError as error:
        raise SeqpipeError(f"{path}: could not be written ({error.strerror or error}); nothing was changed; free "
                           "some space, or choose another place", path=path) from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def move_into_place(temporary: Path, path: Path, *, overwrite: bool = True) -> None:
    """Rename ``temporary`` to ``path``, in the same folder or file system, durably.

    Raises:
        OptionError: without ``overwrite``, a file has that name: one that came after the first look.
    """
    with open(temporary, "r+b") as file:  # Windows syncs only files open for writing
        os.fsync(file.fileno())
    if overwrite:
        os.replace(temporary, path)
    else:
        try:
            os.link(temporary, path)  # unlike a rename, refuses a name that is taken
        except FileExistsError:
            raise OptionError(f"{path}: the file appeared while its content was made; nothing was changed; choose "
                              "another name, or replace it with --overwrite") from None
        except OSError:  # a file system without hard links
            os.replace(temporary, path)
        else:
            temporary.unlink()
    if os.name == "posix":
        descriptor = os.open(path.parent, os.O_RDONLY)
        try:
            # The file has its name; some network file systems cannot sync a folder.
            with suppress(OSError):
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
