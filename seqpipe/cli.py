"""The commands: parse, one library call, exit code.

    seqpipe NAME ...    or    python scripts/NAME.py ...

Exit codes: 0 done; 1 something the user can mend (one message on stderr); 2 wrong usage;
130 interrupted (SIGINT); 143 terminated (SIGTERM). A command imports what it needs when it runs,
so that ``--help`` is quick.
"""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import tyro

import seqpipe
from seqpipe import options
from seqpipe.errors import SeqpipeError

# Like Ctrl-C they unwind, so that temporary files go. Windows has no SIGHUP.
POLITE_KILLS = [signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]

# Each command: its options, and the function that takes them, imported when it is called.
COMMANDS: dict[str, tuple[type, str]] = {
    "preprocess": (options.PreprocessOptions, "ingest.preprocess"),
    "describe": (options.DescribeOptions, "description.describe"),
    "verify": (options.VerifyOptions, "verification.verify"),
    "merge": (options.MergeOptions, "merging.merge"),
    "append": (options.AppendOptions, "merging.append"),
    "export": (options.ExportOptions, "exporting.export"),
    "train": (options.TrainOptions, "training.train"),
    "predict": (options.PredictOptions, "prediction.predict"),
    "compare-padding": (options.ComparePaddingOptions, "padding_comparison.compare_padding"),
    "bench": (options.BenchOptions, "bench.bench"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``seqpipe NAME ...``; return the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments and arguments[0] in COMMANDS:
        return run(arguments[0], arguments[1:])
    if arguments and arguments[0] == "--version":
        print(f"seqpipe {seqpipe.__version__}")
        return 0
    asked = bool(arguments) and arguments[0] in ("-h", "--help")
    print(_overview(), file=sys.stdout if asked else sys.stderr)
    if arguments and not asked:
        print(f"\nseqpipe: no command {arguments[0]!r}", file=sys.stderr)
    return 0 if asked else 2


def run(name: str, argv: Sequence[str]) -> int:
    """Run one command; return the exit code."""
    _prepare_streams()
    kind, function = COMMANDS[name]
    module, _, function = function.partition(".")
    before: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        before = {name: signal.signal(name, lambda number, _: sys.exit(128 + number)) for name in POLITE_KILLS}
    try:
        chosen: Any = tyro.cli(kind, args=list(argv), prog=f"seqpipe {name}")
        result = getattr(import_module(f"seqpipe.{module}"), function)(chosen)
        with _output():
            if result is not None:  # else the command has written its output itself
                print(result, flush=True)
    except SystemExit as stop:
        return int(stop.code or 0)
    except SeqpipeError as error:
        print(f"seqpipe {name}: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        return 1  # the reader of our output has gone, as in ``seqpipe describe x.h5 | head``
    except OSError as error:
        print(f"seqpipe {name}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"\nseqpipe {name}: interrupted", file=sys.stderr)
        return 130
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return 0


@contextmanager
def _output() -> Iterator[None]:
    """Print in the block; where stdout fails, Python must not try again when it ends."""
    try:
        yield
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise


def _prepare_streams() -> None:
    """Give closed streams a place to write to, and let stdout hold any character."""
    sys.stderr = sys.stderr or open(os.devnull, "w")
    sys.stdout = sys.stdout or open(os.devnull, "w")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _overview() -> str:
    lines = ["usage: seqpipe COMMAND ...        (seqpipe COMMAND --help says more)", ""]
    for name, (kind, _) in COMMANDS.items():
        lines.append(f"  {name:16} {(kind.__doc__ or '').splitlines()[0]}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
