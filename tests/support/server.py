# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""A real server as a process of its own, with a data folder that its owner may keep or throw away."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import httpx

START_SECONDS = 120.0
STOP_SECONDS = 60.0


@dataclass
class Server:
    """One data folder and, between `start` and `stop`, the process that serves it."""

    data_dir: Path
    runtime: str
    extra: str = ""
    image: str = "host"
    process: subprocess.Popen[bytes] | None = None
    url: str = ""
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def domain(self) -> str:
        """`host:port`."""
        return self.url.removeprefix("http://")

    @property
    def api_key(self) -> str:
        return (self.data_dir / "api-key").read_text().strip()

    @property
    def output(self) -> str:
        """Everything that the processes of this folder printed."""
        path = self.data_dir / "server.out"
        return path.read_text(errors="replace") if path.exists() else ""

    def start(self) -> Server:
        """Start it and return when it says that it listens."""
        self.data_dir.mkdir(parents=True, exist_ok=True)
        config = self.data_dir / "test.toml"
        config.write_text(self._config())
        command = [sys.executable, "-m", "casulo.cli", "server", "--config", str(config)]
        with (self.data_dir / "server.out").open("ab") as output:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**_clean_environment(), "CASULO_HOME": str(self.data_dir), **self.environment},
            )
        self.url = self._wait_until_listening()
        return self

    def stop(self) -> None:
        """End it as a service manager would; a server that does not end in time is a failure."""
        if self.process is None:
            return
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.crash()
            raise AssertionError(f"the server did not stop in {STOP_SECONDS} s:\n{self.output}") from None
        self.process = None

    def crash(self) -> None:
        """End it without any warning."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def request(self, method: str, path: str, **options: object) -> httpx.Response:
        """One plain request with the key, for what no client library would send."""
        headers = {"OPEN-SANDBOX-API-KEY": self.api_key, **options.pop("headers", {})}  # type: ignore[dict-item]
        with httpx.Client(base_url=self.url, timeout=30, trust_env=False) as client:
            return client.request(method, path, headers=headers, **options)  # type: ignore[arg-type]

    def delete_all(self) -> None:
        """Remove every sandbox that is left."""
        while items := self.request("GET", "/v1/sandboxes", params={"pageSize": 200}).json()["items"]:
            for item in items:
                self.request("DELETE", f"/v1/sandboxes/{item['id']}")

    def _config(self) -> str:
        return (
            '[server]\nhost = "127.0.0.1"\nport = 0\n'
            f"data_dir = {json.dumps(str(self.data_dir))}\n"
            f'[runtime]\nenabled = ["{self.runtime}"]\ndefault = "{self.runtime}"\n'
            f"{self.extra}"
        )

    def _wait_until_listening(self) -> str:
        assert self.process is not None
        state = self.data_dir / "server.json"
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                break
            try:
                told = json.loads(state.read_text())
            except (FileNotFoundError, json.JSONDecodeError):
                told = {}
            if told.get("pid") == self.process.pid:
                return str(told["url"])
            time.sleep(0.02)
        self.crash()
        raise AssertionError(f"the server did not start:\n{self.output}")


def _clean_environment() -> dict[str, str]:
    """This process's environment without anything that configures servers or clients."""
    prefixes = ("OPENSANDBOX_", "OPEN_SANDBOX_", "CASULO_", "SANDBOX_")
    return {name: value for name, value in os.environ.items() if not name.startswith(prefixes)}
