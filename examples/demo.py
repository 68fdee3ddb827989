# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The whole way once, through the public client, on this machine's own kernel and nothing else.

Starts a server with a data directory of its own, does what a user would do, checks every result, shows how
long each step took, and proves that nothing is left. Ends with 1 when anything was not as promised.
With a file name it saves the plot that a cell of code draws of the times.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from leftovers import Leftovers, look

from casulo.client import Client, Connection, NotFound, Result, Sandbox
from casulo.client.connection import Home

HERE = Path(__file__).resolve().parent
START_SECONDS = 30.0
STOP_SECONDS = 20.0
SETTLE_SECONDS = 5.0
MEMORY_LIMIT = "256Mi"

GREEDY = """
kept = []
for step in range(1, 65):
    kept.append(bytearray(16 << 20))
    print(f"{step * 16} MiB", flush=True)
"""


@dataclass
class Report:
    """Times of the steps, and what went wrong."""

    steps: list[tuple[str, float]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Announce and time one step."""
        print(f"\n── {name}", flush=True)
        began = time.perf_counter()
        yield
        self.steps.append((name, (time.perf_counter() - began) * 1000))

    def expect(self, true: bool, what: str) -> None:
        """A promise: kept or not."""
        print(f"   {'ok ' if true else 'NO '} {what}", flush=True)
        if not true:
            self.failures.append(what)

    def show(self) -> None:
        """The table of times and the verdict."""
        width = max(len(name) for name, _ in self.steps)
        print(f"\n{'step'.ljust(width)}  milliseconds\n{'-' * width}  ------------")
        for name, milliseconds in self.steps:
            print(f"{name.ljust(width)}  {milliseconds:12.1f}")
        for what in self.failures:
            print(f"NOT AS PROMISED: {what}")
        print("\nEverything as promised." if not self.failures else "")


def main() -> int:
    """Run the demo; returns the exit code."""
    report = Report()
    with tempfile.TemporaryDirectory(prefix="casulo-demo-") as folder:
        data = Path(folder) / "data"
        before = look(data)
        server = start_server(data, report)
        try:
            with Client(connection(data)) as client:
                use(client, data, report)
        finally:
            stop_server(server, report)
        prove_nothing_left(before, data, report)
        if report.failures:
            print((Path(folder) / "server.log").read_text()[-3000:], file=sys.stderr)
    report.show()
    return 1 if report.failures else 0


def start_server(data: Path, report: Report) -> subprocess.Popen[bytes]:
    """`osb server` as a process of its own, with everything it keeps below one temporary directory."""
    with report.step("start the server"), (data.parent / "server.log").open("wb") as log:
        (data.parent / "server.toml").write_text('[runtime]\nenabled = ["local"]\n')
        options = ["--port", "0", "--data-dir", str(data), "--config", str(data.parent / "server.toml")]
        server = subprocess.Popen(
            [sys.executable, "-m", "casulo.cli", "server", *options],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={k: v for k, v in os.environ.items() if not k.startswith(("OPENSANDBOX_", "OPEN_SANDBOX_"))},
        )
        deadline = time.monotonic() + START_SECONDS
        while Home(data).server() is None:
            if server.poll() is not None or time.monotonic() > deadline:
                server.kill()
                log_text = (data.parent / "server.log").read_text()
                sys.exit(f"the server did not start; `osb doctor` says what is missing:\n{log_text}")
            time.sleep(0.005)
        print(f"   {connection(data).url}")
    return server


def connection(data: Path) -> Connection:
    """The way to that server and no other, whatever the environment says."""
    home = Home(data)
    url = str((home.server() or {})["url"])
    return Connection(url, api_key=home.key_for(url))


def use(client: Client, data: Path, report: Report) -> None:
    """What a user does with a sandbox."""
    with report.step("create a sandbox"):
        sandbox = Sandbox.create("host", client=client, timeout=300, resources={"memory": MEMORY_LIMIT})
        print(f"   {sandbox.id}")
    try:
        with report.step("run the first command"):
            result = sandbox.commands.run(
                "uname -sr; echo user $(id -u), $(ls /proc | grep -c '^[0-9]') processes"
            )
            print(indented(result.stdout))
        report.expect(result.ok, "the command succeeded")
        watch_live_output(sandbox, report)
        analyse_data(sandbox, report)
        draw_the_times(sandbox, report)
        hit_the_limit(sandbox, report)
        report.expect(look(data).total > 0, f"while it lives the machine shows it: {look(data)}")
    finally:
        with report.step("delete the sandbox"):
            sandbox.kill()
    report.expect(is_gone(client, sandbox.id), "the server does not know it any more")


def watch_live_output(sandbox: Sandbox, report: Report) -> None:
    """Lines arrive when they are written, not when the command ends."""
    arrived: list[float] = []

    def show(text: str) -> None:
        arrived.append(time.perf_counter())
        print(f"   {(arrived[-1] - began) * 1000:5.0f} ms  {text.strip()}", flush=True)

    with report.step("stream output live (the command takes 1 s)"):
        began = time.perf_counter()
        sandbox.commands.run(
            "for n in 1 2 3 4 5; do echo line $n; [ $n = 5 ] || sleep 0.25; done", on_stdout=show
        )
    gaps = [later - earlier for earlier, later in pairwise(arrived)]
    report.expect(len(arrived) == 5 and min(gaps) > 0.1, "every line came on its own, as it was written")


def analyse_data(sandbox: Sandbox, report: Report) -> None:
    """Real data in, real program, result out."""
    with report.step("upload data and program"):
        for name in ("elements.csv", "analyse_elements.py"):
            with (HERE / name).open("rb") as file:
                sandbox.files.write(f"/workspace/{name}", file)
    with report.step("run the program on the data"):
        result = sandbox.commands.run(
            ["python3", "analyse_elements.py", "elements.csv", "result.txt"], cwd="/workspace"
        )
        print(indented(result.stdout + result.stderr))
    report.expect(result.ok, "the program succeeded")
    if not result.ok:
        return
    with report.step("download the result"):
        text = sandbox.files.read("/workspace/result.txt")
    print(indented(text))
    report.expect("Argon (39.95) before Potassium" in text, "the result says what is known of the elements")


def draw_the_times(sandbox: Sandbox, report: Report) -> None:
    """Two cells of code: the second draws what the first has left."""
    times = [step for step in report.steps[1:] if "takes" not in step[0]]
    with report.step("draw the times so far with the code interpreter"):
        sandbox.code.run(f"times = {times!r}").check()
        value = sandbox.code.run((HERE / "plot_times.py").read_text()).check().value
    svg = value.svg if value else None
    report.expect(
        svg is not None and svg.count("<rect") == len(times) + 1, "the cell's plot came as a picture"
    )
    if svg and len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(svg + "\n")
        print(f"   saved as {sys.argv[1]}")


def hit_the_limit(sandbox: Sandbox, report: Report) -> None:
    """A program that wants four times the memory of its sandbox."""
    with report.step(f"let a program exceed {MEMORY_LIMIT}"):
        greedy: Result = sandbox.commands.run(["python3", "-c", GREEDY])
    print(f"   it got to {(greedy.stdout.split() or ['0'])[-2:][0]} MiB; {greedy.sentence()}")
    report.expect(greedy.out_of_memory, "the memory limit stopped it, and the result says so")
    with report.step("run a command after that"):
        after = sandbox.commands.run("echo still here")
    report.expect(after.stdout == "still here\n", "the sandbox still answers")


def stop_server(server: subprocess.Popen[bytes], report: Report) -> None:
    """As a service manager would."""
    with report.step("stop the server"):
        server.terminate()
        try:
            code = server.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            server.kill()
            code = server.wait()
    report.expect(code == 0, f"the server ended by itself with {code}")


def prove_nothing_left(before: Leftovers, data: Path, report: Report) -> None:
    """Mounts, namespaces, links, control groups, processes and directories, compared with the start."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while (after := look(data)) != before and time.monotonic() < deadline:
        time.sleep(0.05)  # the kernel takes network devices down in its own time
    print(f"\n── what is left\n   before  {before}\n   after   {after}")
    report.expect(after == before, "nothing is left on this machine")


def is_gone(client: Client, sandbox_id: str) -> bool:
    """Whether the server answers 404 for it."""
    try:
        client.get(sandbox_id)
    except NotFound:
        return True
    return False


def indented(text: str) -> str:
    """As part of the report."""
    return "\n".join(f"   {line}" for line in text.rstrip().splitlines())


if __name__ == "__main__":
    sys.exit(main())
