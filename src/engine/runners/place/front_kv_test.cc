#include "engine/runners/place/front_kv.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "device/cpu_allocator.h"
#include "engine/kv/kv_cache.h"

namespace celer {
namespace {

constexpr int64_t kBlocks = 5, kHeads = 3;

uint16_t Element(const KvLayerView& kv, const std::byte* part, int64_t block, int64_t head, int64_t slot,
                 int64_t i) {
  uint16_t value;
  std::memcpy(&value, part + kv.RowOffset(block, head, slot) + 2 * i, 2);
  return value;
}

// Blocks in another order, one of them left out, with heads that are padded on the GPU and heads that are not.
TEST(FrontKv, ToTheGpusLayoutAndBack) {
  for (const int64_t dim : {int64_t{16}, int64_t{12}}) {
    DecoderConfig config;
    config.layers = 2, config.kv_heads = kHeads, config.heads = kHeads, config.head_dim = dim;
    auto from = KvCache::Make(config, KvFormat{DType::kF16}, kBlocks, CpuAllocator()),
         to = KvCache::Make(config, KvFormat{DType::kF16}, kBlocks, CpuAllocator());
    ASSERT_TRUE(from && to);
    const KvLayerView& kv = from->layers()[1];
    ASSERT_TRUE(FrontKv::Fits(kv));
    uint16_t next = 1;
    for (std::byte* part : {kv.k, kv.v})
      for (int64_t b = 0; b < kBlocks; ++b)
        for (int64_t h = 0; h < kHeads; ++h)
          for (int64_t s = 0; s < kv.block_size; ++s)
            for (int64_t i = 0; i < dim; ++i, ++next)
              std::memcpy(part + kv.RowOffset(b, h, s) + 2 * i, &next, 2);

    // Pairs as halves, in layer 1 alone.
    std::vector<int32_t> halves;
    for (int32_t i = 0; i < dim; ++i)
      halves.push_back(i < dim / 2 ? 2 * i : 2 * (i - static_cast<int32_t>(dim) / 2) + 1);
    ThreadPool pool({.threads = 3});
    FrontKv kvs({{}, halves}, pool);
    kvs.set_layers(from->layers());
    const std::vector<int32_t> blocks = {4, 0, 2, 1};
    const int64_t padded = (dim + 7) / 8 * 8;
    const auto bytes = static_cast<size_t>(std::ssize(blocks) * kHeads * kv.block_size * padded * 2);
    std::vector<std::byte> k(bytes, std::byte{0xff}), v(bytes, std::byte{0xff});
    kvs.Read(1, blocks, k.data(), v.data());
    for (int64_t b = 0; b < std::ssize(blocks); ++b)
      for (int64_t h = 0; h < kHeads; ++h)
        for (int64_t s = 0; s < kv.block_size; ++s)
          for (int64_t i = 0; i < padded; ++i) {
            const auto at = static_cast<size_t>(((b * kHeads + h) * kv.block_size + s) * padded + i);
            uint16_t key, value;
            std::memcpy(&key, k.data() + 2 * at, 2);
            std::memcpy(&value, v.data() + 2 * at, 2);
            const int32_t block = blocks[static_cast<size_t>(b)];
            EXPECT_EQ(key, i < dim ? Element(kv, kv.k, block, h, s, halves[static_cast<size_t>(i)]) : 0);
            EXPECT_EQ(value, i < dim ? Element(kv, kv.v, block, h, s, i) : 0);
          }

    kvs.set_layers(to->layers());
    kvs.Write(1, blocks, k.data(), v.data());
    const KvLayerView& copy = to->layers()[1];
    for (int64_t b = 0; b < kBlocks; ++b)
      for (int64_t h = 0; h < kHeads; ++h)
        for (int64_t s = 0; s < kv.block_size; ++s)
          for (int64_t i = 0; i < dim; ++i) {
            const bool there = b != 3;
            EXPECT_EQ(Element(copy, copy.k, b, h, s, i), there ? Element(kv, kv.k, b, h, s, i) : 0);
            EXPECT_EQ(Element(copy, copy.v, b, h, s, i), there ? Element(kv, kv.v, b, h, s, i) : 0);
          }
  }
}

TEST(FrontKv, OnlyTypesOfSixteenBits) {
  DecoderConfig config;
  config.layers = 1, config.kv_heads = 1, config.heads = 1, config.head_dim = 32;
  for (const auto& [dtype, fits] :
       {std::pair{DType::kBf16, true}, {DType::kF32, false}, {DType::kI8, false}}) {
    auto kv = KvCache::Make(config, KvFormat{dtype}, 1, CpuAllocator());
    ASSERT_TRUE(kv);
    EXPECT_EQ(FrontKv::Fits(kv->layers()[0]), fits);
  }
}

}  // namespace
}  // namespace celer
