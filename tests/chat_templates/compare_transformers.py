#!/usr/bin/env python3
"""Compares celer's chat templates with transformers' own renderer, byte for byte; both may also refuse.

  compare_transformers.py --renderer R [--random 20000]   our own templates, and random ones
  compare_transformers.py --renderer R --published        the published ones kept here (published/NOTICE.md)
  compare_transformers.py --renderer R --fetched DIR      more published ones, fetched into DIR if they are not there
  compare_transformers.py --renderer R --templates DIR... those in any folders, for example of model repositories:
                                                          *.jinja files, and tokenizer_config.json files

R is build/tests/chat_templates/celer_chat_render; needs `pip install transformers jinja2`.
"""
import argparse
import datetime as real_datetime
import hashlib
import json
import pathlib
import re
import subprocess
import sys

from conversations import CONVERSATIONS
import fetch_published_templates
import random_templates

try:
    from transformers.utils import chat_template_utils as reference
except ImportError:
    print("SKIPPED: needs transformers and jinja2 (pip install transformers jinja2)")
    sys.exit(77)

HERE = pathlib.Path(__file__).resolve().parent
NOW = 1735731000  # 2025-01-01 11:30 UTC: the same day in nearly every time zone
# Enough to notice a change where transformers is not installed.
GOLDEN = ["system and turns", "whitespace", "unicode", "many tools and system", "string arguments, two calls",
          "thoughts", "documents", "text parts", "two users in a row"]


class FixedDatetime(real_datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls.fromtimestamp(NOW, tz)


def load_templates(folders):
    found = []
    for folder in folders:
        for path in sorted(pathlib.Path(folder).rglob("*.jinja")):
            found.append((path.name, path.read_bytes().decode("utf-8")))  # read_text() would change line ends
        for path in sorted(pathlib.Path(folder).rglob("tokenizer_config.json")):
            chat = json.loads(path.read_text(encoding="utf-8")).get("chat_template")
            for entry in chat if isinstance(chat, list) else [{"name": "", "template": chat}] if chat else []:
                found.append((path.parent.name + ":" + entry["name"], entry["template"]))
    return found


def load_own():
    return [(path.name, path.read_bytes().decode("utf-8")) for path in sorted(HERE.glob("*.jinja"))]


def load_published():
    """The files of published/, which must be those that its notice lists, to the byte."""
    notice = (HERE / "published" / "NOTICE.md").read_text(encoding="utf-8")
    listed = dict(re.findall(r"^\| `([^`]+\.jinja)` .* `([0-9a-f]{64})` \|$", notice, re.MULTILINE))
    found = {path.name: path for path in (HERE / "published").glob("*.jinja")}
    if listed.keys() != found.keys():
        raise SystemExit("published/NOTICE.md and the folder differ in: %s" % sorted(listed.keys() ^ found.keys()))
    for name, path in found.items():
        if hashlib.sha256(path.read_bytes()).hexdigest() != listed[name]:
            raise SystemExit("published/%s is not the file that published/NOTICE.md names: its sha256 differs" % name)
    return load_templates([HERE / "published"])


def load_fetched(folder):
    try:
        fetch_published_templates.fetch(pathlib.Path(folder))
    except fetch_published_templates.Unreachable as error:
        print("SKIPPED: %s" % error)
        sys.exit(77)
    kept = {source for _, source in load_published()}
    return [(name, source) for name, source in load_templates([folder]) if source not in kept]


def expected(request):
    arguments = dict(request.get("extra") or {})
    for token in ("bos_token", "eos_token"):
        if request.get(token):
            arguments[token] = request[token]
    try:
        rendered, _ = reference.render_jinja_template(
            conversations=[request["messages"]],
            tools=request.get("tools"),
            documents=arguments.pop("documents", None),
            chat_template=request["template"],
            add_generation_prompt=request["add_generation_prompt"],
            **arguments,
        )
        rendered[0].encode("utf-8")
        return {"text": rendered[0]}
    except Exception as error:  # the template, or what it does, is refused
        return {"error": "%s: %s" % (type(error).__name__, error)}


def write_golden():
    wanted = {name: arguments for name, arguments in CONVERSATIONS if name in GOLDEN}
    templates = {}
    for name, source in load_own():
        templates[name] = []
        for i, (conversation, arguments) in enumerate(wanted.items()):
            request = dict(arguments, template=source, add_generation_prompt=i % 2 == 0, bos_token="<s>", eos_token="</s>")
            templates[name].append({"conversation": conversation, "add_generation_prompt": i % 2 == 0, "text": expected(request).get("text")})
    golden = {"now": NOW, "conversations": wanted, "templates": templates}
    (HERE / "golden.json").write_text(json.dumps(golden, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


class Renderer:
    def __init__(self, path):
        self.process = subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def __call__(self, request):
        self.process.stdin.write(json.dumps(request).encode() + b"\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("the renderer ended at: " + json.dumps(request)[:2000])
        return json.loads(line)


# What Python can do and we refuse, in random templates: integers beyond 128 bits, complex numbers, large outputs.
BEYOND = ("128 bits", "raised to a fraction", "too large", "exceeded", "more than")


def beyond(want, got):
    return "text" in want and any(word in got.get("error", "") for word in BEYOND)


def differ(want, got):
    return want.get("text") != got.get("text") or ("error" in want) != ("error" in got)


def show(name, request, want, got):
    print("DIFFERS: " + name)
    if "error" in want or "error" in got:
        print("  want %r\n  got  %r" % (want, got))
    else:
        a, b = want["text"], got["text"]
        at = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
        print("  at %d: want %r\n        got  %r" % (at, a[max(0, at - 60) : at + 60], b[max(0, at - 60) : at + 60]))
    if len(request["template"]) < 600:
        print("  template %r" % request["template"])


def compare_all(render, templates, least, show_at_most):
    """Every template with every conversation, with and without generation prompt. Returns whether all agree, and each
    template has rendered at least this many: two renderers that refuse everything agree as well."""
    failed = refused = total = 0
    for name, source in templates:
        rendered = 0
        for conversation, arguments in CONVERSATIONS:
            for generation in (True, False):
                request = dict(arguments, template=source, add_generation_prompt=generation, now=NOW, bos_token="<s>", eos_token="</s>")
                want, got = expected(request), render(request)
                total += 1
                rendered += "text" in want
                if differ(want, got):
                    failed += 1
                    if failed <= show_at_most:
                        show("%s, %s, generation prompt %s" % (name, conversation, generation), request, want, got)
        refused += 2 * len(CONVERSATIONS) - rendered
        if rendered < least:
            failed += 1
            print("TOO LITTLE: transformers renders only %d conversations with %s" % (rendered, name))
    print("%d templates, %d comparisons (%d refused by transformers): %d differ" % (len(templates), total, refused, failed))
    return failed == 0


def compare_random(render, count, seed, show_at_most):
    differing = skipped = 0
    for i, request in enumerate(random_templates.generate(count, seed)):
        request["now"] = NOW
        want = expected(request)
        if "text" in want and random_templates.is_unspecified(want["text"]):
            skipped += 1
            continue
        got = render(request)
        if differ(want, got) and not beyond(want, got):
            differing += 1
            if differing <= show_at_most:
                show("random %d" % i, request, want, got)
    print("%d random templates (%d without a fixed answer left out): %d differ" % (count, skipped, differing))
    return differing == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--renderer")
    parser.add_argument("--write-golden", action="store_true", help="write golden.json for the C++ test, and stop")
    parser.add_argument("--random", type=int, default=5000, help="number of random templates beside our own")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--published", action="store_true", help="compare those in published/")
    parser.add_argument("--fetched", metavar="DIR", help="compare those that fetch_published_templates.py fetches")
    parser.add_argument("--templates", nargs="+", metavar="DIR", help="compare those in these folders")
    parser.add_argument("--show", type=int, default=20, help="how many differences to print")
    args = parser.parse_args()
    reference.datetime = FixedDatetime
    # Newer versions give a message's thoughts more names before the template sees it; here both render what was given.
    reference._alias_reasoning_fields = lambda chat: chat
    if args.write_golden:
        return write_golden()
    if not args.renderer:
        parser.error("--renderer is needed")
    render = Renderer(args.renderer)

    own = not (args.published or args.fetched or args.templates)
    templates = load_own() if own else []
    if args.published:
        templates += load_published()
    if args.fetched:
        templates += load_fetched(args.fetched)
    if not args.templates and len(templates) < 20:
        raise SystemExit("only %d templates: at least 20 were expected" % len(templates))
    templates += load_templates(args.templates or [])
    # The strictest of the known ones refuses systems, parts and odd orders, and renders 18.
    agree = compare_all(render, templates, 0 if args.templates else 16, args.show)
    if own:
        agree &= compare_random(render, args.random, args.seed, args.show)
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())
