"""The command line: two spellings, quick help, exit codes, one message."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest

from seqpipe.cli import COMMANDS, main, run
from seqpipe.description import describe
from seqpipe.options import DescribeOptions
from tests.conftest import ROOT


def test_each_command_is_a_script_too_and_each_script_a_command() -> None:
    """``python scripts/NAME.py`` and ``seqpipe NAME``, dashes for underscores."""
    scripts = {path.stem.replace("_", "-") for path in (ROOT / "scripts").glob("*.py") if path.stem != "__init__"}
    assert scripts == set(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_both_spellings_print_the_same_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One implementation behind both; what stands for "not given" inside is not shown."""
    script = import_module(f"scripts.{name.replace('-', '_')}")
    texts = []
    for call in (lambda: script.main(["--help"]), lambda: main([name, "--help"])):
        assert call() == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] and f"usage: seqpipe {name}" in texts[0] and "None" not in texts[0]


def test_the_help_of_each_flag_is_one_line_of_the_source() -> None:
    """tyro keeps the breaks of longer ones, wherever the terminal would have put its own."""
    for node in ast.walk(ast.parse((ROOT / "seqpipe" / "options.py").read_text("utf-8"))):
        if isinstance(node, ast.ClassDef):
            texts = [line for line in node.body[1:] if isinstance(line, ast.Expr)]
            assert len(texts) == sum(isinstance(line, ast.AnnAssign) for line in node.body)
            assert [text.lineno for text in texts] == [text.end_lineno for text in texts]


@pytest.mark.parametrize("name", COMMANDS)
def test_help_loads_neither_torch_nor_h5py(name: str) -> None:
    """Help is quick because it imports nothing heavy."""
    code = (f"import sys; from seqpipe.cli import main; main([{name!r}, '--help']); "
            "print({'torch', 'h5py', 'numpy'} & set(sys.modules))")
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert out.splitlines()[-1] == "set()"


def test_wrong_usage_exits_2(capsys: pytest.CaptureFixture[str]) -> None:
    """No command, an unknown command, an unknown flag, a value of the wrong type."""
    for argv in ([], ["trian"], ["train", "--no-such-flag", "1"], ["train", "--epochs", "many"], ["preprocess", "x"]):
        assert main(argv) == 2
        captured = capsys.readouterr()
        assert captured.err and "Traceback" not in captured.err
    assert main(["--help"]) == 0
    assert "compare-padding" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["describe", "verify"])
def test_a_file_that_is_no_store_gives_one_line_and_exit_1(name: str, tmp_path: Path,
                                                           capsys: pytest.CaptureFixture[str]) -> None:
    """A missing file, a text file, a folder."""
    (tmp_path / "text.h5").write_text("hello")
    for path, finding in ((tmp_path / "no.h5", "no such file"), (tmp_path / "text.h5", "not a seqpipe store"),
                          (tmp_path, "no regular file")):
        assert run(name, [str(path)]) == 1
        message = capsys.readouterr().err
        assert finding in message and str(path) in message and message.count("\n") == 1


def test_data_missing_is_its_own_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``train --data`` of a file that is not there says how to make one."""
    assert main(["train", "--data", str(tmp_path / "no.h5")]) == 1
    assert "no such file; make a store with: seqpipe preprocess" in capsys.readouterr().err


def test_describe_says_what_is_inside(amp_store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Kind, alphabet, splits with lengths and classes, padding, sources, samples."""
    assert main(["describe", str(amp_store), "--head", "2"]) == 0
    text = capsys.readouterr().out
    for part in ("tokens, alphabet protein", "2 classes from 'label': amp, other", "3,264", "amp 1,794, other 1,470",
                 "by length", "amp.fasta, 197,880 bytes", "options   split=column:split\n",
                 "sequence=GLFDIVKKVVGTLAGL"):
        assert part in text
    assert main(["describe", str(amp_store), "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["splits"]["test"]["sequences"] == 669
    assert content["padding_percent"]["bucketed"] < content["padding_percent"]["random"]


def test_describe_works_on_features_and_on_stores_without_labels_or_splits(
    vowels_store: Path, make_store: Callable[..., Path]
) -> None:
    """Whatever a store lacks is said, not stumbled over."""
    assert "12 channels, float32" in describe(DescribeOptions(store=vowels_store, head=1))
    plain = describe(DescribeOptions(store=make_store("t.txt", "hello\nworld!\n"), head=5))
    assert "labels    none" in plain and plain.count("sample ") == 2


def test_describe_plots_the_lengths(amp_store: Path, tmp_path: Path) -> None:
    """A PNG of a sensible size."""
    path = tmp_path / "lengths.png"
    assert run("describe", [str(amp_store), "--plot", str(path)]) == 0
    assert path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 10_000


@pytest.mark.parametrize("redirect", [">/dev/full", "2>&-", "| true"])
def test_streams_that_are_full_or_closed_end_without_a_traceback(amp_store: Path, redirect: str) -> None:
    """A full disk behind stdout is one message; a closed stderr is no fault at all."""
    if not Path("/dev/full").exists():
        pytest.skip("this platform has no /dev/full")
    command = f'set -o pipefail; "{sys.executable}" -m seqpipe.cli describe "{amp_store}" {redirect}'
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=environment)
    assert "Traceback" not in done.stderr and "Exception" not in done.stderr
    assert done.returncode in ((0,) if redirect == "2>&-" else (0, 1))


def test_output_holds_any_character_on_any_terminal(amp_store: Path) -> None:
    """An ASCII stdout gets escapes instead of a traceback."""
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-m", "seqpipe.cli", "describe", str(amp_store)], capture_output=True,
                          env=environment)
    assert done.returncode == 0 and b"\\u2026" in done.stdout


def test_a_reader_that_goes_away_is_no_error_message(amp_store: Path) -> None:
    """``seqpipe describe x.h5 | head -1`` ends without a traceback."""
    reading, writing = os.pipe()
    os.close(reading)  # before a byte is written
    with open(writing, "wb") as gone:
        done = subprocess.run([sys.executable, "-m", "seqpipe.cli", "describe", str(amp_store)], stdout=gone,
                              stderr=subprocess.PIPE, text=True)
    assert done.stderr == "" and done.returncode == 1
