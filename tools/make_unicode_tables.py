#!/usr/bin/env python3
"""Writes src/text/unicode/unicode_tables.cc. Needs Python 3.11 (Unicode 14) and unicodedata2 16.0.

    pip install unicodedata2==16.0.0 && python3 tools/make_unicode_tables.py > src/text/unicode/unicode_tables.cc

Tokenizers must split and normalize as the Hugging Face `tokenizers` package does, which uses three versions
of Unicode: 9.0 for normalization, 16.0 for the categories in regular expressions, and Rust's own for lower case.
"""
import sys
import unicodedata as old
import unicodedata2 as new

assert old.unidata_version == "14.0.0" and new.unidata_version == "16.0.0", "see the first lines of this file"

# What got a decomposition or a combining class after Unicode 9.0 (in 14.0).
AFTER_9 = """7fd 898-89f 8ca-8d3 9fe c3c d3b-d3c eba 1715 1abf-1ace 1df6-1dfa 32ff a7f2-a7f4 a82c ab69 10781-10785
10787-107b0 107b2-107ba 10d24-10d27 10eab-10eac 10f46-10f50 10f82-10f85 11070 1133b 1145e 11839-1183a 11938
1193d-1193e 11943 119e0 11a34 11a47 11a99 11d42 11d44-11d45 11d97 16ff0-16ff1 1e130-1e136 1e2ae 1e2ec-1e2ef 1f16c
1fbf0-1fbf9"""
# Capital letters that came after Unicode 14, with their small ones.
LOWER_AFTER_14 = {0x1C89: 0x1C8A, 0xA7CB: 0x264, 0xA7CC: 0xA7CD, 0xA7CE: 0xA7CF, 0xA7D2: 0xA7D3, 0xA7D4: 0xA7D5,
                  0xA7DA: 0xA7DB, 0xA7DC: 0x19B,
                  **{c: c + 0x20 for c in range(0x10D50, 0x10D66)}, **{c: c + 0x1B for c in range(0x16EA0, 0x16EB9)}}

excluded = set()
for part in AFTER_9.split():
    first, _, last = part.partition("-")
    excluded |= set(range(int(first, 16), int(last or first, 16) + 1))
CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]


def ranges(pairs):
    """[(code point, value)] in order -> [(first, last, value)]"""
    out = []
    for c, value in pairs:
        if out and out[-1][1] == c - 1 and out[-1][2] == value:
            out[-1][1] = c
        else:
            out.append([c, c, value])
    return out


def table(declaration, entries):
    print(f"const {declaration} = {{")
    line = "   "
    for entry in entries:
        if len(line) + len(entry) > 108:
            print(line)
            line = "   "
        line += " " + entry + ","
    print(line + "\n};")


def decomposed(form):
    text, index = [], []
    for c in CODE_POINTS:
        if c in excluded or 0xAC00 <= c < 0xD7A4:  # Hangul syllables follow a formula
            continue
        parts = [ord(x) for x in old.normalize(form, chr(c))]
        # The compatible table holds only what the canonical one does not.
        if parts != [ord(x) for x in (old.normalize("NFD", chr(c)) if form == "NFKD" else chr(c))]:
            index.append((c, len(text), len(parts)))
            text += parts
    return index, text


print("// Written by tools/make_unicode_tables.py; do not edit.\n#include \"text/unicode/unicode_tables.h\"\n")
print("// clang-format off\nnamespace celer::unicode {\n")
table("CombiningClass kCombiningClasses[]",
      [f"{{0x{a:x},0x{b:x},{v}}}" for a, b, v in
       ranges((c, old.combining(chr(c))) for c in CODE_POINTS if old.combining(chr(c)) and c not in excluded)])
print("const size_t kCombiningClassCount = std::size(kCombiningClasses);\n")
for form, name in (("NFD", "Canonical"), ("NFKD", "Compatible")):
    index, text = decomposed(form)
    table(f"Decomposition k{name}[]", [f"{{0x{c:x},{offset},{length}}}" for c, offset, length in index])
    print(f"const size_t k{name}Count = std::size(k{name});\n")
    table(f"char32_t k{name}Text[]", [f"0x{c:x}" for c in text])
    print()
compositions = []
for c in CODE_POINTS:
    parts = old.decomposition(chr(c)).split()
    if c in excluded or len(parts) != 2 or parts[0].startswith("<"):
        continue
    if old.normalize("NFC", chr(c)) == chr(c):  # not one of the composition exclusions
        compositions.append((int(parts[0], 16), int(parts[1], 16), c))
table("Composition kCompositions[]", [f"{{0x{a:x},0x{b:x},0x{c:x}}}" for a, b, c in sorted(compositions)])
print("const size_t kCompositionCount = std::size(kCompositions);\n")
lower = {c: ord(chr(c).lower()) for c in CODE_POINTS if len(chr(c).lower()) == 1 and chr(c).lower() != chr(c)}
lower.update(LOWER_AFTER_14)
print("// U+0130 is missing: its lower case is two code points.")
table("Lower kLower[]", [f"{{0x{c:x},0x{v:x}}}" for c, v in sorted(lower.items())])
print("const size_t kLowerCount = std::size(kLower);\n")
changed = [c for c in CODE_POINTS if old.category(chr(c)) not in ("Cn", new.category(chr(c)))]
print(f"category changes of old characters: {[hex(c) for c in changed]}", file=sys.stderr)
print("// Characters that Unicode 15 to 16 added, with their categories.")
table("NewCategory kNewCategories[]",
      [f"{{0x{a:x},0x{b:x},\"{v}\"}}" for a, b, v in
       ranges((c, new.category(chr(c))) for c in CODE_POINTS
              if old.category(chr(c)) == "Cn" and new.category(chr(c)) != "Cn")])
print("const size_t kNewCategoryCount = std::size(kNewCategories);\n")
print("}  // namespace celer::unicode\n// clang-format on")
