"""What prompt lookup is worth: plain decoding and --speculate lookup take turns on the same prompts.

  python3 bench/end_to_end/speculation.py build-cpu/celer smollm2 [--repeat 7] [--threads 1]

Prints the median of the ratios of decode speeds, one ratio for each pair of runs, so that other work on the machine
disturbs both sides alike. The texts must be the same.
"""

import argparse
import json
import statistics
import subprocess
import sys

TEXT = (
    "The harbour of the old town lies between two long stone piers that were built more than three hundred years ago. "
    "Every morning the fishing boats leave the harbour one after the other and sail out to the open sea. The fishermen "
    "know each rock and each current, because their fathers and grandfathers have fished in the same waters. When the "
    "boats return in the afternoon, the whole town comes to the market to buy fresh fish. Children run along the pier "
    "and count the boats, and old men sit on the benches and talk about the weather. In the evening the lamps are lit, "
    "and from the hill above the town the harbour looks like a necklace of small golden lights."
)
CODE = "\n".join(
    f'    {{"name": "{name}", "symbol": "{symbol}", "number": {number}}},'
    for number, (name, symbol) in enumerate(
        [
            ("hydrogen", "H"),
            ("helium", "He"),
            ("lithium", "Li"),
            ("beryllium", "Be"),
            ("boron", "B"),
            ("carbon", "C"),
            ("nitrogen", "N"),
            ("oxygen", "O"),
            ("fluorine", "F"),
            ("neon", "Ne"),
        ],
        1,
    )
)
PROMPTS = {
    "copies": [
        f"Repeat the following text exactly, word for word:\n\n{TEXT}",
        f"Repeat this list exactly as it is:\n\n{CODE}",
    ],
    "does not help": [
        "Write a short story about a robot who learns to paint.",
        "Explain why the sky is blue, and why it is red in the evening.",
    ],
}


def run(args, prompt, speculate):
    command = [args.celer, "run", args.model, prompt, "--json", "--temperature", "0", "-n", str(args.tokens)]
    command += ["--speculate", speculate, "--threads", str(args.threads), "--device", "cpu"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stderr)
    return json.loads(done.stdout)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("celer")
    parser.add_argument("model")
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=192)
    parser.add_argument("--threads", type=int, default=0)
    args = parser.parse_args()
    for kind, prompts in PROMPTS.items():
        for prompt in prompts:
            ratios, speeds, usage = [], [], {}
            for _ in range(args.repeat):
                plain, drafted = run(args, prompt, "off"), run(args, prompt, "lookup")
                if plain["tokens"] != drafted["tokens"]:
                    sys.exit(f"the texts differ for: {prompt[:60]}")
                usage = drafted["usage"]
                speeds.append(plain["usage"]["decode_tokens_per_s"])
                ratios.append(usage["decode_tokens_per_s"] / speeds[-1])
            print(
                f"{kind:14} {prompt[:36]!r:40} plain {statistics.median(speeds):7.1f} tok/s, with lookup "
                f"{statistics.median(ratios):5.2f} x ({min(ratios):.2f} to {max(ratios):.2f}), "
                f"{usage.get('accepted_tokens', 0)} of {usage.get('drafted_tokens', 0)} drafted tokens accepted",
                flush=True,
            )


if __name__ == "__main__":
    main()
