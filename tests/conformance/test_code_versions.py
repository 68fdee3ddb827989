# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Several versions of a language in one sandbox, and what is said when the wanted one, or any, is missing."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from casulo.client import Client, Connection, RuntimeFailure, Sandbox
from support.images import ImageParts, LayoutWriter, busybox
from support.machine import cannot_run
from support.pythons import find
from support.server import Server

OTHERS = ("3.12", "3.13", "3.10", "3.9", "3.8", "3.14")
UNUSED = {"test", "idlelib", "ensurepip", "site-packages", "lib2to3", "__pycache__", "tkinter"}
WRAPPER = '#!/bin/sh\nPICKED=%s exec %s "$@"\n'


@pytest.fixture(scope="module")
def client(local_server: Server) -> Iterator[Client]:
    with Client(Connection(local_server.url, local_server.api_key)) as made:
        yield made


@pytest.fixture
def sandbox(client: Client) -> Iterator[Sandbox]:
    with Sandbox.create("host", client=client, resources={"memory": "2Gi", "cpu": "2"}) as made:
        yield made


@pytest.fixture(scope="module")
def bare(
    new_module_server: Callable[..., Server], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Sandbox]:
    """An image without any language."""
    layout = LayoutWriter(tmp_path_factory.mktemp("bare") / "oci")
    layout.add("bare", ImageParts([busybox()], {"Cmd": ["/bin/sleep", "600"]}))
    server = new_module_server("local", f'[images]\nsources = ["{layout.folder}"]\n')
    with (
        Client(Connection(server.url, server.api_key)) as client,
        Sandbox.create(layout.reference("bare"), client=client) as made,
    ):
        yield made


def choose(sandbox: Sandbox, variable: str, version: str) -> None:
    """As an image's own scripts do: contexts that begin from now on see it."""
    code = f"mkdir -p $(dirname $EXECD_ENVS) && echo {variable}={version} >> $EXECD_ENVS"
    sandbox.commands.run(code).check()


def wrap(sandbox: Sandbox, place: str, name: str, mark: str) -> None:
    """Another version of a program, as far as its place says; it is this machine's own with a mark."""
    real = sandbox.commands.run(f"command -v {name} || ls /usr/local/go/bin/{name}").check().stdout.strip()
    sandbox.files.write(f"{place}/{name}", WRAPPER % (mark, real))
    sandbox.commands.run(["chmod", "755", f"{place}/{name}"]).check()


def packed(place: Path, version: str) -> bytes:
    """A whole Python without what only its own tests need."""
    unused = (
        "test",
        "idlelib",
        "ensurepip",
        "site-packages",
        "lib2to3",
        "__pycache__",
        "tkinter",
        "turtledemo",
    )
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w") as archive:
        for path in (place / "bin" / version, *(place / "lib").glob(f"lib{version}*.so*")):
            archive.add(path, str(path.relative_to(place)))
        link = tarfile.TarInfo("bin/python3")
        link.type, link.linkname = tarfile.SYMTYPE, version
        archive.addfile(link)
        archive.add(
            place / "lib" / version,
            f"lib/{version}",
            filter=lambda info: (
                None if set(unused) & set(info.name.split("/")) or "config-" in info.name else info
            ),
        )
    return held.getvalue()


def test_two_pythons(sandbox: Sandbox) -> None:
    """A second one where images have them; contexts of both live beside each other."""
    found = [(version, program) for version in OTHERS if (program := find(version)) and "versions" in program]
    if not found:
        cannot_run("this machine has no second Python in a folder of its own")
    version, program = found[0]
    home = Path(program).resolve().parents[1]  # where it looks for its own library
    place = f"/opt/python/versions/cpython-{version}.1-linux-x86_64-gnu"
    sandbox.files.write("/tmp/python.tar", packed(home, f"python{version}"))
    unpack = (
        f"mkdir -p {home} /opt/python/versions && tar xf /tmp/python.tar -C {home} && ln -s {home} {place}"
    )
    sandbox.commands.run(unpack).check()
    which = "import sys\n'%d.%d' % sys.version_info[:2]"
    first = sandbox.code.create_context("python")
    usual = sandbox.code.run(which, context=first).check().text
    assert usual != f"'{version}'"
    choose(sandbox, "PYTHON_VERSION", version)
    second = sandbox.code.create_context("python")
    assert sandbox.code.run(which, context=second).check().text == f"'{version}'"
    assert sandbox.code.run("import json, decimal\n1", context=second).text == "1"
    assert sandbox.code.run(which, context=first).check().text == usual
    choose(sandbox, "PYTHON_VERSION", "3.7")
    with pytest.raises(RuntimeFailure, match=rf"PYTHON_VERSION is 3\.7, but .* only .*{version}") as caught:
        sandbox.code.create_context("python")
    assert usual.strip("'") in caught.value.message


def test_what_an_interpreter_says_that_cannot_start_is_told(sandbox: Sandbox) -> None:
    broken = "#!/bin/sh\necho 'cannot open shared object file' >&2\nexit 127\n"
    sandbox.files.write("/opt/python/versions/cpython-3.99.0/bin/python3", broken)
    sandbox.commands.run("chmod 755 /opt/python/versions/*/bin/python3").check()
    choose(sandbox, "PYTHON_VERSION", "3.99")
    done = sandbox.code.run("1")
    assert done.error is not None and done.error.name == "ContextDiedError"
    assert "exit code 127" in done.error.value and done.stderr == "cannot open shared object file\n"


def test_two_javas(sandbox: Sandbox) -> None:
    homes = sandbox.commands.run("ls -d /usr/lib/jvm/*/bin/jshell 2>/dev/null").stdout
    versions = {part for part in ("11", "17", "21", "25") if f"-{part}-" in homes}
    if len(versions) < 2:
        cannot_run(f"this machine has fewer than two JDKs: {sorted(versions)}")
    for version in sorted(versions)[-2:]:
        choose(sandbox, "JAVA_VERSION", version)
        context = sandbox.code.create_context("java")
        assert sandbox.code.run("Runtime.version().feature()", context=context, timeout=60).text == version
    choose(sandbox, "JAVA_VERSION", "8")
    with pytest.raises(RuntimeFailure, match=r"JAVA_VERSION is 8, but .* only .*17"):
        sandbox.code.create_context("java")


@pytest.mark.parametrize(
    ("language", "variable", "name", "place", "code"),
    [
        ("javascript", "NODE_VERSION", "node", "/opt/node/v%s.1.0/bin", "process.env.PICKED ?? ''"),
        ("go", "GO_VERSION", "go", "/opt/go/%s.3/bin", 'import "os"\nos.Getenv("PICKED")'),
    ],
)
def test_places_of_versions(
    sandbox: Sandbox, language: str, variable: str, name: str, place: str, code: str
) -> None:
    for version in ("91", "92"):
        wrap(sandbox, place % version, name, version)
    choose(sandbox, variable, "92")
    context = sandbox.code.create_context(language)
    if language == "javascript":
        assert sandbox.code.run(code, context=context).text == "'92'"
    choose(sandbox, variable, "93")
    with pytest.raises(RuntimeFailure, match=rf"{variable} is 93, but .* only 91\.\S+, 92"):
        sandbox.code.create_context(language)


@pytest.mark.parametrize("language", ["sql", "r", "cobol", ""])
def test_unknown_languages_name_those_that_are_there(sandbox: Sandbox, language: str) -> None:
    known = "python, javascript, typescript, java, go, bash"
    with pytest.raises(Exception, match="language") as caught:
        sandbox.code.create_context(language)
    assert not language or (f'"{language}"' in str(caught.value) and known in str(caught.value))


@pytest.mark.parametrize(
    ("language", "named"),
    [("python", "Python"), ("typescript", "Node.js"), ("java", "JDK"), ("go", "Go"), ("bash", "bash")],
)
def test_missing_languages_are_named_with_a_remedy(bare: Sandbox, language: str, named: str) -> None:
    with pytest.raises(RuntimeFailure, match=f"{named}.*was not found in the image: install"):
        bare.code.create_context(language)
