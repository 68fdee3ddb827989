# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The forms of a value by MIME type, as notebooks know them, and how they reach the daemon."""

from casulo_python import output
from casulo_python.wire import PATIENT, channel

LARGEST = 48 << 20
LONGEST_TOLD = 300
METHODS = (
    ("text/html", "_repr_html_"),
    ("text/markdown", "_repr_markdown_"),
    ("text/latex", "_repr_latex_"),
    ("image/svg+xml", "_repr_svg_"),
    ("image/png", "_repr_png_"),
    ("image/jpeg", "_repr_jpeg_"),
    ("application/pdf", "_repr_pdf_"),
    ("application/json", "_repr_json_"),
    ("application/javascript", "_repr_javascript_"),
)
figure_forms = []
"""Filled by the module that knows figures: functions that give a value's forms, or nothing."""


def forms_of(value):
    """Everything a value can be shown as."""
    for special in figure_forms:
        found = special(value)
        if found is not None:
            return {"text/plain": text_of(value), **found}
    forms = {"text/plain": text_of(value)}
    kind = type(value)
    if issubclass(kind, type):
        return forms
    own = called(value, "_repr_mimebundle_", include=None, exclude=None)
    if isinstance(own, dict) and own:
        return {**forms, **{mime: data for mime, data in own.items() if data is not None}}
    for mime, name in METHODS:
        data = called(value, name)
        if data is not None:
            forms[mime] = data
    return forms


def called(value, name, **options):
    """The data of one form. That it cannot be made is told on stderr, as notebooks do, and no error."""
    try:
        data = getattr(value, name)(**options) if hasattr(type(value), name) else None
    except NotImplementedError:
        return None
    except Exception:
        complain()
        return None
    return data[0] if isinstance(data, tuple) and data else data


def complain():
    """Print the error at hand; one so broken that it cannot be printed is passed over."""
    import traceback

    try:
        traceback.print_exc()
    except Exception:
        return


def text_of(value):
    try:
        return repr(value)
    except Exception as error:
        return f"<{type(value).__name__} object whose repr raised {told(error)}>"


def told(error):
    """An error in a line, as far as it can be told."""
    try:
        return f"{type(error).__name__}: {error}"[:LONGEST_TOLD]
    except Exception:
        return type(error).__name__


def sendable(mime, data):
    """The bytes of a form, or nothing for what has none."""
    if not isinstance(mime, str) or data is None:
        return None
    try:
        return encoded(mime, data)
    except Exception:
        complain()
        return None


def encoded(mime, data):
    """The bytes of a form on the wire: base64 for what is binary, JSON for what is JSON."""
    if isinstance(data, (bytes, bytearray, memoryview)):
        if mime.startswith("text/") or mime == "image/svg+xml":
            return bytes(data)
        import binascii

        return binascii.b2a_base64(data, newline=False)
    if not isinstance(data, str) or (mime.endswith("json") and data[:1] not in ("{", "[")):
        data = as_json(data)
    return data.encode("utf-8", PATIENT)


def as_json(data):
    import json

    try:
        return json.dumps(data, allow_nan=False)
    except (ValueError, TypeError):
        return json.dumps(plain(data), default=str)


def plain(data):
    """JSON knows neither infinity nor what is not a number, and only names as keys."""
    if isinstance(data, float) and (data != data or data in (float("inf"), float("-inf"))):
        return None
    if isinstance(data, dict):
        return {str(key): plain(item) for key, item in data.items()}
    if isinstance(data, (list, tuple)):
        return [plain(item) for item in data]
    return data


def show(kind, forms):
    """Send a value's forms. What is too large for one message is named instead."""
    fields, total = [], 0
    for mime, data in forms.items():
        raw = sendable(mime, data)
        if raw is None:
            continue
        if total + len(raw) > LARGEST:
            if mime != "text/plain":
                continue
            raw = b"%s... (%d bytes, too large to show)" % (raw[:1000], len(raw))
        total += len(raw)
        fields += [mime, raw]
    if fields:
        output.flush()
        channel.tell(kind, *fields, answered=True)


class Handle:
    """What `display(…, display_id=…)` gives. Nothing that was sent changes: an update is shown anew."""

    def __init__(self, display_id):
        self.display_id = display_id

    def update(self, *values, **options):
        display(*values, **options)

    display = update


def display(*values, raw=False, display_id=None, **options):
    """Show values in the middle of a cell. With `raw` each one is a mapping of MIME types to data."""
    for value in values:
        show("display", value if raw else forms_of(value))
    return None if display_id is None else Handle(display_id)
