"""The map in ``seqpipe/__init__.py`` is the architecture: it names every module, and its layers hold."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import seqpipe

PACKAGE = Path(seqpipe.__file__).parent
READERS = ["compressed", "raw", "blocks", "numbers", "fastx", "tables", "long_tables", "jsonl", "text", "ts", "hdf5",
           "__init__"]  # lower ones first
MODULES = sorted(path for path in PACKAGE.glob("*.py") if path.stem != "__init__")


def layers_of_map() -> dict[str, int]:
    """Return the layer of each module, as the package's docstring has it."""
    levels, level = {}, -1
    for line in (seqpipe.__doc__ or "").splitlines():
        if match := re.fullmatch(r"Layer (\d+)", line):
            level = int(match[1])
        elif level >= 0 and (match := re.match(r"    (\w+) +\S", line)):
            levels[match[1]] = level
    return levels


def imported_modules(path: Path) -> Iterator[str]:
    """Yield the dotted names below ``seqpipe`` that a file imports, function bodies included."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}:{node.lineno}: use an absolute import"
            names = [node.module or ""] if node.module != "seqpipe" else [f"seqpipe.{a.name}" for a in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        yield from (name.removeprefix("seqpipe.") for name in names if name.startswith("seqpipe."))


def test_the_map_names_every_module_and_no_other() -> None:
    """A module that is added, renamed or removed changes the map with it."""
    assert layers_of_map().keys() == {path.stem for path in MODULES} | {"readers"}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_a_module_imports_only_lower_layers(path: Path) -> None:
    """Data flows one way; nothing imports upward or sideways."""
    levels = layers_of_map()
    for imported in imported_modules(path):
        name = imported.partition(".")[0]
        assert levels[name] < levels[path.stem], f"{path.stem} must not import {imported}"


@pytest.mark.parametrize("name", READERS)
def test_a_reader_imports_only_lower_layers_and_earlier_readers(name: str) -> None:
    """Formats do not know each other, and no reader knows what becomes of its records."""
    levels = layers_of_map()
    for imported in imported_modules(PACKAGE / "readers" / f"{name}.py"):
        if imported.startswith("readers."):
            assert READERS.index(imported.removeprefix("readers.")) < READERS.index(name)
        else:
            assert levels[imported] < levels["readers"]


def test_importing_seqpipe_loads_neither_torch_nor_h5py() -> None:
    """``import seqpipe`` is light, and each public name works on its first use."""
    code = ("import sys, seqpipe; heavy = {'torch', 'h5py', 'numpy'} & set(sys.modules); assert not heavy, heavy; "
            "assert all(getattr(seqpipe, name) for name in seqpipe.__all__)")
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_unknown_public_name_is_an_attribute_error() -> None:
    """The lazy names do not hide a typing error."""
    with pytest.raises(AttributeError, match="no attribute 'SequenceDataSet'"):
        seqpipe.SequenceDataSet  # noqa: B018
