"""Embeddings of some texts. In vLLM the imports are `from vllm import LLM, EngineArgs` and
`from vllm.utils.argparse_utils import FlexibleArgumentParser`.

    python embed.py --model MODEL [any argument of EngineArgs]
"""
from celer import LLM, EngineArgs
from celer.utils import FlexibleArgumentParser

PROMPTS = ["Hello, my name is", "The president of the United States is", "The capital of France is", "The future of AI is"]


def main():
    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    parser.set_defaults(model="smollm2", runner="pooling", enforce_eager=True)
    llm = LLM(**vars(parser.parse_args()))
    for prompt, output in zip(PROMPTS, llm.embed(PROMPTS)):
        numbers = output.outputs.embedding
        shown = ", ".join(f"{one:.4f}" for one in numbers[:8])
        print(f"Prompt: {prompt!r}\nEmbedding: [{shown}, ...] (size={len(numbers)})")


if __name__ == "__main__":
    main()
