#!/usr/bin/env python3
"""What generic kernels need of a GPU, against what GPUs of compute capability 8.0, 8.6 and 12.0 have.

Compiles the CUDA files of a build folder's compile_commands.json as generic code for one architecture after the other (nvcc
alone, no GPU) and reads ptxas' report: registers of a block, static shared memory, and what spills. Dynamic shared memory is
chosen by the host from the same limits, see SharedLimit() in src/kernels/shared/cuda/per_device.h.

  tools/check_cuda_resources.py build --arch 86 [--only matvec]
"""
import argparse
import concurrent.futures
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile

REGISTERS = 64 * 1024           # of a multiprocessor, on all of them
STATIC_SHARED = 48 * 1024       # of a block, without asking
SHARED = {80: 163, 86: 99, 87: 163, 89: 99, 90: 227, 100: 227, 103: 227, 110: 227, 120: 99, 121: 99}  # KB of a block
ENTRY = re.compile(r"Compiling entry function '(\w+)' for 'sm_\w+'")
USED = re.compile(r"Used (\d+) registers")
STATIC = re.compile(r"(\d+) bytes smem")
SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
THREADS = re.compile(r"\.entry (\w+)\([^)]*\)\s*((?:\.\w+ [^\n{]*\s*)*)", re.S)


def commands(build, only):
    with open(os.path.join(build, "compile_commands.json"), encoding="utf-8") as file:
        entries = json.load(file)
    for entry in entries:
        path = entry["file"]
        if path.endswith(".cu") and "celer_cuda_generic" not in entry["command"] and re.search(only, path):
            yield path, entry


def compile_for(entry, arch):
    """The flags of the build, for one architecture; PTX to see how many threads a block has, and ptxas' words."""
    words, out, skip = shlex.split(entry["command"]), [], False
    for word in words:
        if skip:
            skip = False
        elif word in ("-o", "-MT", "-MF", "-c"):
            skip = word != "-c"
        elif word.startswith(("--generate-code", "-gencode", "-MD")) or word == entry["file"] or word.endswith("ccache"):
            continue
        else:
            out.append(word)
    with tempfile.TemporaryDirectory() as folder:
        ptx = os.path.join(folder, "k.ptx")
        made = subprocess.run(out + [f"-arch=compute_{min(arch, 80)}", "-ptx", "-o", ptx, entry["file"]],
                              cwd=entry["directory"], capture_output=True, text=True, check=False)
        if made.returncode != 0:
            return None, "", made.stderr
        with open(ptx, encoding="utf-8") as file:
            text = file.read()
        nvcc = next(word for word in out if word.endswith("nvcc"))
        ptxas = os.path.join(os.path.dirname(os.path.realpath(nvcc)), "ptxas")
        done = subprocess.run([ptxas if os.path.exists(ptxas) else "ptxas", f"-arch=sm_{arch}", "-v", "-o", os.devnull, ptx],
                              capture_output=True, text=True, check=False)
        return done.returncode == 0, text, done.stderr


def threads_of(ptx):
    found = {}
    for name, rest in THREADS.findall(ptx):
        sizes = re.search(r"\.maxntid (\d+)(?:, (\d+))?(?:, (\d+))?", rest)
        found[name] = int(sizes.group(1)) * int(sizes.group(2) or 1) * int(sizes.group(3) or 1) if sizes else 0
    return found


def check(path, entry, arch):
    good, ptx, words = compile_for(entry, arch)
    name = os.path.basename(path)
    if not good:
        return [f"{name}: does not compile for sm_{arch}: {words.strip().splitlines()[-1] if words.strip() else '?'}"], []
    threads, wrong, rows, kernel, spilled = threads_of(ptx), [], [], None, (0, 0, 0)
    for line in words.splitlines():
        if entry_of := ENTRY.search(line):
            kernel = entry_of.group(1)
        if spills := SPILLS.search(line):
            spilled = tuple(int(n) for n in spills.groups())
        if used := USED.search(line):
            registers = int(used.group(1))
            shared = int(STATIC.search(line).group(1)) if STATIC.search(line) else 0
            block = threads.get(kernel, 0)
            rows.append((name, kernel, block, registers, shared, spilled[1] + spilled[2]))
            taken = (registers + 7) // 8 * 8 * max(block, 1)
            if taken > REGISTERS:
                wrong.append(f"{name}: {kernel}: {block} threads of {registers} registers are {taken}, of {REGISTERS}")
            if shared > STATIC_SHARED:
                wrong.append(f"{name}: {kernel}: {shared} bytes of static shared memory, of {STATIC_SHARED}")
    return wrong, rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", help="a build folder with CUDA (CELER_CUDA=ON or TOOLKIT)")
    parser.add_argument("--arch", type=int, nargs="+", default=[80, 86, 120], choices=sorted(SHARED))
    parser.add_argument("--only", default="src/kernels/|src/device/|instances/", help="regular expression of files")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--spills", action="store_true", help="name kernels that spill registers")
    args = parser.parse_args()
    wrong, files = [], list(commands(args.build, args.only))
    if not files:
        sys.exit(f"{args.build}: no CUDA file matches '{args.only}'")
    for arch in args.arch:
        with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
            results = list(pool.map(lambda item, a=arch: check(item[0], item[1], a), files))
        rows = [row for _, some in results for row in some]
        wrong += [f"sm_{arch}: {line}" for lines, _ in results for line in lines]
        spilling = [row for row in rows if row[5] > 0]
        most = max(rows, key=lambda row: row[3] * max(row[2], 1), default=None)
        print(f"sm_{arch}: {len(files)} files, {len(rows)} kernels, {SHARED[arch]} KB of shared memory to a block, "
              f"{len(spilling)} spill" + (f"; most registers: {most[1]} {most[2]} x {most[3]}" if most else ""))
        for row in sorted(spilling, key=lambda r: -r[5]) if args.spills else []:
            print(f"  {row[5]} bytes spilled: {row[0]} {row[1]}")
    for line in wrong:
        print(line)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
