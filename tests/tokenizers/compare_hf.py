#!/usr/bin/env python3
"""Token ids and texts equal to those of `tokenizers` and `sentencepiece`, on many small tokenizers trained here.

    python3 tests/tokenizers/compare_hf.py build/celer [--texts 2000] [--seed 1] [--only NAME]

Every tokenizer sees the same kinds of text: words, code, CJK, emoji, runs of white space and of one character,
control characters, random Unicode, fragments of special tokens, and bytes that are not UTF-8 (which `tokenizers` gets as Python's
decode(errors="replace") makes them). Exit status 77 means that the Python packages are missing.
"""
import argparse
import io
import json
import os
import random
import subprocess
import sys
import tempfile

try:
    import sentencepiece
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
    from tokenizers import trainers
except ImportError as error:
    print(f"skipped: {error}; see tools/requirements.txt")
    sys.exit(77)

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
         r"|\s*[\r\n]+|\s+(?!\S)|\s+")
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK3 = [r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+",
             r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
             r"""| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""]
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<s>", "</s>", "<unk>", "[INST]"]

WORDS = """the of and to in a is that for it as was with be by on not he his but at are this have from or had an they
which one you were her all she there would their we him been has when who will more no if out so said what up its about into
than them can only other new some could time these two may then do first any my now such like our over man me even most made
don't I'll we've you're it's they'd I'm can't Hello World tokenizer inference Straße naïve café Zürich São Ünïcödé déjà vu
Привет мир нещо на български Ελληνικά κείμενο עברית العربية नमस्ते हिन्दी ไทย 한국어 안녕하세요 日本語 東京都 中文 你好世界 我们 的 是""".split()
EMOJI = "😀😂🤖🚀👍🏽👩‍👩‍👧‍👦🇩🇪❤️🦙✨½¼²③Ⅳﬁﬀ"
SPACES = [" ", "  ", "    ", "\t", "\n", "\r\n", "\n\n", " \n ", "\u00a0", "\u3000", "\u2003", "\u2028", "\u0085", "\u180e",
          "\u200b", "\x1c", " " * 17]


def corpus():
    rng = random.Random(7)
    lines = []
    for _ in range(4000):
        lines.append(" ".join(rng.choice(WORDS) for _ in range(rng.randint(2, 14))))
    for name in ("argparse", "ast", "json.decoder", "random", "textwrap"):
        path = __import__(name, fromlist=["x"]).__file__
        lines += open(path, encoding="utf-8").read().split("\n")
    lines += [rng.choice(EMOJI) + " " + str(rng.randint(0, 10 ** 6)) for _ in range(300)]
    return lines


def random_texts(count, seed):
    """Pairs (bytes, is it UTF-8)."""
    rng = random.Random(seed)
    code = open(argparse.__file__, encoding="utf-8").read()

    def scalar():
        while True:
            top = rng.choice([0x7F, 0x24F, 0x7FF, 0x3000, 0xFFFF, 0x1FFFF, 0x323AF, 0x10FFFF])
            value = rng.randint(0, top)
            if not 0xD800 <= value < 0xE000:
                return chr(value)

    def part():
        kind = rng.randrange(13)
        if kind == 11:  # segmentations of the same probability
            return rng.choice(["`", "-", "=", "a", "e", "th", "0", ".", "_", " ", "▁", "é", "中", "😀"]) * rng.randint(2, 40)
        if kind == 12:
            return "".join(rng.choice("\0\x01\x08\x0b\x1f\x7f\x8f\x9f\u00ad\u200b\u200e\u2060\ufeff\ufffd\U000e0041") + rng.choice(["", "a", " "])
                           for _ in range(rng.randint(1, 6)))
        if kind == 0:
            return " ".join(rng.choice(WORDS) for _ in range(rng.randint(1, 12)))
        if kind == 1:
            start = rng.randrange(len(code))
            return code[start:start + rng.randint(1, 200)]
        if kind == 2:
            return "".join(scalar() for _ in range(rng.randint(1, 30)))
        if kind == 3:
            return "".join(rng.choice(SPACES) for _ in range(rng.randint(1, 5)))
        if kind == 4:
            return "".join(rng.choice(EMOJI) for _ in range(rng.randint(1, 6)))
        if kind == 5:
            return rng.choice(SPECIAL) + rng.choice(["", " ", "x", "\n"])
        if kind == 6:  # broken special tokens, byte tokens in the text
            return rng.choice(["<|im_", "end|>", "<0x41>", "<0xE4>", "<", "|>", "[INST", "<s", "s>", "▁", "▁▁the", "Ġthe", "<unk"])
        if kind == 7:
            return str(rng.randint(0, 10 ** rng.randint(1, 15)))
        if kind == 8:  # combining marks in any order
            return rng.choice("aeiouAEOn가각") + "".join(chr(rng.randint(0x300, 0x36F)) for _ in range(rng.randint(1, 5)))
        if kind == 9:
            return rng.choice(["'s", "'S", "'ll", "'RE", "'ſ", "'", "''", "...", "!!!", "--", "://", "==", "\\n", "\0", "\x7f"])
        return "".join(chr(rng.randint(0xAC00, 0xD7A3)) + chr(rng.randint(0x1100, 0x11FF)) for _ in range(3))

    out = [(b"", True), (b" ", True), (b"  ", True), (b"\n", True), ("▁".encode(), True)]
    while len(out) < count:
        text = rng.choice(["", " ", "\n", ""]).join(part() for _ in range(rng.randint(1, 6)))
        data = text.encode()
        valid = True
        if rng.random() < 0.12 and data:
            data = bytearray(data)
            for _ in range(rng.randint(1, 4)):
                at = rng.randrange(len(data))
                if rng.random() < 0.5:
                    data[at] = rng.randint(0x80, 0xFF)
                else:
                    del data[at]
                    if not data:
                        break
            data = bytes(data)
            try:
                data.decode()
            except UnicodeDecodeError:
                valid = False
        out.append((bytes(data), valid))
    return out


def bpe(lines, size=1200, pre=None, norm=None, decoder=None, post=None, special=SPECIAL[:3], added=(), byte_level=True,
        **model):
    tokenizer = Tokenizer(models.BPE(**model))
    if norm:
        tokenizer.normalizer = norm
    if pre:
        tokenizer.pre_tokenizer = pre
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=list(special), show_progress=False, max_token_length=24,
        continuing_subword_prefix=model.get("continuing_subword_prefix") or "",
        end_of_word_suffix=model.get("end_of_word_suffix") or "",
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet() if byte_level else [], limit_alphabet=600)
    tokenizer.train_from_iterator(lines, trainer)
    tokenizer.decoder = decoder or decoders.ByteLevel()
    if post:
        tokenizer.post_processor = post(tokenizer)
    for token in added:
        (tokenizer.add_special_tokens if token.special else tokenizer.add_tokens)([token])
    return tokenizer


def bos(name):
    return lambda t: processors.Sequence([processors.ByteLevel(trim_offsets=False), processors.TemplateProcessing(
        single=f"{name} $A", pair=f"{name} $A {name} $B", special_tokens=[(name, t.token_to_id(name))])])


def edit(tokenizer, change):
    """The same tokenizer with its JSON changed."""
    spec = json.loads(tokenizer.to_str())
    change(spec)
    return Tokenizer.from_str(json.dumps(spec))


def with_byte_fallback(spec):
    """Adds the 256 byte tokens at the end of the vocabulary, and turns the fallback on."""
    model = spec["model"]
    names = [f"<0x{b:02X}>" for b in range(256)]
    if model["type"] == "BPE":
        for name in names:
            model["vocab"][name] = len(model["vocab"])
    else:
        model["vocab"] += [[name, 0.0] for name in names]
    model["byte_fallback"] = True


def split(regex, behavior="isolated", invert=False):
    return pre_tokenizers.Split(Regex(regex), behavior, invert)


def byte_level_splits(*regexes):
    return pre_tokenizers.Sequence([split(r) for r in regexes] +
                                   [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


ADDED = [AddedToken("<|tool|>", special=True), AddedToken("<|left|>", lstrip=True, special=True),
         AddedToken("<|right|>", rstrip=True, special=True), AddedToken("word", single_word=True),
         AddedToken("Café", normalized=True), AddedToken("the of", normalized=False), AddedToken("  ", normalized=False)]
SPECIAL += ["<|tool|>", " <|left|> ", " <|right|>  ", "word", "words", "word.", "Cafe\u0301", "CAFÉ", "the of", "<|left|><|right|> "]


def hugging_face(lines):
    """(name, tokenizer) for every kind of tokenizer.json."""
    p, n, d = pre_tokenizers, normalizers, decoders
    yield "gpt2", bpe(lines, pre=p.ByteLevel(add_prefix_space=False))
    yield "gpt2_prefix_space", bpe(lines, pre=p.ByteLevel(add_prefix_space=True), added=ADDED)
    llama3 = bpe(lines, pre=byte_level_splits(LLAMA3), post=bos("<|im_start|>"))
    yield "llama3", edit(llama3, lambda s: s["model"].update(ignore_merges=True))
    old = json.loads(llama3.to_str())
    old["model"]["merges"] = [" ".join(m) for m in old["model"]["merges"]]
    yield "merges_as_strings", Tokenizer.from_str(json.dumps(old))
    yield "qwen2", bpe(lines, pre=byte_level_splits(QWEN2), norm=n.NFC(), added=ADDED)
    yield "o200k", bpe(lines, pre=byte_level_splits(O200K))
    yield "deepseek3", bpe(lines, pre=byte_level_splits(*DEEPSEEK3))
    yield "smollm", bpe(lines, pre=p.Sequence([p.Digits(individual_digits=True), p.ByteLevel(add_prefix_space=False)]))
    yield "deepseek_coder", bpe(lines, pre=p.Sequence([
        split("[\r\n]"), split(r"\s?\p{L}+"), split(r"\s?\p{P}+"), split("[一-龥ࠀ-一가-퟿]+"), split(r"\s+$"),
        p.Digits(individual_digits=False), p.ByteLevel(add_prefix_space=False, use_regex=False)]))
    llama2 = bpe(lines, byte_level=False, special=["<unk>", "<s>", "</s>"], unk_token="<unk>", fuse_unk=True,
                 pre=p.Metaspace(), post=bos("<s>"),
                 decoder=d.Sequence([d.Replace("▁", " "), d.ByteFallback(), d.Fuse(), d.Strip(" ", 1, 0)]))
    def as_llama2(spec):
        with_byte_fallback(spec)
        spec["pre_tokenizer"] = None
        spec["normalizer"] = json.loads(n.Sequence([n.Prepend("▁"), n.Replace(" ", "▁")]).__getstate__())
    yield "llama2", edit(llama2, as_llama2)
    for scheme in ("first", "always", "never"):
        for cut in (True, False):
            yield f"metaspace_{scheme}_{cut}", edit(
                bpe(lines, byte_level=False, special=["<unk>", "<s>", "</s>"], unk_token="<unk>", added=ADDED,
                    pre=p.Metaspace(prepend_scheme=scheme, split=True), decoder=d.Metaspace(prepend_scheme=scheme)),
                lambda s, cut=cut: s["pre_tokenizer"].update(split=cut))
    for norm in ("NFC", "NFD", "NFKC", "NFKD"):
        for fuse in (True, False):
            yield f"{norm}_fuse_{fuse}", bpe(
                lines, byte_level=False, special=["<unk>"], unk_token="<unk>", fuse_unk=fuse, pre=p.Whitespace(), added=ADDED,
                norm=n.Sequence([getattr(n, norm)(), n.Lowercase(), n.StripAccents(), n.Strip()]), decoder=d.Fuse())
    for behavior in ("isolated", "removed", "contiguous", "merged_with_previous", "merged_with_next"):
        yield f"punctuation_{behavior}", bpe(
            lines, byte_level=False, special=["<unk>"], unk_token="<unk>", decoder=d.Fuse(), norm=n.Replace(Regex(r"\s{2,}"), "_"),
            pre=p.Sequence([p.WhitespaceSplit(), p.Punctuation(behavior), split(r"\w[aeiou]|\d+", behavior, behavior == "removed")]))
    yield "suffix", bpe(lines, byte_level=False, special=["<unk>"], unk_token="<unk>", end_of_word_suffix="</w>",
                        pre=p.BertPreTokenizer(), decoder=d.Fuse())
    yield "word_prefix", bpe(lines, byte_level=False, special=["<unk>"], unk_token="<unk>", continuing_subword_prefix="##",
                             pre=p.Whitespace(), decoder=d.Strip("#", 2, 0))
    for fallback in (True, False):
        unigram = Tokenizer(models.Unigram())
        unigram.normalizer = n.NFKC()
        unigram.pre_tokenizer = p.Metaspace(prepend_scheme="first", split=fallback)
        unigram.decoder = d.Sequence([d.ByteFallback(), d.Metaspace(prepend_scheme="first")])
        unigram.train_from_iterator(lines, trainers.UnigramTrainer(
            vocab_size=1000, special_tokens=["<unk>", "<s>", "</s>"], unk_token="<unk>", show_progress=False))
        yield f"unigram_{fallback}", edit(unigram, with_byte_fallback) if fallback else unigram


    yield from words(lines)


def chars_map(lines):
    """The table of replacements (nmt_nfkc) that the trainer of sentencepiece writes into a model."""
    blob = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(lines[:200]), model_writer=blob, vocab_size=200,
                                             hard_vocab_limit=False, minloglevel=2, normalization_rule_name="nmt_nfkc")

    def fields(data):
        at = 0

        def varint():
            nonlocal at
            value = shift = 0
            while True:
                value |= (data[at] & 127) << shift
                at, shift = at + 1, shift + 7
                if data[at - 1] < 128:
                    return value
        while at < len(data):
            key = varint()
            length = varint() if key & 7 in (0, 2) else 4 if key & 7 == 5 else 8
            if key & 7 == 0:
                continue
            yield key >> 3, data[at:at + length]
            at += length
    spec = next(data for number, data in fields(blob.getvalue()) if number == 3)
    return next(data for number, data in fields(spec) if number == 2)


def words(lines):
    """WordLevel and WordPiece, and the steps that come with them."""
    p, n, d = pre_tokenizers, normalizers, decoders

    def made(model, trainer, pre, norm=None, decoder=None, post=None, added=ADDED):
        tokenizer = Tokenizer(model)
        tokenizer.pre_tokenizer = pre
        if norm:
            tokenizer.normalizer = norm
        tokenizer.train_from_iterator(lines, trainer)
        if decoder:
            tokenizer.decoder = decoder
        if post:
            tokenizer.post_processor = post(tokenizer)
        for token in added:
            (tokenizer.add_special_tokens if token.special else tokenizer.add_tokens)([token])
        return tokenizer

    def level(pre, **rest):
        trainer = trainers.WordLevelTrainer(vocab_size=1500, special_tokens=["<unk>", "<s>", "</s>"], show_progress=False)
        return made(models.WordLevel(unk_token="<unk>"), trainer, pre, **rest)

    def piece(pre, **rest):
        trainer = trainers.WordPieceTrainer(vocab_size=1500, special_tokens=["[UNK]", "[CLS]", "[SEP]"], show_progress=False,
                                            limit_alphabet=400)
        return made(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=20), trainer, pre, **rest)

    ids = lambda t, name: (name, t.token_to_id(name))
    yield "wordlevel_whitespace", level(p.Whitespace())
    yield "wordlevel_split", level(p.WhitespaceSplit(), norm=n.Lowercase(), decoder=d.WordPiece(cleanup=True))
    yield "wordlevel_scripts", level(p.UnicodeScripts(), decoder=d.Fuse())
    yield "wordlevel_scripts_metaspace", level(p.Sequence([p.UnicodeScripts(), p.Metaspace(prepend_scheme="first")]),
                                               decoder=d.Metaspace(prepend_scheme="first"))
    yield "wordlevel_fixed", level(p.FixedLength(length=3), norm=n.NFKD(), decoder=d.Fuse())
    yield "wordlevel_delimiter", level(p.Sequence([p.CharDelimiterSplit("e"), p.Punctuation(), p.Digits(individual_digits=True)]),
                                       norm=n.Nmt(), decoder=d.BPEDecoder(suffix="s"))
    yield "wordlevel_template", level(p.BertPreTokenizer(), norm=n.Sequence([n.Strip(), n.StripAccents()]), post=lambda t: (
        processors.TemplateProcessing(single="<s> $A </s>", pair="<s> $A </s> $B </s>",
                                      special_tokens=[ids(t, "<s>"), ids(t, "</s>")])))
    yield "wordlevel_ctc", level(split("", "isolated"), decoder=d.CTC(pad_token="<s>", word_delimiter_token="t"))
    yield "wordlevel_roberta", level(p.Whitespace(), decoder=d.Sequence([d.Fuse(), d.WordPiece(), d.Strip("t", 2, 0)]), post=lambda t: (
        processors.RobertaProcessing(ids(t, "</s>"), ids(t, "<s>"))))
    yield "bert_uncased", piece(p.BertPreTokenizer(), norm=n.BertNormalizer(), decoder=d.WordPiece(), post=lambda t: (
        processors.BertProcessing(ids(t, "[SEP]"), ids(t, "[CLS]"))))
    for clean in (True, False):
        for chinese in (True, False):
            for accents in (True, False, None):
                yield f"bert_{clean}_{chinese}_{accents}", piece(
                    p.BertPreTokenizer(), decoder=d.WordPiece(cleanup=clean),
                    norm=n.BertNormalizer(clean_text=clean, handle_chinese_chars=chinese, strip_accents=accents, lowercase=not clean))
    yield "wordpiece_whitespace", piece(p.Whitespace(), decoder=d.Sequence([d.WordPiece(prefix="##"), d.Replace("e", "3")]))
    unigram = Tokenizer(models.Unigram())
    unigram.normalizer = n.Sequence([n.Precompiled(chars_map(lines)), n.Replace(Regex(" {2,}"), " ")])
    unigram.pre_tokenizer = p.Metaspace()
    unigram.decoder = d.Metaspace()
    unigram.train_from_iterator(lines, trainers.UnigramTrainer(
        vocab_size=1000, special_tokens=["<unk>", "<s>", "</s>"], unk_token="<unk>", show_progress=False))
    yield "unigram_precompiled", unigram


def sentence_pieces(lines):
    for kind in ("bpe", "unigram"):
        for llama in (True, False):
            blob = io.BytesIO()
            options = dict(byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False,
                           split_digits=True, allow_whitespace_only_pieces=True, user_defined_symbols=["word"]) if llama else {}
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(lines), model_writer=blob, vocab_size=1400, model_type=kind, minloglevel=2,
                character_coverage=0.99, **options)
            yield f"sentencepiece_{kind}_{'llama' if llama else 'default'}", blob.getvalue()


class Failures:
    def __init__(self):
        self.count = 0

    def add(self, name, what, given, expected, got):
        self.count += 1
        if self.count <= 20:
            print(f"{name}: {what} differ\n  given    {given!r:.400}\n  expected {expected!r:.300}\n  got      {got!r:.300}")


def run(celer, model, requests):
    text = "".join(json.dumps(r) + "\n" for r in requests).encode()
    done = subprocess.run(celer + ["tokenize", str(model), "--batch", "-"], input=text, capture_output=True)
    if done.returncode != 0:
        raise SystemExit(f"{model}: {done.stderr.decode(errors='replace')}")
    return [json.loads(line) for line in done.stdout.decode().split("\n") if line]


def compare(name, celer, model, encode, decode, texts, vocab_size, failures, plain=True):
    """encode(bytes, add_special, parse_special), decode(ids, skip_special)"""
    requests, expected = [], []
    for i, (data, _) in enumerate(texts):
        add, parse = i % 2 == 0, i % 3 != 0 or not plain
        requests.append({"hex": data.hex(), "add_special": add, "parse_special": parse})
        expected.append(encode(data, add, parse))
    ids = []
    for (data, _), answer, want in zip(texts, run(celer, model, requests), expected):
        ids.append(answer["ids"])
        if answer["ids"] != want:
            failures.add(name, "ids", data, want, answer["ids"])
    # Back: what was encoded, parts of it (which cut code points), and random ids, some of which do not exist.
    rng = random.Random(5)
    requests, expected = [], []
    for i, line in enumerate(ids):
        if i % 3 == 1 and line:
            line = line[rng.randrange(len(line)):]
        if i % 3 == 2:
            line = [rng.randrange(vocab_size + 3) for _ in range(rng.randint(1, 12))]
        skip = i % 2 == 0
        text = decode(line, skip)
        if text is None:
            continue
        requests.append({"ids": line, "skip_special": skip})
        expected.append(text)
    for request, answer, want in zip(requests, run(celer, model, requests), expected):
        if answer["text"] != want:
            failures.add(name, "texts", request, want, answer["text"])
        if answer["streamed"] != answer["text"]:
            failures.add(name, "stream and text", request, answer["text"], answer["streamed"])


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("celer")
    options.add_argument("--texts", type=int, default=2000)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--only")
    args = options.parse_args()
    lines, failures, compared = corpus(), Failures(), 0
    texts = random_texts(args.texts, args.seed)
    with tempfile.TemporaryDirectory() as folder:
        for name, tokenizer in hugging_face(lines):
            if args.only and args.only not in name:
                continue
            home = os.path.join(folder, name)
            os.mkdir(home)
            tokenizer.save(os.path.join(home, "tokenizer.json"))
            # The original treats special strings in the text of these models as tokens even when told not to.
            plain = not name.startswith(("unigram", "wordlevel"))

            def encode(data, add, parse):
                tokenizer.encode_special_tokens = not parse
                return tokenizer.encode(data.decode(errors="replace"), add_special_tokens=add).ids

            def decode(ids, skip):
                return tokenizer.decode(ids, skip_special_tokens=skip)

            before = failures.count
            compare(name, [args.celer], home, encode, decode, texts, tokenizer.get_vocab_size(), failures, plain)
            compared += len(texts)
            print(f"{name}: {'equal' if failures.count == before else 'DIFFERENT'}")
        for name, blob in sentence_pieces(lines):
            if args.only and args.only not in name:
                continue
            home = os.path.join(folder, name)
            os.mkdir(home)
            with open(os.path.join(home, "tokenizer.model"), "wb") as out:
                out.write(blob)
            processor = sentencepiece.SentencePieceProcessor(model_proto=blob)

            def encode(data, add, parse):  # special strings are plain text for the library
                return ([processor.bos_id()] if add else []) + processor.encode(data)

            def decode(ids, skip):
                if not skip or any(i >= processor.get_piece_size() for i in ids):
                    return None
                return processor.decode(ids)

            before = failures.count
            plain_texts = [t for t in texts if not any(s in t[0] for s in (b"<s>", b"</s>", b"<unk>"))]
            compare(name, [args.celer], home, encode, decode, plain_texts, processor.get_piece_size(), failures)
            compared += len(plain_texts)
            print(f"{name}: {'equal' if failures.count == before else 'DIFFERENT'}")
    print(f"{compared} texts compared, {failures.count} differences")
    return 1 if failures.count else 0


if __name__ == "__main__":
    sys.exit(main())
