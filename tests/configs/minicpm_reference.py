"""MiniCPM 1, 2 and 4 on top of transformers' Llama: its own classes come with the models, as code that nothing here runs."""

import sys


def register():
    """Adds the classes to transformers, and to its Auto classes."""
    import transformers
    from transformers.models.llama import modeling_llama as llama
    if hasattr(transformers, "MiniCPMForCausalLM"):
        return

    class MiniCPMConfig(transformers.LlamaConfig):
        model_type = "minicpm"
        scale_emb: float | int = 1
        scale_depth: float | int = 1.0
        dim_model_base: float | int = 1
        tie_word_embeddings: bool = True

    class MiniCPMDecoderLayer(llama.LlamaDecoderLayer):
        def __init__(self, config, layer_idx):
            super().__init__(config, layer_idx)
            self.scale = config.scale_depth / config.num_hidden_layers ** 0.5

        def forward(self, hidden_states, **kwargs):
            branch, _ = self.self_attn(hidden_states=self.input_layernorm(hidden_states), **kwargs)
            hidden_states = hidden_states + branch * self.scale
            return hidden_states + self.mlp(self.post_attention_layernorm(hidden_states)) * self.scale

    class MiniCPMModel(llama.LlamaModel):
        config_class = MiniCPMConfig

        def __init__(self, config):
            super().__init__(config)
            self.layers = llama.nn.ModuleList(
                [MiniCPMDecoderLayer(config, i) for i in range(config.num_hidden_layers)])
            self.post_init()

        def forward(self, input_ids=None, inputs_embeds=None, **kwargs):
            return super().forward(inputs_embeds=self.embed_tokens(input_ids) * self.config.scale_emb, **kwargs)

    class MiniCPMForCausalLM(llama.LlamaForCausalLM):
        config_class = MiniCPMConfig

        def __init__(self, config):
            super().__init__(config)
            self.model = MiniCPMModel(config)
            self.post_init()

        def forward(self, *args, **kwargs):
            out = super().forward(*args, **kwargs)
            out.logits = out.logits / (self.config.hidden_size / self.config.dim_model_base)
            return out

    transformers.AutoConfig.register("minicpm", MiniCPMConfig)
    transformers.AutoModelForCausalLM.register(MiniCPMConfig, MiniCPMForCausalLM)
    # The first lazy import of a part may have put another module in its place.
    for package in (transformers, sys.modules["transformers"]):
        package.MiniCPMConfig, package.MiniCPMForCausalLM = MiniCPMConfig, MiniCPMForCausalLM
