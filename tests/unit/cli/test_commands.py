# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""`osb run` and `osb command run`: exact bytes, exit codes, interrupts."""

from __future__ import annotations

import hashlib
import json
import signal
import subprocess
import time

import pytest

from .conftest import Osb


def test_bytes_pass_unchanged(osb: Osb, box: str) -> None:
    done = osb.run("command", "run", box, "--", r"printf 'a\r\n\377\000b'; printf 'e\303' >&2")
    assert (done.stdout, done.stderr) == (b"a\r\n\xff\x00b", b"e\xc3")


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--", "exit 7"], 7),
        (["--", "kill -9 $$"], 137),
        (["--", "no-such-binary"], 127),
        (["--argv", "--", "no-such-binary"], 127),
        (["--argv", "--", "/etc"], 126),
        (["-t", "300ms", "--", "sleep 30"], 124),
    ],
)
def test_exit_codes(osb: Osb, box: str, words: list[str], code: int) -> None:
    assert osb.run("command", "run", box, *words).returncode == code


def test_why_is_said_where_the_code_does_not(osb: Osb, box: str) -> None:
    assert b"time limit" in osb.run("command", "run", box, "-t", "300ms", "--", "sleep 30").stderr
    assert b"could not be started" in osb.run("command", "run", box, "--argv", "--", "no-such-binary").stderr


def test_words_reach_the_program_as_they_are(osb: Osb, box: str) -> None:
    assert (
        osb.text("command", "run", box, "--argv", "--", "printf", "%s|", "$HOME", "a b", "") == "$HOME|a b||"
    )
    assert osb.text("command", "run", box, "--", "printf", "%s|", "$HOME", "a b", "") == "$HOME|a b||"
    assert (
        osb.text("command", "run", box, "-w", "/tmp", "-e", "A=b c", "--", 'echo "$PWD $A"') == "/tmp b c\n"
    )


def test_json_has_the_whole_result(osb: Osb, box: str) -> None:
    done = osb.run("command", "run", box, "-o", "json", "--", "echo out; echo err >&2; exit 3")
    result = json.loads(done.stdout)
    assert done.returncode == 3
    assert (result["stdout"], result["stderr"], result["exit_code"]) == ("out\n", "err\n", 3)


def test_background_status_logs_interrupt(osb: Osb, box: str) -> None:
    command = osb.text("command", "run", "-d", box, "--", "echo begun; exec sleep 60").strip()
    status = json.loads(osb.text("command", "status", box, command, "-o", "json"))
    assert (status["running"], status["id"]) == (True, command)
    assert osb.text("command", "logs", box, command) == "begun\n"
    logs = json.loads(osb.text("-o", "json", "command", "logs", box, command, "--cursor", "2"))
    assert logs == {"content": "gun\n", "cursor": 6}
    osb.text("command", "interrupt", box, command)
    status = json.loads(osb.text("command", "status", box, command, "-o", "json"))
    assert (status["running"], status["reason"]) == (False, "interrupted")


def test_run_makes_a_sandbox_for_one_command(osb: Osb) -> None:
    assert osb.text("run", "--", "python3", "-c", "print(40+2)") == "42\n"
    assert osb.text("run", "printf", "%s", "-x").endswith("-x")
    assert osb.run("run", "--", "sh", "-c", "exit 5").returncode == 5
    assert json.loads(osb.text("sandbox", "list", "-o", "json"))["pagination"]["total_items"] == 0


def test_run_passes_on_what_is_piped_in(osb: Osb) -> None:
    data = bytes(range(256)) * 4000
    done = osb.run("run", "--", "sha256sum", stdin=data)
    assert done.stdout.split()[0].decode() == hashlib.sha256(data).hexdigest()


def test_a_silent_pipe_does_not_keep_run_alive(osb: Osb) -> None:
    process = subprocess.Popen(
        osb.command("run", "--", "true"),
        env=osb.environment | osb.extra,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    with process:
        assert process.wait(30) == 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_end_the_remote_command_too(osb: Osb, box: str, number: signal.Signals, code: int) -> None:
    with osb.start("command", "run", box, "--", "echo up; exec sleep 4713") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        process.send_signal(number)
        assert process.wait(20) == code
    time.sleep(0.1)
    assert osb.run("command", "run", box, "--", "pgrep -f 'sleep 471[3]'").stdout == b""


def test_a_reader_that_leaves_ends_the_command_quietly(osb: Osb, box: str) -> None:
    with osb.start("command", "run", box, "--", "yes") as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.read(10)
        process.stdout.close()
        assert process.wait(20) == 141
        assert process.stderr.read() == b""


def test_errors_are_one_line_with_the_remedy(osb: Osb, lone_osb: Osb) -> None:
    done = osb.run("sandbox", "get", "no-such-id")
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"osb: no sandbox with id 'no-such-id'" in done.stderr
    for words in (
        ["-o", "json", "sandbox", "get", "no-such-id"],
        ["sandbox", "get", "no-such-id", "-o", "json"],
    ):
        assert json.loads(osb.run(*words).stderr)["code"] == "SANDBOX::NOT_FOUND"


def test_without_a_server_the_error_names_the_way_out(lone_osb: Osb) -> None:
    done = lone_osb.run("--domain", "127.0.0.1:1", "sandbox", "list")
    assert done.returncode == 1
    assert b"no connection to http://127.0.0.1:1" in done.stderr
    assert b"osb server" in done.stderr


def test_run_does_not_replace_a_server_that_was_chosen(lone_osb: Osb) -> None:
    done = lone_osb.run("--domain", "127.0.0.1:1", "run", "--", "true")
    assert done.returncode == 1
    assert b"private" not in done.stderr
