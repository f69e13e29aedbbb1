#!/usr/bin/env python3
"""Checks that comments and documentation name only source files that exist.

A file is named by its base name or by the end of its path ("matmul.h", "kernels/llm/matmul/matmul.h"). Under src/ a base name alone
means a file of the same module, one that the file includes, or one outside of src/: elsewhere there may be another of that name.
Patterns ("x_test.cc", "*_fuzz.cc", "<name>.h", "_cuda.cu") stand for a kind of file and are left alone, and so are addresses of
web pages.
"""
import ast
import io
import pathlib
import re
import subprocess
import sys
import tokenize

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDERS = ("src", "include", "bench", "tests", "tools", "cmake", "docs", "examples", "deploy", "python")
NAME = re.compile(r"(?<![\w.*<>{}$/-])((?:[\w-]+/)*[\w-]+\.(?:h|cc|cu|cuh|md|py|cmake|sh))\b(?![\w(*-]|\.\w)")
# C++ comments; strings and characters are matched first, so that "//" inside them is not a comment.
CPP_TOKEN = re.compile(r'R"([^ ()\\]*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|(?<![\da-fA-F])\'(?:\\.|[^\'\\\n])+\'|(//[^\n]*|/\*.*?\*/)', re.S)
INCLUDE = re.compile(r'^\s*#\s*include\s*"(?:[^"]*/)?([^"/]+)"', re.M)
FOREIGN = {  # files of other projects and of the system
    "src/formats/iq/iq4_xs.cc", "src/formats/iq/iq4_xs.h",  # what docs/add_a_format.md adds as its example
    "autotrain/trainers/clm/utils.py", "cuda_runtime_api.h", "llama_cpp/llama_chat_format.py", "xxhash.h",
}


def blank(text):
    return re.sub(r"[^\n]", " ", text)


def cpp_comments(text):
    """The text with everything but comments blanked, so that line numbers stay."""
    out, last = [], 0
    for match in CPP_TOKEN.finditer(text):
        out.append(blank(text[last:match.start()]))
        out.append(match.group() if match.group(2) else blank(match.group()))
        last = match.end()
    return "".join(out) + blank(text[last:])


def hash_comments(text):
    return "\n".join(line[at.end() - 1:] if (at := re.search(r"(?:^|\s)#", line)) else "" for line in text.split("\n"))


def python_comments(text):
    source, lines = text.split("\n"), [""] * (text.count("\n") + 1)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            lines[token.start[0] - 1] = token.string
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines[node.lineno - 1:node.end_lineno] = source[node.lineno - 1:node.end_lineno]
    return "\n".join(lines)


def prose(text):
    return re.sub(r"^```.*?^```", lambda match: blank(match.group()), text, flags=re.S | re.M)


READERS = {".h": cpp_comments, ".cc": cpp_comments, ".cu": cpp_comments, ".cuh": cpp_comments, ".py": python_comments,
           ".md": prose, ".cmake": hash_comments, ".sh": hash_comments, "CMakeLists.txt": hash_comments,
           "Makefile": hash_comments, "presubmit": hash_comments, "layers.txt": hash_comments}


def comments(path):
    reader = READERS.get(path.suffix) or READERS.get(path.name)
    if not reader:
        return ""
    text = path.read_text(encoding="utf-8")
    return reader(text) if NAME.search(text) else ""


def files(root):
    """What git knows of, or would if it was added; everything where there is no repository, as in a test."""
    listed = subprocess.run(["git", "-C", str(root), "ls-files", "-co", "--exclude-standard"], capture_output=True, text=True)
    names = listed.stdout.splitlines() if listed.returncode == 0 else [p.relative_to(root).as_posix() for p in root.rglob("*")]
    return [name for name in names if (root / name).is_file()]


def module(name):
    return "/".join(name.split("/")[:2]) if name.startswith("src/") else ""


def violations(root):
    names = files(root)
    homes = {}  # how a file may be named -> the modules of those that are named so
    for name in names:
        parts = name.split("/")
        for i in range(len(parts)):
            homes.setdefault("/".join(parts[i:]), set()).add(module(name))
    for name in sorted(names):
        if name == "CHANGELOG.md" or ("/" in name and not name.startswith(FOLDERS)):
            continue
        text = comments(root / name)
        included = set(INCLUDE.findall((root / name).read_text(encoding="utf-8"))) if text and module(name) else ()
        for number, line in enumerate(text.split("\n"), 1):
            for found in NAME.findall(re.sub(r"\w+://\S+", "", line)):
                if found in FOREIGN or found in included or re.match(r"x[._]|_", found.rsplit("/", 1)[-1]):
                    continue
                if found not in homes:
                    yield f"{name}:{number}: there is no {found}"
                elif "/" not in found and module(name) and not homes[found] & {module(name), ""}:
                    yield f"{name}:{number}: {found} is in {' and '.join(sorted(homes[found]))}; name it with its folder"


def main():
    root = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT
    found = list(violations(root))
    for line in found:
        print(line)
    print(f"comments: {len(found)} name a file that is not there" if found else "comments: ok")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
