# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The table of attempts to escape: what is tried from inside a sandbox, and what the log must say of it.

`why` is searched in the log's lines about the sandbox. An empty one is for what the sandbox's own
kernel refuses, so that no packet leaves.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from typing import Any

from support.internet.world import World

POLICY: dict[str, Any] = {
    "defaultAction": "deny",
    "egress": [
        {"action": "deny", "target": "bad.wild.test"},
        {"action": "allow", "target": "good.test"},
        {"action": "allow", "target": "also.good.test", "ports": [443]},
        {"action": "allow", "target": "*.wild.test"},
        {"action": "allow", "target": "rebind.test"},
        {"action": "allow", "target": "half.test"},
        {
            "action": "allow",
            "target": "api.good.test",
            "ports": [80],
            "methods": ["GET"],
            "paths": ["/open/*"],
        },
    ],
}

ALLOWING: dict[str, Any] = {"defaultAction": "allow", "egress": [{"action": "deny", "target": "evil.test"}]}


@dataclass(frozen=True)
class Attempt:
    """One way out. `name` begins with the case it belongs to, if it does."""

    name: str
    function: str
    why: str
    arguments: dict[str, Any] = field(default_factory=dict)


def request(host: str, path: str = "/", method: str = "GET", more: str = "", version: str = "1.1") -> str:
    """A plain HTTP request."""
    return f"{method} {path} HTTP/{version}\r\nHost: {host}\r\n{more}\r\n"


@dataclass(frozen=True)
class Places:
    """The addresses that attempts aim at, besides those of the small internet."""

    gateway: str
    neighbour: str
    server_port: int
    entry_port: int
    dns_port: int


def attempts(w: World, p: Places) -> list[Attempt]:
    """All that are made under `POLICY`."""
    return [*direct(w, p), *tls(w), *http(w), *dns(w, p), *datagrams(w), *forged(w, p)]


def direct(w: World, p: Places) -> list[Attempt]:
    """Addresses that no allowed name resolved to, and what is close to the sandbox."""
    get = [request("evil.test")]
    aims = {
        "b061-never-resolved": (w.at(81), 80, f"{w.at(81)}.*no allowed name resolved"),
        "b061-never-resolved-tls": (w.at(81), 443, f'{w.at(81)}","port":443'),
        "b061-never-resolved-odd-port": (w.at(90), 22, f'{w.at(90)}","port":22'),
        "b061-metadata": ("169.254.169.254", 80, '169.254.169.254","port":80'),
        "b061-metadata-containers": ("169.254.170.2", 80, "169.254.170.2"),
        "b061-metadata-other-cloud": ("100.100.100.200", 80, "100.100.100.200"),
        "b061-gateway-ssh": (p.gateway, 22, f'{p.gateway}","port":22.*host itself'),
        "b061-gateway-api": (p.gateway, p.server_port, f'{p.gateway}","port":{p.server_port}'),
        "b061-gateway-entry-itself": (p.gateway, p.entry_port, f'"port":{p.entry_port}'),
        "b061-gateway-names-port": (p.gateway, p.dns_port, f'"port":{p.dns_port}'),
        "b061-host-other-address": (w.at(1), p.server_port, f'{w.at(1)}","port":{p.server_port}'),
        "neighbour-daemon": (p.neighbour, 44772, f'{p.neighbour}","port":44772'),
        "private-10": ("10.255.0.1", 80, "10.255.0.1"),
        "private-172-engine-api": ("172.17.0.1", 2375, '172.17.0.1","port":2375'),
        "private-192": ("192.168.1.1", 443, "192.168.1.1"),
        "public-address": ("9.9.9.9", 443, '9.9.9.9","port":443'),
        "b063-dot": (w.at(54), 853, f'{w.at(54)}","port":853'),
        "b063-doh-literal": (w.at(44), 443, f'{w.at(44)}","port":443'),
    }
    return [
        Attempt(name, "stream", why, {"host": host, "port": port, "pieces": get})
        for name, (host, port, why) in aims.items()
    ]


def tls(w: World) -> list[Attempt]:
    """Server names that lie, hide, or are missing, at the address that an allowed name shares."""
    shared, other = w.at(80), w.at(81)

    def full(name: str, host: str, port: int, sni: str | None, why: str, pause: float = 0.0) -> Attempt:
        arguments = {"host": host, "port": port, "name": sni, "pause": pause}
        return Attempt(name, "handshake", why, arguments)

    def made(name: str, sni: list[str], why: str, form: str = "plain", port: int = 443) -> Attempt:
        arguments = {"host": shared, "port": port, "names": sni, "form": form}
        return Attempt(name, "raw_hello", why, arguments)

    return [
        full("b061-shared-address", shared, 443, "evil.test", "tls.*evil.test.*no rule allows"),
        full("b061-name-of-another-address", other, 443, "good.test", f'{other}","port":443'),
        full("no-server-name", shared, 443, None, "no server name was sent"),
        full("denied-subdomain", shared, 443, "bad.wild.test", "deny bad.wild.test"),
        full("b057-apex", shared, 443, "wild.test", '"tls".*"wild.test"'),
        full("b057-look-alike", shared, 443, "notwild.test", '"tls".*"notwild.test"'),
        full("b057-suffix", shared, 443, "wild.test.evil.test", '"tls".*"wild.test.evil.test"'),
        full("capitals", shared, 443, "FRONT.EVIL.TEST", '"tls".*"front.evil.test"'),
        full("tls-on-odd-port", shared, 8443, "evil.test", '"evil.test".*"port":8443'),
        full("tls-late-on-odd-port", shared, 8443, "evil.test", '"evil.test".*"port":8443', 0.6),
        full("tls-nameless-on-odd-port", shared, 8443, None, '"port":8443.*no server name'),
        full("tls-on-80", shared, 80, "evil.test", '"tls".*"evil.test".*"port":80'),
        made("ech-outer-name-allowed", ["good.test"], "encrypted .ECH", "ech"),
        made("esni", ["good.test"], "encrypted .ECH", "esni"),
        made("two-names-in-the-list", ["good.test", "evil.test"], "no TLS client hello"),
        made("name-extension-twice", ["evil.test"], "no TLS client hello", "twice"),
        made("name-with-nul", ["good.test\0.evil.test"], "no host name"),
        made("name-with-dot", ["evil.test."], '"tls".*"evil.test"'),
        made("name-is-an-address", [shared], "no host name"),
        made("hello-in-fragments", ["evil.test"], '"tls".*"evil.test"', "fragments"),
        made("hello-drop-by-drop", ["evil.test"], '"tls".*"evil.test"', "slow"),
        made("hello-padded", ["evil.test"], "evil.test", "padded"),
        made("empty-name", [""], "no server name was sent"),
    ]


# long-function: one table
def http(w: World) -> list[Attempt]:
    """Requests that name another host than the one that is allowed, or that two readers read differently."""
    shared = w.at(80)
    good = request("good.test", "/first")
    evil = request("evil.test", "/escaped", more="Connection: close\r\n")
    smuggled = f"{len(evil):x}\r\n{evil}\r\n0\r\n\r\n"
    marker = '"evil.test"'

    def one(name: str, text: str, why: str, port: int = 80, pauses: tuple[float, ...] = ()) -> Attempt:
        pieces = text.split("|")
        arguments = {"host": shared, "port": port, "pieces": pieces, "pauses": pauses}
        return Attempt(name, "stream", why, arguments)

    def then(name: str, first: str, why: str) -> Attempt:
        arguments = {"host": shared, "port": 80, "first": first, "then": evil, "marker": marker}
        return Attempt(name, "second", why, arguments)

    def both(name: str, text: str, why: str) -> Attempt:
        return Attempt(name, "pipelined", why, {"host": shared, "port": 80, "both": text, "marker": marker})

    upgrade = request("good.test", "/", more="Connection: Upgrade\r\nUpgrade: foo\r\n")
    offer = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: \r\n"
    h2c = request("good.test", more=offer)
    hidden = "Host: good.test\r\nHost: evil.test\r\n\r\n"
    return [
        one("b061-forged-host", request("evil.test"), '"http".*"evil.test"'),
        one("host-with-port", request("evil.test:80"), '"http".*"evil.test"'),
        one("port-not-allowed", request("also.good.test"), '"http".*"also.good.test"'),
        one("no-host", "GET / HTTP/1.0\r\n\r\n", "names no host"),
        one("host-is-an-address", request(shared), "names no host"),
        one("absolute-form", request("good.test", "http://evil.test/"), "the target names"),
        one("absolute-form-alone", "GET http://evil.test/ HTTP/1.0\r\n\r\n", '"http".*"evil.test"'),
        one("absolute-form-userinfo", request("good.test", "http://good.test@evil.test/"), "not understood"),
        one("two-hosts", request("good.test", more="Host: evil.test\r\n"), "2 Host headers"),
        one("host-list", request("good.test, evil.test"), "is no host"),
        one("folded-host", f"GET / HTTP/1.1\r\nX: a\r\n {hidden}", "is no header"),
        one("space-before-colon", f"GET / HTTP/1.1\r\nHost : x\r\n{hidden}", "is no header"),
        one("bare-newlines", "GET / HTTP/1.1\nHost: evil.test\n\n", "no proper end"),
        one("connect", "CONNECT evil.test:443 HTTP/1.1\r\nHost: good.test\r\n\r\n", "no proxy for CONNECT"),
        one("http2-without-tls", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "HTTP"),
        one("unknown-version", "GET / HTTP/1.2\r\nHost: good.test\r\n\r\n", "version"),
        one("http-on-443", request("evil.test"), '"http".*"evil.test".*"port":443', 443),
        one("other-protocol-on-443", "\0\1\2\3", "neither TLS nor HTTP/1", 443),
        one("http-on-odd-port", request("evil.test"), '"evil.test".*"port":8080', 8080),
        one("http-late-on-odd-port", request("evil.test"), "too late to be looked at", 8080, (0.6,)),
        one("line-in-halves", "GE|T / HTTP/1.1\r\n|Host: evil.test\r\n\r\n", "too late", 8080, (0, 0.6)),
        one("empty-line-first-on-odd-port", "\r\n" + request("evil.test"), "empty line", 8080),
        one("tabs-on-odd-port", "GET\t/\tHTTP/1.1\r\nHost: evil.test\r\n\r\n", "no request", 8080),
        one("long-method-on-odd-port", request("evil.test", "/", "M" * 40), '"evil.test".*"port":8080', 8080),
        one("host-with-another-behind-it", request("good.test:@evil.test"), "is no host"),
        one("method-not-allowed", request("api.good.test", "/open/x", "POST"), '"api.good.test".*"POST"'),
        one("path-not-allowed", request("api.good.test", "/closed"), '"api.good.test".*"/closed"'),
        one("path-climbs", request("api.good.test", "/open/../closed"), "normal form"),
        one("path-escaped", request("api.good.test", "/open/%2e%2e/closed"), "normal form"),
        then("b061-second-request", good, '"evil.test".*"/escaped"'),
        then("upgrade-refused-then-other-host", upgrade, '"evil.test".*"/escaped"'),
        then("offer-of-http2-then-other-host", h2c, '"evil.test".*"/escaped"'),
        both("pipelined", good + evil, '"evil.test".*"/escaped"'),
        both("length-and-chunks", request("good.test", "/", "POST",
             "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n") + smuggled, "both a length"),
        both("two-lengths", request("good.test", "/", "POST",
             f"Content-Length: 0\r\nContent-Length: {len(evil)}\r\n") + evil, "content length"),
        both("chunked-spelled-oddly", request("good.test", "/", "POST",
             "Transfer-Encoding: xchunked\r\n") + smuggled, "transfer encoding"),
    ]  # fmt: skip


def dns(w: World, p: Places) -> list[Attempt]:
    """Names that are denied, by every road, and answers that point inside."""
    long = "a" * 60

    def one(name: str, server: str, asked: str, why: str = "", **more: Any) -> Attempt:
        why = why or f'"dns".*"{asked.lower()}"'
        return Attempt(name, "ask", why, {"server": server, "name": asked, **more})

    return [
        one("b065-denied", p.gateway, f"{long}1.denied.test"),
        one("b065-denied-tcp", p.gateway, f"{long}2.denied.test", over="tcp"),
        one("b065-denied-text", p.gateway, f"{long}3.denied.test", kind=16),
        one("b065-outside-resolver", "8.8.8.8", f"{long}4.denied.test"),
        one("b065-rogue-resolver", w.at(54), f"{long}5.denied.test"),
        one("b065-rogue-resolver-tcp", w.at(54), f"{long}6.denied.test", over="tcp"),
        one("b065-real-resolver", w.resolver, f"{long}7.denied.test"),
        one("b059-denied-edns", p.gateway, "evil.test", size=4096),
        one("b059-denied-pipelined", p.gateway, "other.test", over="tcp", pipeline=3),
        one("allowed-name-as-prefix", p.gateway, "good.test.evil.test"),
        one("rebinding", p.gateway, "rebind.test", "rebind.test.*points at a private"),
        one("capitals-do-not-help", p.gateway, "EvIl.TeSt", '"dns".*"evil.test"'),
        one("b063-doh-name", p.gateway, "doh.test"),
        one("service-record", p.gateway, "_sip._tcp.evil.test", kind=33),
    ]


def _hex(address: str) -> str:
    return socket.inet_aton(address).hex()


def datagrams(w: World) -> list[Attempt]:
    """UDP, ICMP, IPv6, and other transports."""
    shared = w.at(80)

    def one(name: str, host: str, port: int, why: str = "", **more: Any) -> Attempt:
        why = why or f'{host}","port":{port},"protocol":"udp"'
        return Attempt(name, "datagram", why, {"host": host, "port": port, **more})

    return [
        one("quic", shared, 443),
        one("quic-on-80", w.at(81), 443),
        one("udp-never-resolved", w.at(81), 123),
        one("udp-odd-port", w.at(90), 4500),
        Attempt(
            "source-routed",
            "datagram",
            "",
            {"host": shared, "port": 4500, "options": f"830704{_hex(w.at(81))}01"},
        ),
        one("udp-fragments", w.at(81), 4500, size=4000),
        one("b063-doq", w.at(54), 853),
        one("udp-metadata", "169.254.169.254", 53053),
        one("multicast-names", "224.0.0.251", 5353),
        Attempt("icmp-tunnel", "echo_request", "", {"host": shared}),
        Attempt("ipv6", "six", "", {"host": "2001:db8::80", "port": 80}),
        Attempt("ipv6-datagram", "six", "", {"host": "2001:db8::80", "port": 443, "kind": socket.SOCK_DGRAM}),
        Attempt("nat64", "six", "", {"host": "64:ff9b::c612:5050", "port": 80}),
        Attempt("ipv4-in-ipv6", "six", w.at(81), {"host": f"::ffff:{w.at(81)}", "port": 80}),
    ]


def forged(w: World, p: Places) -> list[Attempt]:
    """Packets and neighbours that are not what they seem."""
    return [
        Attempt("forged-source", "datagram", "", {
            "host": w.at(80), "port": 123, "source": "198.18.99.99"}),
        Attempt("forged-source-neighbour", "datagram", "", {
            "host": w.at(80), "port": 4500, "source": p.neighbour}),
        Attempt("raw-socket", "special", "", {"family": 2, "kind": 3, "number": 255}),
        Attempt("packet-socket", "special", "", {"family": 17, "kind": 3, "number": 768}),
        Attempt("vsock", "special", "", {"family": 40, "kind": 1, "number": 0}),
        Attempt("other-transport", "special", "", {"family": 2, "kind": 1, "number": 132}),
        Attempt("change-hardware-address", "command", "", {
            "words": ["ip", "link", "set", "eth0", "address", "02:00:00:00:00:01"]}),
        Attempt("add-an-address", "command", "", {
            "words": ["ip", "addr", "add", "10.9.9.9/24", "dev", "eth0"]}),
        Attempt("claim-a-neighbour", "command", "", {
            "words": ["ip", "neigh", "replace", p.gateway, "lladdr", "02:00:00:00:00:02", "dev", "eth0"]}),
    ]  # fmt: skip


def allowing(w: World) -> list[Attempt]:
    """Those that are made under `ALLOWING`: what stays closed although the default is open."""

    def tcp(name: str, host: str, port: int, why: str) -> Attempt:
        pieces = [request("x.test")]
        return Attempt(name, "stream", why, {"host": host, "port": port, "pieces": pieces})

    return [
        tcp("b063-open-doh-literal", w.at(44), 443, "known DoH"),
        tcp("b063-open-dot", w.at(54), 853, '"port":853'),
        tcp("open-metadata", "169.254.169.254", 80, "169.254.169.254"),
        tcp("open-private", "10.255.0.1", 80, "10.255.0.1"),
        Attempt("b063-open-doh-name", "ask", "known DoH", {"server": w.resolver, "name": "doh.test"}),
        Attempt("open-denied-name", "ask", "deny evil.test", {"server": w.resolver, "name": "evil.test"}),
        Attempt("open-denied-name-forged", "handshake", "deny evil.test", {
            "host": w.at(80), "port": 443, "name": "evil.test"}),
        Attempt("open-two-hosts", "stream", "2 Host headers", {
            "host": w.at(80), "port": 80, "pieces": [request("good.test", more="Host: evil.test\r\n")]}),
        Attempt("open-quic", "datagram", '"port":443,"protocol":"udp"', {"host": w.at(81), "port": 443}),
        Attempt("open-ech", "raw_hello", "encrypted .ECH", {
            "host": w.at(80), "port": 443, "names": ["good.test"], "form": "ech"}),
    ]  # fmt: skip
