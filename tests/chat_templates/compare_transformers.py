#!/usr/bin/env python3
"""Compares celer's chat templates with transformers' own renderer, byte for byte; both may also refuse.

  compare_transformers.py --renderer build/celer_chat_render [--random 20000] [--templates DIR ...]

needs `pip install transformers jinja2`. --templates names more folders with *.jinja files, for example those of
model repositories; tokenizer_config.json files in them are read too.
"""
import argparse
import datetime as real_datetime
import json
import pathlib
import subprocess
import sys

from conversations import CONVERSATIONS
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
            found.append((path.name, path.read_text(encoding="utf-8")))
        for path in sorted(pathlib.Path(folder).rglob("tokenizer_config.json")):
            chat = json.loads(path.read_text(encoding="utf-8")).get("chat_template")
            for entry in chat if isinstance(chat, list) else [{"name": "", "template": chat}] if chat else []:
                found.append((path.parent.name + ":" + entry["name"], entry["template"]))
    return found


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
    for name, source in load_templates([HERE]):
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


# What Python can do and we refuse: integers beyond 128 bits, complex numbers, large outputs.
BEYOND = ("128 bits", "raised to a fraction", "too large", "exceeded", "more than")


def differ(want, got):
    if "text" in want and any(word in got.get("error", "") for word in BEYOND):
        return False
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


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--renderer")
    parser.add_argument("--write-golden", action="store_true", help="write golden.json for the C++ test, and stop")
    parser.add_argument("--random", type=int, default=5000, help="number of random templates")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--templates", nargs="*", default=[], help="more folders with templates")
    parser.add_argument("--show", type=int, default=20, help="how many differences to print")
    args = parser.parse_args()
    reference.datetime = FixedDatetime
    if args.write_golden:
        return write_golden()
    if not args.renderer:
        parser.error("--renderer is needed")
    render = Renderer(args.renderer)

    templates = load_templates([HERE] + args.templates)
    if len(templates) < 20:
        raise SystemExit("only %d templates in %s" % (len(templates), HERE))
    cases = []
    for name, source in templates:
        for conversation, arguments in CONVERSATIONS:
            for generation in (True, False):
                request = dict(arguments, template=source, add_generation_prompt=generation, now=NOW, bos_token="<s>", eos_token="</s>")
                cases.append(("%s, %s, generation prompt %s" % (name, conversation, generation), request))
    failed = refused = 0
    for name, request in cases:
        want, got = expected(request), render(request)
        refused += "error" in want
        if differ(want, got):
            failed += 1
            if failed <= args.show:
                show(name, request, want, got)
    print("%d templates, %d renderings (%d refused by both): %d differ" % (len(templates), len(cases), refused, failed))

    differing = skipped = 0
    for i, request in enumerate(random_templates.generate(args.random, args.seed)):
        request["now"] = NOW
        want = expected(request)
        if "text" in want and random_templates.is_unspecified(want["text"]):
            skipped += 1
            continue
        got = render(request)
        if differ(want, got):
            differing += 1
            if differing <= args.show:
                show("random %d" % i, request, want, got)
    print("%d random templates (%d without a fixed answer left out): %d differ" % (args.random, skipped, differing))
    return 1 if failed or differing else 0


if __name__ == "__main__":
    sys.exit(main())
