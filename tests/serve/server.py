"""`hearth serve` as a child process, and requests to it as they go over the wire."""
import http.client
import json
import os
import pathlib
import re
import select
import signal
import socket
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "cli"))
from program import HEARTH, Case, unittest  # noqa: E402,F401

features = (pathlib.Path(HEARTH).parent / "features.txt")
BUILT = not features.exists() or bool(re.search(r"MICROHTTPD +in", features.read_text()))


class ServeCase(Case):
    """self.runs is the folder of runs; self.serve() starts a server, which must end cleanly with the test."""

    def setUp(self):
        super().setUp()
        self.runs = self.folder / "runs"
        self.runs.mkdir()
        self.servers = []

    def tearDown(self):
        try:
            for server in self.servers:
                self.end(server)
        finally:
            super().tearDown()

    def serve(self, *arguments, host="127.0.0.1"):
        server = self.start("serve", self.runs, "--port", "0", *arguments)
        self.servers.append(server)
        line = server.stdout.readline()
        found = re.match(r"hearth serve: http://\S+:(\d+)/(?:\?token=(\S+))?\n", line)
        self.assertIsNotNone(found, line + (server.stderr.read() if server.poll() is not None else ""))
        self.port, self.token, self.host, self.server = int(found[1]), found[2], host, server
        return server

    def end(self, server, number=signal.SIGINT):
        """Ctrl-C: it ends at once, with 0, and has said nothing to complain of (a leak, say)."""
        if server.poll() is None:
            server.send_signal(number)
        try:
            _, said = server.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            server.kill()
            self.fail("the server did not end")
        finally:
            self.servers = [other for other in self.servers if other is not server]
        self.assertEqual((server.returncode, said), (0, ""))

    def ask(self, target, method="GET", headers=None, timeout=60):
        connection = http.client.HTTPConnection(self.host, self.port, timeout=timeout)
        try:
            connection.putrequest(method, target, skip_host=True)
            for name, value in {"Host": f"127.0.0.1:{self.port}", **(headers or {})}.items():
                if value is not None:
                    connection.putheader(name, value)
            connection.endheaders()
            reply = connection.getresponse()
            reply.body = reply.read()
            return reply
        finally:
            connection.close()

    def json(self, target, status=200, **options):
        reply = self.ask(target, **options)
        self.assertEqual(reply.status, status, reply.body)
        return json.loads(reply.body)

    def connect(self):
        wire = socket.create_connection((self.host, self.port), timeout=60)
        self.addCleanup(wire.close)
        return wire

    def raw(self, data, seconds=60):
        """What comes back for these bytes until the server closes."""
        with self.connect() as wire:
            try:
                wire.sendall(data)
            except OSError:
                pass  # closed before all of it was sent
            return read_all(wire, seconds)

    def events(self, run, start=0):
        return Events(self.connect(), f"GET /api/events?run={run}&from={start} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")

    def write_run(self, name, steps=5):
        """A run directory without a process, of lines that can be known again."""
        run = self.runs / name
        run.mkdir()
        (run / "config.toml").write_text('[train]\nseq = 32\n')
        (run / "metrics.jsonl").write_text("".join(step_line(i) for i in range(1, steps + 1)))
        return run


def hearth_json(*arguments):
    """Exit code of a command, the JSON it wrote (None: none), and what it complained of."""
    done = subprocess.run([HEARTH, *map(str, arguments)], capture_output=True, text=True, timeout=120,
                          env={**os.environ, "HEARTH_HISTORY": ""})
    return done.returncode, json.loads(done.stdout) if done.stdout.startswith(("{", "[")) else None, done.stderr


def step_line(step, **more):
    return json.dumps({"step": step, "tokens": 128 * step, "loss": 5 / step, "lr": 0.01, "grad_norm": 1.5, "tok_s": 1000.0,
                       "memory_bytes": 1e6, "seconds": 0.1, "elapsed": 0.1 * step, "time": 1.7e9 + step, **more}) + "\n"


def read_all(wire, seconds=60):
    until, data = time.monotonic() + seconds, b""
    while time.monotonic() < until:
        if not select.select([wire], [], [], max(0, until - time.monotonic()))[0]:
            break
        try:
            got = wire.recv(1 << 16)
        except ConnectionError:
            break
        if not got:
            break
        data += got
    return data


class Events:
    """A stream of server-sent events: next() is (event, id, data)."""

    def __init__(self, wire, request):
        self.wire, self.data, self.text = wire, b"", ""
        wire.sendall(request.encode())
        while b"\r\n\r\n" not in self.data:
            self.more()
        head, self.data = self.data.split(b"\r\n\r\n", 1)
        self.head = head.decode()
        self.status = int(self.head.split()[1])

    def more(self):
        got = self.wire.recv(1 << 16)
        if not got:
            raise EOFError("the stream ended")
        self.data += got

    def next(self, seconds=60):
        self.wire.settimeout(seconds)
        while "\n\n" not in self.text:
            while True:  # the next chunk
                size, found, rest = self.data.partition(b"\r\n")
                if found and len(rest) >= int(size, 16) + 2:
                    break
                self.more()
            length = int(size, 16)
            if not length:
                raise EOFError("the stream ended")
            self.text += rest[:length].decode()
            self.data = rest[length + 2:]
        block, self.text = self.text.split("\n\n", 1)
        fields = dict(line.split(": ", 1) for line in block.split("\n") if not line.startswith(":"))
        if "event" not in fields:
            return self.next(seconds)
        return fields["event"], fields.get("id"), json.loads(fields["data"])

    def close(self):
        self.wire.close()


def main(name):
    if BUILT:
        unittest.main()
    print(f"SKIPPED {name}: this build has no libmicrohttpd")
