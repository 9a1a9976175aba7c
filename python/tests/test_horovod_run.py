"""``horovodrun`` and ``horovod.run``: every word acts, is noted, or is refused. Nothing here needs torch."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from horovod.runner.launch import check_build, translate

import horovod

HOROVODRUN = [sys.executable, "-m", "horovod.runner.launch"]

#: Who it is, before anything of Horovod's is imported; then one operation, for the timeline.
RANK = """
import os
names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
print("am", *(os.environ.get("HOROVOD_" + name) for name in names), flush=True)
import numpy, phalanx, phalanx.numpy
phalanx.init()
phalanx.numpy.allreduce(numpy.ones(3), name="x")
"""


def clean(**more: str) -> dict[str, str]:
    """An environment without anybody's ranks and settings."""
    return {k: v for k, v in os.environ.items() if not k.startswith(("PHALANX_", "HOROVOD_"))} | more


def horovodrun(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*HOROVODRUN, *words], env=clean(**env), capture_output=True, text=True, timeout=120, check=False
    )


def refused(line: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as ended:
        translate(line.split())
    assert ended.value.code == 2, line
    return capsys.readouterr().err


def test_ranks_know_themselves_at_once_and_settings_act_or_are_said_once(tmp_path: Path) -> None:
    timeline = tmp_path / "t.json"
    done = horovodrun(
        *("-np", "2", "-p", "2222", "--network-interface", "lo", "--output-filename", str(tmp_path / "out")),
        *(sys.executable, "-c", RANK),
        HOROVOD_TIMELINE=str(timeline),
        HOROVOD_CYCLE_TIME="5",
        HOROVOD_GLOO_TIMEOUT_SECONDS="9",
        HOROVOD_FUSION_TRESHOLD="1",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    said = [
        line for rank in range(2) for line in (tmp_path / "out" / f"rank.{rank}" / "stdout").read_text().splitlines()
    ]
    assert said == ["am 0 2 0 2 0 1", "am 1 2 1 2 0 1"]
    assert sorted(f.name for f in tmp_path.iterdir()) == ["out", "t.json", "t.rank1.json"]
    assert any(event.get("name") == "ALLREDUCE" for event in json.loads(timeline.read_text()))
    for remark in (
        "-p and -i have no effect: all ranks start on this machine",
        "HOROVOD_CYCLE_TIME has no effect: Phalanx has no cycles",
        "HOROVOD_GLOO_TIMEOUT_SECONDS has no effect: PHALANX_TIMEOUT",
        "HOROVOD_FUSION_TRESHOLD has no effect: Horovod has no such setting; did you mean HOROVOD_FUSION_THRESHOLD?",
    ):
        assert done.stderr.count(remark) == 1, done.stderr


def test_words_about_the_start_reach_the_launcher() -> None:
    done = horovodrun("-np", "1", "--network-interfaces", "lo,wlan9", "true")
    assert done.returncode == 2 and 'there is no interface "wlan9"' in done.stderr, done.stderr
    words = ["-np", "1", "-H", "nowhere:1", "--start-timeout"]
    assert translate([*words, "0.5", "x"])[0][-4:] == ["--start-timeout", "0.5", "--", "x"]


def test_ranks_started_by_hand_behind_wrappers_meet() -> None:
    ranks = []
    for rank in range(2):
        env = clean(
            HOROVOD_RANK=str(rank),
            HOROVOD_SIZE="2",
            HOROVOD_LOCAL_RANK=str(rank),
            HOROVOD_LOCAL_SIZE="2",
            HOROVOD_GLOO_RENDEZVOUS_ADDR="127.0.0.1",
            HOROVOD_GLOO_RENDEZVOUS_PORT=str(os.getpid()),
            PHALANX_SECRET="a secret of this test that is long enough",
            PHALANX_START_TIMEOUT="60",
        )
        # The shell stays, so that each rank has a parent of its own.
        wrapper = ["sh", "-c", '"$@"; exit $?', "wrapper", sys.executable, "-c", RANK]
        ranks.append(subprocess.Popen(wrapper, env=env, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
    for rank in ranks:
        out, err = rank.communicate(timeout=120)
        assert rank.returncode == 0, out + err


def test_flags_are_translated() -> None:
    words, env, notes = translate(
        [
            *(
                "-np",
                "4",
                "-H",
                "a:2,b:2",
                "-p",
                "2222",
                "-i",
                "my key",
                "--timeline-filename",
                "t.json",
                "--no-stall-check",
            ),
            *("--network-interface", "e0,e1", "--network-interface", "e2", "--start-timeout", "9", "x", "--gloo"),
        ]
    )
    assert words == [
        *("run", "--horovod", "-np", "4", "--hosts", "a:2,b:2", "--interface", "e0,e1,e2", "--start-timeout", "9.0"),
        *("--rsh", "ssh -p 2222 -i 'my key'", "--", "x", "--gloo"),
    ]
    assert env == {"HOROVOD_TIMELINE": "t.json", "HOROVOD_STALL_CHECK_DISABLE": "1", "HOROVOD_START_TIMEOUT": "9.0"}
    assert notes == []
    words, env, notes = translate(
        ["-n", "2", "--fusion", "0", "--verb", "--slots", "3", "--mpi", "--cycle-time", "5", "x"]
    )
    assert words == ["run", "--horovod", "-np", "2", "--slots-per-host", "3", "-v", "--", "x"]
    assert env == {"HOROVOD_FUSION_THRESHOLD": "0"}
    assert [note.split(" has no effect: ")[0] for note in notes] == ["--mpi", "--cycle-time-ms"]


def test_flags_that_mean_nothing_good_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for line, says in {
        "-np 2 --min-np 1 x": "elastic jobs are not supported yet; write -np",
        "-np 2 --blacklist-cooldown-range 1 2 x": "elastic jobs are not supported yet",
        "-np 2 --jsrun x": "write -H with the hosts",
        "-np 2": "the command is missing",
        "x": "-np is missing",
        "-np 0 x": "a whole number of ranks from 1",
        "-np 2 --no-such-flag x": "--no-such-flag",
        "-np 2 --fusion-threshold-mb -1 x": "expected a number from 0, not '-1'",
        "-np 2 --cache-capacity 1.5 x": "a whole number from 0",
        "-np 2 --start-timeout 0 x": "a number of seconds",
        "-np 2 --log-level LOUD x": "'LOUD'",
        "-np 2 --gloo --mpi x": "not allowed with",
        "-np 2 --autotune --no-autotune x": "not allowed with",
        "-np 2 --network-interface a,,b x": "a name is missing",
        "-np 2 -H a:1 --hostfile f x": "leave one of them out",
        "-np 2 --stall 3 x": "ambiguous",
        "-np 2 --config-file /no/such/file x": "--config-file",
    }.items():
        assert says in refused(line, capsys), line


def test_a_configuration_file_is_read_and_the_command_line_wins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(
        "# for all\ncontroller: gloo\nparams:\n    fusion_threshold_mb: 32\n    cycle_time_ms: 5  # as ever\n\n"
        "autotune:\n    enabled: true\n    log_file: 'a b.csv'\n"
        "stall_check:\n    enabled: false\n    warning_time_seconds: 7\n"
    )
    words, env, notes = translate(["-np", "2", "--fusion-threshold-mb", "8", "--config-file", str(file), "x"])
    assert words == ["run", "--horovod", "-np", "2", "--", "x"]
    assert env == {
        "HOROVOD_FUSION_THRESHOLD": str(8 << 20),
        "HOROVOD_AUTOTUNE": "1",
        "HOROVOD_AUTOTUNE_LOG": "a b.csv",
        "HOROVOD_STALL_CHECK_DISABLE": "1",
        "HOROVOD_STALL_CHECK_TIME_SECONDS": "7.0",
    }
    assert [note.split()[0] for note in notes] == ["--gloo", "--cycle-time-ms"]
    assert translate(["-np", "2", "--no-autotune", "--config-file", str(file), "x"])[1]["HOROVOD_AUTOTUNE"] == "0"
    for text, says in {
        "params:\n  fusion_treshold_mb: 3\n": "line 2: params has no 'fusion_treshold_mb'",
        "parms:\n  cache_capacity: 3\n": "line 1: there is no section 'parms'",
        "params:\n  cache_capacity: -3\n": "expected a whole number from 0, not '-3'",
        "params: {cache_capacity: 3}\n": "line 1: 'params: {cache_capacity: 3}' is not understood",
        "  cache_capacity: 3\n": "line 1: 'cache_capacity' is not in a section",
        "controller: ring\n": "controller: gloo or mpi",
        "autotune:\n  enabled: maybe\n": "line 2: enabled must be true or false, not 'maybe'",
    }.items():
        file.write_text(text)
        assert says in refused(f"-np 2 --config-file {file} x", capsys), text


def test_the_version_is_a_bare_number_and_the_build_a_list_with_marks(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        translate(["--version"])
    assert capsys.readouterr().out.strip() == horovod.__version__
    assert translate(["--check-build"])[0] == []
    lines = [line.strip() for line in check_build().splitlines()]
    assert "[ ] TensorFlow" in lines and "[ ] MPI" in lines and "[ ] NCCL" in lines
    assert lines.count("[X] Gloo") == 2, "a controller and its operations"


def test_functions_run_with_horovods_arguments_in_horovods_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def who(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
        import os

        return os.environ["HOROVOD_RANK"], os.environ.get("WRAPPED"), args, kwargs

    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nWRAPPED=1 exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    # func, args, kwargs, num_proc, min_num_proc, max_num_proc, slots, reset_limit, cooldown_range, hosts, hostfile,
    # start_timeout, ssh_port, ssh_identity_file; then disable_cache, output_filename, verbose, use_gloo, use_mpi,
    # mpi_args, network_interface, executable.
    nothing = None
    results = horovod.run(
        *(who, (1, 2), {"x": 3}, 2, nothing, nothing, 2, nothing, nothing, "localhost", nothing, 50, 2222, "key"),
        *(True, str(tmp_path / "out"), False, True, nothing, nothing, "lo", python),
    )
    assert results == [("0", "1", (1, 2), {"x": 3}), ("1", "1", (1, 2), {"x": 3})]
    assert sorted(folder.name for folder in (tmp_path / "out").iterdir()) == ["rank.0", "rank.1"]
    notes = capsys.readouterr().err
    assert notes.count("use_gloo has no effect") == 1 and notes.count("disable_cache has no effect") == 1
    assert horovod.run(who, use_gloo=True)[0][0] == "0"
    assert "use_gloo" not in capsys.readouterr().err, "once is enough"


def test_arguments_of_functions_that_mean_nothing_good_are_refused() -> None:
    for arguments, says in (
        ({"num_proc": 0}, "a whole number of ranks from 1"),
        ({"num_proc": 2, "np": 3}, "contradict each other"),
        ({"min_num_proc": 1}, "elastic jobs are not supported yet"),
        ({"hosts": "a:1", "hostfile": "f"}, "leave one of them out"),
        ({"use_gloo": True, "use_mpi": True}, "exclude each other"),
    ):
        with pytest.raises(ValueError, match=says):
            horovod.run(print, **arguments)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="ssh_prot"):
        horovod.run(print, ssh_prot=22)  # type: ignore[call-arg]
    assert list(inspect.signature(horovod.run).parameters)[:5] == ["func", "args", "kwargs", "num_proc", "min_num_proc"]
