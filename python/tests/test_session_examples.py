"""The examples about sessions: digits with an evaluator, and the recipes of TensorLayer's page on a whole text."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from test_summary import records

EXAMPLES = Path(__file__).parents[2] / "examples"
N_VERSES = 31102


def job(folder: Path, *words: str) -> str:
    """What a job prints that ends well; it runs in this folder."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PHALANX_", "HOROVOD_"))}
    env["OMP_NUM_THREADS"] = "1"
    command = [sys.executable, "-m", "phalanx", *words]
    done = subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def results(output: str, pattern: str) -> dict[int, float]:
    found = [(int(step), float(value)) for step, value in re.findall(pattern, output)]
    assert len(dict(found)) == len(found), "a checkpoint has one result"
    return dict(found)


def written_steps(folder: Path) -> list[int]:
    """The steps of the events of the one file there; the first record says the format."""
    (file,) = folder.iterdir()
    steps = []
    for record in records(file)[1:]:
        assert record[9] == 0x10, "the step comes after the time"
        number, at = 0, 10
        while True:
            number |= (record[at] & 0x7F) << 7 * (at - 10)
            if record[at] < 0x80:
                break
            at += 1
        steps.append(number)
    return steps


DIGITS = r"step (\d+): accuracy ([\d.]+)% on 1000 unseen digits"


def test_five_checkpoints_of_the_digits_give_five_results_and_the_last_is_good(tmp_path: Path) -> None:
    script = str(EXAMPLES / "session_digits.py")
    said = job(tmp_path, "run", "-np", "2", "--evaluator", script)
    beside = results(said, r"evaluator \| +" + DIGITS)
    assert list(beside) == [200, 400, 600, 800, 1000], said
    assert beside[1000] > 97, said
    assert written_steps(tmp_path / "session_digits" / "evaluation") == list(beside)
    assert "step 1000: stopped by StopAtStepHook" in said
    # Afterwards, without a launcher.
    again = subprocess.run(
        [sys.executable, script, "--evaluate"], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert again.returncode == 0 and results(again.stdout, DIGITS) == beside, again


@pytest.mark.parametrize("words", [["run", "-np", "2"], ["train", "-s", "1", "-w", "2"]])
def test_the_sharding_recipe_gives_each_verse_to_one_worker(tmp_path: Path, words: list[str]) -> None:
    said = job(tmp_path, *words, str(EXAMPLES / "session_sharding.py"))
    shards = re.findall(r"worker (\d) of 2: (\d+) verses in (\d+) steps", said)
    # Two epochs of 15551 verses, in batches of 64.
    assert sorted(shards) == [("0", "31102", "486"), ("1", "31102", "486")], said
    assert sum(int(n) for _, n, _ in shards) == 2 * N_VERSES
    device = "/job:ps/task:0" if "train" in words else "worker"
    assert said.count(f"-> {device}\n") == 5, said
    assert (tmp_path / "session_sharding" / "checkpoint-486").is_dir()


def test_the_logging_recipe_logs_on_the_master_only(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    job(tmp_path, "run", "-np", "2", "--output-filename", str(folder), str(EXAMPLES / "session_logging.py"))
    texts = [(folder / f"rank.{rank}" / "stderr").read_text() for rank in range(2)]
    losses = results(texts[0], r"step (\d+): loss ([\d.]+), \d+% of the letters guessed\n")
    assert list(losses) == [50, 100, 150, 200, 250, 300], texts
    # One batch's loss is noise; a model that learned nothing has 3.3.
    assert max(losses.values()) < 3.0, "it learns"
    assert "letters guessed" not in texts[1]


def test_the_evaluation_recipe_evaluates_each_checkpoint_and_ends(tmp_path: Path) -> None:
    said = job(tmp_path, "run", "-np", "3", str(EXAMPLES / "session_evaluation.py"))
    losses = results(said, r"2 \| step (\d+): loss ([\d.]+), [\d.]+% of 2000 letters guessed")
    assert list(losses) == [100, 200, 300, 400, 500], said
    assert losses[500] < losses[100] < 3.3, "it learns"
    assert written_steps(tmp_path / "session_evaluation" / "evaluation") == list(losses)
