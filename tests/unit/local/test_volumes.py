# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Named volumes between crashes, and where paths of the host really lead."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from casulo.model.draft import Defaults, Draft, complete
from casulo.model.errors import Code, InvalidRequest
from casulo.model.sandbox import Spec
from casulo.model.volume import Claim, HostPath, Volume
from casulo.runtimes.hostpaths import AllowedPaths, opened
from casulo.runtimes.local.volumes import LocalVolumes


def _spec(*sources: HostPath | Claim, sub_path: str = "") -> Spec:
    volumes = tuple(
        Volume(f"v{n}", f"/mnt/{n}", source, sub_path=sub_path) for n, source in enumerate(sources)
    )
    return complete(Draft("host", volumes=volumes), Defaults(), features=("volumes.host", "volumes.named"))


@pytest.fixture
def restart(tmp_path: Path) -> Callable[[], LocalVolumes]:
    """A server's view of its volumes, from the beginning."""

    def start() -> LocalVolumes:
        made = LocalVolumes(tmp_path / "data", ())
        made.open(None)
        return made

    return start


def _folder(tmp_path: Path, sandbox_id: str) -> Path:
    folder = tmp_path / "data" / "sandboxes" / sandbox_id
    folder.mkdir(parents=True)
    return folder


def _kept(tmp_path: Path) -> list[str]:
    return sorted(os.listdir(tmp_path / "data" / "volumes"))


def test_what_was_made_for_a_sandbox_that_never_ran_goes(
    restart: Callable[[], LocalVolumes], tmp_path: Path
) -> None:
    folder = _folder(tmp_path, "a")
    restart().acquire("a", folder, _spec(Claim("new")))
    assert _kept(tmp_path) == ["new"]
    restart().release("a", folder)
    assert _kept(tmp_path) == []


def test_what_a_sandbox_ran_with_stays(restart: Callable[[], LocalVolumes], tmp_path: Path) -> None:
    folder = _folder(tmp_path, "a")
    first = restart()
    first.acquire("a", folder, _spec(Claim("new"), Claim("passing", delete_with_sandbox=True)))
    first.keep(folder)
    second = restart()
    assert _kept(tmp_path) == ["new", "passing"]
    second.release("a", folder)
    second.release("a", folder)
    assert _kept(tmp_path) == ["new"]


def test_a_shared_volume_waits_for_its_last_sandbox(
    restart: Callable[[], LocalVolumes], tmp_path: Path
) -> None:
    volumes, spec = restart(), _spec(Claim("shared", delete_with_sandbox=True))
    folders = {name: _folder(tmp_path, name) for name in "ab"}
    for name, folder in folders.items():
        volumes.acquire(name, folder, spec)
        volumes.keep(folder)
    volumes.release("a", folders["a"])
    assert _kept(tmp_path) == ["shared"]
    volumes.release("b", folders["b"])
    assert _kept(tmp_path) == []


def test_the_same_name_of_two_owners(restart: Callable[[], LocalVolumes], tmp_path: Path) -> None:
    volumes = restart()
    for owner in ("", "one", "two"):
        spec = _spec(Claim("data", owner=owner))
        with pytest.raises(InvalidRequest):
            volumes.check(_spec(Claim("data", create_if_missing=False, owner=owner)))
        folder = _folder(tmp_path, f"s{owner}")
        (mount,) = volumes.acquire(f"s{owner}", folder, spec)
        volumes.keep(folder)
        (Path(mount.place.path) / (owner or ".")).touch()
        assert os.listdir(mount.place.path) == ([owner] if owner else [])
    assert _kept(tmp_path) == ["@one", "@two", "data"]


def test_half_made_and_half_removed_ones_are_swept(
    restart: Callable[[], LocalVolumes], tmp_path: Path
) -> None:
    restart()
    (tmp_path / "data" / "volumes" / ".123-0" / "data" / "x").mkdir(parents=True)
    restart()
    assert _kept(tmp_path) == []


@pytest.mark.parametrize("text", ["", "[", '["gone"]', '["new"'])
def test_a_list_that_was_cut_off(text: str, restart: Callable[[], LocalVolumes], tmp_path: Path) -> None:
    folder = _folder(tmp_path, "a")
    (folder / "claims.json").write_text(text)
    restart().release("a", folder)


def test_a_record_that_was_lost_keeps_the_volume(restart: Callable[[], LocalVolumes], tmp_path: Path) -> None:
    folder = _folder(tmp_path, "a")
    restart().acquire("a", folder, _spec(Claim("new", delete_with_sandbox=True)))
    (tmp_path / "data" / "volumes" / "new" / "record.json").write_text("")
    restart().release("a", folder)
    assert _kept(tmp_path) == ["new"]


def _place(allowed: Path, path: Path | str, sub_path: str = "") -> str:
    volume = Volume("v", "/mnt", HostPath(str(path)), sub_path=sub_path)
    with opened(AllowedPaths((allowed,)).place(volume)) as descriptor:
        return os.readlink(f"/proc/self/fd/{descriptor}")


def test_paths_are_where_they_lead(tmp_path: Path) -> None:
    (tmp_path / "real" / ".hidden").mkdir(parents=True)
    (tmp_path / "link").symlink_to("real")
    for allowed, path in (("link", "real"), ("real", "link"), ("link", "link"), ("real", "link/.hidden")):
        wanted = (tmp_path / path).resolve()
        assert _place(tmp_path / allowed, tmp_path / path) == str(wanted)
    assert _place(tmp_path / "real", tmp_path / "link" / "a", "b/c") == str(tmp_path / "real/a/b/c")


@pytest.mark.parametrize("path", ["/", "/etc", "/proc/self/root", "/proc/1/fd", "/dev/shm"])
def test_paths_elsewhere_are_refused_and_nothing_is_made(path: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest) as caught:
        _place(tmp_path, path)
    assert caught.value.code == Code.VOLUME_HOST_PATH_NOT_ALLOWED


def test_an_allowed_directory_that_is_absent_allows_nothing(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="does not exist"):
        _place(tmp_path / "unmounted", tmp_path / "unmounted" / "x")
    assert not (tmp_path / "unmounted").exists()


def test_the_servers_own_data_is_closed(tmp_path: Path) -> None:
    data = tmp_path / "home" / ".casulo"
    data.mkdir(parents=True)
    paths = AllowedPaths((Path("/"),), closed=(data,))
    for path in ("/", tmp_path / "home", data, data / "volumes"):
        with pytest.raises(InvalidRequest):
            paths.place(Volume("v", "/mnt", HostPath(str(path))))
    assert paths.place(Volume("v", "/mnt", HostPath(str(tmp_path / "other")))).path == str(tmp_path / "other")


def test_a_link_put_there_after_the_judgement_leads_nowhere(tmp_path: Path) -> None:
    (tmp_path / "in" / "dir").mkdir(parents=True)
    (tmp_path / "out").mkdir()
    place = AllowedPaths((tmp_path / "in",)).place(Volume("v", "/mnt", HostPath(str(tmp_path / "in/dir"))))
    (tmp_path / "in" / "dir").rmdir()
    (tmp_path / "in" / "dir").symlink_to("../out")
    with pytest.raises(InvalidRequest) as caught, opened(place):
        pass
    assert caught.value.code == Code.VOLUME_HOST_PATH_NOT_ALLOWED
