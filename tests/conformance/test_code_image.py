# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The image of `images/code-interpreter`: everything works in it, without any network."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from casulo.client import Client, Connection, Sandbox
from support import code_image
from support.cells.corpus import CORPUS, WITHOUT_IPYTHON
from support.server import Server

NewServer = Callable[..., Server]
pytestmark = pytest.mark.timeout(1800)  # the first one may have to build the image

START = ["/opt/code-interpreter/code-interpreter.sh"]
PROGRAMS = {"python": "python3", "javascript": "node", "java": "java", "go": "go", "bash": "bash"}


@pytest.fixture(scope="module")
def image_server(new_module_server: NewServer) -> Server:
    """A server whose sandboxes reach nobody outside."""
    images = f'[images]\nfolder = "{code_image.store()}"\n'
    return new_module_server("local", images, local="outbound = false\n")


@pytest.fixture(scope="module")
def client(image_server: Server) -> Iterator[Client]:
    with Client(Connection(image_server.url, image_server.api_key)) as made:
        yield made


@pytest.fixture(scope="module")
def sandbox(client: Client) -> Iterator[Sandbox]:
    resources = {"memory": "2Gi", "cpu": "2"}
    with Sandbox.create(code_image.NAME, client=client, resources=resources) as made:
        yield made


def running(sandbox: Sandbox) -> list[str]:
    """Names of all processes but the daemon, the entrypoint and the ones that look."""
    look = "for p in /proc/[0-9]*; do [ $p = /proc/$$ ] || cat $p/comm; done 2>/dev/null"
    told = sandbox.commands.run(["sh", "-c", look]).check().stdout.split()
    return sorted(name for name in told if name not in ("execd", "casulo-execd", "sleep", "cat"))


@pytest.mark.parametrize("time", range(1, 11))
def test_b089_offline_start(client: Client, time: int) -> None:
    """The first and the tenth time alike: no network, and only the asked language's process."""
    with Sandbox.create(code_image.NAME, client=client) as sandbox:
        route = "grep -c . /proc/net/route; timeout 2 bash -c '</dev/tcp/1.1.1.1/53' && echo outside"
        assert "outside" not in sandbox.commands.run(route).stdout
        assert running(sandbox) == []
        language = list(PROGRAMS)[time % len(PROGRAMS)] if time not in (1, 10) else "python"
        if language == "go":
            language = "python"  # its programs end with their cells
        sandbox.code.create_context(language)
        assert set(running(sandbox)) == {PROGRAMS[language]}


@pytest.mark.parametrize("language", CORPUS)
def test_corpus(sandbox: Sandbox, language: str) -> None:
    """Every cell, as on `host`; the image has IPython, which words some things in its own way."""
    faults = []
    for cell in CORPUS[language]:
        if language == "python" and WITHOUT_IPYTHON.search(cell.code):
            continue
        try:
            cell.check(sandbox.code.run(cell.code, language=language, timeout=120))
        except AssertionError as fault:
            faults.append(f"{cell.name}: {str(fault)[:500]}")
    assert not faults, "\n".join(faults)


def test_a_plot_with_the_images_own_packages(sandbox: Sandbox) -> None:
    context = sandbox.code.create_context("python")
    code = "import pandas as pd\npd.DataFrame({'a': [1, 2], 'b': [3, 4]}).plot(x='a', y='b', title='T');"
    (plot,) = sandbox.code.run(code, context=context, timeout=60).check().displays
    assert plot.png is not None and plot.chart is not None
    assert plot.chart["axes"][0]["series"][0]["y"] == [3, 4]
    table = sandbox.code.run("pd.DataFrame({'a': [1]})", context=context).check().value
    assert table is not None and table.html is not None and "<table" in table.html


@pytest.mark.skipif(not code_image.is_whole(), reason="CANNOT RUN: tests build the image without these")
def test_the_rest_of_the_packages(sandbox: Sandbox) -> None:
    code = "import scipy.stats, sklearn.linear_model, openpyxl\nscipy.stats.norm.cdf(0)"
    assert "0.5" in sandbox.code.run(code, timeout=60).check().text
    assert sandbox.commands.run("npm --version && git --version && python3 -m pip --version").ok


def test_conventions_of_the_image(client: Client) -> None:
    env = {"PYTHON_VERSION": "3.11", "JAVA_VERSION": "17", "NODE_VERSION": "18", "GO_VERSION": "1.19"}
    with Sandbox.create(code_image.NAME, client=client, entrypoint=START, env=env) as sandbox:
        assert sandbox.commands.run("pwd; echo $JUPYTER_PORT").stdout == "/workspace\n44771\n"
        assert sandbox.code.run("import sys; sys.version_info[:2]").text == "(3, 11)"
        assert sandbox.code.run("process.version.split('.')[0]", language="javascript").text == "'v18'"
        switch = f". {START[0].replace('.sh', '-env.sh')}"
        refused = sandbox.commands.run(["bash", "-c", f"{switch} java 8"])
        assert refused.exit_code == 1 and "java 8 is not here; there is: java-1.17.0-" in refused.stderr
        chosen = sandbox.commands.run(["bash", "-c", f"{switch} java 17 && command -v java"])
        assert chosen.stdout.startswith("/usr/lib/jvm/java-17-openjdk-")
