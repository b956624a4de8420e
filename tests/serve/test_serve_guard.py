#!/usr/bin/env python3
"""Who may ask `hearth serve`, for what, how much and for how long.

usage: test_serve_guard.py HEARTH
"""
import concurrent.futures
import os
import signal
import socket
import time
import urllib.parse

from server import ServeCase, main, read_all

TARGETS = ("/api/run", "/api/series", "/api/events", "/report", "/api/compare")
OUT = ("../secret", "..", ".", "", "/", "../../etc", "..%2fsecret", "..%252fsecret", "%2e%2e/secret", "....//secret", "..\\secret",
       "one/../../secret", "one/../one", "./one", "one/", "one/.", "/etc", "one\0", "%c0%ae%c0%ae/secret", "~", "*", "one\n", "ONE")


class Guard(ServeCase):
    def test_no_path_leads_out_of_the_runs(self):
        self.write_run("one")
        secret = self.folder / "secret"
        secret.mkdir()
        (secret / "config.toml").write_text("[train]\nseq = 4242\n")
        (secret / "metrics.jsonl").write_text('{"step":4242,"tokens":1,"loss":4242}\n')
        self.serve()
        names = set(OUT) | {str(secret), f"{self.runs}/../secret", f"{self.runs}/one"}
        for target in TARGETS:
            for name in names:
                for sent in (urllib.parse.quote(name, safe=""), name.replace("\0", "%00").replace("\n", "%0a")):
                    two = "&run=one" if target == "/api/compare" else ""
                    reply = self.ask(f"{target}?run={sent}{two}")
                    self.assertIn(reply.status, (400, 404), (target, sent))
                    self.assertNotIn(b"4242", reply.body)
        for path in ("/../secret/config.toml", "/..%2fsecret%2fconfig.toml", "/%2e%2e/secret/config.toml", "//etc/passwd",
                     "/one/config.toml", "/runs/one/config.toml", "/run.js/../../secret", "/pages/run.js", "/run.j", "/index.html/",
                     "/....//secret", "/.", "/..", "/%00", "/%", "/%zz", "/\\..\\secret", "/api", "/api/", "*", "http://x/"):
            reply = self.raw(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
            self.assertRegex(reply[:12], rb"^HTTP/1.1 (400|404)", path)
            self.assertNotIn(b"4242", reply)

    def test_links_out_of_the_runs_are_not_followed(self):
        secret = self.folder / "secret"
        secret.mkdir()
        (secret / "config.toml").write_text("[train]\nseq = 4242\n")
        (secret / "metrics.jsonl").write_text('{"step":4242,"tokens":1,"loss":4242}\n')
        (self.runs / "linked").symlink_to(secret)
        (self.runs / "up").symlink_to("..")
        for name in ("metrics.jsonl", "log.txt", "environment.json"):
            run = self.write_run("has-" + name)
            (run / name).unlink(missing_ok=True)
            (run / name).symlink_to(secret / "metrics.jsonl")
        (secret / "summary.json").write_text('{"sentence":"4242"}')
        (self.write_run("has-profile") / "profile").symlink_to(secret)
        waits = self.write_run("waits")
        (waits / "alarms.jsonl").unlink(missing_ok=True)
        os.mkfifo(waits / "alarms.jsonl")  # a reader would wait for a writer
        good = self.write_run("good")
        (self.runs / "again").symlink_to(good)  # inside: fine
        self.serve()
        self.assertEqual({run["name"] for run in self.json("/api/runs", timeout=20)["runs"]}, {"good", "again"})
        for name in ("linked", "up", "has-metrics.jsonl", "has-log.txt", "has-environment.json", "has-profile", "waits"):
            for target in ("/api/run", "/api/series", "/api/events", "/report"):
                self.assertNotIn(b"4242", self.ask(f"{target}?run={name}", timeout=20).body)
                self.assertEqual(self.ask(f"{target}?run={name}", timeout=20).status, 404)

    def test_another_name_of_this_machine_is_refused(self):
        self.serve()
        for host in ("localhost", f"localhost:{self.port}", "127.0.0.1", "LocalHost:80", "[::1]:8000"):
            self.assertEqual(self.ask("/", headers={"Host": host}).status, 200, host)
        for host in ("evil.example", f"evil.example:{self.port}", "localhost.evil.example", "127.0.0.1.evil.example", "localhost:",
                     "localhost:x", "localhost:1@evil", "127.0.0.2", "", "[::1", "localhost:123456"):
            for target in ("/", "/api/runs", "/metrics"):
                self.assertIn(self.ask(target, headers={"Host": host}).status, (400, 403), host)
        self.assertEqual(self.raw(b"GET / HTTP/1.0\r\n\r\n")[9:12], b"403")

    def test_the_address_it_was_given_is_a_name_of_it(self):
        self.serve("--bind", "127.0.0.2", host="127.0.0.2")
        for host in (f"127.0.0.2:{self.port}", "127.0.0.2", "localhost"):
            self.assertEqual(self.ask("/", headers={"Host": host}).status, 200, host)
        for host in ("127.0.0.3", "127.0.0.2.evil.example", "127.0.0.2:", "127.0.0.22"):
            self.assertEqual(self.ask("/", headers={"Host": host}).status, 403, host)

    def test_a_foreign_origin_is_refused(self):
        self.serve()
        own = f"http://127.0.0.1:{self.port}"
        self.assertEqual(self.ask("/api/runs", headers={"Origin": own}).status, 200)
        for origin in ("http://evil.example", "null", f"http://localhost:{self.port}", own + ".evil.example", "http://127.0.0.1:1", ""):
            reply = self.ask("/api/runs", headers={"Origin": origin})
            self.assertEqual(reply.status, 403, origin)
            self.assertIsNone(reply.headers["Access-Control-Allow-Origin"])
        cross = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}
        self.assertEqual(self.ask("/api/runs", headers=cross).status, 403)
        self.assertEqual(self.ask("/", headers={**cross, "Sec-Fetch-Mode": "navigate"}).status, 200)

    def test_replies_have_the_headers_that_browsers_heed(self):
        self.serve()
        for target in ("/", "/api/runs", "/nothing", "/report.css"):
            headers = self.ask(target).headers
            self.assertEqual(headers["X-Content-Type-Options"], "nosniff")
            self.assertEqual(headers["X-Frame-Options"], "DENY")
            self.assertEqual(headers["Referrer-Policy"], "no-referrer")
            self.assertIn("default-src 'none'; script-src 'self';", headers["Content-Security-Policy"])

    def test_another_address_needs_a_token_which_is_made(self):
        self.write_run("one")
        self.serve("--bind", "0.0.0.0")
        self.assertRegex(self.token, "^[0-9a-f]{32}$")
        first = self.token
        cookie = f"hearth_token_{self.port}"
        wrong = ("0" * 32, first[:-1], first + "0", first.upper() if first.upper() != first else "x", "", first[::-1])
        for target in ("/", "/api/runs", "/metrics", "/api/events?run=one", "/report?run=one", "/nothing", "/page.js"):
            self.assertEqual(self.ask(target).status, 401, target)
            for token in wrong:
                join = "&" if "?" in target else "?"
                self.assertEqual(self.ask(f"{target}{join}token={token}").status, 401)
                self.assertEqual(self.ask(target, headers={"Authorization": "Bearer " + token}).status, 401)
                self.assertEqual(self.ask(target, headers={"Cookie": f"{cookie}={token}"}).status, 401)
        self.assertEqual(self.ask("/api/runs", headers={"Authorization": "Bearer " + first}).status, 200)
        self.assertEqual(self.ask("/api/runs", headers={"Authorization": first}).status, 401)
        self.assertEqual(self.ask("/", headers={"Cookie": f"a=b; {cookie}={first}"}).status, 200)
        self.assertEqual(self.ask("/", headers={"Cookie": f"hearth_token_1={first}"}).status, 401)
        reply = self.ask(f"/run?run=one&token={first}&over=time")
        self.assertEqual((reply.status, reply.headers["Location"]), (303, "/run?run=one&over=time"))
        self.assertEqual(reply.headers["Set-Cookie"], f"{cookie}={first}; Path=/; HttpOnly; SameSite=Lax")
        for target in ("//evil.example/?token=", "/\\evil.example?token=", "//evil.example?token="):
            reply = self.ask(target + first)
            self.assertEqual((reply.status, reply.headers["Location"]), (303, "/"), target)
        self.end(self.server)
        self.serve("--bind", "0.0.0.0")
        self.assertNotEqual(self.token, first)

    def test_a_token_that_is_given_is_asked_for_on_this_machine_too(self):
        self.serve("--token", "correct-horse")
        self.assertEqual(self.ask("/").status, 401)
        self.assertEqual(self.ask("/", headers={"Authorization": "Bearer correct-horse"}).status, 200)
        self.assertEqual(self.ask("/", headers={"Authorization": "Bearer correct-horse", "Host": "evil"}).status, 403)
        self.assertIn("at least 8", self.hearth("serve", self.runs, "--port", "0", "--token", "short", code=2))
        self.assertIn("at least 8", self.hearth("serve", self.runs, "--port", "0", "--token", "semicolon;xx", code=2))

    def test_only_get_and_head(self):
        self.write_run("one")
        self.serve()
        for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "get", "X"):
            reply = self.raw(f"{method} /api/runs HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
            self.assertRegex(reply[:12], rb"^HTTP/1.1 (405|400|501)", method)
        body = b"GET /api/runs HTTP/1.1\r\nHost: localhost\r\n"
        for more in (b"Content-Length: 5\r\n\r\nhello", b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
                     b"Content-Length: 99999999999\r\n\r\n", b"Content-Length: -1\r\n\r\n", b"Content-Length: 1e9\r\n\r\n"):
            self.assertRegex(self.raw(body + more)[:12], rb"^HTTP/1.1 (413|400)", more)
        self.assertTrue((self.runs / "one" / "metrics.jsonl").exists())

    def test_oversized_and_malformed_requests_are_refused(self):
        self.serve()
        host = b"Host: localhost\r\nConnection: close\r\n"
        huge = [b"GET /" + b"a" * 20000 + b" HTTP/1.1\r\n" + host + b"\r\n",
                b"GET /" + b"a" * 2000000 + b" HTTP/1.1\r\n" + host + b"\r\n",
                b"GET /?" + b"a=1&" * 4000 + b" HTTP/1.1\r\n" + host + b"\r\n",
                b"GET / HTTP/1.1\r\n" + host + b"X: " + b"y" * 100000 + b"\r\n\r\n",
                b"GET / HTTP/1.1\r\n" + host + b"X: y\r\n" * 20000 + b"\r\n",
                b"a" * 1000000, b"\0" * 1000, b"\r\n" * 1000 + b"x", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\x16\x03\x01\x02\x00" * 50]
        with concurrent.futures.ThreadPoolExecutor(len(huge)) as pool:  # some wait to be dropped
            for request, reply in zip(huge, pool.map(lambda request: self.raw(request, seconds=30), huge)):
                self.assertFalse(reply.startswith(b"HTTP/1.1 200"), request[:40])
        many = "/api/runs?" + "&".join(f"a{i}=1" for i in range(200))
        self.assertIn("at most 128", self.json(many, status=400)["error"])
        for target in ("/api/events?run=x&from=-1", "/api/events?run=x&from=abc", "/api/events?run=x&from=99999999999999999999"):
            self.json(target, status=400)
        self.assertEqual(self.ask("/").status, 200)

    def test_a_client_that_dawdles_is_dropped_and_holds_up_nobody(self):
        self.write_run("one")
        self.serve()
        slow = [self.connect() for _ in range(100)]
        begin = time.monotonic()
        for wire in slow:
            wire.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n")
        silent = [self.connect() for _ in range(20)]
        dropped = set()
        while len(dropped) < len(slow) and time.monotonic() - begin < 60:
            for wire in slow:  # a byte now and then
                try:
                    wire.sendall(b"X")
                    wire.setblocking(False)
                    if wire.recv(100) == b"":
                        dropped.add(wire)
                except BlockingIOError:
                    pass
                except OSError:
                    dropped.add(wire)
                finally:
                    wire.setblocking(True)
            self.assertEqual(self.ask("/api/runs").status, 200)
            time.sleep(0.5)
        self.assertEqual(len(dropped), len(slow))
        for wire in silent:
            self.assertEqual(read_all(wire, 30), b"")
        for wire in slow + silent:
            wire.close()

    def test_one_address_has_only_so_many_connections(self):
        self.write_run("one")
        self.serve()
        wires = []
        for _ in range(400):
            try:
                wires.append(self.connect())
            except OSError:
                break
        request = b"GET /api/events?run=one&from=0 HTTP/1.1\r\nHost: localhost\r\n\r\n"
        answered = 0
        for wire in wires:
            try:
                wire.sendall(request)
            except OSError:
                pass
        for wire in wires:
            wire.settimeout(20)
            try:
                answered += wire.recv(12) == b"HTTP/1.1 200"
            except OSError:
                pass
        self.assertTrue(200 <= answered <= 320, answered)
        for wire in wires:
            wire.close()
        self.wait_for(lambda: self.answers())

    def answers(self):
        try:
            return self.ask("/").status == 200
        except OSError:
            return False

    def test_a_client_that_does_not_read_holds_up_nobody(self):
        run = self.write_run("one", 20000)
        self.serve()
        size = (run / "metrics.jsonl").stat().st_size
        lazy = []
        for target in ("/api/series?run=one", "/report?run=one", f"/api/events?run=one&from={size}") * 5:
            wire = socket.socket()
            wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            wire.connect((self.host, self.port))
            wire.sendall(f"GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            lazy.append(wire)
        for _ in range(5):
            self.assertEqual(self.ask("/api/runs", timeout=30).status, 200)
            self.assertEqual(self.ask("/", timeout=30).status, 200)
        for wire in lazy:
            wire.close()

    def test_it_ends_at_once_with_streams_open(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            if not (self.runs / "one").exists():
                self.write_run("one")
            server = self.serve()
            streams = [self.events("one") for _ in range(20)]
            begin = time.monotonic()
            self.end(server, number)
            self.assertLess(time.monotonic() - begin, 30)
            for events in streams:
                with self.assertRaises((EOFError, ConnectionError)):
                    while True:
                        events.next()
                events.close()

    def test_what_cannot_be_served_is_said(self):
        self.assertIn("there is no folder", self.hearth("serve", self.folder / "nothing", code=2))
        self.assertIn("is not an address", self.hearth("serve", self.runs, "--bind", "example.org", code=2))
        self.assertIn("from 0 to 65535", self.hearth("serve", self.runs, "--port", "65536", code=2))
        self.serve()
        self.assertIn("--port 0 any", self.hearth("serve", self.runs, "--port", self.port, code=1))
        self.assertEqual(self.ask("/").status, 200)


if __name__ == "__main__":
    main("test_serve_guard")
