"""Plain Llama, the pattern for the other files of this folder.

FAMILIES has a function for each family; it takes a random.Random and gives
  config   the fields of the transformers configuration, with model_type
  cls      a class of transformers; without it the one that AutoModelForCausalLM takes
  length   tokens of the prompt
  greedy   tokens after it, 64 unless said
  step     True: transformers gets them one by one with its cache, False: all at once; without it either
  refused  a regular expression: celer must say why it does not run this one
  dtype    of the weights, F32, F16 or BF16; without it one of them
  raw      True: config.json is `config` as drawn, False: as transformers saves it; without it either
  ranges   {regular expression: [lowest, highest]} for tensors whose numbers must not be drawn as usual
  weights  the format that celer converts matrices to, "stored" unless said: products with quantized ones round
  form     a name of FORMS, which has functions (case, folder, tensors) that write the model in another way
           and give its path; tensors are (name, dtype, shape, numbers)
"""


def llama(rng):
    kv_heads = rng.choice([1, 2, 3])
    heads = kv_heads * rng.choice([1, 2, 3])
    config = {
        "model_type": "llama",
        "vocab_size": rng.randint(20, 90),
        "hidden_size": heads * rng.randint(2, 8),
        "intermediate_size": rng.randint(5, 60),
        "num_hidden_layers": rng.randint(1, 4),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": rng.choice([4, 6, 10, 16]),
        "max_position_embeddings": 128,
        "rms_norm_eps": rng.choice([1e-5, 1e-3]),
        "hidden_act": rng.choice(["silu", "gelu_pytorch_tanh"]),
        "attention_bias": rng.random() < 0.3,
        "mlp_bias": rng.random() < 0.3,
        "tie_word_embeddings": rng.random() < 0.5,
    }
    return {"config": config, "length": rng.randint(1, 45)}


FAMILIES = {"llama": llama}
