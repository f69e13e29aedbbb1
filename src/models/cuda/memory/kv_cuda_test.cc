// Blocks of keys and values copied, swapped and cleared on a GPU, over all layers.
#include "models/cuda/memory/kv.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/device.h"

namespace celer {
namespace {

constexpr int kBlocks = 700;  // more pairs than one launch takes
constexpr int kHostBlocks = 300;

DecoderConfig Config(bool latent = false) {
  DecoderConfig config = FromLlmShape({{.layers = 3,
                                        .hidden = 64,
                                        .intermediate = 64,
                                        .vocab = 10,
                                        .heads = 2,
                                        .kv_heads = 1,
                                        .head_dim = 24},
                                       {},
                                       "test"});
  if (latent) config.latent = {.kv_rank = 16, .nope_dim = 8, .rope_dim = 8, .value_dim = 8};
  return config;
}

struct Pool {
  DType dtype;
  bool latent = false;  // one row is key and value
};

class CudaKvBlocks : public ::testing::TestWithParam<Pool> {
 protected:
  void SetUp() override {
    if (CudaDeviceCount() == 0) GTEST_SKIP() << "no CUDA device here";
    const auto& [dtype, latent] = GetParam();
    auto made = CudaKv::Make(0, Config(latent), dtype, kBlocks, kHostBlocks);
    ASSERT_TRUE(made) << made.error().message();
    kv_ = std::move(*made);
    ASSERT_EQ(kv_->layers().size(), 3u);
    const int64_t pool_bytes = kBlocks * DeviceKvBlockBytes(Config(latent), dtype);
    EXPECT_GE(kv_->device_bytes(), pool_bytes);
    EXPECT_LT(kv_->device_bytes(), pool_bytes + 4096);
    for (const cuda::DeviceKv& layer : kv_->layers())
      for (std::byte* part : PartsOf(layer)) {
        EXPECT_EQ(Read(part), std::vector<std::byte>(PartBytes())) << "zeros at first";
        std::vector<std::byte> values(PartBytes());
        for (size_t i = 0; i < values.size(); ++i)
          values[i] = static_cast<std::byte>((i / BlockBytes() * 7 + i * 13 + parts_.size() * 31) % 251 + 1);
        ASSERT_EQ(cudaSuccess, cudaMemcpy(part, values.data(), values.size(), cudaMemcpyHostToDevice));
        parts_.push_back(std::move(values));
      }
  }

  static std::vector<std::byte*> PartsOf(const cuda::DeviceKv& layer) {
    if (GetParam().latent) {
      EXPECT_EQ(layer.k, layer.v);
      return {layer.k};
    }
    return {layer.k, layer.v};
  }
  size_t BlockBytes() const { return static_cast<size_t>(kv_->layers()[0].block_bytes()); }
  size_t PartBytes() const { return kBlocks * BlockBytes(); }
  std::vector<std::byte> Read(const std::byte* part) const {
    std::vector<std::byte> out(PartBytes());
    EXPECT_EQ(cudaSuccess, cudaDeviceSynchronize());
    EXPECT_EQ(cudaSuccess, cudaMemcpy(out.data(), part, out.size(), cudaMemcpyDeviceToHost));
    return out;
  }
  // What the pool should hold: part by part, as the test changes it.
  void Expect() const {
    size_t i = 0;
    for (const cuda::DeviceKv& layer : kv_->layers())
      for (const std::byte* part : PartsOf(layer)) EXPECT_TRUE(Read(part) == parts_[i++]) << i;
  }
  std::span<std::byte> Block(size_t part, int block) {
    return std::span(parts_[part]).subspan(static_cast<size_t>(block) * BlockBytes(), BlockBytes());
  }

  std::unique_ptr<CudaKv> kv_;
  std::vector<std::vector<std::byte>> parts_;
};

TEST_P(CudaKvBlocks, Copy) {
  std::vector<BlockCopy> copies;
  for (int32_t i = 0; i < kBlocks / 2; ++i)
    copies.push_back({2 * i, (2 * i + 101) % kBlocks});  // even to odd
  ASSERT_TRUE(kv_->Copy(copies, nullptr));
  for (size_t part = 0; part < parts_.size(); ++part)
    for (const BlockCopy& copy : copies) {
      const auto from = Block(part, copy.from);
      std::copy(from.begin(), from.end(), Block(part, copy.to).begin());
    }
  Expect();
  EXPECT_TRUE(kv_->Copy({}, nullptr));
}

TEST_P(CudaKvBlocks, SwapOutAndInElsewhere) {
  std::vector<BlockCopy> out, in;
  for (int32_t i = 0; i < kHostBlocks; ++i) {
    out.push_back({i, kHostBlocks - 1 - i});
    in.push_back({kHostBlocks - 1 - i, kBlocks - 1 - i});
  }
  const auto before = parts_;
  ASSERT_TRUE(kv_->SwapOut(out, nullptr));
  std::vector<int32_t> freed;
  for (const BlockCopy& copy : out) freed.push_back(copy.from);
  ASSERT_TRUE(kv_->Clear(freed, nullptr));
  ASSERT_TRUE(kv_->SwapIn(in, nullptr));
  for (size_t part = 0; part < parts_.size(); ++part) {
    for (const int32_t block : freed) std::ranges::fill(Block(part, block), std::byte{});
    for (int32_t i = 0; i < kHostBlocks; ++i)
      std::copy_n(before[part].begin() + static_cast<int64_t>(i) * static_cast<int64_t>(BlockBytes()),
                  BlockBytes(), Block(part, kBlocks - 1 - i).begin());
  }
  Expect();
}

TEST_P(CudaKvBlocks, ClearTouchesNothingElse) {
  const std::vector<int32_t> blocks = {0, 17, kBlocks - 1};
  ASSERT_TRUE(kv_->Clear(blocks, nullptr));
  for (size_t part = 0; part < parts_.size(); ++part)
    for (const int32_t block : blocks) std::ranges::fill(Block(part, block), std::byte{});
  Expect();
}

TEST_P(CudaKvBlocks, ReadAndWriteElsewhere) {
  // More than the pinned memory between them takes at once.
  std::vector<int32_t> from, to;
  for (int32_t i = 0; i < 3 * kBlocks; ++i) from.push_back((i * 101) % kBlocks);
  for (int32_t i = 0; i < kBlocks; ++i) to.push_back((i + 17) % kBlocks);
  const auto each = static_cast<size_t>(kv_->block_bytes());
  ASSERT_EQ(each, parts_.size() * BlockBytes());
  std::vector<std::byte> bytes(from.size() * each);
  ASSERT_TRUE(kv_->Read(from, bytes, nullptr));
  for (size_t i = 0; i < from.size(); ++i)
    for (size_t part = 0; part < parts_.size(); ++part) {
      const auto block = Block(part, from[i]);
      ASSERT_TRUE(std::equal(block.begin(), block.end(),
                             bytes.begin() + static_cast<int64_t>(i * each + part * BlockBytes())))
          << i << " " << part;
    }
  const auto before = parts_;
  ASSERT_TRUE(kv_->Write(to, std::span(bytes).first(to.size() * each), nullptr));
  for (size_t part = 0; part < parts_.size(); ++part)
    for (size_t i = 0; i < to.size(); ++i)
      std::copy_n(before[part].begin() + static_cast<int64_t>(from[i]) * static_cast<int64_t>(BlockBytes()),
                  BlockBytes(), Block(part, to[i]).begin());
  Expect();
}

TEST_P(CudaKvBlocks, RefusesBlocksThatAreNotThere) {
  for (const BlockCopy& bad : {BlockCopy{0, kBlocks}, {kBlocks, 0}, {-1, 0}, {0, -1}})
    EXPECT_FALSE(kv_->Copy({&bad, 1}, nullptr));
  const BlockCopy no_room{0, kHostBlocks};
  EXPECT_FALSE(kv_->SwapOut({&no_room, 1}, nullptr));
  const BlockCopy not_there{kHostBlocks, 0};
  EXPECT_FALSE(kv_->SwapIn({&not_there, 1}, nullptr));
  const int32_t beyond = kBlocks;
  EXPECT_FALSE(kv_->Clear({&beyond, 1}, nullptr));
  std::vector<std::byte> block(static_cast<size_t>(kv_->block_bytes()));
  EXPECT_FALSE(kv_->Read({&beyond, 1}, block, nullptr));
  EXPECT_FALSE(kv_->Write({&beyond, 1}, block, nullptr));
  Expect();
}

INSTANTIATE_TEST_SUITE_P(Types, CudaKvBlocks,
                         ::testing::Values(Pool{DType::kF16}, Pool{DType::kBf16}, Pool{DType::kI8},
                                           Pool{DType::kFp8E4M3}, Pool{DType::kF16, /*latent=*/true}));

TEST(CudaKv, RefusesAPoolOfNothing) {
  EXPECT_FALSE(CudaKv::Make(0, Config(), DType::kF16, 0, 0));
  EXPECT_FALSE(CudaKv::Make(0, Config(), DType::kF16, 1, -1));
}

}  // namespace
}  // namespace celer
