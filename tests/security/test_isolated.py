# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""A sandbox whose daemon may nest namespaces is as closed as any other, and its sessions more so."""

from __future__ import annotations

import os
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from casulo.client.isolated import EXTENSION
from casulo.client.lifecycle import AsyncClient
from casulo.client.sandbox import AsyncSandbox
from support.server import Server

RESERVED = 1 << 12 | 1 << 19 | 1 << 21 | 1 << 24 | 1 << 27
"""net_admin, sys_ptrace, sys_admin, sys_resource, mknod."""

PROBE = r"""
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
opened = []
def tried(name, *arguments):
    if libc.syscall(*arguments) >= 0:
        opened.append(name)
def apart(name, call):
    child = os.fork()
    if child == 0:
        os._exit(1 if call() == 0 else 0)
    if os.waitpid(child, 0)[1]:
        opened.append(name)
for name, flag in {"mnt": 0x20000, "cgroup": 0x2000000, "uts": 0x4000000, "ipc": 0x8000000,
                   "user": 0x10000000, "pid": 0x20000000, "net": 0x40000000}.items():
    apart("unshare " + name, lambda: libc.unshare(flag))
    apart("clone " + name, lambda: 0 if libc.syscall(56, ctypes.c_ulong(flag | 17), 0, 0, 0, 0) > 0 else 1)
    class Arguments(ctypes.Structure):
        _fields_ = [(f"a{i}", ctypes.c_uint64) for i in range(11)]
    wanted = Arguments(a0=flag, a4=17)
    apart("clone3 " + name, lambda: 0 if libc.syscall(435, ctypes.byref(wanted), 88) > 0 else 1)
for kind in ("mnt", "pid", "net", "user", "ipc", "uts", "cgroup"):
    for pid in os.listdir("/proc"):
        try:
            fd = os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY)
        except OSError:
            continue
        if os.readlink(f"/proc/{pid}/ns/{kind}") != os.readlink(f"/proc/self/ns/{kind}"):
            apart(f"setns {kind} of {pid}", lambda: libc.setns(fd, 0))
for target in (b"/tmp", b"/proc", b"/", b"/sys"):
    for kind in (b"tmpfs", b"proc", b"sysfs", b"cgroup2", b"overlay", b"ext4", b"devtmpfs"):
        apart(f"mount {kind} {target}", lambda: libc.mount(kind, target, kind, 0, None))
    apart(f"bind {target}", lambda: libc.mount(b"/", target, None, 0x1000, None))
    apart(f"remount {target}", lambda: libc.mount(None, target, None, 0x1020, None))
    apart(f"umount {target}", lambda: libc.umount2(target, 2))
tried("open_tree", 428, -100, b"/", 1)
tried("mount_setattr", 442, -100, b"/", 0x8000, ctypes.byref((ctypes.c_uint64 * 4)(0, 1, 0, 0)), 32)
tried("fsopen", 430, b"tmpfs", 0)
tried("pivot_root", 155, b"/", b"/tmp")
for name in ("environ", "mem", "maps", "root/etc/passwd", "fd/0", "cwd/etc/passwd", "ns/mnt"):
    for pid in sys.argv[1:]:
        try:
            os.close(os.open(f"/proc/{pid}/{name}", os.O_RDONLY))
            opened.append(f"/proc/{pid}/{name}")
        except OSError:
            pass
for pid in sys.argv[1:]:
    apart(f"ptrace {pid}", lambda: libc.ptrace(16, int(pid), 0, 0))
for path in ("/proc/sys/user/max_user_namespaces", "/proc/sysrq-trigger", "/proc/sys/kernel/core_pattern"):
    try:
        open(path, "w").write("99")
        opened.append(path)
    except OSError:
        pass
# What prctl could give back: inheritable and ambient administration, root's old privileges.
apart("ambient", lambda: libc.prctl(47, 2, 21, 0, 0))
apart("securebits", lambda: libc.prctl(28, 0, 0, 0, 0))
print("\n".join(opened))
"""

FORKS = """
import os, signal
made = []
try:
    while len(made) < 500:
        made.append(os.fork())
        if not made[-1]:
            signal.pause()
except OSError:
    print(len(made))
for child in made:
    os.kill(child, signal.SIGKILL)
"""


@pytest.fixture
async def nest(client: AsyncClient) -> AsyncIterator[AsyncSandbox]:
    limits = {"cpu": "1", "memory": "192Mi", "pids": "64"}
    options = {"extensions": EXTENSION, "resources": limits}
    async with await AsyncSandbox.create("host", client=client, **options) as made:  # type: ignore[arg-type]
        await made.files.write("/opt/probe.py", PROBE)
        (await made.commands.run("mkdir -p /workspace /data")).check()
        yield made


async def test_user_code_can_do_no_more_than_elsewhere(nest: AsyncSandbox, box: AsyncSandbox) -> None:
    told = (await nest.commands.run("grep -E 'Cap(Prm|Eff|Inh|Amb)' /proc/self/status")).check().stdout
    assert not any(int(line.split()[1], 16) & RESERVED for line in told.splitlines())
    look = "grep CapEff /proc/self/status"
    here, there = [(await one.commands.run(look)).check().stdout for one in (nest, box)]
    assert here == there
    async with await nest.isolated.create("/workspace") as session:
        assert (await session.run("echo here")).ok
        assert (await nest.commands.run("python3 /opt/probe.py 1")).check().stdout == "\n"
        assert (await nest.commands.run("python3 /opt/probe.py 1", uid=1000)).check().stdout == "\n"


async def test_the_namespace_is_its_own(nest: AsyncSandbox, neighbour: AsyncSandbox) -> None:
    links = [
        (await sandbox.commands.run("readlink /proc/self/ns/user")).check().stdout.strip()
        for sandbox in (nest, neighbour)
    ]
    assert len({*links, os.readlink("/proc/self/ns/user")}) == 3
    assert (await nest.commands.run("cat /proc/sys/user/max_user_namespaces")).stdout == "0\n"


async def test_a_session_cannot_get_out(nest: AsyncSandbox) -> None:
    secret = uuid.uuid4().hex
    await nest.files.write("/data/secret", secret)
    async with (
        await nest.isolated.create("/workspace") as session,
        await nest.isolated.create("/data") as other,
    ):
        await other.run(f"echo {secret} > /data/hidden; sleep 60 &")
        assert (await session.run("python3 /opt/probe.py")).check().stdout == "\n"
        seen = await session.run("cat /proc/[0-9]*/cmdline | tr '\\0' ' '; ls -A /opt/opensandbox/isolated")
        assert "sleep 60" not in seen.stdout and "execd" not in seen.stdout
        assert not (await session.run("test -e /data/hidden")).ok
        places = "/tmp /run /dev/shm /opt /workspace /proc/[0-9]*/environ"
        found = await session.run(f"grep -rsl {secret} {places}")
        assert found.stdout == ""
        escape = "mkdir /tmp/x; exec 3</; chroot /tmp/x /bin/true; ls /proc/1/root/opt/opensandbox/isolated"
        assert "layer" not in (await session.run(escape)).stdout
        writes = "for p in /etc /usr /opt /root /var /data; do touch $p/x && exit; done; false"
        assert not (await session.run(writes)).ok


async def test_the_daemon_and_the_host_stay_out_of_reach(
    nest: AsyncSandbox, local_server: Server, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text("x")
    async with await nest.isolated.create("/workspace") as session:
        for run in (nest.commands.run, session.run):
            mounts = (await run("cat /proc/self/mountinfo /proc/mounts")).stdout
            assert str(local_server.data_dir) not in mounts
            assert not (await run(f"test -e {tmp_path}/secret || test -e {local_server.data_dir}")).ok
            closed = "/proc/keys /proc/timer_list /proc/interrupts /proc/cmdline"
            assert (await run(f"cat {closed} 2>/dev/null")).stdout == ""


async def test_the_daemons_program_cannot_be_replaced(nest: AsyncSandbox) -> None:
    """It runs once more, with what user code must not get, whenever a session is made."""
    for attempt in (
        "mv /opt/opensandbox /opt/moved",
        "mv /opt/opensandbox/execd /opt/moved",
        "rm -f /opt/opensandbox/execd",
        "echo x >> /opt/opensandbox/execd",
        "chmod 777 /opt/opensandbox/execd",
        "rm -rf /opt/opensandbox /proc/fs",
    ):
        assert not (await nest.commands.run(attempt)).ok, attempt
    await nest.files.write("/opt/path/execd", "#!/bin/sh\ntouch /opt/caught\n", mode="755")
    (await nest.commands.run("cp /opt/path/execd /opt/path/execd-isolated-proc")).check()
    (await nest.commands.run("echo PATH=/opt/path:$PATH >> $EXECD_ENVS")).check()
    async with await nest.isolated.create("/workspace") as session:
        assert (await session.run("true")).ok
    assert not await nest.files.exists("/opt/caught")


async def test_limits_hold_in_sessions(nest: AsyncSandbox) -> None:
    async with await nest.isolated.create("/workspace") as session:
        eaten = await session.run('python3 -c "bytearray(400 << 20)"')
        assert eaten.out_of_memory
        filled = await session.run("head -c 400M /dev/zero > /tmp/fill; stat -c %s /tmp/fill; rm /tmp/fill")
        assert 64 << 20 < int(filled.stdout.split()[-1]) <= 96 << 20
        await session.files.write("/workspace/forks.py", FORKS)
        assert 40 < int((await session.run("python3 /workspace/forks.py")).check().stdout) < 64
    assert (await nest.commands.run("echo alive")).stdout == "alive\n"
