# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Runs inside a sandbox, with nothing but the standard library: tries to get out in many ways.

Reads a list of attempts, each a name, a function of this file and its arguments; prints one JSON line
for each: whether something came back, and what.
"""

from __future__ import annotations

import json
import socket
import ssl
import struct
import sys
import time
from concurrent.futures import ThreadPoolExecutor

TIMEOUT = 2.5


class Stopped(Exception):
    """Nothing came back."""


def received(sock, pieces, pauses=(), enough=1):
    """Send the pieces, with pauses before each, and return what comes back."""
    for number, piece in enumerate(pieces):
        time.sleep(pauses[number] if number < len(pauses) else 0)
        sock.sendall(piece)
    data = b""
    while len(data) < enough:
        part = sock.recv(65536)
        if not part:
            break
        data += part
    return data


def stream(host, port, pieces, pauses=(), enough=1, refused="casulo-egress"):
    """Over TCP; an answer that says that it is a refusal is none."""
    with socket.create_connection((host, port), TIMEOUT) as sock:
        sock.settimeout(TIMEOUT)
        data = received(sock, [p.encode("latin-1") for p in pieces], pauses, enough)
    if not data or refused.encode() in data:
        raise Stopped(data[:200].decode("latin-1") or "closed without a byte")
    return data[:120].decode("latin-1")


def second(host, port, first, then, marker):
    """Two requests over one connection; only an answer to the second counts."""
    with socket.create_connection((host, port), TIMEOUT) as sock:
        sock.settimeout(TIMEOUT)
        sock.sendall(first.encode("latin-1"))
        data = b""
        while b"\r\n\r\n" not in data:
            part = sock.recv(65536)
            if not part:
                raise Stopped("closed after the first")
            data += part
        time.sleep(0.2)
        sock.sendall(then.encode("latin-1"))
        data = b""
        while part := sock.recv(65536):
            data += part
            if marker.encode() in data:
                return marker
    raise Stopped(data[:200].decode("latin-1") or "closed")


def pipelined(host, port, both, marker):
    """Both requests at once; the marker is in the answer to the second only."""
    with socket.create_connection((host, port), TIMEOUT) as sock:
        sock.settimeout(TIMEOUT)
        sock.sendall(both.encode("latin-1"))
        data = b""
        try:
            while part := sock.recv(65536):
                data += part
        except TimeoutError:
            pass
    if marker.encode() not in data:
        raise Stopped(data[-200:].decode("latin-1"))
    return marker


def handshake(host, port, name, pause=0.0):
    """A whole TLS handshake; the certificate is not looked at."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection((host, port), TIMEOUT) as plain:
        time.sleep(pause)
        with context.wrap_socket(plain, server_hostname=name) as secure:
            secure.sendall(b"GET /escaped HTTP/1.0\r\n\r\n")
            return secure.recv(100).decode("latin-1")


def hello(names, extra=b""):
    """A client hello with these server names, and further extensions."""
    listed = b"".join(b"\0" + struct.pack(">H", len(n)) + n for n in names)
    body = struct.pack(">H", len(listed)) + listed
    extensions = struct.pack(">HH", 0, len(body)) + body if names else b""
    extensions += struct.pack(">HHHH", 10, 4, 2, 23) + struct.pack(">HHHH", 13, 4, 2, 0x0403)
    extensions += struct.pack(">HHBBB", 11, 2, 1, 0, 0)[:6] + extra
    message = b"\3\3" + b"r" * 32 + b"\0" + struct.pack(">HH", 2, 0xC02B) + b"\1\0"
    message += struct.pack(">H", len(extensions)) + extensions
    return b"\1" + len(message).to_bytes(3, "big") + message


def records(message, size=16384):
    """The message in TLS records of at most so many bytes."""
    parts = [message[i : i + size] for i in range(0, len(message), size)]
    return b"".join(b"\x16\3\1" + struct.pack(">H", len(p)) + p for p in parts)


def raw_hello(host, port, names, form="plain", pause=0.0):
    """A client hello made by hand; any record that comes back counts, an alert included."""
    wanted = [n.encode("latin-1") for n in names]
    extra = {"ech": struct.pack(">HH", 0xFE0D, 4) + b"\0\0\0\0", "esni": struct.pack(">HH", 0xFFCE, 0)}
    extra["twice"] = struct.pack(">HH", 0, 14) + struct.pack(">HBH", 12, 0, 9) + b"good.test"
    extra["padded"] = struct.pack(">HH", 21, 60000) + b"\0" * 60000
    message = hello(wanted, extra.get(form, b""))
    data = records(message, 5 if form == "fragments" else 16384)
    with socket.create_connection((host, port), TIMEOUT) as sock:
        sock.settimeout(TIMEOUT)
        time.sleep(pause)
        if form == "slow":
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for i in range(0, len(data), 40):
                sock.sendall(data[i : i + 40])
                time.sleep(0.01)
        else:
            sock.sendall(data)
        answer = sock.recv(100)
    if not answer:
        raise Stopped("closed without a byte")
    return answer.hex()


def datagram(host, port, text="ping", source=None, size=0, options=""):
    """Over UDP."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(TIMEOUT)
        if source:
            sock.setsockopt(socket.IPPROTO_IP, 15, 1)  # IP_FREEBIND
            sock.bind((source, 0))
        if options:
            sock.setsockopt(socket.IPPROTO_IP, 4, bytes.fromhex(options))  # IP_OPTIONS
            if not sock.getsockopt(socket.IPPROTO_IP, 4, 40).strip(b"\0"):
                raise Stopped("this kernel sends no options")
        sock.connect((host, port))
        sock.send(text.encode() + b"x" * size)
        return sock.recv(65536)[:50].decode("latin-1")


def encoded(name):
    return b"".join(bytes([len(part)]) + part.encode() for part in name.split(".") if part) + b"\0"


def ask(server, name, kind=1, over="udp", size=0, klass=1, port=53, pipeline=1):
    """A question to a name server; an answer without records is none."""
    head = struct.pack(">HHHHHH", 4660, 256, 1, 0, 0, 1 if size else 0)
    message = head + encoded(name) + struct.pack(">HH", kind, klass)
    message += b"\0" + struct.pack(">HHIH", 41, size, 0, 0) if size else b""
    answers = []
    if over == "tcp":
        with socket.create_connection((server, port), TIMEOUT) as sock:
            sock.settimeout(TIMEOUT)
            sock.sendall((struct.pack(">H", len(message)) + message) * pipeline)
            for _ in range(pipeline):
                length = sock.recv(2, socket.MSG_WAITALL)
                answers.append(sock.recv(struct.unpack(">H", length)[0], socket.MSG_WAITALL))
    else:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.settimeout(TIMEOUT)
            sock.connect((server, port))
            sock.send(message)
            answers.append(sock.recv(65536))
    flags, _, count = struct.unpack(">HHH", answers[-1][2:8])
    told = {"count": count, "rcode": flags & 15, "truncated": bool(flags & 512), "bytes": len(answers[-1])}
    if not count and not told["truncated"]:
        raise Stopped(json.dumps(told))
    return json.dumps({**told, "answers": len(answers)})


def six(host, port, kind=socket.SOCK_STREAM):
    with socket.socket(socket.AF_INET6, kind) as sock:
        sock.settimeout(TIMEOUT)
        sock.connect((host, port))
        sock.sendall(b"GET / HTTP/1.0\r\nHost: evil.test\r\n\r\n")
        answer = sock.recv(100)
    if not answer or b"casulo-egress" in answer:
        raise Stopped("no answer")
    return answer.decode("latin-1")


def echo_request(host):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP) as sock:
        sock.settimeout(TIMEOUT)
        sock.connect((host, 0))
        sock.send(struct.pack(">BBHHH", 8, 0, 0, 1, 1) + b"tunnel")
        return sock.recv(100).hex()


def special(family, kind, number):
    """A socket of a kind that could forge packets."""
    with socket.socket(family, kind, number):
        return "it was made"


def command(words):
    import subprocess

    done = subprocess.run(words, capture_output=True, text=True, timeout=10)
    if done.returncode:
        raise Stopped(done.stderr[:200])
    return done.stdout[:200]


def attempt(item):
    name, function, arguments = item
    try:
        return {"name": name, "out": True, "told": str(globals()[function](**arguments))}
    except Exception as error:  # whatever stops it, it is stopped
        return {"name": name, "out": False, "told": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    with open(sys.argv[1]) as file, ThreadPoolExecutor(12) as pool:
        for result in pool.map(attempt, json.load(file)):
            print(json.dumps(result), flush=True)
