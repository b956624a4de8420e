#!/usr/bin/env python3
"""What `hearth serve` answers: lists, curves, streams, comparisons, pages, Prometheus.

usage: test_serve.py HEARTH
"""
import json
import os
import re
import shutil
import threading
import time

from server import Events, ServeCase, hearth_json, main, step_line


class Answers(ServeCase):
    def test_the_list_is_that_of_hearth_runs(self):
        for name in ("one", "two"):
            self.run_folder = self.runs / name
            self.train()
        self.serve()
        served = self.json("/api/runs")["runs"]
        listed = json.loads(self.hearth("runs", self.runs, "--json"))
        self.assertEqual([run.pop("name") for run in served], [os.path.basename(run.pop("run")) for run in listed])
        for run in served:
            del run["run"]
        self.assertEqual(served, listed)

    def test_the_report_is_that_of_hearth_report(self):
        for name in ("one", "two"):
            self.run_folder = self.runs / name
            self.train()
        self.serve()
        for names in (["one"], ["two", "one"]):
            out = self.folder / "page.html"
            self.hearth("report", *(self.runs / name for name in names), "-o", out)
            page = self.ask("/report?" + "&".join("run=" + name for name in names))
            self.assertEqual(page.body.decode(), out.read_text())
            self.assertEqual(page.headers["Content-Type"], "text/html; charset=utf-8")

    def test_a_run_has_the_parts_of_its_report_and_the_end_of_its_log(self):
        self.run_folder = self.runs / "one"
        self.train("--set", "profile.every=2", "--set", "watch.terminal='plain'")
        self.serve()
        run = self.json("/api/run?run=one")
        self.assertEqual(run["state"], "finished")
        report = self.ask("/report?run=one").body.decode()
        self.assertIn(run["before"], report)
        self.assertIn(run["behind"], report)
        self.assertIn("Where the time of a step goes", run["behind"])
        self.assertEqual(run["log"], (self.run_folder / "log.txt").read_text())
        self.assertEqual(run["log_at"], (self.run_folder / "log.txt").stat().st_size)

    def test_series_have_every_point_of_a_short_run(self):
        self.run_folder = self.runs / "one"
        self.train("--set", f'data.val=["{self.folder / "data"}"]', "--set", "eval.every=2")
        self.serve()
        answer = self.json("/api/series?run=one")
        series = {one["tag"]: one for one in answer["series"]}
        steps = [line for line in self.lines() if "loss" in line]
        evals = [line for line in self.lines() if "val_loss" in line]
        self.assertEqual(answer["offset"], (self.run_folder / "metrics.jsonl").stat().st_size)
        for tag, key, lines in (("train/loss", "loss", steps), ("speed/tok_s", "tok_s", steps), ("val/loss", "val_loss", evals)):
            self.assertEqual(series[tag]["step"], [line["step"] for line in lines])
            self.assertEqual(series[tag]["tokens"], [line["tokens"] for line in lines])
            for found, line in zip(series[tag]["y"], lines):
                self.assertAlmostEqual(found, line[key], delta=abs(line[key]) * 1e-6)  # seven digits
        self.assertEqual(series["speed/tok_s"]["unit"], "tokens/s")

    def test_series_of_a_long_run_keep_its_spikes(self):
        run = self.write_run("long", 0)
        with open(run / "metrics.jsonl", "w") as file:
            for step in range(1, 20001):
                loss = 99.0 if step == 7777 else -99.0 if step == 12345 else 3 + step % 7 / 10
                file.write(step_line(step, loss=loss))
        self.serve()
        loss = {one["tag"]: one for one in self.json("/api/series?run=long")["series"]}["train/loss"]
        self.assertLessEqual(len(loss["y"]), 800)
        self.assertEqual(loss["step"][loss["y"].index(99)], 7777)
        self.assertEqual(loss["step"][loss["y"].index(-99)], 12345)
        self.assertEqual(loss["step"], sorted(loss["step"]))
        self.assertGreater(loss["step"][-1], 19900)

    def test_the_clock_of_curves_runs_on_over_a_resume(self):
        run = self.write_run("resumed", 3)
        with open(run / "metrics.jsonl", "a") as file:
            file.write(step_line(4, elapsed=0.1) + step_line(5, elapsed=0.2))
        self.serve()
        answer = self.json("/api/series?run=resumed")
        times = answer["series"][0]["time"]
        self.assertEqual([round(at, 6) for at in times], [0.1, 0.2, 0.3, 0.4, 0.5])
        self.assertEqual(answer["clock"], [0.3, 0.2])

    def test_compare_tells_what_differs_and_what_came_of_it(self):
        self.run_folder = self.runs / "one"
        self.train()
        self.run_folder = self.runs / "two"
        self.train("--set", "optimizer.lr=1e-3")
        self.serve()
        answer = self.json("/api/compare?run=one&run=two")
        self.assertEqual(answer["runs"], ["one", "two"])
        self.assertIn("<code>optimizer.lr</code> 0.01 → <b>0.001</b>", answer["ladder"])
        self.assertRegex(answer["tables"], r'optimizer\.lr</td><td class="r">0\.01</td><td class="r">0\.001')
        self.assertIn("loss at 768 tokens", answer["tables"])
        self.assertIn("two runs or more", self.json("/api/compare?run=one", status=400)["error"])
        self.assertIn("at most 16", self.json("/api/compare?" + "&".join(["run=one"] * 17), status=400)["error"])

    def test_prometheus_has_the_runs_that_train_by_their_last_line(self):
        self.write_run("ended")
        run = self.write_run('say "hi"\\')
        with open(run / "metrics.jsonl", "a") as file:
            file.write(step_line(6, loss=1.25) + json.dumps({"step": 6, "tokens": 768, "eval": "full", "val_loss": 2.5}) +
                       "\n" + '{"step":7,"loss":9')
        holder = self.hold(run)
        self.serve()
        page = self.ask("/metrics")
        text = page.body.decode()
        self.assertEqual(page.headers["Content-Type"], "text/plain; version=0.0.4; charset=utf-8")
        label = r'{run="say \"hi\"\\"}'
        self.assertIn(f"hearth_loss{label} 1.25\n", text)
        self.assertIn(f"hearth_evaluation_val_loss{label} 2.5\n", text)
        self.assertIn("# TYPE hearth_loss gauge\n", text)
        self.assertRegex(text, r"# HELP hearth_tok_s .* \[tokens/s\]\n")
        self.assertIn("hearth_runs_training 1\n", text)
        self.assertNotIn("ended", text)
        sample = r'[a-z_]+(\{run="(\\.|[^"\\])*"\})? [-+0-9.e]+'
        for line in text.splitlines():
            self.assertRegex(line, rf"^(# (HELP|TYPE) hearth_[a-z_]+ .+|{sample})$")
        holder()

    def hold(self, run):
        """The run looks as if a process was at work in it, until the returned function is called."""
        import fcntl
        file = open(run / ".lock", "w")
        fcntl.flock(file, fcntl.LOCK_EX)
        if "running" != json.loads(self.hearth("runs", run, "--json"))[0]["state"]:
            fcntl.lockf(file, fcntl.LOCK_EX)
        return file.close

    def test_events_go_on_where_the_series_ended(self):
        run = self.write_run("live")
        self.serve()
        offset = self.json("/api/series?run=live")["offset"]
        events = self.events("live", offset)
        self.assertEqual(events.status, 200)
        self.assertIn("text/event-stream", events.head)
        with open(run / "metrics.jsonl", "a") as file:
            file.write(step_line(6))
            file.flush()
            name, at, lines = events.next()
            self.assertEqual((name, [line["step"] for line in lines]), ("lines", [6]))
            self.assertEqual(int(at), os.path.getsize(run / "metrics.jsonl"))
            self.assertEqual(lines[0]["loss"], 5 / 6)
            half = step_line(7)
            file.write(half[:40])  # a line that is not whole yet is none
            file.flush()
            time.sleep(1)
            file.write(half[40:])
        self.assertEqual([line["step"] for line in events.next()[2]], [7])
        events.close()
        again = Events(self.connect(), f"GET /api/events?run=live&from=0 HTTP/1.1\r\nHost: localhost\r\nLast-Event-ID: {at}\r\n\r\n")
        self.assertEqual([line["step"] for line in again.next()[2]], [7])
        again.close()

    def test_events_of_logs_alarms_and_the_state(self):
        run = self.write_run("live")
        release = self.hold(run)
        self.serve()
        events = self.events("live", os.path.getsize(run / "metrics.jsonl"))
        (run / "log.txt").write_text("12:00:00 warn <b>\n12:00")
        name, _, data = events.next()
        self.assertEqual((name, data), ("log", {"at": 18, "text": "12:00:00 warn <b>\n"}))
        (run / "alarms.jsonl").write_text('{"alarm":"disk","step":5,"message":"full","advice":"free some"}\n')
        name, _, data = events.next()
        self.assertEqual((name, data["message"]), ("alarm", "full"))
        release()
        name, _, data = events.next()
        self.assertEqual((name, data["state"]), ("state", "stopped"))
        events.close()

    def test_the_log_goes_on_after_a_line_that_is_too_long_to_show(self):
        run = self.write_run("live")
        (run / "log.txt").write_text("one\n")
        self.serve()
        events = self.events("live", os.path.getsize(run / "metrics.jsonl"))
        long = 5 * 2**19  # two reads and a half
        with open(run / "log.txt", "a") as log:
            log.write("x" * long)
            log.flush()
            name, _, data = events.next()
            self.assertEqual((name, data["text"]), ("log", "x" * 4096 + " [a longer line, cut here]\n"))
            log.write("y\ntwo\n")
        seen = [events.next()[2]]
        self.assertEqual(seen, [{"at": 4 + long + 2 + 4, "text": "two\n"}])
        with open(run / "alarms.jsonl", "w") as alarms:
            alarms.write("x" * long + '\n{"alarm":"disk","message":"full"}\n')
        self.assertEqual(events.next()[2]["message"], "full")
        events.close()

    def test_the_end_of_a_line_that_is_too_long_to_show_is_shown_with_the_run(self):
        self.serve()
        for name, end in (("whole", "y\n"), ("unfinished", "yz")):
            run, text = self.write_run(name), "one\n" + "x" * 2**21 + end
            (run / "log.txt").write_text(text)
            answer = self.json(f"/api/run?run={name}")
            self.assertEqual((answer["log"], answer["log_at"]), ("[a longer line, cut here] " + text[-4096:], len(text)))
            events = self.events(name, os.path.getsize(run / "metrics.jsonl"))
            with open(run / "log.txt", "a") as log:
                log.write("\ntwo\n")
            self.assertEqual(events.next()[2], {"at": len(text) + 5, "text": "\ntwo\n"})
            events.close()

    def test_a_file_that_is_cut_back_resets_the_clients(self):
        run = self.write_run("live", 9)
        self.serve()
        events = self.events("live", os.path.getsize(run / "metrics.jsonl"))
        with open(run / "metrics.jsonl", "r+") as file:
            file.truncate(len(step_line(1)))
        self.assertEqual(events.next()[0], "reset")
        events.close()
        far = self.events("live", 10 ** 9)  # more than there is
        self.assertEqual(far.next()[0], "reset")
        far.close()
        inside = self.events("live", 7)  # not where a line begins
        self.assertEqual(inside.next()[0], "reset")
        inside.close()

    def test_a_run_that_writes_fast_is_thinned(self):
        run = self.write_run("live")
        self.serve()
        events = self.events("live", os.path.getsize(run / "metrics.jsonl"))
        with open(run / "metrics.jsonl", "a") as file:
            file.write("".join(step_line(step) for step in range(6, 1006)))
        steps = []
        while not steps or steps[-1] != 1005:
            lines = events.next()[2]
            self.assertLessEqual(len(lines), 34)
            steps += [line["step"] for line in lines]
        self.assertEqual(steps, sorted(set(steps)))
        self.assertLess(len(steps), 200)
        events.close()

    def test_half_written_and_damaged_files_are_shown_as_far_as_they_go(self):
        run = self.write_run("half")
        with open(run / "metrics.jsonl", "ab") as file:
            file.write(b'{"step":6,"loss":\n\xff\xfe\n{"step":"x","loss":[]}\n[1]\n' + step_line(7)[:50].encode())
        for name in ("plan.json", "environment.json", "state.json", "alarms.jsonl", "samples.jsonl"):
            (run / name).write_bytes(b'{"prediction":{"devices":')
        empty = self.runs / "empty"
        empty.mkdir()
        (empty / "config.toml").write_text("[train]\nseq = 1\n")
        self.serve()
        self.assertEqual({run["name"]: run["step"] for run in self.json("/api/runs")["runs"]}, {"half": 5, "empty": 0})
        for name, points in (("half", 5), ("empty", 0)):
            self.json("/api/run?run=" + name)
            self.assertEqual(self.ask("/report?run=" + name).status, 200)
            series = self.json("/api/series?run=" + name)["series"]
            self.assertEqual(len(series[0]["y"]) if series else 0, points)
        self.json("/api/compare?run=half&run=empty")
        self.ask("/metrics")

    def test_a_run_that_vanishes_is_gone(self):
        run = self.write_run("live")
        self.serve()
        self.json("/api/series?run=live")
        events = self.events("live", os.path.getsize(run / "metrics.jsonl"))
        shutil.rmtree(run)
        self.assertEqual(events.next()[0], "gone")
        with self.assertRaises(EOFError):
            events.next()
        events.close()
        for target in ("/api/run", "/api/series", "/api/events", "/report"):
            self.json(target + "?run=live", status=404)
        self.assertEqual(self.json("/api/runs")["runs"], [])
        self.write_run("live", 2)  # and may come again
        self.assertEqual(self.json("/api/runs")["runs"][0]["step"], 2)

    def test_the_folder_of_runs_may_vanish_too(self):
        self.write_run("live")
        self.serve()
        self.json("/api/runs")
        shutil.rmtree(self.runs)
        for target in ("/api/runs", "/metrics"):
            self.json(target, status=500)
        self.json("/api/run?run=live", status=404)

    def test_a_run_directory_can_be_served_by_itself(self):
        self.write_run("alone")
        self.runs = self.runs / "alone"
        self.serve()
        self.assertEqual([run["name"] for run in self.json("/api/runs")["runs"]], ["alone"])
        self.assertEqual(len(self.json("/api/series?run=alone")["series"][0]["y"]), 5)
        self.json("/api/series?run=.", status=404)

    def test_a_folder_without_runs_says_what_is_looked_for(self):
        self.runs = self.folder / "deep"
        (self.runs / "below").mkdir(parents=True)
        self.runs, runs = self.runs / "below", self.runs
        self.write_run("run")  # one folder too deep
        self.runs = runs
        said = self.serve().stdout.readline()
        self.assertEqual(self.json("/api/runs")["runs"], [])
        looked_for = self.json("/api/runs")["looked_for"]
        self.assertRegex(looked_for, "^folders directly in it that have a config.toml, no deeper;.* link ")
        self.assertEqual(said, f"There are no runs in {runs} yet. Looked for are {looked_for}.\n")
        self.runs = runs / "below"
        self.assertEqual(self.serve().stdout.readline(), "Ctrl-C ends it.\n")  # there is one
        listed = self.hearth("runs", runs)
        self.assertIn(f"no runs in {runs}: looked for are folders directly in it", " ".join(listed.split()))

    def test_a_folder_whose_name_is_no_text_has_its_runs(self):
        self.runs = self.folder / "runs-\udcff"
        self.runs.mkdir()
        self.write_run("one")
        _, listed, _ = hearth_json("runs", self.runs, "--json")
        self.assertEqual([run["run"] for run in listed], [f"{self.folder}/runs-\ufffd/one"])
        self.serve()
        answer = self.json("/api/runs")
        self.assertEqual((answer["folder"], [run["name"] for run in answer["runs"]]), (f"{self.folder}/runs-\ufffd", ["one"]))
        shutil.rmtree(self.runs)
        self.assertIn("runs-\ufffd", self.json("/api/runs", status=500)["error"])

    def test_names_are_decoded(self):
        self.write_run("a b+ü&%41", 3)
        self.serve()
        for sent in ("a%20b%2B%C3%BC%26%2541", "a+b%2b%c3%bc%26%2541"):
            self.assertEqual(len(self.json(f"/api/series?x=1&&run={sent}&run=other")["series"][0]["y"]), 3)
        for sent in ("a+b+%C3%BC%26%2541", "a%20b%2B%C3%BC%26%41"):
            self.json(f"/api/series?run={sent}", status=404)
        for sent in ("%", "%4", "%4g", "%00", "%ff", "%c3"):
            self.json(f"/api/series?run={sent}", status=400)

    def test_two_hundred_clients_at_once_see_every_line(self):
        run = self.write_run("live")
        self.serve()
        offset = os.path.getsize(run / "metrics.jsonl")
        streams = [self.events("live", offset) for _ in range(200)]
        with open(run / "metrics.jsonl", "a") as file:
            for step in (6, 7, 8):
                file.write(step_line(step))
                file.flush()
                time.sleep(0.5)
        for events in streams:
            steps = []
            while not steps or steps[-1] != 8:
                steps += [line["step"] for line in events.next()[2]]
            self.assertEqual(steps, [6, 7, 8])
        found = []
        askers = [threading.Thread(target=lambda: found.append(self.ask("/api/series?run=live").status)) for _ in range(50)]
        for asker in askers:
            asker.start()
        for asker in askers:
            asker.join()
        self.assertEqual(found, [200] * 50)
        for events in streams[:100]:
            events.close()  # the others are there when it ends

    def test_training_is_watched_while_it_goes_on(self):
        self.config.write_text(self.config.read_text().replace("steps = 6", "steps = 100000"))
        self.run_folder = self.runs / "training"
        child = self.start("train", self.config, "--run", self.run_folder)
        try:
            self.wait_for(lambda: (self.run_folder / "metrics.jsonl").exists() and len(self.lines_so_far()) > 20)
            self.serve()
            self.assertEqual(self.json("/api/runs")["runs"][0]["state"], "running")
            self.assertIn('hearth_loss{run="training"}', self.ask("/metrics").body.decode())
            answer = self.json("/api/series?run=training")
            events = self.events("training", answer["offset"])
            last = answer["series"][0]["step"][-1]
            for _ in range(3):
                name, at, lines = events.next()
                self.assertEqual(name, "lines")
                self.assertGreater(lines[0]["step"], last)
                last = lines[-1]["step"]
            child.terminate()
            while (event := events.next())[0] != "state":
                pass
            self.assertEqual(event[2]["state"], "stopped")
            events.close()
        finally:
            child.terminate()
            child.communicate()

    def lines_so_far(self):
        return (self.run_folder / "metrics.jsonl").read_text().splitlines()

    def test_pages_are_there_and_have_no_inline_script(self):
        self.serve()
        for target in ("/", "/run?run=x", "/compare", "/page.js", "/chart.js", "/run.js", "/serve.css", "/report.css"):
            page = self.ask(target)
            self.assertEqual(page.status, 200, target)
            kind = "javascript" if target.endswith(".js") else "css" if target.endswith(".css") else "html"
            self.assertIn(kind, page.headers["Content-Type"])
            if kind == "html":
                text = page.body.decode()
                self.assertFalse(re.search(r"<script(?! src=)|\son[a-z]+=|javascript:", text), target)
                for link in re.findall(r'(?:src|href)="(/[^"]+)"', text):
                    if link not in ("/planner", "/workbook"):
                        self.assertEqual(self.ask(link).status, 200, link)
        head = self.ask("/", method="HEAD")
        self.assertEqual((head.status, head.body), (200, b""))


if __name__ == "__main__":
    main("test_serve")
