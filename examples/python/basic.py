"""Texts for some prompts. In vLLM the import is `from vllm import LLM, SamplingParams`.

    python basic.py [MODEL]
"""
import sys

from celer import LLM, SamplingParams

PROMPTS = ["Hello, my name is", "The president of the United States is", "The capital of France is", "The future of AI is"]


def main():
    llm = LLM(model=sys.argv[1] if len(sys.argv) > 1 else "smollm2")
    for output in llm.generate(PROMPTS, SamplingParams(temperature=0.8, top_p=0.95)):
        print(f"Prompt: {output.prompt!r}, generated text: {output.outputs[0].text!r}")


if __name__ == "__main__":
    main()
