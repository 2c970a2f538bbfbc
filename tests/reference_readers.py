"""Slow, obvious readers of every text format, to compare those of seqpipe with.

Each takes the bytes of a file and returns [(id, sequence, columns)]; ``Bad`` says in which line it stopped.
"""

from __future__ import annotations

import json
import re


class Bad(Exception):
    """The bytes are no such file; ``args[0]`` is the 1-based line, None where the file as a whole is meant."""


def lines_of(data):
    """Return the lines of UTF-8 text: LF, CRLF and CR end one, and the last needs no end."""
    try:
        text = data.decode().removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise Bad(len(re.split(rb"\r\n|\r|\n", data[: error.start]))) from None
    lines = re.split(r"\r\n|\r|\n", text)
    return lines if lines[-1] else lines[:-1]


def some(records, data):
    """Return the records; a file without any is told at its last line."""
    if not records:
        raise Bad(len(lines_of(data)) or None)
    return records


def header(line, number):
    """Return id and description of a FASTA or FASTQ header."""
    words = line[1:].lstrip(" \t")
    name = re.match(r"[^ \t]*", words)[0]
    if not name:
        raise Bad(number)
    return name, words[len(name):].lstrip(" \t")


def letters(line, number):
    part = line.strip(" \t")
    if any(symbol.isspace() or symbol == ">" for symbol in part):
        raise Bad(number)
    return part


def fasta(data):
    records = []
    for number, line in enumerate(lines_of(data), start=1):
        if line.startswith(">"):
            name, description = header(line, number)
            records.append((name, "", {"description": description}))
        elif line.strip(" \t") and line[0] != ";":
            if not records:
                raise Bad(number)
            name, sequence, columns = records[-1]
            records[-1] = name, sequence + letters(line, number), columns
    return some(records, data)


def fastq(data):
    lines, records, at = lines_of(data), [], 0
    while at < len(lines):
        first = lines[at]
        at += 1
        if not first.strip(" \t"):
            continue
        if first[0] != "@":
            raise Bad(at)
        name, description = header(first, at)
        parts = []
        while True:
            if at == len(lines):
                raise Bad(at)
            line = lines[at]
            at += 1
            if line.startswith("+"):
                break
            if line.startswith("@"):
                raise Bad(at)
            if line.strip(" \t"):
                parts.append(letters(line, at))
        if line[1:].strip(" \t") not in ("", first[1:].strip(" \t")):
            raise Bad(at)
        sequence, quality = "".join(parts), ""
        wanted = True
        while wanted and at < len(lines):
            quality += lines[at].strip(" \t")
            wanted = len(parts) > 1 and len(quality) < len(sequence) and bool(lines[at].strip(" \t"))
            at += 1
        if len(quality) != len(sequence) or any(not "!" <= symbol <= "~" for symbol in quality):
            raise Bad(at)
        records.append((name, sequence, {"description": description}))
    return some(records, data)


def rows(data, delimiter):
    """Return (line where it starts, cells) of each row that is not blank; one character after the other."""
    text = "\n".join([*lines_of(data), ""])
    # Inside quotes a line end is kept as it was written.
    raw = data.decode().removeprefix("\ufeff")
    ends = re.findall(r"\r\n|\r|\n", raw) + [""]
    found, row, cell, line, start, state = [], [], "", 1, 1, "start"
    for symbol in text:
        if state == "quoted":
            if symbol == '"':
                state = "closing"
            else:
                cell += ends[line - 1] if symbol == "\n" else symbol
        elif symbol == '"' and state == "closing":
            cell, state = cell + '"', "quoted"
        elif symbol == '"' and state == "start":
            state = "quoted"
        elif symbol == delimiter:
            row, cell, state = [*row, cell], "", "start"
        elif symbol == "\n":
            if row or cell or state != "start":
                found.append((start, [*row, cell]))
            row, cell, state, start = [], "", "start", line + 1
        elif state == "closing":
            raise Bad(start)
        else:
            cell, state = cell + symbol, "plain"
        line += symbol == "\n"
    if state == "quoted":
        raise Bad(start)
    return found


def table(data, delimiter):
    return some(table_records(rows(data, delimiter)), data)


def table_records(found):
    if not found:
        return []
    line, names = found[0]
    if "" in names or len(set(names)) != len(names) or "sequence" not in names:
        raise Bad(line)
    records = []
    for line, cells in found[1:]:
        if len(cells) != len(names):
            raise Bad(line)
        columns = dict(zip(names, cells, strict=True))
        name = columns.pop("id", None)
        if name == "":
            raise Bad(line)
        records.append((name, columns.pop("sequence"), columns))
    return records


def csv(data):
    return table(data, ",")


def tsv(data):
    return table(data, "\t")


def jsonl(data):
    records, keys = [], None
    for number, line in enumerate(lines_of(data), start=1):
        if not line.strip():
            continue
        try:
            values = json.loads(line)
        except ValueError:
            raise Bad(number) from None
        if not isinstance(values, dict) or keys not in (None, values.keys()) or "seq" not in values:
            raise Bad(number)
        keys = values.keys()
        columns = {key: "" if value is None else str(value) for key, value in values.items()}
        del columns["seq"]
        records.append((columns.pop("id", None), values["seq"], columns))
    return some(records, data)


def text(data):
    return some([(None, line, {}) for line in lines_of(data) if line], data)


def ts(data):
    lines, tags, records = lines_of(data), {}, []
    for at, line in enumerate(lines, start=1):
        words = line.split()
        if not words or line.startswith("#"):
            continue
        tag = words[0].lower()
        if tag == "@data":
            break
        if tag not in ("@problemname", "@dimensions", "@classlabel"):
            raise Bad(at)
        if len(words) < 2 or tag == "@dimensions" and not words[1].isdecimal():
            raise Bad(at)
        if tag == "@classlabel" and (words[1] not in ("true", "false") or words[1] == "true" and not words[2:]):
            raise Bad(at)
        tags[tag] = words[1:]
    else:
        raise Bad(len(lines) or None)
    if "@classlabel" not in tags:
        raise Bad(at)
    for number, line in enumerate(lines[at:], start=at + 1):
        if not line.strip():
            continue
        *channels, label = line.split(":")
        if label not in tags["@classlabel"][1:] or len(channels) != int(tags["@dimensions"][0]):
            raise Bad(number)
        try:
            numbers = [[float(value) for value in channel.split(",")] for channel in channels]
        except ValueError:
            raise Bad(number) from None
        if len(set(map(len, numbers))) > 1:
            raise Bad(number)
        records.append((None, [list(step) for step in zip(*numbers, strict=True)], {"label": label}))
    return some(records, data)
