#!/usr/bin/env python3
"""The pages that celer writes, in a real Chromium: everything they describe is drawn, nothing is loaded, no script fails.

usage: page_test.py PATH_TO_CELER
Exits with 77, which ctest counts as skipped, where Playwright or Chromium is missing.
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

from written_page import WrittenPage

try:
    from playwright.sync_api import sync_playwright
except ImportError:
    sync_playwright = None

CELER = None
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium")
SOURCE = pathlib.Path(__file__).resolve().parents[2]
MODEL = SOURCE / "tests/golden/gguf/llama3-q8_0.gguf"
NETWORK = SOURCE / "tests/golden/networks/mobilenet.onnx"
HERE = ["--device", "cpu", "--threads", 1]
PAGES = {
    "limits": ["limits", "--model", "llama-3.1-8b", "--machine", "h200"],
    "bench": ["bench", MODEL, *HERE, "--prompt", 4, "--tokens", 2, "--repeat", 2, "--batch", "1,2", "--ops"],
    "serve": ["bench", "llama-3.1-8b", "--serve-poisson", 20, "--requests", 30, "--simulate", "h200"],
    "inspect": ["graph", "inspect", NETWORK],
    "graph": ["graph", "bench", NETWORK, "--threads", 1],
}


class Pages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="celer_pages_")
        cls.addClassCleanup(cls.folder.cleanup)
        playwright = sync_playwright().start()
        cls.addClassCleanup(playwright.stop)
        cls.browser = playwright.chromium.launch(executable_path=CHROMIUM)
        cls.addClassCleanup(cls.browser.close)

    def show(self, path, **options):
        context = self.browser.new_context(viewport={"width": 1280, "height": 800}, **options)
        self.addCleanup(context.close)
        context.set_default_timeout(60_000)
        page, errors = context.new_page(), []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda message: message.type in ("error", "warning") and errors.append(message.text))
        page.on("request", lambda request: request.url.startswith(("file:", "blob:")) or errors.append(request.url))
        page.goto(path.as_uri())
        self.addCleanup(lambda: self.assertEqual(errors, []))
        return page

    def write(self, name, *command):
        path = pathlib.Path(self.folder.name) / f"{name}.html"
        subprocess.run([str(word) for word in (CELER, *command, "--html", path)], check=True, capture_output=True, timeout=600)
        return path

    def test_everything_is_drawn(self):
        for name, command in PAGES.items():
            with self.subTest(name):
                path = self.write(name, *command)
                written, page = WrittenPage(path), self.show(path)
                count = lambda selector: page.locator(selector).count()
                self.assertEqual(page.title(), written.page["title"])
                self.assertEqual(count("h1"), 1)
                self.assertEqual(count("dt"), len(written.page["facts"]))
                self.assertEqual(count("main > section"), 1 + len(written.page["sections"]))
                self.assertEqual(count("table"), len(written.parts("table")))
                self.assertEqual(count("tbody tr"), sum(len(table["rows"]) for table in written.parts("table")))
                self.assertEqual(count(".bars .track"), sum(map(len, written.parts("bars"))))
                self.assertEqual(count(".picture > svg, .drawing > svg"), len(written.pictures))
                self.assertGreater(len(written.pictures), 0)
                with page.expect_download() as saved:
                    page.get_by_role("button", name="JSON").click()
                self.assertEqual(saved.value.suggested_filename, "celer.json")

    def test_light_and_dark(self):
        path = self.write("scheme", *PAGES["limits"])
        for scheme in ("light", "dark"):
            page = self.show(path, color_scheme=scheme)
            for selector, style in (("body", "color"), (".picture text", "fill")):
                shade = page.locator(selector).first.evaluate(f"(element) => getComputedStyle(element).{style}")
                darkest = max(int(part) for part in re.findall(r"\d+", shade)[:3])
                self.assertEqual(darkest > 128, scheme == "dark", (scheme, selector, shade))

    def test_the_mouse_shows_values(self):
        page = self.show(self.write("values", *PAGES["limits"]))
        line = page.locator("path[data-name^='w16kv16']").first
        line.scroll_into_view_if_needed()
        box = line.bounding_box()
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        self.assertRegex(page.locator("#tip").text_content(), r"^w16kv16: B .*: [\d.,]+ ms per step at [\d.,]+ tokens of context")
        self.assertTrue(page.locator("#tip").is_visible())
        page.mouse.move(5, 5)
        self.assertFalse(page.locator("#tip").is_visible())

    def test_a_box_leads_to_its_row(self):
        page = self.show(self.write("boxes", *PAGES["inspect"]))
        page.locator(".drawing a").first.click()
        self.assertEqual(page.locator("tr:target").count(), 1)

    def test_names_stay_names(self):
        hostile = pathlib.Path(self.folder.name) / "<img src=x onerror=document.title=1><!--<script>.onnx"
        shutil.copy(NETWORK, hostile)
        page = self.show(self.write("hostile", "graph", "inspect", hostile))
        self.assertIn("<img src=x", page.locator("h1").text_content())
        self.assertEqual(page.locator("img").count(), 0)
        self.assertEqual(page.locator("script").count(), 3)
        self.assertIn("<img src=x", page.title())


if __name__ == "__main__":
    CELER = sys.argv.pop(1)
    if sync_playwright is None or CHROMIUM is None:
        print("skipped: Playwright or Chromium is missing")
        sys.exit(77)
    unittest.main()
