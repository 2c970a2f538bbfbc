"""Give a file its name only when it is whole: lock, temp file, fsync, rename, fsync of the folder.

A kill at any moment leaves the old file or the new one. What a killed writer leaves beside it is
swept by the next writer of the same name, which also is the only one while it lives:

    .NAME.lock                  locked (``flock``) by the live writer of NAME, whose number is in it
    .NAME.0123456789ab.tmp      an unfinished file or folder
    .NAME.parts                 a folder of finished parts; a writer that resumes keeps it

Where there is no ``flock`` (Windows, some network file systems) two writers of one name are not
told from each other: neither is refused, and nothing is swept, since it might belong to a live one.
Nothing mixes there either: each writes files of its own, and the last to finish has the name.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import socket
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from seqpipe.errors import OptionError, SeqpipeError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

FULL = {errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)}
MAX_NAME = 200  # bytes of a name that go into the names beside it; a file system takes 255

_guard = threading.Lock()
_held: dict[Path, list[int]] = {}  # locks of this process: the open file (-1: there is no flock) and how often


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


def temporary_name(out: Path) -> Path:
    """Return a new name beside ``out`` for an unfinished file or folder, which later writers of ``out`` sweep."""
    # Not the process id: two containers that share a folder may have the same.
    return _beside(out, f".{uuid.uuid4().hex[:12]}.tmp")


def parts_folder(out: Path) -> Path:
    """Return the folder beside ``out`` of the finished parts of an import."""
    return _beside(out, ".parts")


@contextmanager
def writing(out: Path, *, resume: bool = False) -> Iterator[None]:
    """Be the only live writer of ``out``, and sweep what dead ones left of it.

    The same process may enter more than once, and from several threads: it is one writer.

    Args:
        out: the file to be written; its folder exists.
        resume: keep the parts that a dead writer finished.

    Raises:
        OptionError: another process is writing ``out``; its number is named where it is known.
        SeqpipeError: the folder cannot be written, or the disk was full inside the block.
    """
    key = out.parent.resolve() / out.name
    with _guard:
        if key in _held:
            _held[key][1] += 1
        else:
            descriptor = _lock(out)
            _held[key] = [descriptor, 1]
            if descriptor >= 0:
                _sweep(out, resume)
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        free = shutil.disk_usage(out.parent).free
        raise SeqpipeError(f"{out}: could not be written ({error.strerror}; {free} bytes are free there); nothing was "
                           "changed; up to twice the size of the output is needed while it is made: free some space, "
                           "or choose another place", path=out) from error
    finally:
        with _guard:
            if key in _held:  # not in a process forked inside the block
                _held[key][1] -= 1
                if not _held[key][1]:
                    _unlock(out, _held.pop(key)[0])


@contextmanager
def working_folder(out: Path) -> Iterator[Path]:
    """Be the only writer of ``out``, with a folder beside it that is gone at the end."""
    with writing(out):
        folder = temporary_name(out)
        try:
            folder.mkdir()
        except OSError as error:
            raise SeqpipeError(f"{out}: no folder can be made beside it ({error}); free some space, or choose another "
                               "place", path=out) from error
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


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
        OptionError: another process is writing it; or without ``overwrite``, a file has taken the name meanwhile.
    """
    with writing(path):
        temporary = temporary_name(path)
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


def _beside(out: Path, ending: str) -> Path:
    return out.with_name(f".{_stem(out.name)}{ending}")


def _stem(name: str) -> str:
    """Return the name, or what stands for it where it is too long for something to be added to it."""
    raw = os.fsencode(name)
    return name if len(raw) <= MAX_NAME else f"{name[:30]}.{hashlib.sha256(raw).hexdigest()[:16]}"


def _lock(out: Path) -> int:
    """Return an open file whose lock is ours until it is closed; -1 where files cannot be locked."""
    if fcntl is None:
        return -1
    path = _beside(out, ".lock")
    while True:
        try:
            # Not through a link: what it leads to would be emptied.
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        except OSError as error:
            raise SeqpipeError(f"{out}: no file can be made beside it ({error}); choose another place",
                               path=out) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(descriptor, 300).decode(errors="replace")
            os.close(descriptor)
            raise OptionError(f"{out}: {holder or 'another process'} is writing this file; wait for it, or choose "
                              "another name") from None
        except OSError:
            os.close(descriptor)
            return -1
        with suppress(OSError):
            found = os.stat(path)
            mine = os.fstat(descriptor)
            if (found.st_dev, found.st_ino) == (mine.st_dev, mine.st_ino):
                break
        os.close(descriptor)  # its writer ended between our open and our lock, and took the name away
    with suppress(OSError):  # on a full disk the number stays unknown
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode())
    return descriptor


def _unlock(out: Path, descriptor: int) -> None:
    if descriptor >= 0:
        with suppress(OSError):
            _beside(out, ".lock").unlink()  # before the lock is let go: whoever waits looks at the name again
        os.close(descriptor)


def _sweep(out: Path, resume: bool) -> None:
    """Remove what dead writers of ``out`` left; the lock says that no writer of it lives."""
    unfinished = re.compile(re.escape(f".{_stem(out.name)}") + r"\.[0-9a-f]{12}\.tmp")
    left = [Path(entry) for entry in os.scandir(out.parent) if unfinished.fullmatch(entry.name)]
    for path in left if resume else [*left, parts_folder(out)]:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with suppress(OSError):
                path.unlink(missing_ok=True)


def _forget() -> None:
    """In a forked child: the locks are the parent's, and must end with it however long the child lives."""
    global _guard
    _guard = threading.Lock()
    for descriptor, _ in _held.values():
        if descriptor >= 0:
            os.close(descriptor)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
