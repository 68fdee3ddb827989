# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The store: what goes in comes out, pages are stable, and a thousand rows are few."""

from __future__ import annotations

import asyncio
import sqlite3
import stat
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from casulo.model.errors import Conflict, RuntimeFailure, Unavailable
from casulo.model.pool import Capacity, Pool, Template
from casulo.model.sandbox import Exit, Handle, Isolation, Platform, Resources, Sandbox, Spec
from casulo.model.states import State, Status
from casulo.store import engine, keys, migrations, schema
from casulo.store.outbox import Owed
from casulo.store.query import Claim, Query, Tombstone
from casulo.store.store import Store

NOW = datetime(2026, 11, 30, 12, 0, 0, 123456, tzinfo=UTC)


def sandbox(serial: int, **changes: object) -> Sandbox:
    spec = Spec("host", ("sleep", "1"), Resources(1000, 2**29, 512, 2**28), timeout_seconds=60)
    status = Status(State.PENDING, "CONTAINER_STARTING", "", NOW)
    made = Sandbox(f"id-{serial:05}", spec, status, NOW + timedelta(seconds=serial), runtime="memory")
    return replace(made, **changes)  # type: ignore[arg-type]


def in_state(found: Sandbox, state: State) -> Sandbox:
    return replace(found, status=replace(found.status, state=state))


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgresql":
        return request.getfixturevalue("database_server").database()
    return f"sqlite:///{tmp_path / 'casulo.db'}"


only_sqlite = pytest.mark.parametrize("url", ["sqlite"], indirect=True)
"""What SQLite alone has: a file."""


@pytest.fixture
async def store(url: str) -> AsyncIterator[Store]:
    opened = await Store.open(url)
    yield opened
    await opened.close()


async def test_everything_comes_back_as_it_was(store: Store) -> None:
    full = sandbox(
        1,
        spec=Spec(
            image="host",
            entrypoint=("sh", "-c", "echo 'ä\u2028'"),
            resources=Resources(250, 1, 2, 3, 4),
            resource_limits={"cpu": "250m"},
            env={"A": "b", "EMPTY": ""},
            extensions={"opensandbox.extensions.x": "y"},
            isolation=Isolation.CONTAINER,
            platform=Platform("linux", "arm64"),
            timeout_seconds=None,
        ),
        status=Status(State.FAILED, "CONTAINER_EXITED_ERROR", "ended with code 5", NOW),
        metadata={"a/b": "c", "empty": ""},
        expires_at=NOW + timedelta(microseconds=1),
        handle=Handle("10.0.0.1", 44772, "secret", {"pid": 4, "netns": "x"}),
        exit=Exit(None, "SIGKILL", True),
    )
    await store.insert(full)
    assert await store.get(full.id) == full
    bare = sandbox(2)
    await store.insert(bare)
    assert await store.get(bare.id) == bare
    assert await store.all() == (full, bare)
    assert await store.get("other") is None


async def test_it_survives_closing(url: str) -> None:
    first = await Store.open(url)
    await first.insert(sandbox(1), Claim("key", "hash", "id-00001"))
    await first.close()
    second = await Store.open(url)
    assert await second.get("id-00001") == sandbox(1)
    assert await second.claim("key") == Claim("key", "hash", "id-00001")
    await second.close()


@only_sqlite
async def test_only_its_owner_may_read_the_file(store: Store, tmp_path: Path) -> None:
    await store.insert(sandbox(1))
    for file in tmp_path.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file.name


async def test_a_change_that_raises_changes_nothing(store: Store) -> None:
    await store.insert(sandbox(1))

    def refuse(found: Sandbox) -> Sandbox:
        raise Conflict("no")

    with pytest.raises(Conflict):
        await store.update("id-00001", refuse)
    assert await store.get("id-00001") == sandbox(1)
    assert await store.update("other", refuse) is None


async def test_changes_from_two_servers_lose_nothing(store: Store, url: str) -> None:
    other = await Store.open(url)
    await store.insert(sandbox(1))

    def more(found: Sandbox) -> Sandbox:
        return replace(found, metadata={**found.metadata, f"k{len(found.metadata)}": "v"})

    await asyncio.gather(*((store, other)[n % 2].update("id-00001", more) for n in range(60)))
    found = await store.get("id-00001")
    await other.close()
    assert found is not None and len(found.metadata) == 60


async def test_pages_are_newest_first_and_disjoint(store: Store) -> None:
    same_moment = [sandbox(n, created_at=NOW) for n in range(25)]
    for made in same_moment:
        await store.insert(made)
    newest = sandbox(99)
    await store.insert(newest)
    pages = [await store.list(Query(page=n, page_size=10)) for n in (1, 2, 3, 4)]
    assert [len(page.items) for page in pages] == [10, 10, 6, 0]
    assert all((page.total, page.total_pages) == (26, 3) for page in pages)
    assert [page.has_next for page in pages] == [True, True, False, False]
    found = [item for page in pages for item in page.items]
    assert found[0] == newest
    assert [item.id for item in found[1:]] == sorted((s.id for s in same_moment), reverse=True)


async def test_an_empty_list_has_no_pages(store: Store) -> None:
    page = await store.list(Query())
    assert (page.items, page.total, page.total_pages, page.has_next) == ((), 0, 0, False)


async def test_filters_are_any_of_states_and_all_of_metadata(store: Store) -> None:
    for n in range(12):
        made = sandbox(n, metadata={"mod": str(n % 3), "team": "infra", "awk": ""})
        await store.insert(in_state(made, State.RUNNING if n % 2 else State.PAUSED))

    async def ids(states: set[State], **metadata: str) -> list[int]:
        page = await store.list(Query(frozenset(states), metadata, page_size=200))
        return sorted(int(item.id[3:]) for item in page.items)

    assert await ids({State.PAUSED}) == [0, 2, 4, 6, 8, 10]
    assert len(await ids({State.PAUSED, State.RUNNING})) == 12
    assert await ids(set(), mod="1", team="infra") == [1, 4, 7, 10]
    assert await ids({State.RUNNING}, mod="1") == [1, 7]
    assert await ids(set(), awk="") == list(range(12))
    assert await ids(set(), mod="1", team="other") == []
    assert await ids(set(), absent="") == []
    assert await ids({State.FAILED}) == []


async def test_a_thousand_rows_are_listed_page_by_page_and_none_twice(store: Store) -> None:
    for n in range(1200):
        await store.insert(sandbox(n, metadata={"mod": str(n % 7), "team": "infra"}))
    pages = [await store.list(Query(page=n, page_size=200)) for n in range(1, 7)]
    assert len({item.id for page in pages for item in page.items}) == 1200
    assert all(page.total == 1200 for page in pages)
    chosen = await store.list(Query(metadata={"mod": "3", "team": "infra"}, page_size=200))
    assert chosen.total == len(chosen.items) == 171


async def test_due_are_those_whose_time_has_come_and_nobody_is_stopping(store: Store) -> None:
    await store.insert(sandbox(1, expires_at=NOW + timedelta(seconds=2)))
    await store.insert(sandbox(2, expires_at=NOW))
    await store.insert(in_state(sandbox(3, expires_at=NOW - timedelta(seconds=9)), State.STOPPING))
    await store.insert(sandbox(4))
    assert [s.id for s in await store.due(NOW)] == ["id-00002"]
    assert [s.id for s in await store.due(NOW + timedelta(hours=1))] == ["id-00002", "id-00001"]
    assert await store.next_due() == NOW
    await store.update("id-00002", lambda s: in_state(s, State.STOPPING))
    assert await store.next_due() == NOW + timedelta(seconds=2)


async def test_a_key_is_claimed_once(store: Store) -> None:
    mine, theirs = Claim("key", "h1", "id-00001"), Claim("key", "h2", "id-00002")
    assert await store.insert(sandbox(1), mine) is None
    assert await store.insert(sandbox(2), theirs) == mine
    assert await store.get("id-00002") is None


async def test_a_removed_sandbox_leaves_a_stone_and_keeps_its_key_for_a_day(store: Store) -> None:
    await store.insert(sandbox(1, metadata={"a": "b"}), Claim("key", "h", "id-00001"))
    stone = Tombstone("id-00001", NOW, "EXPIRED", Exit(7))
    await store.remove(stone, release_claim=False)
    assert await store.tombstone("id-00001") == stone
    assert await store.get("id-00001") is None
    assert (await store.list(Query(metadata={"a": "b"}))).total == 0
    await store.purge(NOW)
    assert await store.tombstone("id-00001") == stone
    assert await store.claim("key") is not None
    await store.purge(NOW + timedelta(hours=24))
    assert await store.tombstone("id-00001") is None
    assert await store.claim("key") is None


async def test_keys_of_living_sandboxes_are_never_purged(store: Store) -> None:
    await store.insert(sandbox(1), Claim("key", "h", "id-00001"))
    await store.purge(NOW + timedelta(days=900))
    assert await store.claim("key") is not None


async def test_a_key_can_be_released_at_once(store: Store) -> None:
    await store.insert(sandbox(1), Claim("key", "h", "id-00001"))
    await store.remove(Tombstone("id-00001", NOW, "START_FAILED"), release_claim=True)
    assert await store.claim("key") is None


@only_sqlite
async def test_rows_of_a_newer_and_an_older_server_can_be_read(store: Store, tmp_path: Path) -> None:
    await store.insert(sandbox(1))
    with sqlite3.connect(tmp_path / "casulo.db") as other:
        other.execute("UPDATE sandboxes SET spec = json_remove(spec, '$.extensions', '$.isolation')")
        other.execute("UPDATE sandboxes SET spec = json_set(spec, '$.invented_later', 5)")
    other.close()
    found = await store.get("id-00001")
    assert found is not None
    assert (found.spec.extensions, found.spec.isolation) == ({}, Isolation.AUTO)


@only_sqlite
async def test_a_database_that_cannot_be_written_is_told_as_such(store: Store, tmp_path: Path) -> None:
    other = sqlite3.connect(tmp_path / "casulo.db")
    other.execute("DROP TABLE sandboxes")
    other.close()
    with pytest.raises(Unavailable) as failure:
        await store.insert(sandbox(1))
    assert failure.value.retry_after > 0


def test_the_migrations_make_the_schema_that_the_code_uses(url: str) -> None:
    connection = engine.connect(url)
    with engine.writing(connection):
        migrations.upgrade(connection)
        assert compare_metadata(MigrationContext.configure(connection), schema.metadata) == []
        assert migrations.current(connection) == migrations.HEAD
    connection.close()
    connection.engine.dispose()


def test_the_newest_revision_is_the_one_that_is_named() -> None:
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    assert ScriptDirectory.from_config(config).get_heads() == [migrations.HEAD]


@only_sqlite
async def test_a_database_of_a_newer_server_is_refused_untouched(url: str, tmp_path: Path) -> None:
    await (await Store.open(url)).close()
    other = sqlite3.connect(tmp_path / "casulo.db")
    with other:
        other.execute("UPDATE alembic_version SET version_num = 'r9999'")
    with pytest.raises(RuntimeFailure) as failure:
        await Store.open(url)
    assert "newer server" in failure.value.hint
    assert other.execute("SELECT version_num FROM alembic_version").fetchone() == ("r9999",)
    other.close()


@only_sqlite
async def test_sqlite_is_told_to_be_quick_and_safe(url: str) -> None:
    connection = engine.connect(url)
    wanted = {"journal_mode": "wal", "synchronous": 1, "busy_timeout": 5000, "foreign_keys": 1}
    found = {name: connection.scalar(sa.text(f"PRAGMA {name}")) for name in wanted}
    assert found == wanted
    connection.close()
    connection.engine.dispose()


async def test_an_exclusive_store_reads_what_it_wrote_and_forgets_what_it_removed(url: str) -> None:
    store = await Store.open(url, exclusive=True)
    made = sandbox(1)
    await store.insert(made)
    assert await store.get(made.id) == made
    changed = await store.update(made.id, lambda found: replace(found, metadata={"k": "v"}))
    assert await store.get(made.id) == changed
    assert changed != made
    await store.remove(Tombstone(made.id, NOW, "DELETING", None), release_claim=False)
    assert await store.get(made.id) is None
    await store.close()


def test_rows_from_before_there_were_keys_are_counted(url: str) -> None:
    connection = engine.connect(url)
    with engine.writing(connection):
        config = Config()
        config.set_main_option("script_location", str(Path(migrations.__file__).parent))
        config.attributes["connection"] = connection
        command.upgrade(config, "r0001")
        spec = '{"resources": {"cpu_millis": 1500, "memory_bytes": 7, "disk_bytes": null}}'
        columns = "id, version, state, reason, message, since, created_at, runtime, spec, metadata"
        values = f"'old', 1, 'Running', '', '', 0, 0, 'local', '{spec}', '{{}}'"
        connection.execute(
            sa.text(f"INSERT INTO sandboxes ({columns}) VALUES ({values})".replace(":", "\\:"))
        )
    with engine.writing(connection):
        migrations.upgrade(connection)
    held = keys.usage(connection, "")
    assert (held.sandboxes, held.cpu_millis, held.memory_bytes, held.disk_bytes) == (1, 1500, 7, 0)
    connection.close()
    connection.engine.dispose()


async def test_a_message_is_there_exactly_with_the_change_that_it_tells_of(url: str) -> None:
    store = await Store.open(url, here="a")
    arrived: list[None] = []
    failing = False

    def compose(before: Sandbox, after: Sandbox | Tombstone) -> list[Owed]:
        if failing:
            raise RuntimeError("composing went wrong")
        name = "gone" if isinstance(after, Tombstone) else f"{before.status.state}-{after.status.state}"
        return [Owed(name, "r", 1, name)]

    store.outbox.compose_with(compose, lambda: arrived.append(None))
    made = sandbox(1, server="a")
    await store.insert(made)
    with pytest.raises(ZeroDivisionError):
        await store.update(made.id, lambda found: 1 // 0)
    assert await store.update(made.id, lambda found: found) == made
    assert await store.outbox.next("r", 9) == () and not arrived
    await store.update(made.id, lambda found: in_state(found, State.RUNNING))
    assert [owed.body for owed in await store.outbox.next("r", 9)] == ["Pending-Running"]
    with pytest.raises(sa.exc.IntegrityError):  # such a message is there already: then nothing changes
        store.outbox.compose_with(lambda *_: [Owed("Pending-Running", "r", 2, "")], lambda: None)
        await store.update(made.id, lambda found: in_state(found, State.PAUSED))
    assert (await store.get(made.id)).status.state is State.RUNNING  # type: ignore[union-attr]
    store.outbox.compose_with(compose, lambda: arrived.append(None))
    failing = True
    await store.update(made.id, lambda found: in_state(found, State.STOPPING))
    assert (await store.get(made.id)).status.state is State.STOPPING  # type: ignore[union-attr]
    failing = False
    for _ in range(2):  # the second time there is nothing to remove
        await store.remove(Tombstone(made.id, NOW, "DELETING", None), release_claim=False)
    owed = await store.outbox.next("r", 9)
    assert [each.body for each in owed] == ["Pending-Running", "gone"] and len(arrived) == 2
    await store.outbox.done(owed[0])
    await store.outbox.keep_only(["others"])
    assert await store.outbox.next("r", 9) == ()
    await store.close()


async def test_a_pool_is_made_once_and_changed_only_while_it_is_there(store: Store) -> None:
    pool = Pool("p", Template("host"), Capacity(1, 1), NOW)
    assert sorted(await asyncio.gather(*(store.pools.add(pool) for _ in range(3)))) == [False, False, True]
    changed = await store.pools.resize("p", Capacity(0, 2))
    assert changed == replace(pool, capacity=Capacity(0, 2), revision=2)
    assert await store.pools.all() == (changed,)
    await store.pools.remove("p")
    assert await store.pools.resize("p", Capacity(1, 1)) is None and await store.pools.all() == ()
