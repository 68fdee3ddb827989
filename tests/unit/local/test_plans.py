# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Plans of the local runtime, read as data: container configuration, filter text, cgroup layout."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

import pytest

from casulo.model.sandbox import Resources
from casulo.network.filter import Filter
from casulo.network.slots import Plan
from casulo.runtimes.local import cgroups, seccomp
from casulo.runtimes.local.bundle import CAPABILITIES, Bind, Bundle
from casulo.runtimes.local.stopping import read_exit

RESOURCES = Resources(cpu_millis=500, memory_bytes=64 << 20, pids=32, shm_bytes=8 << 20)
HYBRID = """\
25 20 0:22 / /sys/fs/cgroup rw - tmpfs tmpfs rw
26 25 0:23 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
27 25 0:24 / /sys/fs/cgroup/memory rw shared:3 - cgroup cgroup rw,memory
28 25 0:25 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids
29 25 0:26 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
"""
PURE_V2 = "26 25 0:23 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"


def bundle(**changes: object) -> Bundle:
    base: dict[str, object] = {
        "sandbox_id": "one",
        "hostname": "casulo-one",
        "rootfs": Path("/run/root"),
        "network_namespace": Path("/run/ns/1"),
        "resources": RESOURCES,
        "architecture": "amd64",
    }
    return Bundle(**(base | changes))  # type: ignore[arg-type]


def test_every_mount_is_without_setuid_and_binds_are_read_only_unless_said() -> None:
    binds = (Bind(Path("/usr"), "/usr"), Bind(Path("/tmp/x"), "/data", writable=True))
    mounts = {m["destination"]: m["options"] for m in bundle(binds=binds).config()["mounts"]}
    assert all("nosuid" in options for options in mounts.values())
    assert {"ro", "nodev"} <= set(mounts["/usr"])
    assert {"rw", "nodev"} <= set(mounts["/data"])


def test_process_may_not_gain_privileges_and_has_no_administrative_capability() -> None:
    process = bundle().config()["process"]
    assert process["noNewPrivileges"] is True
    assert process["env"] == []
    kept = process["capabilities"]["bounding"]
    assert kept == list(CAPABILITIES)
    dangerous = {"CAP_SYS_ADMIN", "CAP_NET_ADMIN", "CAP_NET_RAW", "CAP_MKNOD", "CAP_SYS_PTRACE"}
    assert not dangerous & set(kept)


def test_namespaces_are_own_and_network_is_the_slot() -> None:
    linux = bundle(user_namespace=Path("/run/userns"), id_base=1000).config()["linux"]
    kinds = {n["type"]: n.get("path") for n in linux["namespaces"]}
    assert kinds == {
        "user": "/run/userns", "pid": None, "mount": None, "uts": None, "ipc": None, "cgroup": None,
        "network": "/run/ns/1",
    }  # fmt: skip
    assert linux["uidMappings"] == [{"containerID": 0, "hostID": 1000, "size": 65536}]


def test_without_a_slot_the_network_is_new_and_empty() -> None:
    linux = bundle(network_namespace=None).config()["linux"]
    assert {"type": "network"} in linux["namespaces"]


def test_clone3_is_allowed_only_where_the_user_namespace_is_closed() -> None:
    def allowed(clone3: bool) -> bool:
        rules = seccomp.profile("amd64", clone3=clone3)["syscalls"]
        return "clone3" in rules[0]["names"]

    assert allowed(True)
    assert not allowed(False)


@pytest.mark.parametrize(
    "name",
    ["mount", "umount2", "unshare", "setns", "bpf", "keyctl", "io_uring_setup", "init_module", "kexec_load"],
)
def test_seccomp_denies_by_default(name: str) -> None:
    rules = seccomp.profile("amd64", clone3=True)
    assert rules["defaultAction"] == "SCMP_ACT_ERRNO"
    assert not any(name in rule["names"] for rule in rules["syscalls"])


def test_seccomp_program_is_whole_instructions() -> None:
    import base64

    program = seccomp.compiled("amd64", clone3=True)
    assert program is not None, "libseccomp comes with crun"
    raw = base64.b64decode(program)
    assert len(raw) % 8 == 0
    assert 100 < len(raw) // 8 < 4096


def test_a_ready_made_program_stands_beside_a_profile_that_allows_nothing() -> None:
    plain, ready = bundle().config(), bundle(seccomp_program="AAAA").config()
    assert not plain["annotations"]
    assert plain["linux"]["seccomp"]["syscalls"]
    assert ready["annotations"] == {seccomp.PROGRAM_KEY: "AAAA"}
    assert ready["linux"]["seccomp"]["syscalls"] == []
    assert ready["linux"]["seccomp"]["defaultAction"] == "SCMP_ACT_ERRNO"


def test_hybrid_layout_is_recognised() -> None:
    layout = cgroups.parse_mounts(HYBRID)
    assert layout.mode == "hybrid"
    assert layout.v1["memory"] == Path("/sys/fs/cgroup/memory")
    assert layout.v1["cpu"] == layout.v1["cpuacct"] == Path("/sys/fs/cgroup/cpu,cpuacct")
    assert layout.v2 == Path("/sys/fs/cgroup/unified")
    group = cgroups.Group(layout, "casulo/i/one")
    assert "freezer" not in group.v1_paths, "version 2 freezes"
    files, folder = group.own_entrances()
    assert layout.v1["pids"] / "casulo/i/one/tasks" in files
    assert folder == layout.v2 / "casulo/i/one/daemon"
    assert {path.name for path in group.entrances()} == {"cgroup.procs"}


def test_every_tree_is_found_for_cleaning_up() -> None:
    names = {"cpu,cpuacct", "memory", "pids", "unified"}
    assert cgroups.mount_points(HYBRID) == {Path("/sys/fs/cgroup") / name for name in names}


def test_v1_without_unified_and_pure_v2() -> None:
    assert cgroups.parse_mounts("\n".join(HYBRID.splitlines()[:4])).mode == "v1"
    assert cgroups.parse_mounts(PURE_V2).mode == "v2"
    assert cgroups.parse_mounts(PURE_V2).v2 == Path("/sys/fs/cgroup")


def test_v2_groups_on_a_directory_tree(tmp_path: Path) -> None:
    """The v2 branch writes the right files; a plain directory stands for the cgroup tree."""
    for folder in (tmp_path, tmp_path / "casulo", tmp_path / "casulo/i"):
        folder.mkdir(exist_ok=True)
        (folder / "cgroup.subtree_control").write_text("")
    box = tmp_path / "casulo/i/one"
    for folder in (box, box / "run", box / "daemon"):
        folder.mkdir(exist_ok=True)
        (folder / "cgroup.procs").write_text("")
    group = cgroups.Group(cgroups.Layout({}, tmp_path), "casulo/i/one")
    group.create(RESOURCES, owner=0)
    group.settle(7, RESOURCES)
    assert (tmp_path / "casulo/i/cgroup.subtree_control").read_text() == "+cpu +memory +pids"
    assert (box / "cpu.max").read_text() == "50000 100000"
    assert (box / "memory.max").read_text() == str(64 << 20)
    assert (box / "pids.max").read_text() == str(32 + cgroups.DAEMON_RESERVE)
    assert (box / "run/pids.max").read_text() == "32"
    assert (box / "daemon/cgroup.procs").read_text() == "7"
    assert group.entrances() == [box / "cgroup.procs"]
    assert group.own_entrances() == ([], box)
    assert group.visible() == {"/sys/fs/cgroup": box}


def test_filter_covers_host_neighbours_and_private_networks() -> None:
    text = Filter("t", "cslabc-", IPv4Network("10.9.0.0/16"), (IPv4Address("10.0.0.2"),), True).text()
    assert 'iifname "cslabc-*" drop' in text
    assert 'oifname "csl*" drop' in text
    for network in ("169.254.0.0/16", "10.0.0.0/8", "192.168.0.0/16", "127.0.0.0/8"):
        assert network in text
    assert text.index("@resolvers") < text.index("ip daddr @closed")


def test_filter_without_outbound_ends_in_a_refusal() -> None:
    text = Filter("t", "cslabc-", IPv4Network("10.9.0.0/16"), (), False).text()
    chain = text.split("chain from_sandbox")[1].split("}")[0].strip().splitlines()
    assert chain[-1].strip() == "reject with icmpx admin-prohibited"


def test_slots_never_overlap() -> None:
    plan = Plan(IPv4Network("10.9.0.0/24"), "cslabc-", Path("/run/x"), Path("/run/l"))
    slots = [plan.slot(i) for i in range(plan.capacity)]
    assert plan.capacity == 64
    assert len({s.address for s in slots} | {s.gateway for s in slots}) == 128
    assert all(len(s.interface) <= 15 for s in slots)
    assert all(int(s.address) == int(s.gateway) + 1 for s in slots)


@pytest.mark.parametrize(
    ("text", "code", "signal", "oom"),
    [
        ('{"event":"exit","code":7,"at":1}\n', 7, "", False),
        ('{"event":"exit","code":null,"signal":"SIGKILL","oom":true,"at":1}\n', None, "SIGKILL", True),
        ('{"event":"exit","code":0}\n{"event":"exit","co', 0, "", False),
    ],
)
def test_exit_is_read_from_events(
    tmp_path: Path, text: str, code: int | None, signal: str, oom: bool
) -> None:
    events = tmp_path / "events.jsonl"
    events.write_text(text)
    found = read_exit(events)
    assert found is not None
    assert (found.code, found.signal, found.oom) == (code, signal, oom)


@pytest.mark.parametrize("text", ["", "garbage\n", "[1]\n", '{"event":"other"}\n', "\x00\xff\n"])
def test_events_that_do_not_look_right_are_not_believed(tmp_path: Path, text: str) -> None:
    events = tmp_path / "events.jsonl"
    events.write_text(text)
    assert read_exit(events) is None
    assert read_exit(tmp_path / "absent") is None


def test_files_of_the_hosts_root_are_masked_where_root_inside_is_that_root() -> None:
    def masked(**changes: object) -> set[str]:
        return set(bundle(**changes).config()["linux"]["maskedPaths"])

    mapped, same = masked(clone3=True), masked(clone3=False)
    assert {"/proc/keys", "/proc/cmdline", "/proc/interrupts"} <= mapped
    assert same - mapped >= {"/proc/kcore", "/proc/kmsg", "/proc/timer_list", "/proc/sysrq-trigger"}


def test_sockets_are_only_of_families_that_have_a_network_namespace() -> None:
    rules = [r for r in seccomp.profile("amd64", clone3=True)["syscalls"] if "socket" in r["names"]]
    families = sorted(r["args"][0]["valueTwo"] for r in rules)
    assert families == [1, 2, 10, 16]
    assert all(r["args"] for r in rules)


def test_memory_file_systems_leave_room_for_programs() -> None:
    mounts = {m["destination"]: m["options"] for m in bundle().config()["mounts"]}
    assert f"size={(64 << 20) // 8}" in mounts["/run"]
