// llama.cpp's speed through its C API, in the measures of `celer bench`: the model stays loaded, a warm-up
// comes first, the chosen token of each step goes into the next. No interpreter stands between the steps.
//
//   llama_cpp_bench MODEL.gguf THREADS FLASH prefill PROMPT BATCH REPEAT WARMUP
//   llama_cpp_bench MODEL.gguf THREADS FLASH decode DEPTH BATCH TOKENS REPEAT WARMUP
//   llama_cpp_bench MODEL.gguf THREADS FLASH requests PROMPT BATCH TOKENS REPEAT WARMUP
//       prompts and their answers
//   llama_cpp_bench MODEL.gguf THREADS FLASH first TEXT
//       prints the first token's text as soon as it is known
//
// Of a library with CUDA, LLAMA_GPU_LAYERS=N puts the last N layers on the GPU, and LLAMA_CPU_EXPERTS=1 leaves the experts of
// a mixture on the CPU, as llama.cpp's --cpu-moe does; the batches are 512 tokens.
//
// FLASH is 0, 1 or auto. bench_peers.py compiles this against the library that it built, and reads the one
// JSON object.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "llama.h"

namespace {

using Clock = std::chrono::steady_clock;

std::vector<std::string>
    g_buffers;  // what the library says about its buffers: a repacked model has one named so

[[noreturn]] void Fail(const std::string& what) {
  std::fprintf(stderr, "llama_cpp_bench: %s\n", what.c_str());
  std::exit(1);
}

void Check(bool ok, const char* what) {
  if (!ok) Fail(std::string(what) + " failed");
}

void OnLog(ggml_log_level level, const char* text, void*) {
  if (level == GGML_LOG_LEVEL_ERROR) std::fputs(text, stderr);
  if (std::strstr(text, "model buffer size")) {
    std::string line(text);
    while (!line.empty() && (line.back() == '\n' || line.back() == ' ')) line.pop_back();
    g_buffers.push_back(line.substr(line.find(':') == std::string::npos ? 0 : line.find(':') + 1));
  }
}

int64_t Number(const char* text, int64_t least) {
  char* end = nullptr;
  const int64_t value = std::strtoll(text, &end, 10);
  if (*text == '\0' || *end != '\0' || value < least)
    Fail(std::string("'") + text + "' is not a number that fits");
  return value;
}

class Peer {
 public:
  Peer(const char* path, int threads, const std::string& flash, int64_t context, int sequences)
      : sequences_(sequences) {
    llama_log_set(OnLog, nullptr);
    llama_backend_init();
    llama_model_params model_params =
        llama_model_default_params();  // memory-mapped, repacked where that helps
    if (!model_params.use_extra_bufts) Fail("repacking is off by default in this version");
    if (const char* layers = std::getenv("LLAMA_GPU_LAYERS"))
      model_params.n_gpu_layers = static_cast<int32_t>(Number(layers, 0));
    const llama_model_tensor_buft_override experts[] = {
        {"\\.ffn_(up|down|gate|gate_up)_(ch|)exps", ggml_backend_cpu_buffer_type()}, {nullptr, nullptr}};
    if (std::getenv("LLAMA_CPU_EXPERTS")) model_params.tensor_buft_overrides = experts;
    model_ = llama_model_load_from_file(path, model_params);
    Check(model_ != nullptr, "llama_model_load_from_file");
    llama_context_params params = llama_context_default_params();
    params.n_ctx = static_cast<uint32_t>(context * sequences);
    params.n_batch = params.n_ubatch = 512;
    params.n_seq_max = static_cast<uint32_t>(sequences);
    params.n_threads = params.n_threads_batch = threads;
    params.flash_attn_type = flash == "auto" ? LLAMA_FLASH_ATTN_TYPE_AUTO
                             : flash == "1"  ? LLAMA_FLASH_ATTN_TYPE_ENABLED
                                             : LLAMA_FLASH_ATTN_TYPE_DISABLED;
    context_ = llama_init_from_model(model_, params);
    Check(context_ != nullptr, "llama_init_from_model");
    // As llama-bench does: threads that live on between the steps.
    ggml_threadpool_params pool_params = ggml_threadpool_params_default(threads);
    pool_ = ggml_threadpool_new(&pool_params);
    Check(pool_ != nullptr, "ggml_threadpool_new");
    llama_attach_threadpool(context_, pool_, pool_);
    vocab_ = llama_vocab_n_tokens(llama_model_get_vocab(model_));
    batch_ = llama_batch_init(512, 0, 1);
  }

  ~Peer() {
    llama_batch_free(batch_);
    llama_free(context_);
    ggml_threadpool_free(pool_);
    llama_model_free(model_);
    llama_backend_free();
  }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  int32_t RandomToken() {
    random_ = random_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<int32_t>((random_ >> 33) % static_cast<uint64_t>(vocab_));
  }

  // Every sequence gets `tokens` more tokens from `position` on; logits of the last. Full batches of 512, as
  // celer's chunks.
  void Prefill(int64_t position, int64_t tokens) {
    batch_.n_tokens = 0;
    for (int s = 0; s < sequences_; ++s)
      for (int64_t t = 0; t < tokens; ++t) {
        Add(RandomToken(), position + t, s, t + 1 == tokens);
        if (batch_.n_tokens == 512) Run();
      }
    Run();
  }

  // Requests that come at once: their prompts, then answers of `tokens`, the first of which the prompts give.
  // The token that follows a prompt is a random one, to which the speed is all the same.
  void Requests(int64_t prompt, int64_t tokens) {
    Prefill(0, prompt);
    Decode(prompt, tokens - 1);
  }

  void Forget(int64_t from) {
    for (int s = 0; s < sequences_; ++s)
      llama_memory_seq_rm(llama_get_memory(context_), s, static_cast<llama_pos>(from), -1);
  }

  void Decode(int64_t depth, int64_t steps) {
    std::vector<int32_t> next(static_cast<size_t>(sequences_));
    for (int32_t& token : next) token = RandomToken();
    for (int64_t i = 0; i < steps; ++i) {
      batch_.n_tokens = 0;
      for (int s = 0; s < sequences_; ++s) Add(next[static_cast<size_t>(s)], depth + i, s, true);
      Run();
      for (int s = 0; s < sequences_; ++s) next[static_cast<size_t>(s)] = Best(s);
    }
  }

  void FirstToken(const char* text) {
    const llama_vocab* vocab = llama_model_get_vocab(model_);
    std::vector<llama_token> tokens(std::strlen(text) + 8);
    const int count = llama_tokenize(vocab, text, static_cast<int32_t>(std::strlen(text)), tokens.data(),
                                     static_cast<int32_t>(tokens.size()), true, false);
    Check(count > 0 && count <= 512, "llama_tokenize");
    batch_.n_tokens = 0;
    for (int i = 0; i < count; ++i) Add(tokens[static_cast<size_t>(i)], i, 0, i + 1 == count);
    Run();
    char piece[256];
    const int bytes = llama_token_to_piece(vocab, Best(count - 1), piece, sizeof piece, 0, true);
    std::printf("%.*s\n%d tokens\n", bytes > 0 ? bytes : 0, piece, count);
    std::fflush(stdout);
  }

 private:
  void Add(int32_t token, int64_t position, int sequence, bool logits) {
    const int i = batch_.n_tokens++;
    batch_.token[i] = token;
    batch_.pos[i] = static_cast<llama_pos>(position);
    batch_.n_seq_id[i] = 1;
    batch_.seq_id[i][0] = sequence;
    batch_.logits[i] = logits;
  }
  void Run() {
    if (batch_.n_tokens == 0) return;
    Check(llama_decode(context_, batch_) == 0, "llama_decode");
    if (batch_.logits[batch_.n_tokens - 1]) sink_ = llama_get_logits_ith(context_, batch_.n_tokens - 1)[0];
    batch_.n_tokens = 0;
  }
  int32_t Best(int row) {
    const float* logits = llama_get_logits_ith(context_, row);
    int32_t best = 0;
    for (int32_t i = 1; i < vocab_; ++i)
      if (logits[i] > logits[best]) best = i;
    return best;
  }

  int sequences_;
  llama_model* model_ = nullptr;
  llama_context* context_ = nullptr;
  ggml_threadpool* pool_ = nullptr;
  llama_batch batch_ = {};
  int32_t vocab_ = 0;
  uint64_t random_ = 0;
  volatile float sink_ = 0;
};

void Print(const std::vector<double>& seconds, int64_t tokens) {
  std::printf("{\"tokens\": %lld, \"seconds\": [", static_cast<long long>(tokens));
  for (size_t i = 0; i < seconds.size(); ++i) std::printf("%s%.9f", i ? ", " : "", seconds[i]);
  std::printf("], \"buffers\": [");
  for (size_t i = 0; i < g_buffers.size(); ++i) std::printf("%s\"%s\"", i ? ", " : "", g_buffers[i].c_str());
  std::printf("], \"system\": \"%s\"}\n", llama_print_system_info());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 6) Fail("usage: see the head of llama_cpp_bench.cc");
  const char* path = argv[1];
  const auto threads = static_cast<int>(Number(argv[2], 1));
  const std::string flash = argv[3], mode = argv[4];
  const auto timed = [](auto&& work) {
    const auto begin = Clock::now();
    work();
    return std::chrono::duration<double>(Clock::now() - begin).count();
  };
  std::vector<double> seconds;
  if (mode == "first") {
    Peer(path, threads, flash, 512, 1).FirstToken(argv[5]);
  } else if (mode == "prefill" && argc == 9) {
    const int64_t prompt = Number(argv[5], 1), batch = Number(argv[6], 1), repeat = Number(argv[7], 1),
                  warmup = Number(argv[8], 0);
    Peer peer(path, threads, flash, prompt + 1, static_cast<int>(batch));
    for (int64_t i = -warmup; i < repeat; ++i) {
      const double took = timed([&] { peer.Prefill(0, prompt); });
      if (i >= 0) seconds.push_back(took);
      peer.Forget(0);
    }
    Print(seconds, prompt * batch);
  } else if (mode == "requests" && argc == 10) {
    const int64_t prompt = Number(argv[5], 1), batch = Number(argv[6], 1), tokens = Number(argv[7], 1),
                  repeat = Number(argv[8], 1), warmup = Number(argv[9], 0);
    Peer peer(path, threads, flash, prompt + tokens + 1, static_cast<int>(batch));
    for (int64_t i = -warmup; i < repeat; ++i) {
      const double took = timed([&] { peer.Requests(prompt, tokens); });
      if (i >= 0) seconds.push_back(took);
      peer.Forget(0);
    }
    Print(seconds, tokens * batch);
  } else if (mode == "decode" && argc == 10) {
    const int64_t depth = Number(argv[5], 0), batch = Number(argv[6], 1), tokens = Number(argv[7], 1),
                  repeat = Number(argv[8], 1), warmup = Number(argv[9], 0);
    Peer peer(path, threads, flash, depth + tokens + 1, static_cast<int>(batch));
    if (depth > 0) peer.Prefill(0, depth);
    for (int64_t i = -warmup; i < repeat; ++i) {
      const double took = timed([&] { peer.Decode(depth, tokens); });
      if (i >= 0) seconds.push_back(took);
      peer.Forget(depth);
    }
    Print(seconds, tokens * batch);
  } else {
    Fail("unknown mode or a wrong number of arguments; see the head of llama_cpp_bench.cc");
  }
}
