#!/usr/bin/env python3
"""Writes src/text/unicode/unicode_tables.bin: what tokenizers and chat templates know about characters.

    python3 tools/make_unicode_tables.py            needs Python 3.11 and the packages of tools/requirements.txt
    python3 tools/make_unicode_tables.py --check    compares; 77 where the tables cannot be made here

Text must be split, normalized and rendered as the models were taught, by programs that have different versions of Unicode:

    Hugging Face `tokenizers`: 9.0 for normalization, 16.0 for the categories in regular expressions, Rust's own for lower
    case, and older ones for BertNormalizer and UnicodeScripts, found by asking it
    Python's str methods and html.unescape(), which Jinja uses: 14.0, that of Python 3.11

The file is little-endian. It has a magic word, the version of the format, the number of tables and a line of text with the
versions of Unicode; then for each table the offset of its first byte, its records and the bytes of one record; then the
tables. Their order and records are those of struct Tables in src/text/unicode/unicode_tables.h. A table that is searched by code
point is followed by a table of pages: the first record of each 256 code points.
"""
import bisect
import html
import html.entities
import pathlib
import struct
import sys
import unicodedata

FILE = pathlib.Path(__file__).resolve().parent.parent / "src/text/unicode/unicode_tables.bin"
MAGIC, FORMAT = b"celerUCD", 1
VERSIONS = b"tokenizers: Unicode 9.0 and 16.0; Python: Unicode 14.0"
CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]

# What got a decomposition or a combining class after Unicode 9.0 (in 14.0).
AFTER_9 = """7fd 898-89f 8ca-8d3 9fe c3c d3b-d3c eba 1715 1abf-1ace 1df6-1dfa 32ff a7f2-a7f4 a82c ab69 10781-10785
10787-107b0 107b2-107ba 10d24-10d27 10eab-10eac 10f46-10f50 10f82-10f85 11070 1133b 1145e 11839-1183a 11938
1193d-1193e 11943 119e0 11a34 11a47 11a99 11d42 11d44-11d45 11d97 16ff0-16ff1 1e130-1e136 1e2ae 1e2ec-1e2ef 1f16c
1fbf0-1fbf9"""
# Capital letters that came after Unicode 14, with their small ones.
LOWER_AFTER_14 = {0x1C89: 0x1C8A, 0xA7CB: 0x264, 0xA7CC: 0xA7CD, 0xA7CE: 0xA7CF, 0xA7D2: 0xA7D3, 0xA7D4: 0xA7D5,
                  0xA7DA: 0xA7DB, 0xA7DC: 0x19B,
                  **{c: c + 0x20 for c in range(0x10D50, 0x10D66)}, **{c: c + 0x1B for c in range(0x16EA0, 0x16EB9)}}
CATEGORIES = """Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Co""".split()
FLAGS = [  # bit order is fixed by enum CharFlag in src/text/template/jinja/unicode.h
    str.isspace, str.isprintable, str.isalpha, str.isdecimal, str.isdigit, str.isnumeric, str.isupper, str.islower,
    lambda c: unicodedata.category(c) == "Lt",
]


# Forms of records (see struct), and which field they are sorted and found by.
RANGE = ("III", lambda row: row[1])
REPLACEMENT = ("IHH", lambda row: row[0])
COMPOSITION = ("III", lambda row: row[0])
CASE_RUN = ("IIIi", lambda row: row[1])
CHAR_CLASS = ("I", lambda row: row[0] & 0x1FFFFF)
NEW_CATEGORY, HTML_ENTITY, BYTE, CODE_POINT = ("III", None), ("HHHH", None), ("B", None), ("I", None)


def candidates(unchanged):
    """Code points, without those whose whole block of 256 is `unchanged`: asking for each of a million takes long."""
    for at in range(0, len(CODE_POINTS), 256):
        block = CODE_POINTS[at:at + 256]
        if not unchanged("".join(map(chr, block))):
            yield from block


class Pool:
    """Texts that records name by offset and length."""

    def __init__(self):
        self.items = []

    def add(self, items):
        at = len(self.items)
        self.items += items
        return at, len(items)


def ranges(pairs):
    """[(code point, value)] in order -> [(first, last, value)]"""
    out = []
    for c, value in pairs:
        if out and out[-1][1] == c - 1 and out[-1][2] == value:
            out[-1][1] = c
        else:
            out.append([c, c, value])
    return out


def unmarked_ranges(code_points):
    return ranges((c, 0) for c in code_points)


def runs(mapping):
    """Runs (first, last, step, delta) of characters that all move by delta; step is 1 or 2."""
    out = []
    for c, to in sorted(mapping.items()):
        if out:
            first, last, step, delta = out[-1]
            if delta == to - c and (c - last == step or (first == last and c - last in (1, 2))):
                out[-1] = (first, c, c - last, delta)
                continue
        out.append((c, c, 1, to - c))
    return out


def normalization(pool):
    """Combining classes, full canonical and compatible decompositions, and compositions."""
    excluded = set()
    for part in AFTER_9.split():
        first, _, last = part.partition("-")
        excluded |= set(range(int(first, 16), int(last or first, 16) + 1))
    canonical, compatible, compositions = [], [], []
    for c in CODE_POINTS:
        if c in excluded or 0xAC00 <= c < 0xD7A4:  # Hangul syllables follow a formula
            continue
        nfd, nfkd = (unicodedata.normalize(form, chr(c)) for form in ("NFD", "NFKD"))
        if nfd != chr(c):
            canonical.append((c, *pool.add([ord(x) for x in nfd])))
        if nfkd != nfd:  # only what the canonical table does not have
            compatible.append((c, *pool.add([ord(x) for x in nfkd])))
        parts = unicodedata.decomposition(chr(c)).split()
        if len(parts) == 2 and not parts[0].startswith("<") and unicodedata.normalize("NFC", chr(c)) == chr(c):
            compositions.append((int(parts[0], 16), int(parts[1], 16), c))  # no composition exclusion
    classes = ranges((c, unicodedata.combining(chr(c))) for c in CODE_POINTS
                     if unicodedata.combining(chr(c)) and c not in excluded)
    return [(RANGE, classes), (REPLACEMENT, canonical), (REPLACEMENT, compatible), (COMPOSITION, sorted(compositions))]


def lower_case():
    """U+0130 is missing: its lower case is two code points."""
    lower = {c: ord(chr(c).lower()) for c in CODE_POINTS if c >= 0x80 and len(chr(c).lower()) == 1 and chr(c).lower() != chr(c)}
    return [(CASE_RUN, runs(lower | LOWER_AFTER_14))]


def new_categories(normalizers, Regex):
    """Characters that Unicode 15 to 16 added, with their categories: two letters, the first in the lowest byte."""
    def matching(category, text):
        return normalizers.Replace(Regex(r"\P{%s}" % category), "").normalize_str(text)

    unassigned = "".join(chr(c) for c in CODE_POINTS if unicodedata.category(chr(c)) == "Cn")
    added = normalizers.Replace(Regex(r"\p{Cn}"), "").normalize_str(unassigned)
    found = [(ord(x), category) for category in CATEGORIES for x in matching(category, added)]
    return [(NEW_CATEGORY, ranges((c, int.from_bytes(category.encode(), "little")) for c, category in sorted(found)))]


def bert(normalizers):
    """What BertNormalizer's clean_text removes, and what its strip_accents does."""
    def normalizer(**what):
        options = dict(clean_text=False, handle_chinese_chars=False, strip_accents=False, lowercase=False)
        return normalizers.BertNormalizer(**dict(options, **what)).normalize_str

    clean, strip, nfd = normalizer(clean_text=True), normalizer(strip_accents=True), normalizers.NFD().normalize_str
    controls = [c for c in candidates(lambda text: clean(text) == text) if clean("a%sb" % chr(c)) == "ab"]
    marks = [c for c in candidates(lambda text: strip(text) == text)
             if strip("a%sb" % chr(c)) == "ab" and nfd(chr(c)) == chr(c)]
    return [(RANGE, unmarked_ranges(controls)), (RANGE, unmarked_ranges(marks))]


def scripts(cut):
    """As UnicodeScripts has them, numbered in order of appearance; characters that belong to any script are left out."""
    def differ(a, b):
        return len(cut(a + b)) > 1

    found, previous = [], None
    def of_any_script(text):  # neither Latin nor Cyrillic differs
        return not differ("a", text) and not differ("\u044f", text)

    for c in candidates(of_any_script):
        if of_any_script(chr(c)):
            continue
        if previous == c - 1 and not differ(chr(previous), chr(c)):
            found[-1][1] = c
        else:
            found.append([c, c])
        previous = c
    known, out = [], []
    for first, last in found:
        number = next((i for i, other in enumerate(known) if not differ(chr(other), chr(first))), len(known))
        if number == len(known):
            known.append(first)
        out.append((first, last, number + 1))
    return [(RANGE, out)]


def python_methods(pool):
    """The last character of each run of equal class, with the class above 21 bits; then how each case is changed."""
    classes = ranges((c, sum(1 << i for i, test in enumerate(FLAGS) if test(chr(c)))) for c in range(0x110000))
    tables = [(CHAR_CLASS, [(flags << 21 | last,) for _, last, flags in classes])]
    for method in (str.upper, str.lower, str.title, str.casefold):
        changed = {c: method(chr(c)) for c in CODE_POINTS if c >= 0x80 and method(chr(c)) != chr(c)}
        tables.append((CASE_RUN, runs({c: ord(to) for c, to in changed.items() if len(to) == 1})))
        tables.append((REPLACEMENT, [(c, *pool.add([ord(x) for x in to])) for c, to in changed.items() if len(to) > 1]))
    return tables


def html_references(pool):
    """Named references, with their semicolon if they need one; numbers that stand for another character, or for none."""
    names = Pool()
    entities = [(*names.add(list(name.encode())), *pool.add([ord(x) for x in text]))
                for name, text in sorted(html.entities.html5.items())]
    numbers = [(c, *pool.add([ord(x) for x in text])) for c, text in sorted(html._invalid_charrefs.items())]
    return [(HTML_ENTITY, entities), (BYTE, [(c,) for c in names.items]), (REPLACEMENT, numbers),
            (RANGE, unmarked_ranges(sorted(html._invalid_codepoints)))]


def make():
    from tokenizers import Regex, normalizers, pre_tokenizers

    pool = Pool()
    tables = (normalization(pool) + lower_case() + new_categories(normalizers, Regex) + bert(normalizers)
              + scripts(pre_tokenizers.UnicodeScripts().pre_tokenize_str) + python_methods(pool) + html_references(pool))
    tables.append((CODE_POINT, [(c,) for c in pool.items]))
    packed = []
    for (form, key), rows in tables:
        packed.append((form, rows))
        if key:
            keys = [key(row) for row in rows]
            packed.append(("H", [(bisect.bisect_left(keys, page << 8),) for page in range((keys[-1] >> 8) + 2)]))
    head, body = b"", b""
    start = 80 + 12 * len(packed)
    for form, rows in packed:
        body += bytes(-len(body) % 4)
        head += struct.pack("<III", start + len(body), len(rows), struct.calcsize("<" + form))
        body += b"".join(struct.pack("<" + form, *row) for row in rows)
    return struct.pack("<8sII64s", MAGIC, FORMAT, len(packed), VERSIONS) + head + body


def main():
    check = "--check" in sys.argv[1:]
    try:
        import tokenizers  # noqa: F401
    except ImportError:
        sys.exit(77 if check else "pip install -r tools/requirements.txt")
    if unicodedata.unidata_version != "14.0.0":
        sys.exit(77 if check else "Python %s has Unicode %s; use Python 3.11" % (sys.version, unicodedata.unidata_version))
    made = make()
    if not check:
        FILE.write_bytes(made)
    elif made != FILE.read_bytes():
        sys.exit("%s is not what tools/make_unicode_tables.py makes" % FILE)


if __name__ == "__main__":
    main()
