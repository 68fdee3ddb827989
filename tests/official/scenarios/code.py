# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The official code interpreter: every language, contexts, interrupts, concurrency."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from code_interpreter import CodeInterpreter
from code_interpreter.models.code import SupportedLanguage
from opensandbox.exceptions import SandboxException
from opensandbox.models.execd import ExecutionHandlers

from scenarios.context import Context

FRESH_MS = 60_000
LARGE = {"cpu": "2", "memory": "2Gi"}


@asynccontextmanager
async def _interpreter(context: Context) -> AsyncIterator[CodeInterpreter]:
    async with context.sandbox(resource=LARGE) as sandbox, await CodeInterpreter.create(sandbox) as made:
        yield made


class _Recorder:
    """Handlers that note every event, and the contract that every run keeps."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Any]] = []
        self.begun = asyncio.Event()
        kinds = ("stdout", "stderr", "result", "execution_complete", "error", "init")
        self.handlers = ExecutionHandlers(**{f"on_{kind}": self._handler(kind) for kind in kinds})

    def _handler(self, kind: str) -> Any:
        async def note(event: Any) -> None:
            self.events.append((kind, event))
            if kind == "init":
                self.begun.set()

        return note

    def of(self, kind: str) -> list[Any]:
        return [event for found, event in self.events if found == kind]

    def check(self, execution: Any) -> None:
        (init,) = self.of("init")
        assert init.id == execution.id and execution.id.strip()
        assert execution.exit_code is None
        completed, failed = self.of("execution_complete"), self.of("error")
        assert len(completed) + len(failed) == 1
        assert all(event.execution_time_in_millis >= 0 for event in completed)
        now = time.time() * 1000
        assert all(abs(event.timestamp - now) < FRESH_MS for _, event in self.events)


async def health(context: Context) -> None:
    async with _interpreter(context) as interpreter:
        assert await interpreter.is_healthy()
        assert interpreter.id == interpreter.sandbox.id
        assert (await interpreter.commands.run("echo up")).text == "up"


async def python(context: Context) -> None:
    async with _interpreter(context) as interpreter:
        run = interpreter.codes.run
        direct = await run("result = 2 + 2\nresult", language=SupportedLanguage.PYTHON)
        assert direct.result[0].text == "4" and direct.error is None
        made = await interpreter.codes.create_context(SupportedLanguage.PYTHON)
        assert made.id and made.language == "python"
        recorder = _Recorder()
        first = await run("print('Hello')\nx = 42\nx", context=made, handlers=recorder.handlers)
        recorder.check(first)
        assert [event.text for event in recorder.of("stdout")] == ["Hello\n"]
        assert first.execution_count == 1 and first.text
        assert (await run("x + 1", context=made)).result[0].text == "43"
        broken = _Recorder()
        failed = await run("print(undefined_variable)", context=made, handlers=broken.handlers)
        broken.check(failed)
        assert failed.error.name == "NameError" and "undefined_variable" in failed.error.value
        assert any("undefined_variable" in line for line in failed.error.traceback)


async def separators_in_output(context: Context) -> None:
    """Characters at which a client may cut lines arrive whole."""
    async with _interpreter(context) as interpreter:
        code = "print('a\\u2028b\\u2029c\\x85d\\x0be\\x1cf')"
        done = await interpreter.codes.run(code, language=SupportedLanguage.PYTHON)
        assert done.logs.stdout[0].text == "a\u2028b\u2029c\x85d\x0be\x1cf\n"


async def java(context: Context) -> None:
    async with _interpreter(context) as interpreter:
        made = await interpreter.codes.create_context(SupportedLanguage.JAVA)
        recorder = _Recorder()
        code = (
            'System.out.println("Hello from Java!");\nint result = 2 + 2;\n'
            'System.out.println("2 + 2 = " + result);\nresult'
        )
        done = await interpreter.codes.run(code, context=made, handlers=recorder.handlers)
        recorder.check(done)
        assert done.result[0].text == "4"
        assert any("Hello from Java!" in event.text for event in recorder.of("stdout"))
        assert not any(event.is_error for event in recorder.of("stdout"))
        broken = _Recorder()
        failed = await interpreter.codes.run("int x = 10 / 0;", context=made, handlers=broken.handlers)
        broken.check(failed)
        assert failed.error.name == "EvalException" and "/ by zero" in failed.error.value


async def typescript(context: Context) -> None:
    async with _interpreter(context) as interpreter:
        made = await interpreter.codes.create_context(SupportedLanguage.TYPESCRIPT)
        code = "interface P { n: string }\nconst p: P = { n: 'John' };\nconsole.log(`Name: ${p.n}`);"
        done = await interpreter.codes.run(code, context=made)
        assert done.logs.stdout[0].text == "Name: John\n" and done.error is None
        failed = await interpreter.codes.run("throw new Error('ts-runtime-error');", context=made)
        assert failed.error is not None and "ts-runtime-error" in failed.error.value


async def golang(context: Context) -> None:
    if context.proxy:
        return  # a compiler with a cold cache takes its time, and the way to it makes no difference
    async with _interpreter(context) as interpreter:
        made = await interpreter.codes.create_context(SupportedLanguage.GO)
        broken = "package main\nfunc main() {\n    undeclaredVariable++\n}"
        recorder = _Recorder()
        failed = await interpreter.codes.run(broken, context=made, handlers=recorder.handlers)
        recorder.check(failed)
        assert "undeclaredVariable" in failed.error.value
        code = 'package main\nimport "fmt"\nfunc main() {\n    fmt.Print("2 + 2 =", 2 + 2)\n}'
        done = await interpreter.codes.run(code, context=made)
        assert done.logs.stdout[0].text == "2 + 2 =4" and done.complete is not None


async def javascript_and_bash(context: Context) -> None:
    async with _interpreter(context) as interpreter:
        done = await interpreter.codes.run("const a = await 1; a + 1", language=SupportedLanguage.JAVASCRIPT)
        assert done.result[0].text == "2"
        done = await interpreter.codes.run("x=5; echo $x", language=SupportedLanguage.BASH)
        assert done.logs.stdout[0].text == "5\n"
        failed = await interpreter.codes.run("exit_code_of_this_is_127", language=SupportedLanguage.BASH)
        assert failed.error is not None and failed.error.value == "127"


async def isolation_and_concurrency(context: Context) -> None:
    async with _interpreter(context) as interpreter:
        codes = interpreter.codes
        one, two = [await codes.create_context(SupportedLanguage.PYTHON) for _ in range(2)]
        await codes.run("secret = 'one'", context=one)
        other = await codes.run("print(secret)", context=two)
        assert other.error is not None and other.error.name == "NameError"
        nap = "import time; begun = time.monotonic(); time.sleep(3); print(begun, time.monotonic())"
        ends = await asyncio.gather(codes.run(nap, context=one), codes.run(nap, context=two))
        begins, stops = zip(*(map(float, e.logs.stdout[0].text.split()) for e in ends), strict=True)
        assert max(begins) < min(stops)


async def interrupt(context: Context) -> None:
    async with _interpreter(context) as interpreter:
        made = await interpreter.codes.create_context(SupportedLanguage.PYTHON)
        recorder = _Recorder()
        code = "import time\nprint('started')\ntime.sleep(120)"
        running = asyncio.create_task(interpreter.codes.run(code, context=made, handlers=recorder.handlers))
        await asyncio.wait_for(recorder.begun.wait(), 15)
        await asyncio.sleep(0.3)
        try:
            await interpreter.codes.run("1", context=made)
        except SandboxException as error:
            assert "session is busy" in str(error)
        else:
            raise AssertionError("a busy context ran a second cell")
        await interpreter.codes.interrupt(recorder.of("init")[0].id)
        done = await asyncio.wait_for(running, 20)
        recorder.check(done)
        assert done.error is not None and done.error.name == "KeyboardInterrupt"
        assert (await interpreter.codes.run("1 + 1", context=made)).result[0].text == "2"


async def administration(context: Context) -> None:
    async with _interpreter(context) as interpreter:
        codes = interpreter.codes
        assert await codes.list_contexts(SupportedLanguage.BASH) == []
        one, two = [await codes.create_context(SupportedLanguage.BASH) for _ in range(2)]
        listed = await codes.list_contexts(SupportedLanguage.BASH)
        assert {entry.id for entry in listed} == {one.id, two.id}
        assert {entry.language for entry in listed} == {"bash"}
        assert (await codes.get_context(one.id)).id == one.id
        await codes.delete_context(one.id)
        assert [entry.id for entry in await codes.list_contexts(SupportedLanguage.BASH)] == [two.id]
        await codes.delete_contexts(SupportedLanguage.BASH)
        assert await codes.list_contexts(SupportedLanguage.BASH) == []
        try:
            await codes.get_context(two.id)
        except SandboxException as error:
            assert getattr(error, "status_code", None) == 404
        else:
            raise AssertionError("a deleted context was found")


async def unknown_language(context: Context) -> None:
    async with _interpreter(context) as interpreter:
        try:
            await interpreter.codes.create_context("cobol")
        except SandboxException as error:
            assert "cobol" in str(error) and "python" in str(error)
        else:
            raise AssertionError("there is a context of cobol")
