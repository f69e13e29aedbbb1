"""LoRA adapters with random numbers, as PEFT writes them, for the model of serving.make_model."""
import json
import pathlib
import random
import struct

HIDDEN, WIDE, KV = 64, 128, 64  # 4 heads of 32, 2 of them with keys


def write_safetensors(path, tensors):
    """tensors: {name: (shape, numbers)}, as f32."""
    header, data = {}, b""
    for name, (shape, values) in tensors.items():
        raw = struct.pack(f"<{len(values)}f", *values)
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    pathlib.Path(path).write_bytes(struct.pack("<Q", len(text)) + text + data)


def make_adapter(folder, seed, rank=4, layers=2, hidden=HIDDEN, config=None):
    """A folder with q_proj and v_proj of each layer. Answers with it differ from the model's."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(seed)
    tensors = {}
    for layer in range(layers):
        for module, rows in (("q_proj", WIDE), ("v_proj", KV)):
            name = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            tensors[name + ".lora_A.weight"] = ((rank, hidden), [rng.gauss(0, 0.5) for _ in range(rank * hidden)])
            tensors[name + ".lora_B.weight"] = ((rows, rank), [rng.gauss(0, 0.5) for _ in range(rows * rank)])
    write_safetensors(folder / "adapter_model.safetensors", tensors)
    (folder / "adapter_config.json").write_text(json.dumps(
        {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "target_modules": ["q_proj", "v_proj"], "task_type": "CAUSAL_LM",
         **(config or {})}))
    return folder
