#!/usr/bin/env python3
"""The report in a browser: Chromium without a screen, light and dark, on a telephone and on a desk.

usage: test_report_browser.py HEARTH
"""
import html
import json
import re
import shutil
import subprocess

from program import Case, unittest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
WIDTHS = (390, 1400)

# A page with the report in frames, whose script looks into them: the report itself has no script.
FRAMES = """<!DOCTYPE html><meta charset="utf-8"><body>%s<pre id="found"></pre><script>
addEventListener("load", () => {
  const found = [...document.querySelectorAll("iframe")].map(frame => {
    const page = frame.contentDocument, root = page.documentElement;
    const outside = [...page.querySelectorAll("svg.map > text, figure > svg > text, .tiles b, .fall span")].filter(e => {
      const box = e.getBoundingClientRect(), around = e.closest("figure, .tiles div, .fall").getBoundingClientRect();
      return box.left < around.left - 1 || box.right > around.right + 1;
    });
    return {width: frame.contentWindow.innerWidth, scroll: root.scrollWidth,
      background: frame.contentWindow.getComputedStyle(page.body).backgroundColor,
      curves: [...page.querySelectorAll("polyline")].map(line => {
        const box = line.getBBox();
        return {points: line.points.length, wide: box.width, colour: frame.contentWindow.getComputedStyle(line).stroke};
      }),
      outside: outside.map(e => e.textContent)};
  });
  document.getElementById("found").textContent = JSON.stringify(found);
});
</script>"""


class Browser(Case):
    def look(self, page, dark):
        """What the script found in each frame, and what the browser complained of."""
        frames = "".join('<iframe width="%d" height="900" srcdoc="%s"></iframe>' % (width, html.escape(page))
                         for width in WIDTHS)
        outer = self.folder / "frames.html"
        outer.write_text(FRAMES % frames)
        done = subprocess.run([CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1600,1000",
                               f"--user-data-dir={self.folder / 'profile'}", "--enable-logging=stderr",
                               "--blink-settings=preferredColorScheme=%d" % (0 if dark else 1), "--dump-dom",
                               outer.as_uri()], capture_output=True, text=True, timeout=300)
        found = re.search('<pre id="found">(.+?)</pre>', done.stdout, re.S)
        self.assertIsNotNone(found, done.stderr[-2000:])
        return json.loads(html.unescape(found.group(1))), re.findall(r".*CONSOLE.*", done.stderr)

    def test_curves_have_points_in_light_and_dark_narrow_and_wide(self):
        for name, lr in (("first", "1e-2"), ("second", "2e-2")):
            self.run_folder = self.folder / name
            self.train("--set", f"optimizer.lr={lr}", "--set", "train.steps=20", "--set", "profile.every=5", "--set",
                       "eval.every=5", "--set", "model.arch=qwen3_moe", "--set", "model.experts=4", "--set",
                       "model.top_k=2", "--set", "model.expert_ffn=32", "--set", "watch.print_every=1")
        out = self.folder / "page.html"
        self.hearth("report", self.folder / "first", self.folder / "second", "-o", out)
        colours = {}
        for dark in (False, True):
            found, complaints = self.look(out.read_text(), dark)
            self.assertEqual(complaints, [])
            self.assertEqual([frame["width"] for frame in found], list(WIDTHS))
            for frame in found:
                self.assertLessEqual(frame["scroll"], frame["width"], "the page is wider than its window")
                self.assertEqual(frame["outside"], [], "text leaves its box")
                self.assertGreaterEqual(len(frame["curves"]), 20)
                for curve in frame["curves"]:
                    self.assertGreaterEqual(curve["points"], 4)
                    self.assertGreater(curve["wide"], 0)  # over time, a run may be much shorter than another
                wide = sorted(curve["wide"] for curve in frame["curves"])
                self.assertGreater(wide[len(wide) // 2], 200)  # of 478
            light = [int(part) for part in re.findall(r"\d+", found[0]["background"])[:3]]
            self.assertEqual(sum(light) < 128 * 3, dark)
            colours[dark] = found[0]["curves"][0]["colour"]
        self.assertNotEqual(colours[False], colours[True])


if __name__ == "__main__":
    if CHROMIUM:
        unittest.main()
    print("SKIPPED test_report_browser: chromium is not installed")
