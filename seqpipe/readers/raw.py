"""Open a raw file and cut its text into lines that messages can name.

Place in the flow: file on disk -> compressed -> [raw] -> a format's reader -> Record.

Nothing is guessed and nothing is left out: bytes that are not text in the encoding, NUL,
compressed data that are cut or damaged, and bytes behind compressed data are errors.
Memory holds one line and small buffers, whatever the size of the file.
"""

from __future__ import annotations

import codecs
import copy
import importlib.util
import io
import math
import os
import re
import stat
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from seqpipe.errors import OptionError, RawFormatError
from seqpipe.readers.compressed import (
    DAMAGE,
    MAGIC_BYTES,
    READ,
    SHORTEST,
    SUFFIXES,
    decompressed,
    find_compression,
)

HEAD_BYTES = 1 << 16
BLOCK_BYTES = 1 << 16
_MARKS = (  # the longer first: the mark of UTF-32 starts with that of UTF-16
    ("UTF-32", codecs.BOM_UTF32_LE),
    ("UTF-32", codecs.BOM_UTF32_BE),
    ("UTF-16", codecs.BOM_UTF16_LE),
    ("UTF-16", codecs.BOM_UTF16_BE),
    ("UTF-8", codecs.BOM_UTF8),
)
_LINE_END = re.compile(r"(\r\n|\r|\n)")
_ESCAPES = re.compile("[\udc80-\udcff]")
BLANK = "blank lines skipped"
MARKED = "lines that start with a byte-order mark, kept as text (were files put end to end?)"
REPLACED = "undecodable bytes replaced by U+FFFD"


def brief(value: object, limit: int = 60) -> str:
    """Return ``repr(value)``, cut to ``limit`` characters, for a message."""
    text = repr(value[: limit + 1] if isinstance(value, str) else value)
    return text if len(text) <= limit else text[:limit] + "..."


class RawFile:
    """An open raw file. Use it in a ``with`` statement: it holds a file handle.

    gzip, bzip2, xz and zstd (of many members too) are told by content, not by name. A byte-order mark at the
    start is dropped; one that starts a later line is text of that line, and counted.

    Args:
        path: a regular file.
        encoding: how the text is decoded, a name Python knows.
        start, end: only these bytes of an uncompressed file, ``start <= byte < end``; None is its end.
        line: how many lines stand before ``start``.
        replace: read undecodable bytes as U+FFFD instead of refusing them.

    Attributes:
        path, encoding: as given.
        compression: "gzip", "bzip2", "xz", "zstd", or None.
        counts: what was left out or changed by choice, by its name in the summary.
        size: bytes on disk.
        line: 1-based number of the line that ``lines`` yielded last; before the first, as given.

    Raises:
        RawFormatError: the file cannot be opened, or is of a kind that is not read.
        OptionError: ``encoding`` is unknown.
    """

    def __init__(self, path: str | os.PathLike[str], encoding: str = "utf-8", *, start: int = 0,
                 end: int | None = None, line: int = 0, replace: bool = False) -> None:
        self.path = Path(path)
        self.encoding = encoding
        self.counts: Counter[str] = Counter()
        self.line = line
        self._replace = replace
        self._start = start
        self._left: float = math.inf if end is None else end - start  # bytes of the text not read yet
        self._file = self._open()
        try:
            self.size = os.fstat(self._file.fileno()).st_size
            self.compression = self._tell_compression(self._file.read(MAGIC_BYTES))
            self._head = self._read_head()
            self._decoder = self._new_decoder()
            self._file.seek(start)
            self._stream = decompressed(self._file, self.compression)
        except OSError as error:
            self._file.close()
            raise self.error(f"cannot be read ({error})") from error
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> RawFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file. May be called again."""
        self._stream.close()
        self._file.close()

    def head(self) -> bytes:
        """Return the first decompressed bytes, at most 64 KiB, without consuming them.

        Compressed data that are cut within them give what comes before the cut.
        """
        return self._head

    def bytes_read(self) -> int:
        """Return how many bytes of the file on disk were read: at most ``size``."""
        return (self.size if self._file.closed else self._file.tell()) - self._start

    def error(self, message: str, line: int | None = None) -> RawFormatError:
        """Return the error that names the file, and ``line`` or else the current one."""
        at = line or self.line or None
        place = f"{self.path}:{at}" if at else f"{self.path}"
        return RawFormatError(f"{place}: {message}", path=self.path, line=at)

    def read(self, count: int) -> bytes:
        """Return the next decompressed bytes, at most ``count``; none at the end. Damage is raised as it comes."""
        data = self._stream.read1(int(min(count, self._left)))
        self._left -= len(data)
        return data

    def over(self, data: bytes, *, at_start: bool, rest: bool = False, damage: Exception | None = None) -> RawFile:
        """Return this file, at the same line, with bytes that were read before for its text.

        Args:
            data: the bytes.
            at_start: whether they are the first of the text, where a byte-order mark may stand.
            rest: whether the bytes not read yet follow.
            damage: what is raised behind the bytes.
        """
        again = copy.copy(self)
        again._left = self._left + len(data) if rest else math.inf
        again._stream = _Again(data, self._stream if rest else None, damage)  # type: ignore[assignment]
        if not at_start:
            errors = "seqpipe.escape" if self._replace else "surrogateescape"
            again._decoder = codecs.getincrementaldecoder(self.encoding)(errors)
        return again

    def lines(self, keep_ends: bool = False) -> Iterator[str]:
        """Yield each line of the text. A line ends with LF, CRLF or CR, and nothing else.

        Args:
            keep_ends: leave the line end on.

        Raises:
            RawFormatError: the line is no text, or the compressed data are damaged.
        """
        begun: list[str] = []  # the pieces of a line whose end was not read yet
        suspect = False  # from the first block on that holds what no line may hold
        for text in self._blocks(translate=not keep_ends):
            suspect = suspect or "\0" in text or "\ufeff" in text or _has_escapes(text)
            lines = _cut(text) if keep_ends else text.split("\n")
            if len(lines) > 1:
                lines[0] = "".join(begun) + lines[0]
                begun.clear()
            begun.append(lines.pop())
            for line in lines:
                self.line += 1
                if suspect:
                    self._check(line)
                yield line
        if last := "".join(begun):
            self.line += 1
            if suspect:
                self._check(last)
            yield last

    def _blocks(self, translate: bool) -> Iterator[str]:
        """Yield the decoded text in blocks that never part a CRLF; bad bytes come as escapes.

        Args:
            translate: write every line end as LF.
        """
        decoder = io.IncrementalNewlineDecoder(self._decoder, translate)
        data = b" "
        try:
            while data:
                data = self.read(BLOCK_BYTES)
                if text := decoder.decode(data, final=not data):
                    yield self._replaced(text) if self._replace and _has_escapes(text) else text
        except UnicodeDecodeError as error:
            # Some encodings cannot escape every byte. Those before it in the block are in order.
            before = error.object[: error.start].decode(self.encoding, "replace")
            self.line += 1 + len(_LINE_END.findall(before))
            raise self._undecodable(error.object[error.start]) from error
        except UnicodeError as error:
            raise self.error(f"is not {self.encoding} ({error}); correct --encoding") from error
        except DAMAGE as error:
            at = self.line + 1
            if self.compression is None:
                raise self.error(f"cannot be read on from here ({error})", at) from error
            raise self.error(
                f"the {self.compression} data are cut or damaged near this line ({error}); get or "
                "compress the file again",
                at,
            ) from error

    def _replaced(self, text: str) -> str:
        text, count = _ESCAPES.subn("\ufffd", text)
        self.counts[REPLACED] += count
        return text

    def _open(self) -> io.FileIO:
        """Open the path unbuffered, if it is a regular file."""
        try:
            mode = os.stat(self.path).st_mode
            if stat.S_ISDIR(mode):
                raise self.error("is a directory; name the files in it, or a pattern in quotes: 'folder/*'")
            if not stat.S_ISREG(mode):
                kind = "a named pipe (FIFO)" if stat.S_ISFIFO(mode) else "a device or a socket"
                raise self.error(f"is {kind}, not a regular file; write its data to a file first")
            return open(self.path, "rb", buffering=0)
        except FileNotFoundError as error:
            raise self.error("no such file; check the path") from error
        except PermissionError as error:
            raise self.error("permission denied; make the file readable (chmod u+r)") from error
        except OSError as error:
            raise self.error(f"cannot be opened ({error.strerror or error})") from error

    def _tell_compression(self, start: bytes) -> str | None:
        """Return the compression that the first bytes show, or None."""
        compression = find_compression(start)
        if compression == "zstd" and importlib.util.find_spec("zstandard") is None:
            raise self.error(
                "is compressed with zstd, which needs the package zstandard; install it with "
                "pip install 'torch-seqpipe[zstd]', or decompress the file first"
            )
        if compression in READ:
            return compression
        if compression:
            raise self.error(
                f"is compressed with {compression}, which is not read; decompress it first, or "
                "compress it with gzip, bzip2, xz or zstd"
            )
        by_name = SUFFIXES.get(self.path.suffix.lower())
        if by_name and self.size < SHORTEST:
            raise self.error(
                f"has {self.size} bytes, too few for the {by_name} file its name promises (it may "
                "be empty or cut); get it again, or rename it if it is plain text"
            )
        return None

    def _read_head(self) -> bytes:
        """Read the first decompressed bytes through a handle of its own."""
        head = b""
        with open(self.path, "rb", buffering=0) as file:
            with decompressed(file, self.compression) as stream:
                try:
                    while len(head) < HEAD_BYTES and (piece := stream.read1(HEAD_BYTES - len(head))):
                        head += piece
                except DAMAGE:
                    pass  # ``lines`` comes to the same place, and can name its line
        return head

    def _new_decoder(self) -> codecs.IncrementalDecoder:
        """Return the decoder of the encoding, after a look at the byte-order mark, if any."""
        try:
            # surrogateescape keeps undecodable bytes in their line, where ``lines`` finds them.
            "".encode(self.encoding)  # refuses the codecs that are not for text
            b"a".decode(self.encoding, "replace")  # refuses those that cannot go on behind a bad byte
            errors = "surrogateescape"
            if self._replace:
                errors = "seqpipe.escape"  # some encodings have bytes that surrogateescape does not take
                codecs.register_error(errors, _escape)
            decoder = codecs.getincrementaldecoder(self.encoding)(errors)
            codec = codecs.lookup(self.encoding).name
        except (LookupError, UnicodeError) as error:
            raise OptionError(
                f"--encoding {self.encoding!r}: {error}; take utf-8, latin-1, cp1252, shift_jis or "
                "another name that Python knows"
            ) from error
        for name, mark in _MARKS:
            if not self._head.startswith(mark):
                continue
            if not codec.startswith(name.lower()):
                raise self.error(
                    f"starts with the byte-order mark of {name}, and --encoding is "
                    f"{self.encoding!r}; convert the file to UTF-8, or take --encoding {name.lower()}",
                    1,
                )
            marked = "utf-8-sig" if name == "UTF-8" else name  # these drop the mark
            if self._start:
                return decoder
            return codecs.getincrementaldecoder(marked)(errors)
        return decoder

    def _check(self, line: str) -> None:
        """Raise the error of a line that holds NUL or undecodable bytes; count one that starts with a mark."""
        if "\0" in line:
            raise self.error(
                f"a NUL character at column {line.index(chr(0)) + 1}; a text file has none: the file "
                "is damaged, binary, or in UTF-16 (then convert it to UTF-8)"
            )
        try:
            line.encode()
        except UnicodeEncodeError as error:
            raise self._undecodable(ord(line[error.start]) & 0xFF, error.start) from error
        if line.startswith("\ufeff"):
            self.counts[MARKED] += 1

    def _undecodable(self, byte: int, column: int | None = None) -> RawFormatError:
        where = "" if column is None else f" at column {column + 1}"
        return self.error(
            f"byte 0x{byte:02x}{where} is not {self.encoding}; convert the file to UTF-8, name its "
            "encoding with --encoding (for example --encoding latin-1), or count and replace such "
            "bytes with --on-undecodable replace"
        )


def _escape(error: UnicodeError) -> tuple[str, int]:
    """Decode each byte that is no text to an escape, which is found and counted afterwards."""
    assert isinstance(error, UnicodeDecodeError)
    return "\udcff" * (error.end - error.start), error.end


class _Again:
    """A stream of bytes that were read before, and what follows them."""

    def __init__(self, data: bytes, stream: io.BufferedReader | None, damage: Exception | None) -> None:
        self._data, self._stream, self._damage = io.BytesIO(data), stream, damage

    def read1(self, count: int) -> bytes:
        if data := self._data.read(count):
            return data
        if self._damage is not None:
            raise self._damage
        return b"" if self._stream is None else self._stream.read1(count)


def _has_escapes(text: str) -> bool:
    """Return whether undecodable bytes were escaped: UTF-8 cannot encode the escapes."""
    if text.isascii():
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _cut(text: str) -> list[str]:
    """Return the lines of ``text`` with their ends on; the last one is what follows the last end."""
    if "\r" not in text:
        lines = text.split("\n")
        return [line + "\n" for line in lines[:-1]] + lines[-1:]
    pieces = _LINE_END.split(text)
    return list(map(str.__add__, pieces[:-1:2], pieces[1::2])) + pieces[-1:]
