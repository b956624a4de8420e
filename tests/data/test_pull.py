#!/usr/bin/env python3
"""`hearth data pull` against a hub on 127.0.0.1 that misbehaves: drops connections, cuts answers short, says 429 and
500, answers with wrong ranges and wrong bytes.

usage: test_pull.py HEARTH
"""
import hashlib
import http.server
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.parse

HEARTH = sys.argv.pop(1)
REPO = "someone/some-texts"
PART = 1 << 20


class Hub(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.lock = threading.Lock()
        self.reset()

    def handle_error(self, request, client_address):
        pass  # a client that ends a connection is what these tests are about

    def reset(self):
        self.files = {}  # path: bytes
        self.faults = []  # taken one by one, by the file requests that come
        self.list_faults = []
        self.always = None  # the fault when there are no more of them
        self.damage = set()  # paths whose bytes come wrong; the first time only when in damage_once
        self.damage_once = set()
        self.sent = 0  # bytes of bodies
        self.requests = []
        self.tokens = set()
        self.delay = 0
        self.extra = []  # entries of the listing that have no file


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def answer(self, status, body=b"", headers=()):
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def fault_next(self, faults, otherwise=None):
        with self.server.lock:
            return faults.pop(0) if faults else otherwise

    def do_GET(self):
        hub = self.server
        url = urllib.parse.urlparse(self.path)
        with hub.lock:
            hub.requests.append((self.path, self.headers.get("Range")))
            hub.tokens.add(self.headers.get("Authorization"))
        try:
            if url.path.startswith((f"/api/datasets/{REPO}/tree/main", "/api/models/someone/some-model/tree/main")):
                self.listing(url)
            elif url.path.startswith("/someone/some-model/resolve/main/"):
                self.file(url.path.split("/resolve/main/")[1])
            elif url.path.startswith(f"/datasets/{REPO}/resolve/main/"):
                self.file(urllib.parse.unquote(url.path.split("/resolve/main/")[1]))
            else:
                self.answer(404, b"no such thing")
        except (BrokenPipeError, ConnectionResetError):
            pass

    def listing(self, url):
        hub = self.server
        fault = self.fault_next(hub.list_faults)
        if fault:
            return self.answer(*fault) if isinstance(fault, tuple) else self.answer(fault)
        prefix = url.path.split("/tree/main")[1].strip("/")
        query = urllib.parse.parse_qs(url.query)
        start = int(query.get("cursor", ["0"])[0])
        entries = [{"type": "directory", "path": "data", "oid": "d", "size": 0}] + hub.extra
        for path, data in sorted(hub.files.items()):
            if not path.startswith(prefix):
                continue
            sha = hashlib.sha256(data).hexdigest()
            entries.append(
                {"type": "file", "path": path, "size": len(data), "oid": "x", "lfs": {"oid": sha, "size": len(data)}}
            )
        headers = []
        if start + 2 < len(entries):
            # A mirror's pages name the original host: only the query may be used.
            link = f"<https://hub.invalid{url.path}?recursive=true&cursor={start + 2}>; rel=\"next\""
            headers.append(("Link", link))
        self.answer(200, json.dumps(entries[start : start + 2]).encode(), headers)

    def file(self, path):
        hub = self.server
        if path not in hub.files:
            return self.answer(404, b"no such file")
        data = hub.files[path]
        with hub.lock:
            wrong = path in hub.damage or path in hub.damage_once
            hub.damage_once.discard(path)
        if wrong:
            data = data[:-1] + bytes([data[-1] ^ 1]) if len(data) < PART else bytes([data[0] ^ 1]) + data[1:]
        fault = self.fault_next(hub.faults, hub.always)
        if isinstance(fault, int):
            return self.answer(fault, b"try later")
        if isinstance(fault, tuple):
            return self.answer(*fault)
        start, end = 0, len(data)
        ranged = self.headers.get("Range")
        if ranged:
            first, last = ranged.split("=")[1].split("-")
            start, end = int(first), min(int(last) + 1, len(data))
        total = len(data)
        if fault == "whole":  # ranges are not understood
            self.send_response(200)
            start, end = 0, len(data)
        else:
            self.send_response(206)
            if fault == "wrong range":
                start, end = max(0, start - 7), end - 7
            if fault == "wrong total":
                total += 5
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{total}")
        self.send_header("Content-Length", str(end - start))
        self.end_headers()
        body = data[start:end]
        if fault == "drop":
            body = body[: len(body) // 3]
        if fault == "nothing":
            body = b""
        for at in range(0, len(body), 65536):
            piece = body[at : at + 65536]
            self.wfile.write(piece)
            with hub.lock:
                hub.sent += len(piece)
            if hub.delay:
                time.sleep(hub.delay)
        if fault in ("drop", "nothing"):
            self.close_connection = True


HUB = Hub()
threading.Thread(target=HUB.serve_forever, daemon=True).start()
ENDPOINT = f"http://127.0.0.1:{HUB.server_address[1]}"


class PullTest(unittest.TestCase):
    def setUp(self):
        HUB.reset()
        random.seed(5)
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="hearth-pull-"))
        self.out = self.folder / "out"
        HUB.files = {
            "data/a b/one.parquet": random.randbytes(3 * PART + 12345),
            "data/two.parquet": random.randbytes(PART),
            "data/three.parquet": random.randbytes(777),
            "data/empty.parquet": b"",
            "README.md": b"not wanted",
        }

    def tearDown(self):
        HUB.always = None
        shutil.rmtree(self.folder)

    def command(self, *more, quiet=True):
        return [HEARTH, "data", "pull", REPO, "--endpoint", ENDPOINT, "--output", str(self.out), "--part-mb", "1",
                "--retry-seconds", "0.01", *(["--quiet"] if quiet else []), *more]  # fmt: skip

    def pull(self, *more, token=None, quiet=True):
        environment = {k: v for k, v in os.environ.items() if not k.startswith("HF_") and "proxy" not in k.lower()}
        if token:
            environment["HF_TOKEN"] = token
        return subprocess.run(self.command(*more, quiet=quiet), capture_output=True, text=True, timeout=60, env=environment)

    def test_the_tokenizer_of_a_model(self):
        HUB.files = {"tokenizer.json": b'{"model": {}}', "model.safetensors": b"not wanted", "README.md": b""}
        command = self.command("--model")
        command[command.index(REPO)] = "someone/some-model"
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([p.name for p in self.out.iterdir()], ["tokenizer.json"])
        self.assertEqual((self.out / "tokenizer.json").read_bytes(), HUB.files["tokenizer.json"])

    def test_escape_sequences_in_names_are_not_printed(self):
        HUB.files = {"data/x\x1b[31m\u009b.parquet": b"abc"}
        for more in ([], ["--list"]):
            done = self.pull(*more, quiet=False)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("x\\x1b[31m\\xc2", done.stdout + done.stderr)
            self.assertNotIn("\x1b[31m", done.stdout + done.stderr)
        self.assertEqual((self.out / "data/x\x1b[31m\u009b.parquet").read_bytes(), b"abc")

    def assert_all_there(self):
        for path, data in HUB.files.items():
            if path.endswith(".parquet"):
                self.assertEqual((self.out / path).read_bytes(), data, path)
        names = [p.name for p in self.out.rglob("*") if p.is_file()]
        self.assertFalse([n for n in names if n.endswith((".partial", ".parts", ".md"))], names)

    def assert_pulled(self, *more):
        result = self.pull(*more)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assert_all_there()
        return result

    def test_all_files_come_whole_over_several_pages_and_ranges(self):
        self.assert_pulled()
        self.assertGreaterEqual(sum("tree/main" in path for path, _ in HUB.requests), 3)
        self.assertGreaterEqual(len({r for path, r in HUB.requests if "one.parquet" in path}), 4)

    def test_folder_and_glob_choose_files(self):
        result = self.pull("--path", "data", "--include", "*/t*.parquet")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(sorted(p.name for p in self.out.rglob("*.parquet")), ["three.parquet", "two.parquet"])

    def test_token_of_the_environment_is_sent(self):
        self.pull()
        self.assertEqual(HUB.tokens, {None})
        shutil.rmtree(self.out)
        HUB.tokens.clear()
        self.pull(token="hf_secret")
        self.assertEqual(HUB.tokens, {"Bearer hf_secret"})

    def test_dropped_connections_are_taken_up_where_they_broke(self):
        HUB.faults = ["drop"] * 5 + ["nothing"] * 3
        self.assert_pulled()
        # What came before a drop was kept: with five drops of a third of at most 1 MiB less than one MiB came twice.
        self.assertLess(HUB.sent, sum(len(d) for d in HUB.files.values()) + 16)

    def test_wrong_ranges_are_not_believed(self):
        HUB.faults = ["wrong range", "wrong range", "wrong total", "wrong range"]
        self.assert_pulled()

    def test_server_without_ranges_is_understood(self):
        HUB.always = "whole"
        self.assert_pulled()

    def test_429_and_500_are_tried_again(self):
        HUB.list_faults = [500, (429, b"", [("Retry-After", "1")])]
        HUB.faults = [500, 503, (429, b"slow down", [("Retry-After", "1")]), 502, 500]
        start = time.monotonic()
        self.assert_pulled()
        self.assertGreaterEqual(time.monotonic() - start, 1.9)  # Retry-After was kept, twice

    def test_endless_failure_ends_and_a_second_run_goes_on(self):
        HUB.faults = [None] * 3
        HUB.always = 500
        result = self.pull("--retries", "2", "--parallel", "1")
        self.assertEqual(result.returncode, 1)
        self.assertIn("status 500", result.stderr)
        HUB.always = None
        before = HUB.sent
        self.assertGreater(before, 2 * PART)
        self.assert_pulled()
        self.assertEqual(HUB.sent, sum(len(d) for p, d in HUB.files.items() if p.endswith(".parquet")))

    def test_every_failed_try_is_said(self):
        for quiet in (False, True):
            HUB.list_faults = [500] * 4
            result = self.pull("--retries", "3", quiet=quiet)
            self.assertEqual(result.returncode, 1)
            tries = [line for line in result.stderr.splitlines() if "status 500; try" in line]
            self.assertEqual(len(tries), 0 if quiet else 3, result.stderr)
            if not quiet:
                self.assertIn("try 2 of 4, the next in 0.0 s", tries[1])
            self.assertIn("check the network", result.stderr)

    def test_killed_download_goes_on(self):
        HUB.delay = 0.01
        quiet = dict(stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        process = subprocess.Popen(self.command("--parallel", "2"), **quiet)
        for _ in range(500):
            if HUB.sent > 2 * PART + PART // 2:
                break
            time.sleep(0.01)
        process.kill()
        process.wait()
        HUB.delay = 0
        time.sleep(0.1)
        before = HUB.sent
        self.assert_pulled()
        whole = sum(len(d) for p, d in HUB.files.items() if p.endswith(".parquet"))
        self.assertLess(HUB.sent - before, whole)

    def test_finished_files_are_not_fetched_again(self):
        self.assert_pulled()
        before = HUB.sent
        result = self.assert_pulled()
        self.assertEqual(HUB.sent, before)
        self.assertIn("4 were there", result.stdout)

    def test_wrong_bytes_are_noticed_and_fetched_once_more(self):
        HUB.damage_once = {"data/three.parquet"}
        self.assert_pulled()

    def test_bytes_that_stay_wrong_are_refused(self):
        HUB.damage = {"data/two.parquet"}
        result = self.pull()
        self.assertEqual(result.returncode, 1)
        self.assertIn("SHA-256", result.stderr)
        self.assertFalse((self.out / "data/two.parquet").exists())

    def test_refusals_say_what_to_do(self):
        HUB.list_faults = [401]
        result = self.pull()
        self.assertEqual(result.returncode, 2)
        self.assertIn("HF_TOKEN", result.stderr)
        HUB.list_faults = [404]
        self.assertIn("not found", self.pull().stderr)
        HUB.files = {}
        self.assertIn("no file of", self.pull().stderr)
        HUB.list_faults = [(200, b"<html>")]
        self.assertIn("not valid JSON", self.pull().stderr)

    def test_names_that_lead_out_of_the_folder_are_refused(self):
        for path in ["../evil.parquet", "/etc/evil.parquet", "a/../../evil.parquet", "a//b.parquet"]:
            HUB.extra = [{"type": "file", "path": path, "size": 3, "oid": "x"}]
            result = self.pull()
            self.assertEqual(result.returncode, 1, path)
            self.assertIn("outside the repository", result.stderr)

    def test_sizes_that_cannot_be_are_refused(self):
        for size in (-2, 1 << 60):
            HUB.extra = [{"type": "file", "path": "large.parquet", "size": 36, "lfs": {"size": size}}]
            result = self.pull()
            self.assertEqual(result.returncode, 1, result.stderr)
            self.assertIn(f"the listing gives large.parquet {size} bytes", result.stderr)

    def test_token_target_fetches_only_as_many_files_as_needed(self):
        HUB.files = {f"part-{i:02}.txt": (b"%06d " % i) * 20000 for i in range(10)}  # 140,000 tokens each
        result = self.pull("--include", "*.txt", "--tokens", "400K", "--tokenizer", "bytes")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(len(list(self.out.glob("*.txt"))), 3)
        self.assertIn("420K tokens", result.stdout)

    def test_list_only_prints_and_fetches_nothing(self):
        result = self.pull("--list")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("data/a b/one.parquet", result.stdout)
        self.assertFalse(self.out.exists())


unittest.main(argv=[sys.argv[0]])
