# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Which runtime gets a request, and what those are told who get none."""

from __future__ import annotations

import pytest

from casulo.model.draft import Draft
from casulo.model.errors import Code, InvalidRequest, Unavailable, Unsupported
from casulo.model.sandbox import Exit, Isolation
from casulo.runtimes.registry import Registry, build
from support.memory_runtime import MemoryRuntime, World


def ignore(sandbox_id: str, exit_: Exit | None) -> None:
    raise AssertionError("nothing ends in these tests")


def runtime(name: str, *isolations: Isolation) -> MemoryRuntime:
    made = MemoryRuntime(World(), name)
    made.isolations = frozenset({Isolation.AUTO, *isolations})
    return made


def asking(**extensions: str) -> Draft:
    return Draft("host", extensions={f"casulo.{name}": value for name, value in extensions.items()})


@pytest.fixture
async def registry() -> Registry:
    weak, strong = runtime("weak", Isolation.CONTAINER), runtime("strong", Isolation.MICROVM)
    weak.missing = {"isolation.gvisor": "runsc is not installed"}
    made = build(["strong", "weak"], "weak", {"weak": lambda: weak, "strong": lambda: strong})
    await made.open(ignore)
    return made


async def test_the_default_serves_who_does_not_choose(registry: Registry) -> None:
    assert registry.default.name == "weak"
    assert registry.pick(Draft("host")).name == "weak"
    assert registry.pick(asking(isolation="auto")).name == "weak"
    assert list(registry.opened) == ["weak", "strong"]


async def test_an_isolation_finds_the_runtime_that_has_it(registry: Registry) -> None:
    assert registry.pick(asking(isolation="microvm")).name == "strong"
    assert registry.pick(Draft("host", isolation=Isolation.CONTAINER)).name == "weak"
    assert registry.pick(asking(runtime="strong")).name == "strong"


async def test_b087_an_isolation_that_nobody_has_is_refused_with_the_reason(registry: Registry) -> None:
    with pytest.raises(Unsupported) as failure:
        registry.pick(asking(isolation="gvisor"))
    assert failure.value.code == Code.ISOLATION_UNAVAILABLE
    assert failure.value.hint == "runsc is not installed"
    assert "container" in failure.value.message
    with pytest.raises(Unsupported):
        registry.pick(asking(isolation="microvm", runtime="weak"))


async def test_an_unknown_runtime_is_refused_with_the_nearest(registry: Registry) -> None:
    with pytest.raises(InvalidRequest) as failure:
        registry.pick(asking(runtime="stong"))
    assert failure.value.hint == "did you mean 'strong'?"
    with pytest.raises(Unavailable):
        registry.named("gone")


async def test_a_second_runtime_that_cannot_open_is_kept_with_its_reason() -> None:
    first, second = runtime("first", Isolation.CONTAINER), runtime("second", Isolation.MICROVM)
    second.open_error = Unsupported("no /dev/kvm")
    registry = Registry([first, second])
    await registry.open(ignore)
    assert list(registry.opened) == ["first"]
    with pytest.raises(Unsupported, match="no /dev/kvm"):
        registry.pick(asking(runtime="second"))
    with pytest.raises(Unsupported) as failure:
        registry.pick(asking(isolation="microvm"))
    assert "no /dev/kvm" in failure.value.hint
    await registry.close()
    assert not registry.opened


async def test_a_default_that_cannot_open_is_an_error() -> None:
    only = runtime("only")
    only.open_error = Unsupported("no cgroups")
    with pytest.raises(Unsupported, match="no cgroups"):
        await Registry([only]).open(ignore)


def test_a_runtime_that_does_not_exist_is_refused_at_the_start() -> None:
    with pytest.raises(InvalidRequest) as failure:
        build(["lcoal"], "lcoal", {"local": lambda: runtime("local")})
    assert failure.value.hint == "did you mean 'local'?"
