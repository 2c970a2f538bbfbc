"""``seqpipe bench batches`` prints the figures of our plans beside those of other samplers."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from seqpipe.bench_batches import meeting_share
from seqpipe.cli import main


def figures(text: str) -> dict[str, list[float]]:
    """Return the six figures of each line that has them."""
    return {line[:40].strip(): [float(figure.replace(",", "")) for figure in line[40:].split()]
            for line in text.splitlines()[1:8] if "not installed" not in line}


def test_plans_are_measured_and_absent_peers_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six figures each; where a library is not installed, how to install it."""
    monkeypatch.setitem(sys.modules, "transformers.trainer_pt_utils", None)
    monkeypatch.setitem(sys.modules, "lhotse.dataset", None)

    assert main(["bench", "batches", "--size", "0.01", "--rounds", "1", "--folder", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    found = figures(text)

    assert text.count("not installed (extra bench)") == 2
    assert len(found) == 5 and all(len(row) == 6 for row in found.values())
    assert found["seqpipe, batch 64"][0] < 20 < 70 < found["random, batch 64"][0]
    assert "10^6 sequences: " in text and "10^9 computed lengths: resumed in" in text


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_padding_is_below_that_of_other_samplers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On 200,000 log-normal lengths: 2 % with a budget, 0.7 % tight, 2.5 % with batches of 64; others 7 % and 16 %."""
    pytest.importorskip("transformers")
    pytest.importorskip("lhotse")

    assert main(["bench", "batches", "--rounds", "1", "--folder", str(tmp_path)]) == 0
    padding = {name: row[0] for name, row in figures(capsys.readouterr().out).items()}

    assert padding["seqpipe, max_tokens"] <= 2 and padding["seqpipe, max_tokens, tight (mixing=0)"] <= 0.7
    assert padding["seqpipe, batch 64"] <= 2.5
    assert padding["lhotse DynamicBucketingSampler, 30"] > 5 and padding["Hugging Face LengthGroupedSampler"] > 14


def test_the_share_of_pairs_that_meet_again() -> None:
    """Of the pairs 01, 23, 24, 34 the pairs 01 and 34 meet again; nobody meets in batches of one."""
    first = [[0, 1], [2, 3, 4]]

    assert meeting_share(first, [[1, 0, 2], [3, 4]], num_sequences=5) == pytest.approx(2 / 4)
    assert meeting_share(first, first, num_sequences=5) == 1
    assert meeting_share([[0], [1]], [[0, 1]], num_sequences=2) == 0
    assert meeting_share([np.array([0, 1])], [[0, 1]], num_sequences=3) == 1
