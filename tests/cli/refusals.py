"""What a command must do with bad input: one sentence that says what is wrong, and nothing left behind."""
import subprocess


def complaints(celer, command, cases, folder):
    """`cases` are (arguments, words of the sentence). Returns what was wrong; `folder` is where outputs would be."""
    found = []
    before = sorted(p.name for p in folder.iterdir())
    for args, words in cases:
        done = subprocess.run([celer, command, *map(str, args)], capture_output=True, text=True, timeout=600)
        if done.returncode in (0, 134, 139):
            found.append(f"{command} {args}: exit code {done.returncode}")
        if not done.stderr.startswith("error:") or words not in done.stderr:
            found.append(f"{command} {args}: {done.stderr}")
        if len(done.stderr.strip().splitlines()) != 1:
            found.append(f"{command} {args}: more than a sentence: {done.stderr}")
    if before != sorted(p.name for p in folder.iterdir()):
        found.append("a failed run left files behind")
    return found
