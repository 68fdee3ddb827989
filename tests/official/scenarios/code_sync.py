# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The official code interpreter in its synchronous form."""

from __future__ import annotations

import threading
from typing import Any

from code_interpreter import CodeInterpreterSync
from code_interpreter.models.code import SupportedLanguage
from opensandbox.models.execd_sync import ExecutionHandlersSync

from scenarios.context import Context


def life(context: Context) -> None:
    with context.sync_sandbox() as sandbox, CodeInterpreterSync.create(sandbox) as interpreter:
        assert interpreter.is_healthy()
        made = interpreter.codes.create_context(SupportedLanguage.PYTHON)
        lines: list[str] = []
        handlers = ExecutionHandlersSync(on_stdout=lambda event: lines.append(event.text))
        done = interpreter.codes.run("print('one')\nx = 4\nx", context=made, handlers=handlers)
        assert lines == ["one\n"] and done.result[0].text == "4" and done.exit_code is None
        assert interpreter.codes.run("x * 2", context=made).result[0].text == "8"
        failed = interpreter.codes.run("1/0", context=made)
        assert failed.error is not None and failed.error.name == "ZeroDivisionError"
        assert len(interpreter.codes.list_contexts(SupportedLanguage.PYTHON)) == 1
        interpreter.codes.delete_context(made.id)
        assert interpreter.codes.list_contexts(SupportedLanguage.PYTHON) == []


def languages(context: Context) -> None:
    with context.sync_sandbox() as sandbox, CodeInterpreterSync.create(sandbox) as interpreter:
        run = interpreter.codes.run
        assert run("1 + 1", language=SupportedLanguage.JAVASCRIPT).result[0].text == "2"
        assert run("const n: number = 3; n", language=SupportedLanguage.TYPESCRIPT).result[0].text == "3"
        assert run("echo sh", language=SupportedLanguage.BASH).logs.stdout[0].text == "sh\n"


def interrupt_from_another_thread(context: Context) -> None:
    with context.sync_sandbox() as sandbox, CodeInterpreterSync.create(sandbox) as interpreter:
        begun, ids = threading.Event(), []

        def on_init(event: Any) -> None:
            ids.append(event.id)
            begun.set()

        def stop() -> None:
            assert begun.wait(15)
            interpreter.codes.interrupt(ids[0])

        stopper = threading.Thread(target=stop)
        stopper.start()
        done = interpreter.codes.run(
            "while True: pass",
            language=SupportedLanguage.PYTHON,
            handlers=ExecutionHandlersSync(on_init=on_init),
        )
        stopper.join()
        assert done.error is not None and done.id == ids[0]
        assert interpreter.codes.run("1 + 1", language=SupportedLanguage.PYTHON).result[0].text == "2"
