// The operators of a decoder with what tokens add to their products (low_rank.h). Each stands with its operator.
#pragma once

#include "kernels/llm/embed/embed.h"
#include "kernels/llm/gate_up/gate_up.h"
#include "kernels/llm/latent/latent.h"
#include "kernels/llm/logits/logits.h"
#include "kernels/llm/low_rank/low_rank.h"
#include "kernels/llm/matmul/matmul.h"
#include "kernels/llm/moe/moe.h"
#include "kernels/llm/qkv/qkv.h"

namespace celer {

// Tokens are rows of x, also where args.x_rows takes some of them.
void Matmul(const MatmulArgs& args, const LowRankBatch& added);
void Matmul(MatmulArgs args, const MatmulOutput& output, const LowRankBatch& added);

void Embed(const EmbedArgs& args, const LowRankBatch& added);
void Qkv(const QkvArgs& args, const LowRankBatch& added);
void LatentQkv(const LatentQkvArgs& args, const LowRankBatch& added);
void LatentValues(const LatentValuesArgs& args, const LowRankBatch& added);
void GateUp(const GateUpArgs& args, const LowRankBatch& added);
void Moe(const MoeArgs& args, const LowRankBatch& added);
void Logits(const LogitsArgs& args, const LowRankBatch& added);

}  // namespace celer
