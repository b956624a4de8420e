#!/usr/bin/env python3
"""The dashboard in a browser, of a run that is training: light and dark, on a telephone and on a desk.

usage: test_serve_browser.py HEARTH
"""
import os
import re

from browser import CHROMIUM, Browser
from server import BUILT, ServeCase, main

# Points of every curve, by the title of its figure.
CURVES = """Object.fromEntries([...document.querySelectorAll('figure.live')].filter(f => !f.hidden && f.offsetParent).map(f => [
    f.querySelector('b').textContent, [...f.querySelectorAll('polyline')].map(line => line.points.length)]))"""
OUTSIDE = """[...document.querySelectorAll('figure svg text, .tiles b, .fall span, .row > *, nav a')].filter(e => {
    if (!e.getClientRects().length) return false;
    const box = e.getBoundingClientRect();
    return box.left < -1 || box.right > innerWidth + 1;
  }).map(e => e.textContent)"""
WIDTHS = (390, 1400)


class Dashboard(ServeCase):
    def setUp(self):
        super().setUp()
        self.children = []
        for name, lr in (("first", "1e-2"), ("second", "2e-2")):
            self.run_folder = self.runs / name
            self.train("--set", f"optimizer.lr={lr}", "--set", "train.steps=40", "--set", "profile.every=5", "--set",
                       "eval.every=10", "--set", f'data.val=["{self.folder / "data"}"]')
        self.serve()
        self.at = f"http://127.0.0.1:{self.port}"
        self.browser = Browser()

    def tearDown(self):
        self.browser.__exit__()
        for child in self.children:
            child.terminate()
            child.communicate()
        super().tearDown()

    def start_training(self):
        config = self.config.read_text().replace("steps = 6", "steps = 1000000")
        self.config.write_text(config.replace("hidden = 32", "hidden = 128").replace("ffn = 64", "ffn = 256"))
        run = self.runs / "training"
        child = self.start("train", self.config, "--run", run, "--set", "profile.every=20")
        self.children.append(child)
        self.wait_for(lambda: (run / "metrics.jsonl").exists() and len((run / "metrics.jsonl").read_text().splitlines()) > 40)
        return child

    def fits(self, page):
        self.assertLessEqual(page.value("document.documentElement.scrollWidth"), page.width, "the page is wider than its window")
        self.assertEqual(page.value(OUTSIDE), [])

    def is_dark(self, page):
        colour = page.value("getComputedStyle(document.body).backgroundColor")
        return sum(int(part) for part in re.findall(r"\d+", colour)[:3]) < 3 * 128

    def photograph(self, page, name):
        if os.environ.get("HEARTH_PICTURES"):
            page.photograph(os.path.join(os.environ["HEARTH_PICTURES"], name + ".png"))

    def test_curves_of_a_run_that_trains_grow(self):
        child = self.start_training()
        pages = []
        for width, dark in ((width, dark) for width in WIDTHS for dark in (False, True)):
            page = self.browser.page(width, dark)  # only the newest is looked at, and draws
            pages.append(page)
            page.open(self.at + "/run?run=training")
            page.wait("document.querySelectorAll('#first polyline').length >= 2 && document.querySelector('#behind .fall')")
            self.assertEqual(page.value("byId('state').textContent"), "running")
            before = page.value(CURVES)
            for title in ("Loss", "Learning rate", "Gradient norm", "Tokens a second", "Memory in use"):
                self.assertGreaterEqual(before[title][0], 20, title)
            at = page.value("series.get('train/loss').step.at(-1)")
            page.wait(f"series.get('train/loss').step.at(-1) > {at} && series.get('train/loss').y.length > {before['Loss'][0]}")
            self.assertGreater(page.wait(f"({CURVES})['Loss'][0] > {before['Loss'][0]} && ({CURVES})['Loss'][0]"), before["Loss"][0])
            self.fits(page)
            self.assertEqual(self.is_dark(page), dark)
            self.photograph(page, f"run-{width}-{'dark' if dark else 'light'}")
        page.click("document.querySelector('#axes button:nth-child(2)')")  # over the wall clock
        page.wait("document.querySelector('#first svg .name').textContent === 'wall clock'")
        self.assertIn("over=time", page.value("location.search"))
        child.terminate()
        child.communicate()
        page.wait("byId('state').textContent === 'stopped'")
        for page in pages:
            self.assertEqual(page.complaints(), [])

    def test_the_list_leads_to_a_comparison(self):
        for width in WIDTHS:
            for dark in (False, True):
                page = self.browser.page(width, dark)
                page.open(self.at + "/")
                page.wait("document.querySelectorAll('#runs tr').length === 2")
                self.fits(page)
                self.photograph(page, f"index-{width}-{'dark' if dark else 'light'}")
                self.assertTrue(page.value("byId('compare').disabled"))
                page.value("document.querySelectorAll('#runs input').forEach(box => box.click())")
                page.click("byId('compare')")
                page.wait("location.pathname === '/compare' && document.querySelectorAll('#curves polyline').length >= 10 "
                          "&& document.querySelector('#tables td')")
                for title, points in page.value(CURVES).items():
                    self.assertEqual(len(points), 2, title)
                    self.assertGreaterEqual(min(points), 4, title)
                self.assertIn("optimizer.lr", page.value("byId('tables').textContent"))
                self.assertIn("optimizer.lr", page.value("byId('ladder').textContent"))
                self.fits(page)
                self.assertEqual(self.is_dark(page), dark)
                self.photograph(page, f"compare-{width}-{'dark' if dark else 'light'}")
                self.assertEqual(page.complaints(), [])

    def test_a_folder_without_runs_says_what_is_looked_for(self):
        self.runs = self.folder / "none"
        self.runs.mkdir()
        self.serve()
        page = self.browser.page(390, False)
        page.open(f"http://127.0.0.1:{self.port}/")
        page.wait("byId('folder').textContent.includes('Looked for are folders directly in it that have a config.toml')")
        self.fits(page)

    def test_what_a_run_says_is_text_and_no_markup(self):
        evil = "<img src=x onerror=document.title='owned'>"
        self.write_run(evil.replace("/", "_"), 30)
        run = self.runs / evil
        (run / "log.txt").write_text(f"12:00:00 warn {evil}\n")
        (run / "alarms.jsonl").write_text('{"alarm":"disk","step":5,"message":"%s","advice":"%s"}\n' % (evil, evil))
        (run / "config.toml").write_text(f"[train]\nname = \"{evil}\"\n")
        page = self.browser.page(1400)
        page.open(self.at + "/")
        page.wait("document.querySelectorAll('#runs tr').length === 3")
        page.click(f"[...document.querySelectorAll('#runs a')].find(a => a.textContent.startsWith('<img'))")
        page.wait("location.pathname === '/run' && document.querySelector('#log .warn') && document.querySelector('#first polyline')")
        self.assertIn(evil, page.value("byId('log').textContent"))
        self.assertIn(evil, page.value("byId('before').textContent"))
        page.open(self.at + "/compare?run=first&run=" + page.value(f"encodeURIComponent({evil!r})"))
        page.wait("document.querySelector('#tables td') && document.querySelector('#curves polyline')")
        self.assertEqual(page.value("document.querySelectorAll('img').length"), 0)
        self.assertEqual(page.complaints(), [])

    def test_a_run_that_vanishes_is_said(self):
        for listening in (True, False):  # or between two streams, of which the second is refused
            run = self.write_run("short", 30)
            page = self.browser.page(390)
            page.open(self.at + "/run?run=short")
            page.wait("source && source.readyState === 1 && document.querySelectorAll('#first polyline').length")
            if not listening:
                page.value("hush()")
            run.rename(self.folder / f"moved-{listening}")
            if not listening:
                page.value("listen()")
            page.wait("byId('problem').textContent.includes('no longer there')")

    def test_the_full_report_and_a_token_work(self):
        self.end(self.server)
        self.serve("--token", "correct-horse")
        page = self.browser.page(1400)
        page.open(f"http://127.0.0.1:{self.port}/?token=correct-horse")
        page.wait("document.querySelectorAll('#runs tr').length === 2")
        self.assertNotIn("token", page.value("location.href"))
        page.click("document.querySelector('#runs a')")
        page.wait("location.pathname === '/run' && document.querySelectorAll('#first polyline').length && source")
        page.click("byId('report')")
        page.wait("location.pathname === '/report' && document.querySelectorAll('polyline').length > 5")
        self.assertEqual(page.complaints(), [])


if __name__ == "__main__":
    if CHROMIUM or not BUILT:
        main("test_serve_browser")
    else:
        print("SKIPPED test_serve_browser: chromium is not installed")
