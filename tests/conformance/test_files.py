# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Files: whatever is called success is there, and nothing else happens."""

from __future__ import annotations

import asyncio
import hashlib
import random
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from casulo.client.lifecycle import AsyncClient
from casulo.client.sandbox import AsyncSandbox
from casulo.model.errors import CasuloError, NotFound, RuntimeFailure

KIB, MIB = 1024, 1024 * 1024
SIZES = [0, 1, 17 * KIB, 18 * KIB, 19 * KIB, 64 * KIB, MIB - 1, MIB, MIB + 1, 100 * MIB]


@pytest.fixture
def folder() -> str:
    """A place of its own, since the fake runtime shares the machine's file system."""
    return f"/tmp/casulo-files-{uuid.uuid4().hex}"


@pytest.mark.parametrize("size", SIZES)
async def test_b021_upload_size_sweep(any_box: AsyncSandbox, folder: str, size: int) -> None:
    data = random.Random(size).randbytes(min(size, MIB)) * max(1, size // MIB)
    data = (data + b"x" * size)[:size]
    path = f"{folder}/missing/parent/file" if size % 2 else f"/tmp/{uuid.uuid4().hex}"
    await any_box.files.write(path, data)
    told = await any_box.commands.run(["sha256sum", path])
    assert told.stdout.split()[0] == hashlib.sha256(data).hexdigest()
    assert (await any_box.files.info(path)).size == size
    assert hashlib.sha256(await any_box.files.read_bytes(path)).digest() == hashlib.sha256(data).digest()
    await any_box.files.delete(path)
    await any_box.files.rmdir(folder)


async def test_b023_interrupted_upload_leaves_the_old_file(any_box: AsyncSandbox, folder: str) -> None:
    old = b"old" * MIB
    await any_box.files.write(f"{folder}/file", old)

    async def half() -> AsyncIterator[bytes]:
        for _ in range(32):
            yield b"n" * MIB
        raise ConnectionResetError("the uploader died")

    with pytest.raises((ConnectionResetError, CasuloError)):
        await any_box.files.write(f"{folder}/file", half())
    assert await any_box.files.read_bytes(f"{folder}/file") == old
    for _ in range(50):
        if (await any_box.commands.run(["ls", "-A", folder])).stdout == "file\n":
            break
        await asyncio.sleep(0.1)
    assert (await any_box.commands.run(["ls", "-A", folder])).stdout == "file\n"
    await any_box.files.rmdir(folder)


async def test_b025_names_that_are_not_utf8(box: AsyncSandbox, folder: str) -> None:
    names = "\"$(printf 'bad\\377name')\" good \"$(printf 'two\\nlines')\""
    assert (await box.commands.run(f"mkdir {folder} && cd {folder} && touch {names}")).ok
    entries = await box.files.list(folder)
    assert len(entries) == 3 and f"{folder}/good" in {e.path for e in entries}
    assert {e.path for e in await box.files.search(folder, "*")} == {e.path for e in entries}
    for entry in entries:
        await box.files.write(entry.path, b"content")
        assert await box.files.read_bytes(entry.path) == b"content"
    assert (await box.commands.run(f"ls {folder} | wc -l")).stdout.strip() == "4"  # one name has two lines
    await box.files.delete(*(entry.path for entry in entries))
    assert await box.files.list(folder) == []
    await box.files.rmdir(folder)


async def test_b027_symbolic_links_are_not_followed_out(box: AsyncSandbox, folder: str) -> None:
    await box.commands.run(
        f"mkdir -p {folder}/real {folder}.far; echo keep | tee {folder}/real/keep > {folder}.far/keep;"
        f" cd {folder}; ln -s real/keep link; ln -s real dirlink; ln -s {folder}.far far"
    )
    assert (await box.files.info(f"{folder}/link")).type == "symlink"
    kinds = {e.path.rpartition("/")[2]: e.type for e in await box.files.list(folder)}
    assert kinds == {"real": "directory", "link": "symlink", "dirlink": "symlink", "far": "symlink"}
    await box.files.delete(f"{folder}/link")
    await box.files.rmdir(f"{folder}/dirlink", f"{folder}/far")
    assert await box.files.read(f"{folder}/real/keep") == "keep\n"
    assert await box.files.read(f"{folder}.far/keep") == "keep\n"
    assert not await box.files.exists(f"{folder}/dirlink")
    await box.files.rmdir(folder, f"{folder}.far")


async def test_b027_upload_over_what_exists(box: AsyncSandbox, folder: str) -> None:
    await box.files.write(f"{folder}/file", b"first")
    await box.files.write(f"{folder}/file", b"second")
    assert await box.files.read_bytes(f"{folder}/file") == b"second"
    await box.files.mkdir(f"{folder}/directory")
    with pytest.raises(CasuloError):
        await box.files.write(f"{folder}/directory", b"no")
    assert (await box.files.info(f"{folder}/directory")).type == "directory"
    await box.files.rmdir(folder)


async def test_modes_owners_and_ranges(box: AsyncSandbox, folder: str) -> None:
    await box.files.write(f"{folder}/file", "0123456789", mode=0o640, owner="nobody", group="nogroup")
    info = await box.files.info(f"{folder}/file")
    assert (info.mode, info.owner, info.group, info.size) == (0o640, "nobody", "nogroup", 10)
    await box.files.chmod(f"{folder}/file", 0o600)
    assert (await box.files.info(f"{folder}/file")).mode == 0o600
    assert await box.files.read_bytes(f"{folder}/file", start=2, end=5) == b"234"
    assert await box.files.read_bytes(f"{folder}/file", start=-3) == b"789"
    await box.files.mkdir(f"{folder}/d", mode=0o700)
    assert (await box.files.info(f"{folder}/d")).mode == 0o700
    await box.files.rmdir(folder)


async def test_lines(box: AsyncSandbox, folder: str) -> None:
    await box.files.write(f"{folder}/five", "".join(f"line{n}\n" for n in range(1, 6)))
    assert await box.files.read_lines(f"{folder}/five", offset=2, limit=2) == "line2\nline3"
    assert await box.files.read_lines(f"{folder}/five", offset=4) == "line4\nline5"
    await box.files.rmdir(folder)


async def test_missing_files_are_not_found(box: AsyncSandbox, folder: str) -> None:
    for call in (box.files.read, box.files.info, box.files.list):
        with pytest.raises(NotFound):
            await call(f"{folder}/nowhere")
    await box.files.delete(f"{folder}/nowhere")


async def test_upload_from_an_open_file(box: AsyncSandbox, folder: str, tmp_path: Path) -> None:
    local = tmp_path / "local"
    local.write_bytes(b"from a file" * 1000)
    with local.open("rb") as opened:
        await box.files.write(f"{folder}/remote", opened)
    assert await box.files.read_bytes(f"{folder}/remote") == local.read_bytes()
    await box.files.rmdir(folder)


async def test_a_tree_with_special_files_is_copied_without_them_and_says_so(
    box: AsyncSandbox, folder: str, tmp_path: Path
) -> None:
    made = 'mkdir "$0"; mkfifo "$0/a-pipe"; echo kept >"$0/kept"; ln -s kept "$0/link"'
    assert (await box.commands.run(["sh", "-ec", made, folder])).exit_code == 0
    with pytest.raises(RuntimeFailure, match="a-pipe"):
        await box.files.download(folder, tmp_path / "copy")
    copied = next(tmp_path.rglob("kept")).parent
    assert sorted(path.name for path in copied.iterdir()) == ["kept", "link"]
    assert (copied / "link").read_text() == "kept\n"


async def test_a_file_of_a_sandbox_that_is_gone_is_not_absent(client: AsyncClient, image: str) -> None:
    box = await AsyncSandbox.create(image, client=client)
    assert not await box.files.exists("/none") and await box.files.exists("/")
    await box.kill()
    with pytest.raises(CasuloError):
        await box.files.exists("/")
