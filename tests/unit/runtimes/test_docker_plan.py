# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The plan of a container, and the names of everything."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from casulo.model.errors import InvalidRequest, Unsupported
from casulo.model.sandbox import Isolation, Resources, Spec
from casulo.runtimes.docker.abilities import of_engine
from casulo.runtimes.docker.choice import check_settings, runtime_of, seccomp_of
from casulo.runtimes.docker.engine import About
from casulo.runtimes.docker.plan import Names, Plan
from casulo.runtimes.docker.settings import DockerSettings

NAMES = Names("0123456789")
RESOURCES = Resources(1500, 1 << 30, 100, 1 << 20)
ABOUT = About.parse({"Architecture": "x86_64", "Runtimes": {"runc": {}, "runsc-kvm": {}}})


def plan(**changes: object) -> Plan:
    given = {"sandbox_id": "abcdefgh-1", "names": NAMES, "image": "sha256:1", "resources": RESOURCES}
    return Plan(**{**given, "program": "volume", "network": "net", **changes})  # type: ignore[arg-type]


def test_limits_are_whole() -> None:
    host = plan(resources=Resources(1500, 1 << 30, 100, 1 << 20, 5 << 30)).config()["HostConfig"]
    assert host["CpuQuota"] / host["CpuPeriod"] == 1.5
    assert host["Memory"] == host["MemorySwap"] == 1 << 30, "no swap on top"
    assert host["PidsLimit"] >= 100 and host["ShmSize"] == 1 << 20
    assert host["StorageOpt"] == {"size": str(5 << 30)}
    assert "StorageOpt" not in plan().config()["HostConfig"]


def test_nothing_is_privileged_and_nothing_secret_is_told() -> None:
    config = plan().config()
    host = config["HostConfig"]
    assert host["CapDrop"] == ["ALL"] and "SYS_ADMIN" not in host["CapAdd"]
    assert host["SecurityOpt"] == ["no-new-privileges"] and not host["Privileged"]
    assert "Env" not in config
    assert config["Labels"] == {"casulo.instance": "0123456789", "casulo.sandbox": "abcdefgh-1"}


def test_ports_are_published_only_where_needed_and_chosen_by_the_engine() -> None:
    assert plan().config()["HostConfig"]["PortBindings"] == {}
    published = plan(publish="127.0.0.1").config()
    assert published["ExposedPorts"] == {"44772/tcp": {}}
    binding = {"44772/tcp": [{"HostIp": "127.0.0.1", "HostPort": ""}]}
    assert published["HostConfig"]["PortBindings"] == binding


def test_a_container_is_ours_by_name_and_label() -> None:
    labels = {"casulo.sandbox": "abc"}
    assert NAMES.sandbox({"Labels": labels, "Names": ["/casulo-0123456789-abc"]}) == "abc"
    assert NAMES.sandbox({"Labels": labels, "Names": ["/somebody-elses"]}) is None
    assert NAMES.sandbox({"Labels": None, "Names": ["/casulo-0123456789-abc"]}) is None
    assert len(NAMES.bridge) < 16, "interface names are short"


def spec(isolation: Isolation = Isolation.AUTO, **extensions: str) -> Spec:
    named = {f"casulo.{key}": value for key, value in extensions.items()}
    return Spec("x", (), RESOURCES, isolation=isolation, extensions=named)


def test_runtime_is_the_engines_the_configured_or_the_allowed_one() -> None:
    settings = DockerSettings(docker_runtime="runc", selectable_runtimes=("runsc-kvm",))
    assert runtime_of(spec(), DockerSettings(), ABOUT) == ""
    assert runtime_of(spec(), settings, ABOUT) == "runc"
    assert runtime_of(spec(docker_runtime="runsc-kvm"), settings, ABOUT) == "runsc-kvm"
    assert runtime_of(spec(Isolation.GVISOR), settings, ABOUT) == "runsc-kvm"
    for wanted, given in (("runc", settings), ("runsc-kvm", DockerSettings())):
        with pytest.raises(InvalidRequest):
            runtime_of(spec(docker_runtime=wanted), given, ABOUT)
    with pytest.raises(InvalidRequest):
        runtime_of(spec(Isolation.GVISOR, docker_runtime="runc"), settings, ABOUT)


def test_a_report_names_what_starts_a_sandbox_that_asks_for_nothing() -> None:
    known = replace(ABOUT, default_runtime="runc")
    for chosen, isolation, engine in (("", "container", "runc"), ("runsc-kvm", "gvisor", "runsc-kvm")):
        able = of_engine(known, DockerSettings(docker_runtime=chosen), {}, False, (), {}, lambda _: "")
        assert (able.default, able.of(Isolation.AUTO).engine) == (isolation, engine)
    broken = of_engine(known, DockerSettings(), {known.gvisor: "no"}, False, (), {}, lambda _: "")
    assert broken.isolations == {Isolation.AUTO, Isolation.CONTAINER}
    assert broken.missing["isolation.gvisor"].endswith("starts nothing here: no")


def test_configured_runtimes_must_exist() -> None:
    check_settings(DockerSettings(docker_runtime="runc"), ABOUT)
    with pytest.raises(Unsupported, match="kata"):
        check_settings(DockerSettings(selectable_runtimes=("kata",)), ABOUT)


def test_a_runtime_that_a_request_chose_is_part_of_what_was_allowed_for_gvisor_too() -> None:
    with pytest.raises(InvalidRequest):
        runtime_of(spec(Isolation.GVISOR, docker_runtime="runsc-other"), DockerSettings(), ABOUT)


@pytest.mark.parametrize("host", ["/var/run/docker.sock", "ssh://somewhere", "docker.example:2375"])
def test_addresses_have_a_scheme_that_is_spoken(host: str) -> None:
    with pytest.raises(ValueError, match="does not start"):
        DockerSettings(host=host)


def test_the_seccomp_profile_closes_what_goes_past_the_network() -> None:
    known = About.parse(
        {"Architecture": "x86_64", "DefaultRuntime": "runc", "SecurityOptions": ["name=seccomp"]}
    )
    profile = json.loads(seccomp_of("", known))
    families = [
        rule["args"][0]["valueTwo"]
        for rule in profile["syscalls"]
        if "socket" in rule["names"] and rule["args"]
    ]
    assert set(families) == {1, 2, 10, 16} and 40 not in families
    refused = next(rule for rule in profile["syscalls"] if rule["action"] == "SCMP_ACT_ERRNO")
    assert "clone3" in refused["names"] and refused["errnoRet"] == 38
    assert seccomp_of("runsc", known) == "" and seccomp_of("", About.parse({"Architecture": "x86_64"})) == ""
