# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Isolated sessions: what they see, what they keep, how they end, and what is refused."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator

import pytest

from casulo.client.connection import Connection
from casulo.client.isolated import EXTENSION, AsyncIsolatedSession, BindMount, Overlay
from casulo.client.lifecycle import AsyncClient
from casulo.client.sandbox import AsyncSandbox
from casulo.model.errors import CasuloError, Code, NotFound, Unavailable, Unsupported
from support.server import Server

PREPARE = """
mkdir -p /workspace/sub /workspace/ro /data /mnt/extra
echo original > /workspace/file; echo deep > /workspace/sub/deep; chmod 777 /workspace /workspace/sub
"""

WORKSPACE = {"workspace": {"path": "/workspace"}}


@pytest.fixture(params=["direct", "proxy"])
async def nest(request: pytest.FixtureRequest, local_server: Server) -> AsyncIterator[AsyncSandbox]:
    """A sandbox that may have isolated sessions, reached directly and through the server."""
    proxied = request.param == "proxy"
    connection = Connection(local_server.url, local_server.api_key, use_server_proxy=proxied)
    async with (
        AsyncClient(connection) as client,
        await AsyncSandbox.create("host", extensions=EXTENSION, client=client) as made,
    ):
        (await made.commands.run(PREPARE)).check()
        yield made


async def _text(session: AsyncIsolatedSession, code: str, **options: object) -> str:
    return (await session.run(code, **options)).check().stdout  # type: ignore[arg-type]


async def test_capabilities_of_every_sandbox(box: AsyncSandbox) -> None:
    told = await box.isolated.capabilities()
    assert not told.available and "bootstrap.execd.isolation" in told.message
    assert not (told.commit_supported or told.diff_supported or told.setpriv_available)
    assert told.hardening["init_mode"] in ("pid1", "subreaper")
    session = box.isolated.attach(str(uuid.uuid4()))
    calls = [box.isolated.create("/tmp"), box.isolated.list(), session.info(), session.run("true")]
    for call in (*calls, session.diff(), session.files.read("/etc/passwd"), session.delete()):
        with pytest.raises(Unavailable) as refused:
            await call
        assert refused.value.code == "SERVICE_UNAVAILABLE"


async def test_the_extension_is_refused_where_it_cannot_be_granted(fake_server: Server) -> None:
    async with AsyncClient(Connection(fake_server.url, fake_server.api_key)) as client:
        for value in ("enable", "yes"):
            with pytest.raises(CasuloError) as refused:
                await AsyncSandbox.create(
                    "host", extensions={"bootstrap.execd.isolation": value}, client=client
                )
            assert refused.value.code in (Code.NOT_SUPPORTED, Code.INVALID_PARAMETER)


async def test_own_processes_and_state(nest: AsyncSandbox) -> None:
    told = await nest.isolated.capabilities()
    assert told.available and told.commit_supported and told.diff_supported and told.setpriv_available
    assert not told.userns_available
    async with await nest.isolated.create("/workspace") as session:
        assert await _text(session, "echo $$; pwd") == "2\n/workspace\n"
        assert int(await _text(session, "ls -d /proc/[0-9]* | wc -l")) < 6
        await _text(session, "x=5; list=(a 'b c'); greet() { echo hi $1; }; cd sub")
        told_later = await _text(session, 'echo $x "${list[1]}"; greet you; pwd')
        assert told_later == "5 b c\nhi you\n/workspace/sub\n"
        values = {"K": "it's\n$HOME", "x": "7"}
        assert await _text(session, 'true; echo "$K"; sh -c "echo \\$x"', env=values) == "it's\n$HOME\n7\n"
        assert not (await session.run("exit 3", env=values)).ok
        assert await _text(session, 'echo "[$K]$x"; sh -c "echo \\$x"') == "[]5\n\n"
        failed = await session.run("echo out; echo err >&2; exit 7")
        assert (failed.exit_code, failed.stdout) == (7, "out\nerr\n")
        assert await _text(session, "echo $x; greet again") == "5\nhi again\n"


async def test_strict_overlay_keeps_changes_until_commit(nest: AsyncSandbox) -> None:
    async with await nest.isolated.create("/workspace") as session:
        await _text(session, "echo changed > file; rm -rf sub; mkdir new; echo n > new/n; ln -s file link")
        assert await nest.files.read("/workspace/file") == "original\n"
        assert not (await session.run("touch /root/x /etc/x /usr/x /var/x")).ok
        changes = {(c.kind, c.path) for c in await session.diff()}
        assert changes == {
            ("modified", "/workspace/file"),
            ("deleted", "/workspace/sub"),
            ("added", "/workspace/new"),
            ("added", "/workspace/new/n"),
            ("added", "/workspace/link"),
        }
        assert {(c.kind, c.path) for c in await session.commit()} == changes
        assert await session.diff() == ()
        assert await nest.files.read("/workspace/file") == "changed\n"
        assert await nest.files.read("/workspace/new/n") == "n\n"
        assert not await nest.files.exists("/workspace/sub")
        assert (await nest.files.info("/workspace/link")).type == "symlink"


async def test_a_directory_made_anew_hides_the_old_one(nest: AsyncSandbox) -> None:
    async with await nest.isolated.create("/workspace") as session:
        await _text(session, "rm -rf sub; mkdir sub; echo f > sub/fresh")
        assert {(c.kind, c.path) for c in await session.diff()} >= {
            ("deleted", "/workspace/sub/deep"),
            ("added", "/workspace/sub/fresh"),
        }
        await session.commit()
        names = [entry.path for entry in await nest.files.list("/workspace/sub")]
        assert names == ["/workspace/sub/fresh"]


async def test_profiles_decide_what_is_private(nest: AsyncSandbox) -> None:
    await nest.commands.run("echo outside > /tmp/seen; printf 'API_TOKEN=t0p\nPLAIN=p\n' >> $EXECD_ENVS")
    async with await nest.isolated.create("/workspace") as strict:
        assert await _text(strict, "ls -A /tmp /dev/shm; echo mine > /tmp/own; cat /tmp/own") == (
            "/dev/shm:\n\n/tmp:\nmine\n"
        )
        assert await _text(strict, 'echo "[$API_TOKEN][$PLAIN]"') == "[][p]\n"
    async with await nest.isolated.create("/workspace", profile="balanced") as balanced:
        assert await _text(balanced, "cat /tmp/seen; echo from-inside > file") == "outside\n"
        assert await _text(balanced, 'echo "[$API_TOKEN][$PLAIN]"') == "[t0p][p]\n"
        assert await nest.files.read("/workspace/file") == "from-inside\n"
        settings = (await balanced.info()).settings
        assert settings["workspace"] == {"path": "/workspace", "mode": "rw"}
        assert settings["share_net"] is True and settings["idle_timeout_seconds"] == 0
    allowed = {"mode": "allow", "keys": ["API_TOKEN"]}
    async with await nest.isolated.create("/workspace", env_passthrough=allowed) as chosen:
        assert await _text(chosen, 'echo "[$API_TOKEN][$PLAIN]"') == "[t0p][]\n"
    assert not await nest.files.exists("/tmp/own")


async def test_modes_nest_and_binds_show(nest: AsyncSandbox) -> None:
    layers = [
        Overlay("/workspace/sub", "rw"),
        Overlay("/workspace", "overlay", persist=False),
        Overlay("/workspace/ro", "ro"),
    ]
    binds = [BindMount("/workspace/sub", "/data"), BindMount("/mnt/extra", readonly=True)]
    writable = ["/mnt/extra"]
    async with await nest.isolated.create(overlays=layers, binds=binds, extra_writable=writable) as session:
        await _text(session, "echo lost > /workspace/lost; echo kept > /workspace/sub/kept; cat /data/kept")
        assert not (await session.run("echo x > /workspace/ro/x")).ok
        assert not (await session.run("echo x > /mnt/extra/x")).ok, "the bind comes after and is read-only"
        assert await nest.files.read("/workspace/sub/kept") == "kept\n"
        assert not await nest.files.exists("/workspace/lost")
        assert [c.path for c in await session.diff()] == ["/workspace/lost"]


async def test_files_are_those_of_the_session(nest: AsyncSandbox) -> None:
    async with await nest.isolated.create("/workspace") as session:
        await session.files.write("/workspace/up", "uploaded")
        assert await _text(session, "cat up") == "uploaded"
        assert await session.files.read("/workspace/file") == "original\n"
        assert await session.files.replace("/workspace/file", "orig", "ab") == 1
        assert await session.files.replace("/workspace/file", "zzz", "") == 0
        assert (await session.files.info("/workspace/up")).size == 8
        names = {entry.path for entry in await session.files.list("/workspace")}
        assert "/workspace/up" in names
        await session.files.mkdir("/workspace/made")
        await session.files.move("/workspace/up", "/workspace/made/up")
        assert [e.path for e in await session.files.search("/workspace", "up")] == ["/workspace/made/up"]
        with pytest.raises(CasuloError):
            await session.files.write("/etc/forbidden", "x")
        with pytest.raises(CasuloError):
            session.files.as_user(0, 0)
        assert not await nest.files.exists("/workspace/up")
        assert await nest.files.read("/workspace/file") == "original\n"
    with pytest.raises(NotFound) as gone:
        await session.files.read("/workspace/file")
    assert gone.value.code == "SESSION_NOT_FOUND"


async def test_background_runs(nest: AsyncSandbox) -> None:
    async with await nest.isolated.create("/workspace", mode="rw") as session:
        await _text(session, "word=told; cd sub")
        started = await session.start('echo "$word $K"; pwd; sleep 0.4; echo é; exit 7', env={"K": "k"})
        assert started.running and (await session.status(started.id)).running
        assert await _text(session, "echo meanwhile") == "meanwhile\n"
        ended = await session.wait(started.id, 10)
        assert (ended.exit_code, ended.error, ended.running) == (7, "", False)
        first = await session.logs(started.id)
        assert first.text == "told k\n/workspace/sub\né\n"
        assert (await session.logs(started.id, first.cursor)).data == b""
        assert (await session.logs(started.id, 5)).text == first.text[5:]
        with pytest.raises(NotFound):
            await session.status(str(uuid.uuid4()))
        slow = await session.start("sleep 60 & sleep 60", timeout=0.3)
        ended = await session.wait(slow.id, 10)
        assert not ended.running and "0.3" in ended.error
        endless = await session.start("trap 'echo bye; exit 9' TERM; sleep 60 & wait")
        await asyncio.sleep(0.3)
        await nest.commands.interrupt(endless.id)
        ended = await session.wait(endless.id, 10)
        assert not ended.running and "interrupted" in ended.error
        assert (await session.logs(endless.id)).text == "bye\n"
        with pytest.raises(CasuloError):
            await nest.commands.interrupt(endless.id)
    for layer in (Overlay("/workspace", "ro"), Overlay("/workspace", "overlay", persist=False)):
        async with await nest.isolated.create(overlays=[layer]) as session:
            with pytest.raises(CasuloError) as refused:
                await session.start("true")
            assert refused.value.code == "INVALID_REQUEST_BODY"


async def test_a_limit_ends_the_run_and_not_the_session(nest: AsyncSandbox) -> None:
    async with await nest.isolated.create("/workspace") as session:
        await _text(session, "x=kept; touch here")
        result = await session.run("y=new; setsid sleep 77 & while :; do :; done", timeout=0.4)
        assert result.timed_out and result.exit_code is None and "limit" in result.error
        told = await _text(session, "echo $x $y; ls here; pgrep -fc 'sleep 77'; true")
        assert told == "kept new\nhere\n0\n"


HOSTILE = (
    "set -n", "set -o noexec; echo no", "builtin() { :; }", "enable -n printf eval read",
    "exec 90<&- 91>&- 92>&- 93>&-", "readonly __casulo", "readonly IFS", "set -euo pipefail; set -x",
    "trap : EXIT; exit 3", "kill -9 $$", "exec true",
)  # fmt: skip


async def test_no_text_makes_a_session_unusable(shared_nest: AsyncSandbox) -> None:
    async with await shared_nest.isolated.create("/workspace", profile="balanced") as session:
        for text in HOSTILE:
            first = await session.run(text, timeout=30)
            assert not first.timed_out, text
            again = await session.run("echo ran; (exit 4)", timeout=30)
            assert "ran" in again.stdout and again.exit_code == 4, (text, first, again)
        lost = await session.run("set -n", timeout=30)
        assert "stopped executing" in lost.error and lost.exit_code is None, lost


async def test_users(nest: AsyncSandbox) -> None:
    async with await nest.isolated.create("/workspace", uid=1234, gid=2345) as session:
        told = await _text(session, "id -u; id -g; echo mine > own; stat -c %u:%g own")
        assert told == "1234\n2345\n1234:2345\n"
        assert await _text(session, "grep CapEff /proc/self/status") == "CapEff:\t0000000000000000\n"
        assert (await session.files.info("/workspace/own")).owner == "1234"
        await session.files.write("/workspace/uploaded", "x")
        assert await _text(session, "stat -c %u /workspace/uploaded; echo x > /dev/stdout") == "1234\nx\n"
    with pytest.raises(Unsupported) as refused:
        await nest.isolated.create("/workspace", uid=1234, uid_mode="userns")
    assert refused.value.code == "NOT_SUPPORTED" and "setpriv" in refused.value.message


async def test_a_network_of_its_own(nest: AsyncSandbox) -> None:
    listen = (
        "import socket; s = socket.create_server(('127.0.0.1', 0)); socket.create_connection(s.getsockname())"
    )
    async with await nest.isolated.create("/workspace", share_net=False) as session:
        assert (await _text(session, "cat /proc/net/dev | tail -n +3 | cut -d: -f1")).split() == ["lo"]
        await _text(session, f'python3 -c "{listen}"')
        assert not (await session.run("exec 3<>/dev/tcp/127.0.0.1/44772")).ok
    async with await nest.isolated.create("/workspace") as session:
        assert (await session.run("exec 3<>/dev/tcp/127.0.0.1/44772")).ok


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ({}, "workspace"),
        ({**WORKSPACE, "profile": "loose"}, "loose"),
        ({"workspace": {"path": "workspace"}}, "absolute"),
        ({"workspace": {"path": "/etc"}}, "/etc"),
        ({"workspace": {"path": "/workspace/../etc"}}, "/etc"),
        ({"workspace": {"path": "/workspace/escape"}}, "/etc"),
        ({"workspace": {"path": "/workspace/missing"}}, "missing"),
        ({"workspace": {"path": "/workspace/file"}}, "directory"),
        ({"workspace": {"path": "/workspace", "mode": "rx"}}, "rx"),
        ({"overlays": [{"path": "/workspace"}, {"path": "/workspace/"}]}, "twice"),
        ({"overlays": [{"path": "/workspace", "mode": "rw", "persist": True}]}, "persist"),
        ({**WORKSPACE, "extra_writable": ["/usr"]}, "/usr"),
        ({**WORKSPACE, "extra_writable": ["/data/missing"]}, "missing"),
        ({**WORKSPACE, "binds": [{"source": "/data", "dest": "/mnt/no"}]}, "/mnt/no"),
        ({**WORKSPACE, "binds": [{"source": "/data", "dest": "/workspace/file"}]}, "directory"),
        ({**WORKSPACE, "env_passthrough": {"mode": "some"}}, "some"),
        ({**WORKSPACE, "gid": 5}, "uid"),
        ({**WORKSPACE, "uid": -1}, "uid"),
        ({**WORKSPACE, "uid": 100000}, "100000"),
        ({**WORKSPACE, "uid_mode": "sudo"}, "sudo"),
        ({**WORKSPACE, "idle_timeout_seconds": -1}, "idle"),
    ],
)
async def test_b087_never_less_than_asked(
    shared_nest: AsyncSandbox, body: dict[str, object], word: str
) -> None:
    await shared_nest.commands.run("ln -sfn /etc /workspace/escape")
    with pytest.raises(CasuloError) as refused:
        await shared_nest._channel.request("POST", "/v1/isolated/session", content=body)
    assert refused.value.code == "INVALID_REQUEST_BODY"
    assert word in refused.value.message
    assert await shared_nest.isolated.list() == ()


@pytest.fixture
async def shared_nest(local_server: Server) -> AsyncIterator[AsyncSandbox]:
    async with (
        AsyncClient(Connection(local_server.url, local_server.api_key)) as client,
        await AsyncSandbox.create("host", extensions=EXTENSION, client=client) as made,
    ):
        (await made.commands.run(PREPARE)).check()
        yield made


async def test_idle_sessions_end_and_used_ones_do_not(shared_nest: AsyncSandbox) -> None:
    idle = await shared_nest.isolated.create("/workspace", idle_timeout=1)
    left = (await idle.info()).idle_remaining_seconds
    assert left is not None and 0 < left <= 1
    assert (await idle.run("sleep 2.5; echo through")).stdout == "through\n"
    assert (await idle.info()).status == "active"
    await asyncio.sleep(2.2)
    assert await shared_nest.isolated.list() == ()
    with pytest.raises(NotFound):
        await idle.run("true")


async def test_a_killed_first_process_makes_a_session_dead(shared_nest: AsyncSandbox) -> None:
    session = await shared_nest.isolated.create("/workspace", mode="rw")
    await shared_nest.commands.run("pkill -9 -f 'session --noprofile'")
    await asyncio.sleep(0.2)
    assert (await session.info()).status == "dead"
    for call in (session.run("true"), session.start("true")):
        with pytest.raises(CasuloError) as refused:
            await call
        assert refused.value.code == "INVALID_REQUEST_BODY"
    await session.delete()
    assert await shared_nest.isolated.list() == ()


async def test_deleting_ends_what_runs(shared_nest: AsyncSandbox) -> None:
    session = await shared_nest.isolated.create("/workspace", mode="rw")
    await session.start("setsid sleep 81 & sleep 81")
    running = asyncio.ensure_future(session.run("setsid sleep 81 & sleep 81"))
    await asyncio.sleep(0.5)
    await session.delete()
    result = await running
    assert result.reason == "interrupted" and not result.ok
    assert (await shared_nest.commands.run("pgrep -fc 'sleep 81'")).stdout == "0\n"
    with pytest.raises(NotFound) as gone:
        await session.delete()
    assert gone.value.code == "SESSION_NOT_FOUND"


async def test_fifty_sessions_leave_nothing(shared_nest: AsyncSandbox) -> None:
    count = "set -- /proc/[0-9]*; echo $#; wc -l < /proc/self/mountinfo"
    mounts = [Overlay("/workspace", "overlay"), Overlay("/data", "overlay", persist=False)]
    async with await shared_nest.isolated.create(overlays=mounts) as first:
        await first.run("echo x > y")
    before = (await shared_nest.commands.run(count)).stdout
    for _ in range(10):
        made = await asyncio.gather(*(shared_nest.isolated.create(overlays=mounts) for _ in range(5)))
        await asyncio.gather(*(session.run("echo x > y; sleep 99 & true") for session in made))
        await asyncio.gather(*(session.delete() for session in made))
    assert (await shared_nest.commands.run(count)).stdout == before
    assert await shared_nest.isolated.list() == ()
