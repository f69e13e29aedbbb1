"""Answers to a conversation, and to several at once. In vLLM the imports are `from vllm import LLM, EngineArgs` and
`from vllm.utils.argparse_utils import FlexibleArgumentParser`.

    python chat.py --model MODEL [--max-tokens 32] [any argument of EngineArgs]
"""
from celer import LLM, EngineArgs
from celer.utils import FlexibleArgumentParser

CONVERSATION = [
    {"role": "system", "content": "You are a helpful assistant"},
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": "Hello! How can I assist you today?"},
    {"role": "user", "content": "Write an essay about the importance of higher education."},
]
SAMPLING = ("max_tokens", "temperature", "top_p", "top_k")


def show(outputs):
    for output in outputs:
        print(f"Prompt: {output.prompt!r}\nGenerated text: {output.outputs[0].text!r}")
    print("-" * 80)


def main():
    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    parser.set_defaults(model="smollm2")
    parser.add_argument("--max-tokens", type=int)
    parser.add_argument("--temperature", type=float)
    parser.add_argument("--top-p", type=float)
    parser.add_argument("--top-k", type=int)
    args = vars(parser.parse_args())
    sampling = {name: args.pop(name) for name in SAMPLING}
    llm = LLM(**args)
    params = llm.get_default_sampling_params()
    for name, value in sampling.items():
        if value is not None:
            setattr(params, name, value)
    show(llm.chat(CONVERSATION, params, use_tqdm=False))
    show(llm.chat([CONVERSATION] * 10, params, use_tqdm=True))


if __name__ == "__main__":
    main()
