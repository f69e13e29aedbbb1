#!/usr/bin/env python3
"""What grammars allow, judged by others: texts of random tokens are parsed and validated by `jsonschema`.

    python3 tests/grammar/grammar_test.py build/tests/grammar/celer_grammar_run [--schemas 1000] [--seed 1]

The texts take every allowed token with the same probability, so nothing is owed to a model's good will. Tokenizers: a
byte-level one and one with byte fallback, trained here; and published vocabularies where ../shared/data has them.
Exit status 77 means that the Python packages are missing.
"""
import argparse
import itertools
import json
import lzma
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile

try:
    import jsonschema
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
except ImportError as error:
    print(f"skipped: {error}; see tools/requirements.txt")
    sys.exit(77)

HERE = pathlib.Path(__file__).resolve().parent
VOCABULARIES = HERE.parents[2] / "shared" / "data" / "vocab"
FAILURES = []


def fail(*what):
    FAILURES.append(what)
    if len(FAILURES) <= 20:
        print("FAILED:", *(w if isinstance(w, str) else json.dumps(w, ensure_ascii=False)[:600] for w in what), sep="\n  ")


# Tokenizers

def corpus():
    lines = []
    for name in ("argparse", "ast", "json.decoder", "random", "textwrap"):
        lines += open(__import__(name, fromlist=["x"]).__file__, encoding="utf-8").read().split("\n")
    rng = random.Random(3)
    words = "name age city street tags items value true false null Zürich 東京 Привет नमस्ते 😀 2024-01-31 12:30:00Z".split()
    for _ in range(1500):
        lines.append(json.dumps({rng.choice(words): rng.choice([1, 2.5, True, None, "a b", words, {"a": []}, "x\ny"])
                                 for _ in range(rng.randint(1, 4))}, ensure_ascii=False, indent=rng.choice([None, 1, 2, 4])))
    return lines


def train(folder):
    """A byte-level BPE as GPT-2's, and a BPE over characters with byte tokens as Llama 2's."""
    lines = corpus()
    byte_level = Tokenizer(models.BPE())
    byte_level.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    byte_level.decoder = decoders.ByteLevel()
    byte_level.train_from_iterator(lines, trainers.BpeTrainer(
        vocab_size=3000, special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    fallback = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    fallback.train_from_iterator([line.replace(" ", "▁") for line in lines], trainers.BpeTrainer(
        vocab_size=2000, special_tokens=["<unk>", "<s>", "</s>"], show_progress=False, limit_alphabet=150))
    spec = json.loads(fallback.to_str())
    for byte in range(256):
        spec["model"]["vocab"][f"<0x{byte:02X}>"] = len(spec["model"]["vocab"])
    spec["model"]["byte_fallback"] = True
    spec["normalizer"] = json.loads(normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]).__getstate__())
    fallback = Tokenizer.from_str(json.dumps(spec))
    fallback.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                          decoders.Strip(" ", 1, 0)])
    out = []
    for name, tokenizer, end in (("byte_level", byte_level, "<|im_end|>"), ("byte_fallback", fallback, "</s>")):
        home = pathlib.Path(folder) / name
        home.mkdir()
        tokenizer.save(str(home / "tokenizer.json"))
        (home / "tokenizer_config.json").write_text(json.dumps({"eos_token": end}))
        out.append(home)
    return out


def published(folder):
    for name in ("llama-bpe", "llama-spm"):
        packed = VOCABULARIES / f"ggml-vocab-{name}.gguf.xz"
        if not packed.exists():
            print(f"not here, and left out: {packed.name}")
            continue
        path = pathlib.Path(folder) / f"{name}.gguf"
        path.write_bytes(lzma.open(packed).read())
        yield path


def run(program, tokenizer, requests):
    text = "".join(json.dumps(r) + "\n" for r in requests).encode()
    done = subprocess.run([program, str(tokenizer)], input=text, stdout=subprocess.PIPE, timeout=800)
    if done.returncode != 0:
        raise SystemExit(f"{program} {tokenizer}: ended with {done.returncode}")
    answers = [json.loads(line) for line in done.stdout.decode().split("\n") if line]
    assert len(answers) == len(requests), (len(answers), len(requests))
    for request, answer in zip(requests, answers):
        if answer.get("disagreements"):
            fail("masks and accepted tokens differ", request, answer)
    return answers


# Random schemas

class Schemas:
    """Schemas of the supported keywords. They can all be met."""
    PATTERNS = ["^[a-z]{2,5}$", "[0-9]{3}", "^(foo|bar)+x?$", "^\\d+(\\.\\d{1,2})?$", "a.*b", "^[^\"\\\\]{1,8}$", "é|ü", "^\\S+@\\S+$"]
    FORMATS = ["date", "time", "date-time", "duration", "uuid", "email", "hostname", "ipv4", "ipv6", "uri", "json-pointer"]
    NAMES = ["a", "b", "name", "id", "x y", "ключ", "quote\"", "back\\slash", "tab\t", "", "e/f", "ab", "😀"]

    def __init__(self, rng):
        self.rng = rng
        self.defs = {}

    def document(self):
        rng = self.rng
        if rng.random() < 0.25:
            # A list or a tree that refers to itself.
            self.defs["node"] = {"type": "object", "properties": {
                "value": self.scalar(), "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]},
                "more": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 2}},
                "required": rng.sample(["value", "next", "more"], rng.randint(0, 3)),
                "additionalProperties": rng.choice([False, True])}
        if rng.random() < 0.3:
            self.defs["of/\u0442~x"] = self.schema(1)
        schema = self.schema(3)
        if self.defs:
            schema["$defs"] = self.defs
        if rng.random() < 0.2:
            schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
            schema["title"] = "a title"
        return schema

    def schema(self, depth):
        rng = self.rng
        kind = rng.choice(["object"] * 4 + ["array"] * 2 + ["scalar", "anyOf", "oneOf", "allOf", "ref", "types", "any"]) if depth else "scalar"
        if kind == "scalar":
            return self.scalar()
        if kind == "object":
            return self.object(depth)
        if kind == "array":
            return self.array(depth)
        if kind == "anyOf":
            return {"anyOf": [self.schema(depth - 1) for _ in range(rng.randint(1, 3))]}
        if kind == "oneOf":
            if rng.random() < 0.5:
                return {"oneOf": [{"type": "string", "maxLength": 4}, {"type": "integer"}, self.array(depth - 1)]}
            return {"oneOf": [{"type": "object", "required": ["kind"], "additionalProperties": False,
                               "properties": {"kind": {"const": name}, "value": self.schema(depth - 1)}}
                              for name in ("one", "two", "three")[:rng.randint(1, 3)]]}
        if kind == "allOf":
            return rng.choice([
                {"type": "object", "allOf": [{"properties": {"a": self.schema(depth - 1)}, "required": ["a"]},
                                             {"properties": {"b": self.schema(depth - 1), "a": {}}, "additionalProperties": {"type": "integer"}}]},
                {"allOf": [{"type": "integer"}, {"minimum": -5}, {"exclusiveMaximum": 40}, {"multipleOf": 3}]},
                {"allOf": [{"type": "string", "minLength": 2}, {"maxLength": 6}, {"pattern": "^[a-f]+$"}]}])
        if kind == "ref" and self.defs:
            return {"$ref": "#/$defs/" + rng.choice(list(self.defs)).replace("~", "~0").replace("/", "~1")}
        if kind == "types":
            return {"type": rng.sample(["null", "boolean", "integer", "number", "string", "object", "array"], 3), "maxLength": 5, "maxItems": 2,
                    "minimum": -3, "maxProperties": 2}
        return rng.choice([{}, {"type": "object"}, {"type": "array"}, {"description": "anything"}])

    def scalar(self):
        rng = self.rng
        kind = rng.randrange(12)
        if kind == 0:
            return {"type": rng.choice(["string", "integer", "number", "boolean", "null"])}
        if kind == 1:
            low = rng.randint(0, 5)
            return {"type": "string", "minLength": low, "maxLength": low + rng.choice([0, 1, 3, 20])}
        if kind == 2:
            return {"type": "string", "pattern": rng.choice(self.PATTERNS)}
        if kind == 3:
            return {"type": "string", "format": rng.choice(self.FORMATS)}
        if kind == 4:
            low = rng.randint(-10 ** rng.randint(0, 12), 10 ** rng.randint(0, 12))
            return {"type": "integer", "minimum": low, "maximum": low + rng.choice([0, 1, 9, 10, 12345, 10 ** 9])}
        if kind == 5:
            return {"type": "integer", rng.choice(["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"]): rng.randint(-1000, 1000)}
        if kind == 6:
            low = round(rng.uniform(-100, 100), rng.randint(0, 4))
            return {"type": "number", rng.choice(["minimum", "exclusiveMinimum"]): low,
                    rng.choice(["maximum", "exclusiveMaximum"]): round(low + rng.choice([0.5, 1, 7.25, 1000]), 5)}
        if kind == 7:
            return {"type": "number", rng.choice(["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"]): rng.choice([0, 0.5, -0.25, 3, 1e3, 123.456])}
        if kind == 8:
            return {"type": "integer", "multipleOf": rng.choice([1, 2, 7, 10, 365]), "minimum": rng.choice([-1000, 0, 50])}
        if kind == 9:
            return {"enum": rng.sample(["a", "b\n", "\"q\"", "é", 1, -2.5, True, None, ["x", 1], {"k": "v"}, "", "日本"], rng.randint(1, 5))}
        if kind == 10:
            return {"const": rng.choice(["fixed", 0, None, [1, [2]], {"a": {"b": []}}])}
        return {"type": "string", "pattern": "^[a-z]*$", "minLength": 1, "maxLength": rng.randint(3, 40)}

    def array(self, depth):
        rng = self.rng
        out = {"type": "array"}
        if rng.random() < 0.8:
            out["items"] = self.schema(depth - 1) if depth else self.scalar()
        if rng.random() < 0.3:
            out["prefixItems"] = [self.scalar() for _ in range(rng.randint(1, 3))]
            if rng.random() < 0.3:
                out["items"] = False
        low = rng.randint(0, len(out["prefixItems"]) if out.get("items") is False else 2)
        if rng.random() < 0.6:
            out["minItems"] = low
        if rng.random() < 0.8:
            out["maxItems"] = low + rng.randint(0, 3)
        return out

    def object(self, depth):
        rng = self.rng
        names = rng.sample(self.NAMES, rng.randint(0, 5))
        out = {"type": "object"} if rng.random() < 0.9 or not names else {}
        out["properties"] = {name: self.schema(depth - 1) for name in names}
        out["required"] = [name for name in names if rng.random() < 0.5]
        more = rng.random()
        if more < 0.5:
            out["additionalProperties"] = False
        elif more < 0.7:
            out["additionalProperties"] = self.scalar()
        if rng.random() < 0.15:
            out["patternProperties"] = {"^x_": self.scalar(), "^[0-9]+$": self.scalar()}
        if rng.random() < 0.1:
            out["propertyNames"] = {"maxLength": 12}
        if rng.random() < 0.2:
            out["maxProperties"] = len(out["required"]) + rng.randint(0, 2)
        if names and rng.random() < 0.2:
            out["minProperties"] = min(rng.randint(0, len(names)), out.get("maxProperties", 9))
        return out


FORMAT_CHECKER = jsonschema.FormatChecker()
# Those that jsonschema checks only with further packages.
FORMAT_PATTERNS = {
    "time": r"\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)", "date-time": r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)",
    "duration": r"P(?=.)(\d+W|(\d+Y)?(\d+M)?(\d+D)?(T(?=.)(\d+H)?(\d+M)?(\d+S)?)?)", "hostname": r"(?!-)[A-Za-z0-9.-]{1,253}(?<!-)",
    "uri": r"[A-Za-z][A-Za-z0-9+.-]*:[!-~]*", "json-pointer": r"(/([^~/]|~[01])*)*"}
for _name, _pattern in FORMAT_PATTERNS.items():
    FORMAT_CHECKER.checks(_name)(lambda text, p=re.compile(_pattern, re.S): not isinstance(text, str) or bool(p.fullmatch(text)))


def check_random_schemas(program, tokenizer, count, seed):
    rng = random.Random(seed)
    schemas = [Schemas(random.Random(rng.random())).document() for _ in range(count)]
    requests = [{"schema": schema, "sample": 2, "seed": i, "max_tokens": 80, "space": ("flexible", "single", "none")[i % 3]}
                for i, schema in enumerate(schemas)]
    refused, texts = 0, 0
    for schema, answer in zip(schemas, run(program, tokenizer, requests)):
        if "error" in answer:
            refused += 1
            if "no text matches" not in answer["error"]:
                fail("refused", answer["error"], schema)
            continue
        validator = jsonschema.Draft202012Validator(schema, format_checker=FORMAT_CHECKER)
        for hexed in answer["samples"]:
            texts += 1
            try:
                text = bytes.fromhex(hexed).decode()
                value = json.loads(text)
                validator.validate(value)
            except (UnicodeDecodeError, json.JSONDecodeError) as error:
                fail("not JSON", str(error), bytes.fromhex(hexed).decode(errors="replace"), schema)
            except jsonschema.ValidationError as error:
                fail("not valid", error.message[:300], text, schema)
    if refused > count // 10:
        fail(f"{refused} of {count} random schemas were refused")
    return f"{texts} texts of {count - refused} random schemas"


# Regular expressions, judged by Python's

def random_regex(rng, depth):
    kind = rng.randrange(9) if depth else rng.randrange(4)
    if kind < 3:
        return rng.choice(["a", "b", "ab", "é", "日", "[a-c]", "[^a]", ".", "[0-9x-]", "\\d", "\\.", "a{2,30}", "[ab]{1,12}", "x?", " ", "-"])
    if kind == 3:
        return rng.choice(["hello", "[a-z]*", "[^\\n]{0,20}", "(?:)", "\\w+", "[a-z]{3,200}"])
    if kind < 6:
        return "".join(random_regex(rng, depth - 1) for _ in range(rng.randint(1, 3)))
    if kind == 6:
        return "(" + "|".join(random_regex(rng, depth - 1) for _ in range(rng.randint(1, 3))) + ")"
    return "(?:" + random_regex(rng, depth - 1) + ")" + rng.choice(["*", "+", "?", "{2}", "{0,3}", "{1,}", "{2,5}", "*?"])


def check_regexes(program, tokenizer, count, seed):
    rng = random.Random(seed)
    patterns = [random_regex(rng, 3) for _ in range(count)]
    texts = [["".join(rng.choice("aab bcx0-é日.hello\n") for _ in range(rng.randint(0, 6))) for _ in range(10)] for _ in patterns]
    requests = [{"regex": p, "sample": 3, "seed": i, "max_tokens": 25, "accept": t} for i, (p, t) in enumerate(zip(patterns, texts))]
    right = 0
    for pattern, tried, answer in zip(patterns, texts, run(program, tokenizer, requests)):
        if "error" in answer:
            if "states" not in answer["error"] and "too long" not in answer["error"]:
                fail("refused", pattern, answer["error"])
            continue
        matcher = re.compile(pattern, re.ASCII)
        for hexed in answer["samples"]:
            # The end may be in the middle of a character if the tokens are; the grammar must not allow that.
            text = bytes.fromhex(hexed).decode(errors="replace")
            right += 1
            if not matcher.fullmatch(text):
                fail("sampled, but no match", pattern, text)
        for text, accepted in zip(tried, answer["accepted"]):
            right += 1
            if accepted != bool(matcher.fullmatch(text)):
                fail("accepted and matched differ", pattern, text)
    return f"regular expressions: {right} texts of {count} patterns"


# The test suite of JSON Schema

def spellings(value, order):
    """Texts for a value: names in the order of the schema, then in every order; whole floats also as integers."""
    if isinstance(value, dict):
        names = sorted(value, key=lambda name: order.index(name) if name in order else len(order))
        orders = [names] + ([list(p) for p in itertools.permutations(value)] if len(value) <= 4 else [])
        for names in orders:
            for parts in itertools.product(*([json.dumps(n, ensure_ascii=False) + ":" + s for s in spellings(value[n], order)][:4] for n in names)):
                yield "{" + ",".join(parts) + "}"
    elif isinstance(value, list):
        for parts in itertools.product(*(list(spellings(item, order))[:4] for item in value[:8])):
            yield "[" + ",".join(list(parts) + [json.dumps(v, ensure_ascii=False) for v in value[8:]]) + "]"
    else:
        yield json.dumps(value, ensure_ascii=False)
        if isinstance(value, float) and value.is_integer():
            yield str(int(value))


def names_of(schema):
    if isinstance(schema, dict):
        for key, value in schema.items():
            yield key
            yield from names_of(value)
    elif isinstance(schema, list):
        for value in schema:
            yield value if isinstance(value, str) else ""
            yield from names_of(value)


# Valid values that are never written, by description: leap seconds, small letters, and rare forms of addresses.
NOT_WRITTEN = {
    "optional/format/date-time": ["leap second", "case-insensitive"],
    "optional/format/time": ["leap second", "case-insensitive"],
    "optional/format/email": ["quoted string", "address-literal"],
    "optional/format/ipv6": ["mixed format"],
}


def check_suite(program, tokenizer):
    groups = [json.loads(line) for line in (HERE / "json_schema_test_suite" / "draft2020-12.jsonl").read_text().split("\n") if line]
    requests = []
    for group in groups:
        order = list(names_of(group["schema"]))
        candidates = [list(itertools.islice(spellings(test["data"], order), 64)) for test in group["tests"]]
        requests.append({"schema": group["schema"], "strict_types": True, "accept": sum(candidates, []),
                         "counts": [len(c) for c in candidates]})
    supported, refused, right, unwritten = 0, {}, 0, 0
    for group, request, answer in zip(groups, requests, run(program, tokenizer, requests)):
        where = f"{group['file']}: {group['description']}"
        if "error" in answer:
            refused[answer["error"]] = where
            if "no text matches" in answer["error"]:
                for test in group["tests"]:
                    if test["valid"]:
                        fail("valid, but no text matches", where, test)
            elif "not supported" not in answer["error"] and "must be" not in answer["error"]:
                fail("refused without a name", where, answer["error"], group["schema"])
            continue
        supported += 1
        accepted = iter(answer["accepted"])
        for test, count in zip(group["tests"], request["counts"]):
            verdict = any(list(itertools.islice(accepted, count)))
            if verdict == test["valid"]:
                right += 1
            elif verdict:
                fail("accepted, but not valid", where, test, group["schema"])
            elif any(word in test["description"] for word in NOT_WRITTEN.get(group["file"], [])):
                unwritten += 1
            else:
                fail("valid, but not accepted", where, test, group["schema"])
    if supported < 100:
        fail(f"only {supported} groups of the test suite are supported")
    return f"test suite: {supported} groups of {len(groups)}, {right} values right, {unwritten} valid ones that are never written"


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("program")
    options.add_argument("--schemas", type=int, default=1000)
    options.add_argument("--seed", type=int, default=1)
    args = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        trained = train(folder)
        print(check_suite(args.program, trained[0]))
        print(check_regexes(args.program, trained[0], max(args.schemas // 3, 1), args.seed))
        for home in trained:
            print(f"{home.name}: {check_random_schemas(args.program, home, args.schemas, args.seed)}")
        for path in published(folder):
            print(f"{path.name}: {check_random_schemas(args.program, path, args.schemas // 8, args.seed + 1)}")
    if FAILURES:
        print(f"{len(FAILURES)} failures")
    return 1 if FAILURES else 0


if __name__ == "__main__":
    sys.exit(main())
