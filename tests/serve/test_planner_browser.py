#!/usr/bin/env python3
"""The planner and the workbook in a browser: Chromium without a screen, light and dark, on a telephone and on a desk.

usage: test_planner_browser.py HEARTH
"""
import itertools
import json
import re
import shlex

from browser import CHROMIUM, Browser
from server import ServeCase, hearth_json, main

ANSWERED = "document.body.dataset.answered"


def numbers(text):
    return [float(word.replace(",", "")) for word in re.findall(r"\d[\d,]*(?:\.\d+)?", text)]


def figures(value, path=()):
    """Every figure of a plan with its place, as the page names it."""
    if isinstance(value, (dict, list)):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from figures(part, (*path, str(key)))
    else:
        yield path, value


def may_be_missing(path, value, plan):
    """Parts of memory that take none, a class of machine that nobody has run on, a change that is a line of the checklist already."""
    if path[:2] == ("advice", "changes"):
        change = plan["advice"]["changes"][int(path[2])]
        return any(line["what"] == change["what"] and line["gain"] == change["gain"] for line in plan["advice"]["checklist"])
    return (path[0] == "memory_bytes" and value == 0) or (path == ("typical_mfu",) and value is None)


class Pages(ServeCase):
    def open(self, page, target):
        page.open(f"http://127.0.0.1:{self.port}{target}")
        page.wait(ANSWERED)

    def assert_fits_window(self, page):
        self.assertLessEqual(page.value("document.documentElement.scrollWidth"), page.width)

    def set_field(self, page, name, value):
        page.value(f"""(() => {{ const field = byId('fields').elements[{json.dumps(name)}]; field.value = {json.dumps(value)};
            field.dispatchEvent(new Event('input', {{bubbles: true}})); }})()""")
        page.wait(ANSWERED)

    def assert_shows(self, page, plan):
        """Time, memory, rate and cost on the page are the plan's, to the digits that are shown."""
        hours = plan["budget"]["seconds"] / 3600
        shown = numbers(page.value("byId('time').textContent + ', ' + byId('times').textContent"))
        self.assertTrue(any(abs(n / hours - 1) < 0.006 for n in shown), (shown, hours))  # three digits: half of 1 in 100
        total, _, percent = numbers(page.value("byId('memory').textContent"))
        self.assertAlmostEqual(total, plan["memory_bytes"]["total"] / 2**30, delta=0.051)  # one decimal
        self.assertAlmostEqual(percent, 100 * plan["memory_bytes"]["fraction"], delta=0.051)
        parts = re.findall(r"([\d.]+) (GiB|MiB|KiB)", page.value("byId('memory-legend').textContent"))
        total = sum(float(size) * {"GiB": 1, "MiB": 2**-10, "KiB": 2**-20}[unit] for size, unit in parts)
        self.assertAlmostEqual(total, plan["memory_bytes"]["total"] / 2**30, delta=0.051 * len(parts))
        self.assertEqual(page.value("byId('verdict').querySelector('b').textContent"), "Fits" if plan["fits"] else "Does not fit")

    def assert_shows_everything(self, page, plan):
        """Each figure of the JSON is somewhere on the page, with that value and words for it; folds are opened."""
        page.value("document.querySelectorAll('#answers details').forEach(fold => { fold.open = true; })")
        shown = page.value("""Object.fromEntries([...document.querySelectorAll('#answers [data-field]')].filter(e => e.offsetParent)
            .map(e => [e.dataset.field, [e.dataset.value, e.innerText.trim()]]))""")
        for path, value in figures(plan):
            if may_be_missing(path, value, plan) and "|".join(path) not in shown:
                continue
            self.assertIn("|".join(path), shown)
            raw, words = shown.pop("|".join(path))
            self.assertEqual(json.loads(raw), value, path)
            if not isinstance(value, bool) and value != "" and path != ("budget", "electricity_usd"):
                self.assertTrue(words, path)
        self.assertEqual(shown, {})  # and nothing that the plan does not have

    def test_every_figure_of_a_plan_is_on_the_page(self):
        self.serve()
        wide = "model=qwen3-30b-a3b&node=hgx-h200&ep=4&pp=2&zero=1&seq=4096&micro-batch=1&accum=4&hours=100&vocab=50000&compare-nodes=true"
        targets = {wide: {"pipeline", "nodes", "vocabulary", "hours", "fp8"},
                   "model=llama-3-8b&gpu=h100-sxm&gpus=8&seq=4096&micro-batch=4": {"fitting"},
                   "model=llama-3-8b&gpu=h100-sxm&gpus=16384&zero=3&seq=8192&micro-batch=1&mtbf-hours=0.1": {"fp8"},
                   "model=demo-moe&gpu=cpu&precision=fp32": set(),
                   "params=8B&gpus=64&gpu=h100-sxm&tokens=15T&hours=100": {"nodes", "fp8_source", "typical_seconds"}}
        with Browser() as browser:
            for (target, parts), (width, dark) in zip(targets.items(), itertools.cycle(((390, True), (1400, False)))):
                page = browser.page(width, dark=dark)
                self.open(page, "/planner?" + target)
                _, plan, _ = hearth_json(*shlex.split(page.value("byId('command').textContent"))[1:], "--json")
                self.assertLessEqual(parts, set(plan))  # it is what it is to be tried with
                self.assert_shows_everything(page, plan)
                self.assert_fits_window(page)
                self.assertEqual(page.complaints(), [])
            page = browser.page(1400)
            self.open(page, "/planner?" + wide)
            text = page.value("byId('answer').innerText")
            _, plan, _ = hearth_json(*shlex.split(page.value("byId('command').textContent"))[1:], "--json")
            row = next(node for node in plan["nodes"] if node["name"] == plan["cheapest"])
            self.assertIn(f"the cheapest is {row['name']} ({row['seconds'] / 2592000:.3g} months, ${row['cost_usd']:,.0f})", text)
            self.assertRegex(text, r"calendar time with them\s+%.3g months" % (plan["checkpoint"]["calendar_seconds"] / 2592000))
            self.assertIn("a month\n$%.2f" % plan["storage"]["usd_per_month"], text)
            page.value("byId('fields').elements['compare-nodes'].click()")  # without: no table, and it is not in the address
            page.wait(ANSWERED)
            self.assertIsNone(page.value("byId('nodes-table').offsetParent"))
            self.assertNotIn("compare", page.value("location.search + byId('command').textContent"))

    def test_the_planner_answers_as_hearth_plan_and_again_from_its_address(self):
        self.serve()
        with Browser() as browser:
            for width, dark in itertools.product((390, 1400), (False, True)):
                page = browser.page(width, dark=dark)
                self.open(page, "/planner")
                page.value("""(() => { const slider = document.querySelector('[name=gpus] ~ input[type=range]'); slider.value = 6;
                    slider.dispatchEvent(new Event('input', {bubbles: true})); })()""")
                page.wait(ANSWERED)
                self.assertEqual(page.value("byId('fields').elements.gpus.value"), "64")
                self.set_field(page, "model", "llama-3-8b")
                self.set_field(page, "zero", "3")
                self.set_field(page, "hours", "100")
                line = page.value("byId('command').textContent")
                self.assertIn("--gpus 64", line)
                _, plan, _ = hearth_json(*shlex.split(line)[1:], "--json")
                self.assert_shows(page, plan)
                self.assertEqual(plan["devices"], 64)
                self.assertIn("in 100 hours", page.value("byId('tiles').innerText"))
                self.assert_fits_window(page)
                address, text = page.value("location.href"), page.value("byId('answer').innerText")
                self.assertIn("gpus=64", address)
                self.assertEqual(page.complaints(), [])
                again = browser.page(width, dark=dark)
                again.open(address)
                again.wait(ANSWERED)
                self.assertEqual(again.value("byId('answer').innerText"), text)
                self.assertEqual(again.value("location.href"), address)
                light = sum(map(int, re.findall(r"\d+", page.value("getComputedStyle(document.body).backgroundColor"))[:3]))
                self.assertEqual(light < 3 * 128, dark)

    def test_what_does_not_fit_is_told_and_the_way_that_does_can_be_applied(self):
        self.serve()
        with Browser() as browser:
            page = browser.page(1400)
            self.open(page, "/planner?model=llama-3-8b&gpu=h100-sxm&gpus=8&seq=4096&micro-batch=4")
            self.assertTrue(page.value("byId('memory-bar').classList.contains('over')"))
            page.click("byId('verdict').querySelector('button')")
            page.wait(ANSWERED)
            _, plan, _ = hearth_json(*shlex.split(page.value("byId('command').textContent"))[1:], "--json")
            self.assertTrue(plan["fits"])
            self.assert_shows(page, plan)
            self.assertEqual(page.complaints(), [])
            self.set_field(page, "gpus", "7.5")  # refused: said, and the last answer steps back
            self.assertIn("whole number", page.value("byId('problem').innerText"))
            self.assertTrue(page.value("byId('answer').classList.contains('stale')"))

    def test_a_number_of_parameters_is_enough(self):
        self.serve()
        with Browser() as browser:
            page = browser.page(390)
            self.open(page, "/planner?model=llama-3-8b&gpus=64&gpu=h100-sxm&tokens=15T&tp=2")
            self.set_field(page, "model", "")
            line = page.value("byId('command').textContent")
            self.assertEqual(line, "hearth plan --params 8B --tokens 15T --gpu h100-sxm --gpus 64 --precision bf16")
            plan = hearth_json(*shlex.split(line)[1:], "--json")[1]
            self.assertIn("%.1f months" % plan["budget"]["months"], page.value("byId('time').textContent"))
            self.assertIsNone(page.value("byId('changes').offsetParent"))  # nothing is known of its steps
            self.assert_fits_window(page)
            address, text = page.value("location.href"), page.value("byId('answer').innerText")
            self.assertEqual(page.complaints(), [])
            again = browser.page(390)
            again.open(address)
            again.wait(ANSWERED)
            self.assertEqual(again.value("byId('answer').innerText"), text)

    def test_the_workbook_solves_and_judges(self):
        self.serve()
        with Browser() as browser:
            for width, dark in itertools.product((390, 1400), (False, True)):
                page = browser.page(width, dark=dark)
                self.open(page, "/workbook?quantity=ring_allreduce_ms&M_GB=2&N=8&value=70")
                self.assertEqual(page.value("byId('figure').textContent"), "bw_GBps = 50 GB/s")
                self.assertEqual(page.value("document.querySelector('.found input').name"), "bw_GBps")
                page.value("""(() => { const f = byId('inputs').elements; f.bw_GBps.value = '100'; f.value.value = '';
                    f.value.dispatchEvent(new Event('input', {bubbles: true})); })()""")
                page.wait(ANSWERED)
                self.assertEqual(page.value("byId('figure').textContent"), "35 ms")
                self.assertIn("bw_GBps=100", page.value("location.search"))
                for guess, said in ((1.5, "Too large."), (2, "factor of 2"), (1.009, "Right.")):
                    page.value(f"""exercise.answer.then(got => {{ byId('guess').value = String({guess} * got.value);
                        byId('judged').textContent = ''; byId('answer').requestSubmit(); }})""")
                    self.assertIn(said, page.wait("byId('judged').textContent"))
                page.click("byId('solve')")
                self.assertTrue(page.wait("!byId('solution').hidden && byId('solution-figure').textContent"))
                page.value("byId('search').value = 'bubble'; byId('search').dispatchEvent(new Event('input'))")
                self.assertEqual(page.value("[...document.querySelectorAll('#list a')].map(a => a.dataset.quantity).sort().join()"),
                                 "bubble_over_ideal_pct,bubble_over_total_pct,min_microbatches")
                page.click("document.querySelector('#list a')")
                page.wait(ANSWERED)
                page.click("byId('example')")
                page.wait(ANSWERED + " && !byId('result').hidden")
                self.assert_fits_window(page)
                self.assertEqual(page.complaints(), [])


if __name__ == "__main__":
    if CHROMIUM:
        main("test_planner_browser")
    else:
        print("SKIPPED test_planner_browser: chromium is not installed")
