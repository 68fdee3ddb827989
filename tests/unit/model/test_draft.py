# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""From a request to a spec: what gets filled in and what gets refused."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from casulo.model.draft import Defaults, Draft, complete, ends_at, renew_seconds
from casulo.model.errors import Code, InvalidRequest, Unsupported
from casulo.model.sandbox import DEFAULT_ENTRYPOINT, Isolation, Platform, Resources

DRAFT = Draft(image="host")


def spec_of(**changes: Any) -> Any:
    return complete(replace(DRAFT, **changes), Defaults())


def test_defaults_fill_what_was_left_out() -> None:
    spec = complete(DRAFT, Defaults(cpu="500m", memory="1Gi", pids=64, shm="64Mi"))
    assert spec.resources == Resources(500, 2**30, 64, 64 * 2**20)
    assert spec.entrypoint == DEFAULT_ENTRYPOINT
    assert spec.isolation is Isolation.AUTO
    assert spec.resource_limits == {} and spec.timeout_seconds is None and spec.platform is None


def test_what_was_asked_for_is_kept_as_written_and_as_meant() -> None:
    limits = {"cpu": "1.5", "memory": "64M", "pids": "100", "shm": "32M"}
    spec = spec_of(resource_limits=limits, entrypoint=("sh", "-c", "a b"), env={"A": "b=c\n"})
    assert spec.resource_limits == limits
    assert spec.resources == Resources(1500, 64_000_000, 100, 32_000_000)
    assert spec.entrypoint == ("sh", "-c", "a b")
    assert spec.env == {"A": "b=c\n"}


def test_another_image_decides_its_own_entrypoint() -> None:
    assert spec_of(image="docker.io/library/alpine:3").entrypoint == ()


def test_a_spec_shares_nothing_with_its_draft() -> None:
    env = {"A": "1"}
    spec = spec_of(env=env)
    env["A"] = "2"
    assert spec.env == {"A": "1"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"resource_limits": {"memory": "lots"}}, "memory"),
        ({"resource_limits": {"cpu": "0"}}, "cpu"),
        ({"resource_limits": {"memroy": "1Gi"}}, "memroy"),
        ({"env": {"A=B": "c"}}, "A=B"),
        ({"env": {"": "c"}}, "environment variable"),
        ({"env": {"A": "b\0c"}}, "environment variable"),
        ({"env": {"OPENSANDBOX_LIFECYCLE": "{}"}}, "reserved"),
        ({"env": {"OPENSANDBOX_EGRESS_LOG_LEVEL": "debug"}}, "egress"),
        ({"extensions": {"access.renew.extend.seconds": "299"}}, "300 to 86400"),
        ({"extensions": {"access.renew.extend.seconds": "١٢٣٤"}}, "300 to 86400"),
        ({"extensions": {"casulo.isolaton": "container"}}, "casulo.isolaton"),
        ({"extensions": {"casulo.isolation": "contaner"}}, "contaner"),
        ({"timeout_seconds": 59}, "60 s"),
        ({"platform": Platform("linux", "riscv64")}, "riscv64"),
        ({"platform": Platform("plan9", "amd64")}, "plan9"),
        ({"image": ""}, "image"),
        ({"image": "a b"}, "image"),
    ],
)
def test_nonsense_is_refused_by_name(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest) as failure:
        spec_of(**changes)
    assert failure.value.code == Code.INVALID_PARAMETER
    assert words in failure.value.message


@pytest.mark.parametrize(
    ("changes", "hint"),
    [
        ({"resource_limits": {"memroy": "1Gi"}}, "'memory'"),
        ({"extensions": {"casulo.isolaton": "gvisor"}}, "'casulo.isolation'"),
        ({"extensions": {"casulo.isolation": "micro-vm"}}, "'microvm'"),
    ],
)
def test_the_nearest_known_word_is_named(changes: dict[str, Any], hint: str) -> None:
    with pytest.raises(InvalidRequest) as failure:
        spec_of(**changes)
    assert failure.value.hint == f"did you mean {hint}?"


@pytest.mark.parametrize("entrypoint", [(), ("",), ("a\0b",)])
def test_an_entrypoint_must_name_a_program(entrypoint: tuple[str, ...]) -> None:
    with pytest.raises(InvalidRequest) as failure:
        spec_of(entrypoint=entrypoint)
    assert failure.value.code == Code.INVALID_ENTRYPOINT


def test_metadata_follows_the_label_rules() -> None:
    with pytest.raises(InvalidRequest) as failure:
        spec_of(metadata={"opensandbox.io/owner": "me"})
    assert failure.value.code == Code.INVALID_CREATE_LABEL


@pytest.mark.parametrize("resource", ["disk", "gpu"])
def test_b087_undeclared_resources_are_refused_with_the_reason(resource: str) -> None:
    feature = {"disk": "limits.disk", "gpu": "gpu"}[resource]
    draft = replace(DRAFT, resource_limits={resource: "1"})
    with pytest.raises(Unsupported) as failure:
        complete(draft, Defaults(), missing={feature: "no such hardware"})
    assert failure.value.hint == "no such hardware"
    assert complete(draft, Defaults(), features={feature}).resource_limits == {resource: "1"}


def test_a_server_limit_on_the_timeout_holds() -> None:
    draft = replace(DRAFT, timeout_seconds=3601)
    assert complete(draft, Defaults()).timeout_seconds == 3601
    with pytest.raises(InvalidRequest):
        complete(draft, Defaults(max_timeout_seconds=3600))


def test_a_platform_is_compared_without_regard_to_case() -> None:
    assert spec_of(platform=Platform("Linux", "AMD64")).platform == Platform("linux", "amd64")
    with pytest.raises(Unsupported):
        spec_of(platform=Platform("windows", "amd64"))


def test_an_oci_runtime_of_docker_is_not_ignored_elsewhere() -> None:
    with pytest.raises(Unsupported, match="docker_runtime"):
        spec_of(extensions={"casulo.docker_runtime": "kata"})


def test_foreign_extensions_are_kept() -> None:
    kept = {"opensandbox.extensions.a": "b", "anything": "else", "access.renew.extend.seconds": "300"}
    assert spec_of(extensions=kept).extensions == kept
    assert renew_seconds(kept) == 300


def test_an_isolation_may_come_as_field_or_extension() -> None:
    assert spec_of(isolation=Isolation.GVISOR).isolation is Isolation.GVISOR
    both = spec_of(isolation=Isolation.GVISOR, extensions={"casulo.isolation": "container"})
    assert both.isolation is Isolation.CONTAINER


def test_a_timeout_beyond_the_calendar_is_refused() -> None:
    now = datetime.now(UTC)
    assert ends_at(now, None) is None
    with pytest.raises(InvalidRequest):
        ends_at(now, 10**12)
    with pytest.raises(InvalidRequest):
        ends_at(now, 10**30)


def test_shared_memory_never_takes_the_whole_limit() -> None:
    small = complete(replace(DRAFT, resource_limits={"memory": "128Mi"}), Defaults(shm="256Mi"))
    assert small.resources.shm_bytes == 64 << 20
    with pytest.raises(InvalidRequest, match="three quarters"):
        complete(replace(DRAFT, resource_limits={"memory": "1Gi", "shm": "1Gi"}), Defaults())


@pytest.mark.parametrize("memory", ["1", "15Mi", "999Ei"])
def test_memory_that_no_sandbox_can_have_is_refused(memory: str) -> None:
    with pytest.raises(InvalidRequest):
        complete(replace(DRAFT, resource_limits={"memory": memory}), Defaults())


@pytest.mark.parametrize(
    "change",
    [
        {"env": {"A": "x" * 200_000}},
        {"env": {f"A{i}": "x" * 100_000 for i in range(20)}},
        {"env": {"A": "\ud800"}},
        {"entrypoint": ("echo", "x" * 300_000)},
        {"entrypoint": ("echo", "\ud800")},
    ],
)
def test_texts_that_the_kernel_or_utf8_would_refuse_are_refused_at_the_call(change: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        complete(replace(DRAFT, **change), Defaults())
