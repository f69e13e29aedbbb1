#!/usr/bin/env python3
"""The page at / in a real Chromium: page_test.py [--url URL] [--shots FOLDER] [unittest's arguments].

What needs a scripted answer runs against stand_in.py. What any model can answer runs against URL if one is given.
Exits with 77, which ctest counts as skipped, where Playwright or Chromium is missing.
"""
import argparse
import json
import os
import pathlib
import re
import shutil
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from stand_in import HOSTILE, MARKDOWN, StandIn  # noqa: E402

try:
    from playwright.sync_api import expect, sync_playwright
except ImportError:
    sync_playwright = None

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium")
URL = None
SHOTS = None
# Everything that the browser blocks, and every script error, in one list.
WATCH = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (e) => window.violations.push(`${e.violatedDirective} ${e.blockedURI} ${e.sample}`));
"""


BROWSER = None


def setUpModule():
    global BROWSER
    expect.set_options(timeout=60_000)  # a machine that also builds is slow
    playwright = sync_playwright().start()
    unittest.addModuleCleanup(playwright.stop)
    BROWSER = playwright.chromium.launch(executable_path=CHROMIUM)
    unittest.addModuleCleanup(BROWSER.close)


class PageCase(unittest.TestCase):
    speed = 400

    def setUp(self):
        self.server = StandIn(speed=self.speed).start()
        self.addCleanup(self.server.stop)
        self.url = self.server.url
        self.open()

    def open(self, **options):
        options = {"viewport": {"width": 1280, "height": 800}, "color_scheme": "light", **options}
        self.context = BROWSER.new_context(**options)
        self.context.set_default_timeout(60_000)
        self.context.grant_permissions(["clipboard-read", "clipboard-write"])
        self.addCleanup(self.context.close)
        self.page = self.context.new_page()
        self.errors = []
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", lambda m: re.search("Content Security Policy|Trusted", m.text) and self.errors.append(m.text))
        self.page.add_init_script(WATCH)
        self.page.goto(self.url)
        expect(self.page.get_by_label("connected")).to_be_visible()
        self.addCleanup(self.nothing_went_wrong, self.page, self.errors)

    def nothing_went_wrong(self, page, errors):
        self.assertEqual(errors, [])
        self.assertEqual(page.evaluate("window.violations"), [])

    def ask(self, text, done=True):
        self.page.fill("#prompt", text)
        self.page.press("#prompt", "Enter")
        if done:
            self.is_done()

    def is_done(self):
        expect(self.page.get_by_role("button", name="Send", exact=True)).to_be_visible(timeout=60_000)

    def is_streaming(self):
        expect(self.page.get_by_role("button", name="Stop", exact=True)).to_be_visible()
        expect(self.answers().last.locator(".text").last).not_to_be_empty()

    def answers(self):
        return self.page.locator(".turn.assistant")

    def answer(self):
        return self.answers().last.locator("> .text").inner_text()

    def turns(self):
        return self.page.locator(".turn .said, .turn.assistant > .text").all_inner_texts()

    def shot(self, name):
        if SHOTS:
            self.page.wait_for_timeout(300)
            self.page.screenshot(path=SHOTS / f"{name}.png")

    def assert_no_sideways_scroll(self):
        wide = self.page.evaluate("""[...document.querySelectorAll("html, body, main, #scroll, .turn, .text, aside")]
            .filter((e) => e.scrollWidth > e.clientWidth && e.clientWidth > 1).map((e) => `${e.tagName}#${e.id}.${e.className}`)""")
        self.assertEqual(wide, [])
        self.assertEqual(self.page.evaluate("document.scrollingElement.scrollWidth"), self.page.viewport_size["width"])


class AnyServer(PageCase):
    """What holds whatever the model says."""
    speed = 120

    def setUp(self):
        if URL:
            self.url = URL
            self.open()
        else:
            super().setUp()

    def test_an_answer_comes_piece_by_piece(self):
        self.ask("long: count from one to a thousand, please", done=False)
        self.is_streaming()
        before = len(self.answer())
        self.page.wait_for_timeout(500)
        self.assertGreater(len(self.answer()), before)
        self.page.keyboard.press("Escape")
        self.is_done()
        expect(self.answers().last.locator(".figures")).to_contain_text("stopped")
        after = self.answer()
        self.page.wait_for_timeout(300)
        self.assertEqual(self.answer(), after)

    def test_stop_again_edit_and_reload(self):
        self.ask("long: tell a story about a swift", done=False)
        self.is_streaming()
        self.page.get_by_role("button", name="Stop", exact=True).click()
        self.is_done()
        stopped = self.turns()
        self.page.reload()
        self.assertEqual(self.turns(), stopped)

        # Again: the old answer stays within reach.
        self.page.locator("input[name=max_tokens]").fill("8")
        self.page.get_by_role("button", name="Answer again").click()
        self.is_done()
        expect(self.page.locator(".versions")).to_contain_text("2/2")
        self.assertNotEqual(self.turns(), stopped)
        second = self.turns()
        self.page.get_by_role("button", name="Earlier version").click()
        self.assertEqual(self.turns(), stopped)
        self.page.get_by_role("button", name="Later version").click()
        self.assertEqual(self.turns(), second)

        # An edited question is answered anew.
        self.page.get_by_role("button", name="Edit this message").click()
        self.page.get_by_label("Edit your message").fill("What is a swift?")
        self.page.get_by_role("button", name="Send again").click()
        self.is_done()
        self.assertEqual(self.turns()[0], "What is a swift?")
        self.assertEqual(len(self.turns()), 2)
        edited = self.turns()
        self.page.reload()
        self.assertEqual(self.turns(), edited)
        self.page.get_by_role("button", name="Earlier version").first.click()
        self.assertEqual(self.turns(), second)

    def test_the_model_and_its_figures_are_shown(self):
        name = self.page.locator("#model").input_value()
        self.assertIn(name, self.page.locator("#card").inner_text())
        self.assertIn(name, self.page.title())
        self.page.locator("input[name=max_tokens]").fill("40")
        self.ask("long: count from one to forty")
        figures = self.answers().last.locator(".figures")
        expect(figures).to_contain_text(re.compile(r"\d+ tokens · [\d.,]+ tok/s · first after [\d.]+ m?s · prompt \d+"))
        for tile in ("Generated", "First token", "KV cache"):
            expect(self.page.get_by_role("img", name=re.compile(rf"^{tile}: [\d.,]+ \S+,"))).to_be_visible()
        expect(self.page.locator(".tile").first.locator(".plot-line")).to_have_attribute("d", re.compile(r"^M.*L"))
        expect(self.page.locator("#load")).to_contain_text("running")
        expect(self.page.locator("#context")).to_contain_text("tokens of context")

    def test_by_keyboard_alone(self):
        page = self.page
        page.locator("input[name=max_tokens]").fill("12")
        page.reload()
        expect(page.locator("#prompt")).to_be_focused()
        page.keyboard.type("First line")
        page.keyboard.press("Shift+Enter")
        page.keyboard.type("second line")
        page.keyboard.press("Enter")
        self.is_done()
        self.assertEqual(self.turns()[0], "First line\nsecond line")
        self.assertEqual(page.locator("#prompt").input_value(), "")
        page.keyboard.press("ArrowUp")
        expect(page.get_by_label("Edit your message")).to_be_focused()
        page.keyboard.press("Escape")
        expect(page.locator("#prompt")).to_be_focused()
        page.keyboard.press("ArrowUp")
        page.keyboard.press("End")
        page.keyboard.type(", changed")
        page.keyboard.press("Enter")
        self.is_done()
        self.assertEqual(self.turns()[0], "First line\nsecond line, changed")
        page.get_by_role("button", name="Earlier version").focus()
        page.keyboard.press("Enter")
        self.assertEqual(self.turns()[0], "First line\nsecond line")
        expect(page.get_by_role("button", name="Later version")).to_be_focused()
        page.get_by_role("button", name="Answer again").focus()
        page.keyboard.press("Enter")
        expect(page.locator("#prompt")).to_be_focused()
        self.is_done()
        # Every control can be reached, is named, and shows that it has the focus.
        names = []
        for _ in range(40):
            page.keyboard.press("Tab")
            name, outline = page.evaluate("""(() => {
              const e = document.activeElement, s = getComputedStyle(e);
              const shown = s.outlineStyle !== "none" || (e.id === "prompt" && getComputedStyle(e.form).boxShadow !== "none");
              return [e === document.body ? null : e.ariaLabel || e.labels?.[0]?.firstChild.textContent || e.textContent, shown];
            })()""")
            if name is None:
                continue
            self.assertTrue(name.strip())
            self.assertTrue(outline, name)
            names.append(name)
        for wanted in ("Skip to the message field", "New chat", "Message", "Answer again", "Copy this answer", "Edit this message",
                       "Temperature", "System prompt", "Earlier version"):
            self.assertIn(wanted, names)
        page.locator("#theme").focus()
        page.keyboard.press("/")
        expect(page.locator("#prompt")).to_be_focused()

    def test_phone(self):
        self.open(viewport={"width": 360, "height": 740}, is_mobile=True, has_touch=True, device_scale_factor=2)
        self.assert_no_sideways_scroll()
        self.shot("phone-empty")
        self.page.locator("#open-panel").tap()
        self.page.locator("input[name=max_tokens]").fill("60")
        self.page.wait_for_timeout(300)
        self.assert_no_sideways_scroll()
        self.shot("phone-panel")
        self.page.keyboard.press("Escape")
        self.ask("markdown, with a table, a list and code")
        self.assert_no_sideways_scroll()
        self.shot("phone-chat")
        self.page.locator("#open-chats").tap()
        expect(self.page.locator("#list li")).to_have_count(1)
        self.page.wait_for_timeout(300)
        self.shot("phone-list")
        self.page.locator("#new").tap()
        expect(self.page.locator(".turn")).to_have_count(0)
        expect(self.page.locator("#new")).not_to_be_visible()


class Scripted(PageCase):
    """What needs an answer that one knows."""

    def test_hostile_answer_is_text(self):
        before = self.page.evaluate("document.querySelectorAll('script, style, link, meta, base').length")
        self.server.speed = 20_000
        self.ask("hostile")
        text = self.answer()
        for words in ("<script>window.hacked = 1</script>", '<img src=x onerror="window.hacked = 2">', "<b>bold?</b>", "<svg onload=",
                      "<style>body { display: none }</style>", "</code></pre><script>window.hacked=11</script>", "the end of it",
                      "<script>window.hacked=12</script>", "[click me](javascript:window.hacked=5)"):
            self.assertIn(words, text)
        tags, attributes = self.page.evaluate("""(() => {
          const all = [...document.querySelectorAll(".turn.assistant > .text *")];
          return [all.map((e) => e.tagName.toLowerCase()), all.flatMap((e) => e.getAttributeNames())];
        })()""")
        self.assertLessEqual(set(tags), set("p br a em strong del code pre div header span button svg use table thead tbody tr th td "
                                            "blockquote ul li".split()))
        self.assertLessEqual(set(attributes), set("class href title target rel tabindex type aria-label aria-hidden".split()))
        links = self.page.evaluate("[...document.querySelectorAll('.text a')].map((a) => [a.protocol, a.rel, a.target])")
        self.assertGreaterEqual(len(links), 1)
        for protocol, rel, target in links:
            self.assertIn(protocol, ("http:", "https:"))
            self.assertEqual((rel, target), ("noopener noreferrer", "_blank"))
        self.assertEqual(self.page.evaluate("document.querySelectorAll('script, style, link, meta, base').length"), before)
        self.assertIsNone(self.page.evaluate("window.hacked ?? null"))
        self.assertTrue(self.answers().last.is_visible())
        # So is a hostile question, and both after a reload.
        self.ask(HOSTILE[:900])
        self.page.reload()
        expect(self.page.locator(".said").last).to_contain_text("<script>window.hacked = 1</script>")
        self.assertIsNone(self.page.evaluate("window.hacked ?? null"))

    def test_the_policy_is_in_force(self):
        self.page.evaluate("try { document.body.innerHTML = '<b>x</b>'; } catch (e) { window.refused = e.message; }")
        self.assertIn("TrustedHTML", self.page.evaluate("window.refused"))
        self.page.evaluate("document.body.append(Object.assign(document.createElement('img'), { src: 'https://example.org/x.png' }))")
        self.page.wait_for_timeout(100)
        self.assertGreaterEqual(len(self.page.evaluate("window.violations")), 2)
        self.page.evaluate("window.violations = []")
        self.errors.clear()

    def test_no_answer_takes_long_to_show(self):
        bombs = {
            "brackets": "[" * 100_000,
            "stars": "*a " * 50_000,
            "runs": "".join("`" * (i % 300) + "x" for i in range(1500)),
            "links": "[a](b " * 30_000,
            "quotes": "> " * 30_000,
            "lists": "\n".join(" " * (i % 40) + "- x" for i in range(5_000)),
            "tables": "|" * 50_000 + "\n" + "|-" * 25_000,
            "math": "$" * 50_001 + "\\(" * 20_000,
            "marks": "**_~~" * 30_000,
            "closers": "*a " * 40_000 + "b_ " * 40_000,
            "rules": "- " * 50_000 + "x",
            "spaces": "# " + " #" * 50_000 + " x",
        }
        for name, text in bombs.items():
            took = self.page.evaluate("""(text) => {
              const root = document.createElement("div"), start = performance.now();
              new Markdown(root).show(text);
              return performance.now() - start;
            }""", text)
            self.assertLess(took, 2500, name)  # about 0.1 s; what is not linear takes much longer
        for language in ("cpp", "python", "bash", "sql", "json", "html", "css", "diff"):
            took = self.page.evaluate("""(language) => {
              let longest = 0;
              for (const piece of ['"', "'", "/*", "#", "<!--", "a ", "\\\\", "1e", "`", "-- "]) {
                const start = performance.now();
                colour(piece.repeat(30000 / piece.length), language);
                longest = Math.max(longest, performance.now() - start);
              }
              return longest;
            }""", language)
            self.assertLess(took, 2500, language)

    def markdown(self, text):
        return self.page.evaluate("""(text) => {
          const root = document.createElement("div");
          new Markdown(root).show(text);
          return root.innerHTML;
        }""", text)

    def test_markdown(self):
        for text, html in {
            "a **b** *c* ***d*** __e__ _f_ ~~g~~":
                "<p>a <strong>b</strong> <em>c</em> <strong><em>d</em></strong> <strong>e</strong> <em>f</em> <del>g</del></p>",
            "snake_case_name 2 * 3 * 4 **open": "<p>snake_case_name 2 * 3 * 4 **open</p>",
            "`a <b> *c*` ``x ` y``": "<p><code>a &lt;b&gt; *c*</code> <code>x ` y</code></p>",
            "\\*a\\* &lt;b&gt; &bogus;": "<p>*a* &lt;b&gt; &amp;bogus;</p>",
            "one\ntwo": "<p>one<br>two</p>",
            "# A\n## B #\n#hash": "<h3>A</h3><h4>B</h4><p>#hash</p>",
            "- a\n- b\n  1. c\n  2. d\n- [x] e":
                '<ul><li>a</li><li>b<ol start="1"><li>c</li><li>d</li></ol></li>'
                '<li class="task"><input type="checkbox" disabled="">e</li></ul>',
            "3. a\n\n   more\n4. b": '<ol start="3"><li>a<p>more</p></li><li>b</li></ol>',
            "  - a\n  - b": "<ul><li>a</li><li>b</li></ul>",
            "> a\n> > b": "<blockquote><p>a</p><blockquote><p>b</p></blockquote></blockquote>",
            "a\n\n---\n\nb": "<p>a</p><hr><p>b</p>",
            "costs $5 and $10, $x^2$": '<p>costs $5 and $10, <span class="math">x^2</span></p>',
            "see https://a.org/b_c_d.":
                '<p>see <a href="https://a.org/b_c_d" title="https://a.org/b_c_d" '
                'target="_blank" rel="noopener noreferrer">https://a.org/b_c_d</a>.</p>',
            "[1] and [x](y) and [z](ftp://a)": "<p>[1] and [x](y) and [z](ftp://a)</p>",
            "| a | b |\n|--|:-:|\n| `x|y` | \\| |":
                '<div class="table" tabindex="0"><table><thead><tr><th>a</th><th class="center">b</th></tr></thead>'
                '<tbody><tr><td><code>x|y</code></td><td class="center">|</td></tr></tbody></table></div>',
        }.items():
            with self.subTest(text):
                self.assertEqual(self.markdown(text).replace(' class=""', ""), html)

    def test_text_that_grows_looks_like_text_that_came_at_once(self):
        same = self.page.evaluate("""(text) => {
          const [grown, whole] = [document.createElement("div"), document.createElement("div")];
          const markdown = new Markdown(grown);
          for (let n = 1; n <= text.length; ++n) markdown.show(text.slice(0, n));
          new Markdown(whole).show(text);
          return [grown.innerHTML, whole.innerHTML];
        }""", MARKDOWN)
        self.assertEqual(*same)

    def test_code_is_coloured_and_copied_as_it_is(self):
        self.ask("markdown")
        code = self.page.locator(".code").first
        self.assertEqual(code.locator(".hl-c").first.inner_text(), "// Grid: one block per row; the second read of a row hits the cache.")
        self.assertEqual(code.locator(".hl-k").first.inner_text(), "template")
        code.get_by_role("button", name="Copy this code").click()
        copied = self.page.evaluate("navigator.clipboard.readText()")
        self.assertTrue(copied.startswith("// Grid: one block per row"), copied)
        self.assertTrue(copied.endswith("/* never zero */\n}"), copied)
        self.answers().last.hover()
        self.page.get_by_role("button", name="Copy this answer").click()
        self.assertTrue(self.page.evaluate("navigator.clipboard.readText()").startswith("Decoding reads **every weight once"))

    def test_thoughts_are_folded_away(self):
        self.server.speed = 25
        self.ask("think", done=False)
        thinking = self.page.locator("details.thinking")
        expect(thinking).to_have_attribute("open", "")
        expect(thinking.locator("summary")).to_have_text("Thinking …")
        self.is_done()
        self.assertIsNone(thinking.get_attribute("open"))
        expect(thinking.locator("summary")).to_contain_text("Thought for")
        self.assertEqual(self.answer(), "The answer is 42.")
        thinking.locator("summary").click()
        expect(thinking.locator("strong")).to_have_text("old")
        self.ask("and then?")
        self.assertNotIn("19 + 23", json.dumps(self.server.bodies[-1]))

    def test_what_is_sent(self):
        for name, value in {"temperature": "0.5", "top_p": "0.9", "max_tokens": "7", "seed": "3", "system": "Be brief."}.items():
            self.page.locator(f"#settings [name={name}]").fill(value)
        self.ask("one")
        self.ask("two")
        self.assertEqual(self.server.bodies[-1], {
            "model": "smollm2-135m-instruct", "stream": True, "stream_options": {"include_usage": True},
            "temperature": 0.5, "top_p": 0.9, "max_tokens": 7, "seed": 3,
            "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "one"},
                         {"role": "assistant", "content": "Answer 1 to “one”."}, {"role": "user", "content": "two"}]})
        self.page.get_by_role("button", name="Reset").click()
        self.ask("three")
        self.assertEqual(set(self.server.bodies[-1]), {"model", "messages", "stream", "stream_options"})
        self.page.locator("input[name=temperature]").fill("9")
        self.ask("four", done=False)
        expect(self.page.locator("#invalid")).to_contain_text("Temperature")
        self.assertEqual(self.page.locator("#prompt").input_value(), "four")
        self.assertEqual(len(self.server.bodies), 3)

    def test_the_model_card(self):
        rows = "Name\nsmollm2-135m-instruct\nArchitecture\nllama\nParameters\n134.5 M\nWeights\nq8_0, f32\nContext\n8,192 tokens\n"
        rows += "Device\n2 × Neoverse-V1\nServer\nceler 0.1.0"
        self.assertEqual(self.page.locator("#card").inner_text(), rows)
        self.assertEqual(self.page.locator("input[name=temperature]").get_attribute("placeholder"), "default 0.7")
        # What /v1/models says itself comes first.
        self.server.card = {"architecture": "qwen3", "parameters": 7_600_000_000, "weight_formats": ["int4"], "device": "H200"}
        self.page.reload()
        expect(self.page.locator("#card")).to_have_text(re.compile(r"qwen3.*7\.6 B.*int4.*H200"))

    def test_one_of_several_models(self):
        self.server.names = ["big", "small"]
        self.page.reload()
        self.page.locator("#model").select_option("small")
        expect(self.page).to_have_title("small · celer")
        self.ask("hello")
        self.assertEqual(self.server.bodies[-1]["model"], "small")
        self.page.reload()
        expect(self.page.locator("#model")).to_have_value("small")

    def test_failures_are_one_sentence_and_a_retry(self):
        notice = self.page.locator("#notice")
        for status, sentence in {
            429: "The server is full; try again in 2 s.",
            503: "The server is not ready or is shutting down; try again in 2 s.",
            400: "The server refused: not now.",
            500: "The server refused: not now.",
        }.items():
            self.server.failures = [status]
            self.ask(f"question {status}")
            expect(notice.locator("span")).to_have_text(sentence)
            self.assertEqual(self.turns()[-1], f"question {status}")
            self.page.reload()
            self.assertEqual(self.turns()[-1], f"question {status}")
            expect(notice).to_contain_text("This message has no answer yet.")
            self.page.get_by_role("button", name="Answer it").click()
            self.is_done()
            expect(notice).to_be_hidden()
            self.assertIn(f"“question {status}”", self.answer())
        self.assertEqual(len(self.turns()), 8)

    def test_a_failed_second_answer_leaves_the_first(self):
        self.ask("question")
        first = self.turns()
        self.server.failures = [429]
        self.page.get_by_role("button", name="Answer again").click()
        expect(self.page.locator("#notice")).to_contain_text("The server is full")
        self.assertEqual(self.turns(), first)
        self.page.get_by_role("button", name="Retry").click()
        self.is_done()
        expect(self.page.locator(".versions")).to_contain_text("2/2")

    def test_an_answer_that_breaks_off_is_kept(self):
        for word, sentence in {"broken": "The connection to the server broke off; what had come is kept.",
                               "refused": "The server broke off: the device failed."}.items():
            self.ask(word)
            expect(self.page.locator("#notice span")).to_have_text(sentence)
            self.assertTrue(self.answer().startswith("This answer"))
            expect(self.answers().last.locator(".figures")).to_contain_text("broken off")
            self.page.fill("#prompt", "typed meanwhile")
            self.page.get_by_role("button", name="Retry").click()
            self.is_done()
            self.assertEqual(self.page.locator("#prompt").input_value(), "typed meanwhile")

    def test_the_server_goes_and_comes_back(self):
        port = self.server.server_port
        self.server.stop()
        expect(self.page.locator("#link.down")).to_be_visible()
        self.ask("anyone there?")
        expect(self.page.locator("#notice span")).to_have_text("The server cannot be reached; is it running?")
        self.assertEqual(self.turns(), ["anyone there?"])
        self.server = StandIn(port, speed=400).start()
        self.addCleanup(self.server.stop)
        expect(self.page.locator("#link.up")).to_be_visible()
        self.page.get_by_role("button", name="Retry").click()
        self.is_done()
        self.assertIn("anyone there?", self.answer())

    def test_stopping_ends_the_request(self):
        self.server.speed = 50
        self.ask("long", done=False)
        self.is_streaming()
        self.page.keyboard.press("Escape")
        self.is_done()
        for _ in range(600):
            if self.server.cancelled:
                break
            self.page.wait_for_timeout(50)
        self.assertEqual(self.server.cancelled, 1)

    def test_closing_the_page_keeps_what_had_come(self):
        self.server.speed = 50
        self.ask("long", done=False)
        self.is_streaming()
        expect(self.answers().last).to_contain_text("1 2 3")
        self.page.fill("#prompt", "a draft")
        self.page.reload()
        expect(self.answers().last).to_contain_text("1 2 3")
        self.assertEqual(self.turns()[0], "long")
        self.assertTrue(self.turns()[1].startswith("1 2 3"))
        expect(self.answers().last.locator(".figures")).to_contain_text("broken off")
        self.assertEqual(self.page.locator("#prompt").input_value(), "a draft")

    def test_api_key(self):
        self.server.api_key = "secret"
        dialog = self.page.get_by_role("dialog")
        expect(dialog).to_be_visible()
        dialog.get_by_label("API key").fill("wrong")
        self.page.keyboard.press("Enter")
        expect(dialog).to_contain_text("The server does not accept this API key.")
        self.page.keyboard.press("Escape")
        self.ask("hello", done=False)
        expect(dialog).to_be_visible()
        dialog.get_by_label("API key").fill("secret")
        dialog.get_by_role("button", name="Use this key").click()
        expect(self.answers()).to_have_count(1)
        self.is_done()
        self.assertIn("hello", self.answer())
        self.page.wait_for_timeout(200)
        self.assertFalse(dialog.is_visible())
        self.assertNotIn("secret", self.page.evaluate("JSON.stringify({ ...localStorage })"))
        self.page.reload()
        expect(self.page.get_by_label("connected")).to_be_visible()
        self.assertFalse(dialog.is_visible())

    def test_conversations(self):
        self.ask("first chat")
        self.page.get_by_role("button", name="New chat").click()
        self.ask("second chat")
        items = self.page.locator("#list .open")
        self.assertEqual(items.all_inner_texts(), ["second chat", "first chat"])
        items.nth(1).click()
        self.assertEqual(self.turns()[0], "first chat")
        self.page.get_by_role("button", name="Delete “first chat”").click()
        self.assertEqual(items.all_inner_texts(), ["second chat"])
        self.page.get_by_role("button", name="Undo").click()
        self.assertEqual(sorted(items.all_inner_texts()), ["first chat", "second chat"])
        self.page.get_by_role("button", name="Clear all").click()
        self.page.get_by_role("button", name="Delete all 2?").click()
        expect(items).to_have_count(0)
        self.assertEqual([key for key in self.page.evaluate("Object.keys(localStorage)") if key.startswith("celer.chat.")], [])

    def test_the_number_of_conversations_is_limited(self):
        self.page.evaluate("""() => {
          const list = Array.from({ length: 60 }, (_, i) => ({ id: `old-${i}`, title: `chat ${i}` }));
          localStorage["celer.chats"] = JSON.stringify(list);
          for (const { id } of list) localStorage[`celer.chat.${id}`] = JSON.stringify([{ role: "user", content: "x".repeat(80000) }]);
        }""")
        self.page.reload()
        expect(self.page.locator("#list li")).to_have_count(60)
        self.ask("one more")
        # The oldest went: one for the number, and more if the browser's room for this page needs it.
        count = self.page.locator("#list li").count()
        self.assertLessEqual(count, 60)
        self.assertEqual(self.page.locator("#list .open").first.inner_text(), "one more")
        keys = [key for key in self.page.evaluate("Object.keys(localStorage)") if key.startswith("celer.chat.")]
        self.assertEqual(len(keys), count)
        self.assertNotIn("celer.chat.old-59", keys)
        self.assertIn("celer.chat.old-0", keys)

    def test_storage_that_makes_no_sense_is_survived(self):
        self.ask("kept")
        for garbage in ('"x"', "[1, null, {}]", "{", '[{"role": "user", "content": "y", "versions": {"tails": 3}}]', "[[[]]]"):
            self.page.evaluate("""(garbage) => {
              for (const key of [...Object.keys(localStorage), "celer.theme", "celer.settings", "celer.draft.new"])
                if (key !== "celer.chats") localStorage[key] = garbage;
            }""", garbage)
            self.page.reload()
            self.ask(f"after {garbage[:3]}")
            self.assertIn(f"after {garbage[:3]}", self.answer())
        self.page.evaluate("localStorage['celer.chats'] = '[1, {\"id\": 7}]'")
        self.page.reload()
        expect(self.page.locator("#list li")).to_have_count(0)
        self.ask("and at the end")
        expect(self.page.locator("#list li")).to_have_count(1)

    def test_two_answers_at_once(self):
        self.server.speed = 60
        self.ask("long", done=False)
        self.is_streaming()
        self.page.get_by_role("button", name="New chat").click()
        self.ask("second")
        expect(self.page.locator("#list li.busy")).to_have_count(1)
        self.page.locator("#list .open", has_text="long").click()
        self.is_streaming()
        self.page.keyboard.press("Escape")
        self.is_done()
        self.assertTrue(self.turns()[1].startswith("1 2 3"))

    def test_scrolling_is_the_readers(self):
        self.server.speed = 500
        self.ask("long", done=False)
        box = "document.getElementById('scroll')"
        below = f"{box}.scrollHeight - {box}.scrollTop - {box}.clientHeight"
        expect(self.answers().last).to_contain_text(" 900 ", timeout=60_000)
        self.assertLess(self.page.evaluate(below), 5)
        self.page.mouse.move(500, 400)
        self.page.mouse.wheel(0, -60)
        expect(self.page.get_by_label("Jump to the latest text")).to_be_visible()
        top = self.page.evaluate(f"{box}.scrollTop")
        self.page.wait_for_timeout(600)
        self.assertEqual(self.page.evaluate(f"{box}.scrollTop"), top)
        self.page.get_by_label("Jump to the latest text").click()
        self.page.wait_for_timeout(600)
        self.assertLess(self.page.evaluate(below), 5)

    def test_growing_code_keeps_its_block(self):
        self.server.speed = 300
        self.ask("code", done=False)
        expect(self.page.locator(".code .hl-f").first).to_be_visible()
        self.page.evaluate("document.querySelector('.code').marked = true")
        self.page.wait_for_timeout(500)
        self.assertTrue(self.page.evaluate("document.querySelector('.code').marked"))
        self.page.keyboard.press("Escape")
        self.is_done()

    def test_light_and_dark(self):
        self.server.speed = 150
        dark = "getComputedStyle(document.querySelector('main')).backgroundColor"
        self.ask("think")
        self.ask("markdown: why is decoding bound by memory?")
        self.page.wait_for_timeout(1100)
        self.shot("light")
        light = self.page.evaluate(dark)
        self.page.emulate_media(color_scheme="dark")
        by_system = self.page.evaluate(dark)
        self.assertNotEqual(by_system, light)
        self.shot("dark")
        self.page.locator("#theme").click()
        self.assertEqual(self.page.evaluate(dark), light)
        self.page.locator("#theme").click()
        self.page.emulate_media(color_scheme="light")
        self.assertEqual(self.page.evaluate(dark), by_system)
        self.page.reload()
        self.assertEqual(self.page.evaluate(dark), by_system)

    def test_it_is_announced(self):
        self.ask("hello")
        say = self.page.locator("#say")
        self.assertEqual(say.get_attribute("aria-live"), "polite")
        expect(say).to_have_text("Answer 1 to “hello”.")


def main():
    global URL, SHOTS
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], add_help=False)
    parser.add_argument("--url")
    parser.add_argument("--shots", type=pathlib.Path)
    args, rest = parser.parse_known_args()
    for missing, what in ((sync_playwright is None, "Playwright (pip install playwright)"),
                          (not CHROMIUM, "Chromium (apt install chromium)")):
        if missing:
            print(f"skipped: this test needs {what}")
            sys.exit(77)
    URL, SHOTS = args.url, args.shots
    if SHOTS:
        SHOTS.mkdir(parents=True, exist_ok=True)
    unittest.main(argv=[sys.argv[0], *rest])


if __name__ == "__main__":
    main()
