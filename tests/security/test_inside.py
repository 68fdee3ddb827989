# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""What a sandbox sees of the machine: nothing that is not meant for it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
import threading
import uuid
from pathlib import Path

import httpx
import pytest

from casulo.client import AsyncClient, CasuloError, Connection
from casulo.client.sandbox import AsyncSandbox
from support.server import Server

FORBIDDEN_CAPABILITIES = {
    "net_admin": 12,
    "sys_module": 16,
    "sys_rawio": 17,
    "sys_ptrace": 19,
    "sys_admin": 21,
    "sys_boot": 22,
    "sys_time": 25,
    "mac_admin": 33,
    "syslog": 34,
    "bpf": 39,
}


@pytest.fixture(params=["local", "gvisor"])
def place(request: pytest.FixtureRequest) -> str:
    """Both isolations of the local runtime."""
    return str(request.param)


async def _text(box: AsyncSandbox, command: str | list[str]) -> str:
    return (await box.commands.run(command, timeout=20)).stdout


async def test_no_host_files(box: AsyncSandbox, tmp_path: Path, host: Server) -> None:
    secret = uuid.uuid4().hex
    (tmp_path / "secret").write_text(secret)
    assert not await box.files.exists(str(tmp_path / "secret"))
    assert not await box.files.exists(str(host.data_dir))
    assert await _text(box, "cat /home/*/* /root/* /srv/* /media/* 2>/dev/null") == ""
    shadow = Path("/etc/shadow").read_text()
    hashes = [line.split(":")[1] for line in shadow.splitlines() if len(line.split(":")[1]) > 12]
    seen = await _text(box, "cat /etc/shadow /etc/gshadow 2>/dev/null; cat /etc/passwd")
    assert not any(found in seen for found in hashes)
    assert os.uname().nodename not in await _text(box, "hostname; cat /etc/hostname 2>/dev/null")


async def test_mounts_tell_no_host_paths(box: AsyncSandbox, host: Server) -> None:
    told = await _text(box, "cat /proc/self/mountinfo /proc/mounts")
    assert str(host.data_dir) not in told


async def test_the_system_is_read_only(box: AsyncSandbox) -> None:
    name = uuid.uuid4().hex
    for folder in ("/usr", "/usr/bin", "/proc/sys/kernel", "/sys/devices/system/cpu", "/sys/fs/cgroup/pids"):
        done = await box.commands.run(f"test -d {folder} && (touch {folder}/{name} || mkdir {folder}/{name})")
        assert not done.ok, folder
    assert not Path(f"/usr/{name}").exists() and not Path(f"/usr/bin/{name}").exists()
    for path in ("/proc/sysrq-trigger", "/proc/sys/kernel/core_pattern", "/proc/sys/vm/drop_caches"):
        assert not (await box.commands.run(f"echo 1 > {path}")).ok, path
    for path in ("/proc/kcore", "/proc/keys", "/proc/timer_list", "/sys/firmware"):
        assert (await _text(box, f"head -c 64 {path} 2>/dev/null; ls {path}/ 2>/dev/null")) == "", path


async def test_no_host_processes(box: AsyncSandbox, host: Server) -> None:
    listing = await _text(box, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
    assert "casulo.cli.main" not in listing and "pytest" not in listing
    pids = (await _text(box, "ls /proc")).split()
    assert sum(name.isdigit() for name in pids) < 12
    assert host.process is not None
    assert not (await box.commands.run(f"kill -0 {host.process.pid}")).ok


async def test_no_host_environment(new_server) -> None:
    server: Server = new_server("local")
    server.crash()
    server.environment["HOST_SECRET"] = secret = uuid.uuid4().hex
    server.start()
    body = {"image": {"uri": "host"}, "entrypoint": ["sleep", "99"], "resourceLimits": {}}
    told = server.request("POST", "/v1/sandboxes", json=body).json()["casulo"]
    command = {"command": "env; cat /proc/*/environ | tr '\\0' '\\n'"}
    answer = httpx.post(
        f"http://{told['endpoint']}/command", json=command, headers=told["headers"], trust_env=False
    )
    assert "OPENSANDBOX_ID" in answer.text
    assert secret not in answer.text


async def test_devices_are_the_harmless_ones(box: AsyncSandbox, place: str) -> None:
    names = set((await _text(box, "ls /dev")).split())
    assert {"null", "zero", "full", "random", "urandom", "tty", "shm", "pts"} <= names
    emulated = {"fuse", "net"} if place == "gvisor" else set()  # by gVisor's kernel, not the host's
    assert not names - emulated & {"mem", "kmem", "kmsg", "vda", "sda", "fuse", "kvm", "mapper", "net"}
    made = await box.commands.run("mknod /tmp/disk b 254 0 && head -c 512 /tmp/disk")
    assert not made.ok and made.stdout == ""


@pytest.mark.parametrize("family", ["AF_VSOCK", "AF_PACKET", "AF_ALG", "AF_BLUETOOTH", "AF_CAN"])
async def test_sockets_without_a_network_namespace_do_not_open(box: AsyncSandbox, family: str) -> None:
    program = f"import socket; socket.socket(socket.{family}, socket.SOCK_STREAM)"
    done = await box.commands.run(["python3", "-c", program])
    assert done.exit_code == 1 and ("OSError" in done.stderr or "PermissionError" in done.stderr)


async def test_netlink_lists_interfaces_and_nothing_else(box: AsyncSandbox) -> None:
    assert "eth0" in await _text(box, "ip -o link")
    program = "import socket; socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12)"
    assert (await box.commands.run(["python3", "-c", program])).exit_code == 1


async def test_few_capabilities_and_no_new_ones(box: AsyncSandbox, place: str) -> None:
    status = await _text(box, "cat /proc/self/status")
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    for kind in ("CapEff", "CapPrm", "CapBnd"):
        held = int(fields[kind], 16)
        assert not [name for name, bit in FORBIDDEN_CAPABILITIES.items() if held >> bit & 1], kind
    if place != "gvisor":  # whose own filter is around its kernel, and which does not tell the other
        assert fields["NoNewPrivs"] == "1" and fields["Seccomp"] == "2"


@pytest.mark.parametrize(
    "attempt",
    [
        "mount -t tmpfs none /mnt",
        "mount --bind / /mnt",
        "unshare --mount true",
        "unshare --user --map-root-user mount -t tmpfs none /mnt",
        'python3 -c \'import ctypes; l = ctypes.CDLL(None); exit(l.syscall(175, b"", 0, b"") != 0)\'',
        "python3 -c 'import ctypes; l = ctypes.CDLL(None); exit(l.syscall(313, 0, b\"\", 0) != 0)'",
        "python3 -c 'import ctypes; l = ctypes.CDLL(None); exit(l.ptrace(16, 1, 0, 0) != 0)'",
        "python3 -c 'import ctypes; l = ctypes.CDLL(None); exit(l.syscall(321, 0, b\"\", 0) < 0)'",
        "chroot / true && mount -o remount,rw /usr",
        "date -s 2001-01-01",
        "nsenter -t 1 -m true",
        "ip link add dummy0 type dummy",
        "sethostname() { hostname escaped; }; sethostname",
        "reboot -f",
    ],
    ids=[
        *("mount", "bind", "unshare", "user-namespace", "init_module", "finit_module", "ptrace", "bpf"),
        *("remount", "clock", "nsenter", "network-device", "hostname", "reboot"),
    ],
)
async def test_privileged_calls_fail(box: AsyncSandbox, attempt: str) -> None:
    done = await box.commands.run(attempt, timeout=10)
    assert not done.ok, done.stdout
    assert (await box.commands.run("true")).ok


async def test_b073_token_and_channels_are_not_readable_inside(box: AsyncSandbox, place: str) -> None:
    endpoint = await box.endpoint(44772)
    token = endpoint.headers["X-EXECD-ACCESS-TOKEN"]
    assert len(token) >= 32
    # A pattern file keeps the token out of the searching command's own arguments.
    await box.files.write("/dev/shm/pattern", token[: len(token) // 2])
    places = "/proc/[0-9]*/environ /proc/[0-9]*/cmdline /opt /etc /run /tmp /root /var /workspace"
    assert await _text(box, f"grep -raslFf /dev/shm/pattern {places}") == ""
    look = "test -p $f || timeout 1 head -c 65536 $f 2>/dev/null"  # no pipes: our own output is in one
    found = await _text(box, f"for f in /proc/1/fd/*; do {look}; done | grep -acFf /dev/shm/pattern")
    assert found == "0\n"
    # gVisor's kernel shows which files process 1 has and opens those that anybody in the sandbox may open.
    closed = ("mem", "root/", "cwd/")
    for name in closed if place == "gvisor" else (*closed, "environ", "maps", "fd/0", "fd/3", "fd/7"):
        path = f"/proc/1/{name}"
        look = f"head -c 64 {path} 2>/dev/null; ls {path}. 2>/dev/null; readlink {path}"
        assert await _text(box, look) == "", path
    # Nothing but the three standard ones is inherited by commands.
    assert (await _text(box, "ls /proc/self/fd")).split()[:3] == ["0", "1", "2"]
    targets = await _text(box, "ls -l /proc/$$/fd | sed 's/.* -> //'")
    assert "memfd" not in targets and "/events" not in targets


async def test_daemon_refuses_without_the_token(box: AsyncSandbox) -> None:
    code = (
        "import urllib.request as u, urllib.error as e\n"
        "try: print(u.urlopen(u.Request('http://127.0.0.1:44772/command', b'{}', method='POST')).status)\n"
        "except e.HTTPError as error: print(error.code)"
    )
    assert await _text(box, ["python3", "-c", code]) == "401\n"


async def test_b013_signals_to_process_1_are_harmless(box: AsyncSandbox, place: str) -> None:
    # In gVisor's kernel these two, which nobody can handle, reach process 1; the sandbox harms itself.
    final = () if place == "gvisor" else ("KILL", "STOP")
    for signal in (*final, "TERM", "INT", "HUP", "SEGV", "USR1", "QUIT"):
        await box.commands.run(f"kill -{signal} 1")
    await box.commands.run(["python3", "-c", "import os, signal; os.kill(1, signal.SIGRTMIN + 3)"])
    assert (await box.commands.run("echo alive")).stdout == "alive\n"
    assert (await box.refresh()).state == "Running"


async def test_gvisor_that_ends_its_own_process_1_is_told(gvisor_server: Server) -> None:
    async with (
        AsyncClient(Connection(gvisor_server.url, gvisor_server.api_key)) as client,
        await AsyncSandbox.create("host", client=client) as box,
    ):
        with contextlib.suppress(CasuloError):
            await box.commands.run("kill -KILL 1; sleep 30", timeout=20)
        for _ in range(200):
            if (await box.refresh()).state == "Failed":
                return
            await asyncio.sleep(0.1)
        raise AssertionError("its end was not seen")


async def test_entrypoint_killed_from_inside_is_told(box: AsyncSandbox) -> None:
    await box.commands.start("sleep 0.2; kill -9 -1")
    for _ in range(100):
        info = await box.refresh()
        if info.state in ("Failed", "Terminated"):
            break
    else:
        assert (await box.commands.run("true")).ok
        return
    assert info.message


async def test_neighbours_do_not_reach_each_other(box: AsyncSandbox, neighbour: AsyncSandbox) -> None:
    await neighbour.commands.start("cd /tmp && exec python3 -m http.server 8000")
    address = await _address(neighbour)
    code = 'import socket; socket.create_connection(("127.0.0.1", 8000))'
    ready = f"until python3 -c '{code}' 2>/dev/null; do :; done"
    await neighbour.commands.run(ready, timeout=10)
    for port in (8000, 44772):
        assert await _connect(box, address, port) == "closed", port
    assert await _address(box) != address


async def test_the_host_is_not_reachable(box: AsyncSandbox, host: Server) -> None:
    with socket.create_server(("0.0.0.0", 0)) as listener:
        listener.settimeout(0.2)
        stop = threading.Event()
        accepted: list[object] = []
        thread = threading.Thread(target=_accept, args=(listener, stop, accepted))
        thread.start()
        gateway = await _gateway(box)
        port = listener.getsockname()[1]
        outcomes = [await _connect(box, host, port) for host in (gateway, "169.254.169.254")]
        stop.set()
        thread.join()
    assert outcomes == ["closed", "closed"] and not accepted
    server_port = int(host.domain.rpartition(":")[2])
    assert await _connect(box, gateway, server_port) == "closed"


async def test_own_loopback_works(box: AsyncSandbox) -> None:
    port = random.randrange(20_000, 30_000)
    await box.commands.start(f"cd /tmp && exec python3 -m http.server {port} --bind 127.0.0.1")
    code = f"import socket; socket.create_connection(('127.0.0.1', {port}))"
    assert (await box.commands.run(f'until python3 -c "{code}" 2>/dev/null; do :; done', timeout=10)).ok


def _accept(listener: socket.socket, stop: threading.Event, accepted: list[object]) -> None:
    while not stop.is_set():
        try:
            connection, peer = listener.accept()
        except TimeoutError:
            continue
        connection.close()
        accepted.append(peer)


async def _connect(box: AsyncSandbox, host: str, port: int) -> str:
    code = (
        f"import socket\ntry: socket.create_connection(('{host}', {port}), timeout=1.5); print('open')\n"
        "except OSError: print('closed')"
    )
    return (await _text(box, ["python3", "-c", code])).strip()


async def _address(box: AsyncSandbox) -> str:
    code = (
        "import socket\ns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
        "s.connect(('192.0.2.1', 9)); print(s.getsockname()[0])"
    )
    return (await _text(box, ["python3", "-c", code])).strip()


async def _gateway(box: AsyncSandbox) -> str:
    routes = await _text(box, "cat /proc/net/route")
    default = next(line.split() for line in routes.splitlines() if line.split()[1] == "00000000")
    return socket.inet_ntoa(bytes.fromhex(default[2])[::-1])
