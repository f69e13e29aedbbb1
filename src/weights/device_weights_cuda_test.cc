// Matrices on the GPU: that they hold what the CPU would make of them, and that products with them are right
// at shapes that fill no tile.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <random>

#include "base/device.h"
#include "device/cuda_allocator.h"
#include "formats/bfloat16.h"
#include "formats/codec.h"
#include "formats/decode.h"
#include "formats/int4.h"
#include "formats/int8.h"
#include "formats/test_rows.h"
#include "kernels/llm/embed/embed_cuda.h"
#include "kernels/llm/matmul/cuda/gemm/gemm_cuda.h"
#include "kernels/llm/matmul/cuda/matvec/matvec_cuda.h"
#include "kernels/llm/matmul/cuda/wgmma/wgmma_cuda.h"
#include "kernels/shared/cuda/on_device.h"
#include "kernels/shared/test_util.h"
#include "weights/device_weights.h"

namespace celer::cuda {
namespace {

using celer::testing::RandomFloats;
using testing::OnDevice;

class DeviceWeightsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (CudaDeviceCount() == 0) GTEST_SKIP() << "no CUDA device here";
  }
};

struct HostMatrix {
  std::vector<std::byte> bytes;
  std::vector<float> scales;
  WeightView view;
};

HostMatrix MakeHost(DType dtype, int64_t rows, int64_t cols, uint32_t seed) {
  HostMatrix m;
  const int64_t row_bytes = *BytesFor(dtype, cols);
  for (int64_t r = 0; r < rows; ++r) {
    const auto row = RandomWeightRow(dtype, cols, seed + 1000 * static_cast<uint32_t>(r),
                                     1.0f / std::sqrt(static_cast<float>(cols)));
    m.bytes.insert(m.bytes.end(), row.begin(), row.end());
  }
  m.view = {.dtype = dtype, .rows = rows, .cols = cols, .data = m.bytes.data(), .row_bytes = row_bytes};
  return m;
}

std::vector<float> Decoded(const WeightView& view) {
  std::vector<float> out(static_cast<size_t>(view.rows * view.cols));
  for (int64_t r = 0; r < view.rows; ++r) DecodeWeightRow(view, r, out.data() + r * view.cols);
  return out;
}

// The matrix as the device sees it.
std::vector<float> ReadBack(const DeviceMatrix& m) {
  std::vector<int32_t> all(static_cast<size_t>(m.rows));
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int32_t>(i);
  OnDevice<int32_t> tokens(all);
  OnDevice<float> out(static_cast<int64_t>(m.rows) * m.cols);
  EXPECT_EQ(cudaSuccess,
            LaunchEmbed({.tokens = tokens.get(), .count = m.rows, .table = m, .out = out.get()}, nullptr));
  return out.Read();
}

struct Uploaded {
  DeviceWeights store;
  DeviceMatrix matrix;
};
Result<Uploaded> Upload(const WeightView& view, const char* weights, HeadOrder order = {}) {
  auto options = WeightOptions::Parse(weights);
  CELER_ASSIGN(DeviceWeights store, DeviceWeights::Create(0, *options));
  const MatrixSource source{view, WeightRole::kProjection, order};
  CELER_ASSIGN(const auto made, store.Upload({&source, 1}));
  CELER_RETURN_IF_ERROR(store.Finish());
  return Uploaded{std::move(store), made[0]};
}

TEST_F(DeviceWeightsTest, StoredFormatsAreTakenOverExactly) {
  std::vector<DType> dtypes = {DType::kF32, DType::kF16, DType::kBf16};
  for (const DType dtype : AllBlockTypes()) dtypes.push_back(dtype);
  for (const DType dtype : dtypes) {
    const Codec* codec = FindBlockCodec(dtype);
    if (codec && codec->has_min && codec->bits > 4) continue;  // rounded to f16
    for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{5, 256}, {19, 768}, {64, 512}}) {
      SCOPED_TRACE(std::string(Name(dtype)) + " " + std::to_string(rows) + "x" + std::to_string(cols));
      const HostMatrix host = MakeHost(dtype, rows, cols, 3);
      auto uploaded = Upload(host.view, "stored");
      ASSERT_TRUE(uploaded) << uploaded.error().message();
      const auto expected = Decoded(host.view), got = ReadBack(uploaded->matrix);
      // Scale times value plus minimum may be fused into one rounding on either side.
      for (size_t i = 0; i < expected.size(); ++i)
        ASSERT_NEAR(expected[i], got[i], BitsOf(uploaded->matrix.format) == 4 ? 1e-7 : 0) << i;
    }
  }
}

// All codes under all scales that are normal numbers; blocks of zeros may have others.
TEST_F(DeviceWeightsTest, Mxfp4IsTakenOverExactly) {
  constexpr int64_t kRows = 240, kCols = 96;
  HostMatrix host;
  for (int64_t block = 0; block < kRows * kCols / 32; ++block) {
    const bool zeros = block % 3 == 2;
    host.bytes.push_back(static_cast<std::byte>(zeros ? 255 : 1 + block / 3));
    for (int64_t i = 0; i < 16; ++i)
      host.bytes.push_back(
          static_cast<std::byte>(zeros ? i % 2 * 0x88 : (block + i) % 16 | (i * 7 % 16) << 4));
  }
  host.view = {
      .dtype = DType::kMxfp4, .rows = kRows, .cols = kCols, .data = host.bytes.data(), .row_bytes = 51};
  auto uploaded = Upload(host.view, "stored");
  ASSERT_TRUE(uploaded) << uploaded.error().message();
  ASSERT_EQ(uploaded->matrix.format, Format::kMxfp4);
  const auto expected = Decoded(host.view), got = ReadBack(uploaded->matrix);
  OnDevice<uint16_t> unpacked(kRows * int64_t{uploaded->matrix.padded});
  ASSERT_EQ(cudaSuccess, LaunchUnpack(uploaded->matrix, unpacked.get(), nullptr));
  const auto pairs = unpacked.Read();
  for (int64_t r = 0; r < kRows; ++r)
    for (int64_t c = 0; c < kCols; ++c) {
      const float value = expected[static_cast<size_t>(r * kCols + c)];
      ASSERT_EQ(value, got[static_cast<size_t>(r * kCols + c)]) << r << ", " << c;
      if (std::abs(value) < 0x1p-120f) continue;
      const uint32_t bits = uint32_t{pairs[static_cast<size_t>(r * uploaded->matrix.padded + c)]} << 16;
      ASSERT_EQ(value, std::bit_cast<float>(bits)) << r << ", " << c;
    }
}

// One of celer's own formats, as a file that others quantized comes.
HostMatrix MakeOwn(const WeightFormatSpec& format, int64_t rows, int64_t cols, uint32_t seed) {
  const int64_t row_bytes = format.RowBytes(cols), scale_bytes = format.ScaleBytes(cols);
  const auto values = RandomFloats(rows * cols, seed, 0.1f);
  HostMatrix host;
  host.bytes.resize(static_cast<size_t>(rows * row_bytes));
  host.scales.resize(static_cast<size_t>(rows * scale_bytes / 4));
  auto* scales = reinterpret_cast<std::byte*>(host.scales.data());
  for (int64_t r = 0; r < rows; ++r)
    format.Encode(values.data() + r * cols, cols, host.bytes.data() + r * row_bytes,
                  scales + r * scale_bytes);
  host.view = {.kind = format.kind,
               .rows = rows,
               .cols = cols,
               .data = host.bytes.data(),
               .row_bytes = row_bytes,
               .scales = scales,
               .group = format.group > 0 ? format.group : cols,
               .name = "w"};
  return host;
}

TEST_F(DeviceWeightsTest, OwnFormatsAreTakenOverExactly) {
  for (const WeightFormatSpec format : {WeightFormatSpec{.kind = WeightKind::kInt4, .group = 32},
                                        {.kind = WeightKind::kInt4, .group = 64},
                                        {.kind = WeightKind::kInt4, .group = 128},
                                        {.kind = WeightKind::kInt8},
                                        {.kind = WeightKind::kInt8, .group = 64},
                                        {.kind = WeightKind::kFp8},
                                        {.kind = WeightKind::kFp8, .group = 32},
                                        {.kind = WeightKind::kFp8, .group = 64},
                                        {.kind = WeightKind::kFp8, .group = 128}}) {
    SCOPED_TRACE(format.Name());
    const HostMatrix host = MakeOwn(format, 19, 768, 5);
    auto uploaded = Upload(host.view, "stored");
    ASSERT_TRUE(uploaded) << uploaded.error().message();
    EXPECT_EQ(FormatName(uploaded->matrix), format.Name());
    const auto expected = Decoded(host.view), got = ReadBack(uploaded->matrix);
    for (size_t i = 0; i < expected.size(); ++i)
      ASSERT_NEAR(expected[i], got[i], format.kind == WeightKind::kInt4 ? 1e-7 : 0) << i;
  }
}

// All 254 numbers that fp8 has, one to a column, through every kernel that reads them: an activation that is
// one in a single column takes out that column.
TEST_F(DeviceWeightsTest, EveryFp8CodeIsItsValue) {
  constexpr int kRows = 16, kCols = 256, kTokens = kCols;
  std::vector<float> ones(size_t{kTokens} * kCols, 0);
  for (size_t i = 0; i < kTokens; ++i) ones[i * kCols + i] = 1;
  const OnDevice<float> x(ones);
  OnDevice<float> partial(WgmmaPartialFloats());
  OnDevice<int32_t> tickets(std::vector<int32_t>(static_cast<size_t>(WgmmaTickets()), 0));
  for (const int64_t group : {0, 32, 64, 128}) {
    const WeightFormatSpec format{.kind = WeightKind::kFp8, .group = group};
    SCOPED_TRACE(format.Name());
    HostMatrix host = MakeOwn(format, kRows, kCols, 5);
    for (int r = 0; r < kRows; ++r)
      for (int c = 0; c < kCols; ++c) {
        const auto code = static_cast<uint8_t>(c + 37 * r);
        host.bytes[static_cast<size_t>(r * kCols + c)] = std::byte{(code & 0x7f) == 0x7f ? uint8_t{0} : code};
      }
    for (size_t i = 0; i < host.scales.size(); ++i)  // the largest there is in the first row
      host.scales[i] =
          static_cast<int64_t>(i) < format.GroupsPerRow(kCols) ? 128.0f : 0.013f * static_cast<float>(i);
    auto uploaded = Upload(host.view, "stored");
    ASSERT_TRUE(uploaded) << uploaded.error().message();
    const DeviceMatrix& m = uploaded->matrix;
    const auto w = Decoded(host.view);
    EXPECT_EQ(w, ReadBack(m));

    const OnDevice<uint16_t> unpacked(int64_t{kRows} * m.padded);
    ASSERT_EQ(cudaSuccess, LaunchUnpack(m, unpacked.get(), nullptr));
    const auto bf16 = unpacked.Read();
    for (size_t i = 0; i < w.size(); ++i)
      ASSERT_EQ(Bf16ToFloat(bf16[i]), Bf16ToFloat(FloatToBf16(w[i]))) << i;

    EXPECT_EQ(HasRowCodes(m), group == 0);
    if (HasRowCodes(m)) {
      const OnDevice<std::byte> codes(int64_t{kRows} * m.padded);
      const OnDevice<float> scales(kRows);
      ASSERT_EQ(cudaSuccess, LaunchUnpackCodes(m, codes.get(), scales.get(), nullptr));
      EXPECT_EQ(codes.Read(), host.bytes);
      EXPECT_EQ(scales.Read(), host.scales);
    }

    for (const int tokens : {3, 8}) {
      const OnDevice<float> out(int64_t{tokens} * kRows);
      for (int first = 0; first + tokens <= kTokens; first += tokens) {
        MatvecArgs args;
        args.a = m;
        args.x = x.get() + int64_t{first} * kCols;
        args.x_stride = kCols;
        args.tokens = tokens;
        args.out = out.get();
        args.out_stride = kRows;
        ASSERT_EQ(cudaSuccess, LaunchMatvec(args, nullptr));
        const auto got = out.Read();
        for (int t = 0; t < tokens; ++t)
          for (int r = 0; r < kRows; ++r)
            ASSERT_EQ(w[static_cast<size_t>(r * kCols + first + t)], got[static_cast<size_t>(t * kRows + r)])
                << "column " << first + t << " row " << r;
      }
    }
    if (!WgmmaRuns()) continue;
    for (const auto& [tokens, tile] : {std::pair{8, 16}, {16, 16}, {64, 64}, {256, 128}, {256, 256}}) {
      if (tile > WgmmaMostTile()) continue;
      const OnDevice<std::byte> memory(WgmmaActivations::Bytes(tokens, tile, m.padded));
      const OnDevice<float> out(int64_t{tokens} * kRows);
      for (int first = 0; first + tokens <= kTokens; first += tokens) {
        WgmmaArgs args;
        args.w[0] = m;
        args.x = {memory.get(), tile, m.padded, tokens <= kMaxMatvecTokens ? 2 : 1};
        args.tokens = tokens;
        args.out = out.get();
        args.out_stride = kRows;
        args.partial = partial.get();
        args.tickets = tickets.get();
        ASSERT_EQ(cudaSuccess, LaunchWgmmaActivations(x.get() + int64_t{first} * kCols, nullptr, tokens,
                                                      kCols, nullptr, 0, args.x, nullptr));
        ASSERT_EQ(cudaSuccess, LaunchWgmma(args, nullptr));
        const auto got = out.Read();
        for (int t = 0; t < tokens; ++t)
          for (int r = 0; r < kRows; ++r) {
            const float expected = w[static_cast<size_t>(r * kCols + first + t)];
            // A scale to a row is applied to the sum; others become a part of weights of 8 bits, or 16 for up
            // to eight tokens.
            const float step = group == 0 ? 0.0f : tokens <= kMaxMatvecTokens ? 0x1p-16f : 0x1.02p-8f;
            ASSERT_NEAR(expected, got[static_cast<size_t>(t * kRows + r)], std::abs(expected) * step)
                << "column " << first + t << " row " << r << " tokens " << tokens << " tile " << tile;
          }
      }
    }
  }
}

// Some columns of a matrix, whose rows lie apart in the file.
TEST_F(DeviceWeightsTest, SlicesOfColumnsAreTakenOverExactly) {
  for (const DType dtype : {DType::kF32, DType::kBf16, DType::kQ8_0, DType::kQ5_1}) {
    SCOPED_TRACE(Name(dtype));
    const HostMatrix host = MakeHost(dtype, 19, 768, 3);
    for (const auto& [begin, count] : {std::pair<int64_t, int64_t>{0, 256}, {256, 512}}) {
      WeightView slice = *host.view.SliceColumns(begin, count);
      slice.name = "w";  // so that its values are looked at, too
      auto uploaded = Upload(slice, "stored");
      ASSERT_TRUE(uploaded) << uploaded.error().message();
      const auto expected = Decoded(slice), got = ReadBack(uploaded->matrix);
      for (size_t i = 0; i < expected.size(); ++i)
        ASSERT_NEAR(expected[i], got[i], dtype == DType::kQ5_1 ? std::abs(expected[i]) / 2048 + 1e-7 : 0)
            << i;
    }
  }
}

TEST_F(DeviceWeightsTest, SlicesOfFp8AreTakenOverExactly) {
  for (const int64_t group : {0, 128}) {
    const HostMatrix host = MakeOwn({.kind = WeightKind::kFp8, .group = group}, 19, 768, 3);
    for (const auto& [begin, count] : {std::pair<int64_t, int64_t>{0, 256}, {256, 512}}) {
      const WeightView slice = *host.view.SliceColumns(begin, count)->SliceRows(3, 13);
      auto uploaded = Upload(slice, "stored");
      ASSERT_TRUE(uploaded) << uploaded.error().message();
      EXPECT_EQ(uploaded->matrix.format, Format::kFp8);
      EXPECT_EQ(Decoded(slice), ReadBack(uploaded->matrix));
    }
  }
}

// --weights with a file of fp8.
TEST_F(DeviceWeightsTest, Fp8BecomesOtherFormats) {
  const HostMatrix host = MakeOwn({.kind = WeightKind::kFp8, .group = 128}, 19, 768, 3);
  const auto values = Decoded(host.view);
  for (const auto& [weights, step] : {std::pair{"f32", 0.0}, {"bf16", 1.0 / 256}, {"fp8", 0.0}}) {
    SCOPED_TRACE(weights);
    auto uploaded = Upload(host.view, weights);
    ASSERT_TRUE(uploaded) << uploaded.error().message();
    EXPECT_TRUE(celer::testing::AllNear(ReadBack(uploaded->matrix), values, {.relative = step}));
  }
  auto int8 = Upload(host.view, "int8-g32");
  ASSERT_TRUE(int8) << int8.error().message();
  EXPECT_TRUE(celer::testing::AllNear(ReadBack(int8->matrix), values, {.absolute = 0.1 / 127 / 2 * 1.01}));
}

TEST_F(DeviceWeightsTest, OthersAreRoundedToHalf) {
  for (const DType dtype : {DType::kQ5_1, DType::kQ5_K}) {
    SCOPED_TRACE(Name(dtype));
    const HostMatrix host = MakeHost(dtype, 7, 512, 4);
    auto uploaded = Upload(host.view, "stored");
    ASSERT_TRUE(uploaded) << uploaded.error().message();
    const auto expected = Decoded(host.view), got = ReadBack(uploaded->matrix);
    EXPECT_TRUE(celer::testing::AllNear(got, expected, {.absolute = 1e-7, .relative = 1.0 / 2048}));
  }
}

TEST_F(DeviceWeightsTest, QuantizedAsOnTheCpu) {
  const HostMatrix host = MakeHost(DType::kBf16, 21, 384, 5);
  const auto original = Decoded(host.view);
  for (const auto& [weights, group, bits] : {std::tuple<const char*, int64_t, int>{"int8", 384, 8},
                                             {"int8-g32", 32, 8},
                                             {"int4-g32", 32, 4},
                                             {"int4-g64", 64, 4},
                                             {"int4-g128", 128, 4}}) {
    SCOPED_TRACE(weights);
    auto uploaded = Upload(host.view, weights);
    ASSERT_TRUE(uploaded) << uploaded.error().message();
    const auto got = ReadBack(uploaded->matrix);
    double gpu = 0, cpu = 0;
    for (int64_t r = 0; r < 21; ++r) {
      std::vector<float> row(384);
      const float* in = original.data() + r * 384;
      if (bits == 8) {
        std::vector<int8_t> values(384);
        std::vector<float> scales(static_cast<size_t>(384 / group));
        EncodeInt8Row({21, 384, group}, in, values.data(), scales.data());
        DecodeInt8Row({21, 384, group}, values.data(), scales.data(), row.data());
      } else {
        std::vector<uint8_t> values(192);
        std::vector<Int4Group> params(static_cast<size_t>(384 / group));
        EncodeInt4Row({21, 384, group}, in, values.data(), params.data());
        DecodeInt4Row({21, 384, group}, values.data(), params.data(), row.data());
      }
      for (int64_t c = 0; c < 384; ++c) {
        cpu += std::pow(double{row[static_cast<size_t>(c)]} - in[c], 2);
        gpu += std::pow(double{got[static_cast<size_t>(r * 384 + c)]} - in[c], 2);
      }
    }
    EXPECT_GT(cpu, 0);
    EXPECT_NEAR(gpu / cpu, 1, 0.01);  // ties of the fit may fall either way
  }
}

TEST_F(DeviceWeightsTest, Fp8IsRoundedAsOnTheCpu) {
  constexpr int64_t kRows = 21, kCols = 384;
  const HostMatrix host = MakeHost(DType::kBf16, kRows, kCols, 5);
  const auto original = Decoded(host.view);
  for (const int64_t group : {0, 32, 64, 128}) {
    const WeightFormatSpec format{.kind = WeightKind::kFp8, .group = group};
    SCOPED_TRACE(format.Name());
    auto uploaded = Upload(host.view, format.Name().c_str());
    ASSERT_TRUE(uploaded) << uploaded.error().message();
    EXPECT_EQ(FormatName(uploaded->matrix), format.Name());
    const auto got = ReadBack(uploaded->matrix);
    std::vector<std::byte> codes(kCols);
    std::vector<float> scales(static_cast<size_t>(format.GroupsPerRow(kCols))), row(kCols);
    for (int64_t r = 0; r < kRows; ++r) {
      format.Encode(original.data() + r * kCols, kCols, codes.data(), scales.data());
      format.Decode(codes.data(), scales.data(), kCols, row.data());
      for (int64_t c = 0; c < kCols; ++c)
        ASSERT_EQ(row[static_cast<size_t>(c)], got[static_cast<size_t>(r * kCols + c)]) << r << " " << c;
    }
  }
}

TEST_F(DeviceWeightsTest, InterleavedPairsBecomeHalves) {
  const HostMatrix host = MakeHost(DType::kF32, 20, 32, 6);  // two heads of 10, six of which rotate
  auto uploaded = Upload(host.view, "stored", {.head_dim = 10, .rope_dim = 6});
  ASSERT_TRUE(uploaded);
  const auto expected = Decoded(host.view), got = ReadBack(uploaded->matrix);
  const int from[] = {0, 2, 4, 1, 3, 5, 6, 7, 8, 9};
  for (int r = 0; r < 20; ++r)
    for (int c = 0; c < 32; ++c)
      ASSERT_EQ(expected[static_cast<size_t>((r / 10 * 10 + from[r % 10]) * 32 + c)],
                got[static_cast<size_t>(r * 32 + c)]);
}

struct ProductCase {
  const char* weights;
  DType stored;
  int64_t rows, cols;
};

TEST_F(DeviceWeightsTest, ProductsAgreeWithDouble) {
  const ProductCase cases[] = {
      {"stored", DType::kF32, 33, 20},         {"stored", DType::kF16, 100, 576},
      {"stored", DType::kBf16, 7, 18},         {"stored", DType::kBf16, 300, 1536},
      {"int8", DType::kBf16, 70, 1000},        {"int8-g32", DType::kBf16, 70, 960},
      {"int8-g128", DType::kBf16, 48, 4096},   {"int4-g32", DType::kBf16, 70, 2528},
      {"int4-g64", DType::kBf16, 23, 1600},    {"int4-g128", DType::kBf16, 4096, 4096},
      {"stored", DType::kQ4_K, 40, 2816},      {"stored", DType::kQ8_0, 40, 11008},
      {"stored", DType::kBf16, 2048, 11008},   {"stored", DType::kQ6_K, 40, 2816},
      {"stored", DType::kQ3_K, 19, 11008},     {"stored", DType::kQ2_K, 40, 768},
      {"stored", DType::kQ5_0, 33, 224},       {"stored", DType::kQ2_K, 2048, 11008},
      {"fp8", DType::kBf16, 70, 1000},         {"fp8", DType::kBf16, 7, 18},
      {"fp8-g32", DType::kBf16, 70, 2528},     {"fp8-g64", DType::kBf16, 23, 1600},
      {"fp8-g128", DType::kBf16, 48, 4096},    {"fp8", DType::kBf16, 2048, 11008},
      {"fp8-g128", DType::kBf16, 2100, 11008}, {"stored", DType::kMxfp4, 40, 2880},
      {"stored", DType::kMxfp4, 5, 32},        {"stored", DType::kMxfp4, 2100, 8192},
  };
  for (const ProductCase& c : cases) {
    const HostMatrix host = MakeHost(c.stored, c.rows, c.cols, 7);
    auto uploaded = Upload(host.view, c.weights);
    ASSERT_TRUE(uploaded) << uploaded.error().message();
    const DeviceMatrix& m = uploaded->matrix;
    const auto w = ReadBack(m);
    const auto x = RandomFloats(8 * c.cols, 8, 3.0f), norm = RandomFloats(c.cols, 9),
               residual = RandomFloats(8 * c.rows, 10);
    OnDevice<float> dx(x), dnorm(norm), dresidual(residual);
    std::vector<float> alone;
    for (const int tokens : {1, 3, 4, 5, 8}) {
      if (!MatvecFits(m.format, m.padded, tokens)) continue;
      for (const bool with_norm : {false, true}) {
        SCOPED_TRACE(std::string(c.weights) + " " + std::string(Name(c.stored)) + " " +
                     std::to_string(c.rows) + "x" + std::to_string(c.cols) + " tokens " +
                     std::to_string(tokens) + (with_norm ? " norm" : ""));
        OnDevice<float> out(tokens * c.rows);
        MatvecArgs args;
        args.a = m;
        args.x = dx.get();
        args.x_stride = c.cols;
        args.tokens = tokens;
        args.norm = with_norm ? dnorm.get() : nullptr;
        args.out = out.get();
        args.out_stride = c.rows;
        args.residual = dresidual.get();
        ASSERT_EQ(cudaSuccess, LaunchMatvec(args, nullptr));
        ASSERT_EQ(cudaSuccess, cudaDeviceSynchronize());
        const auto got = out.Read();
        for (int t = 0; t < tokens; ++t) {
          double squares = 0;
          for (int64_t i = 0; i < c.cols; ++i)
            squares +=
                double{x[static_cast<size_t>(t * c.cols + i)]} * x[static_cast<size_t>(t * c.cols + i)];
          const double scale =
              with_norm ? 1 / std::sqrt(squares / static_cast<double>(c.cols) + args.eps) : 1;
          for (int64_t r = 0; r<c.rows; r += c.rows> 1000 ? 37 : 1) {
            double sum = 0, magnitude = 0;
            for (int64_t i = 0; i < c.cols; ++i) {
              const double term = double{w[static_cast<size_t>(r * c.cols + i)]} *
                                  x[static_cast<size_t>(t * c.cols + i)] *
                                  (with_norm ? norm[static_cast<size_t>(i)] * scale : 1);
              sum += term;
              magnitude += std::abs(term);
            }
            const double expected = sum + residual[static_cast<size_t>(t * c.rows + r)];
            // Activations keep 15 bits under the largest of 128.
            ASSERT_NEAR(expected, got[static_cast<size_t>(t * c.rows + r)],
                        magnitude * 2e-5 + 2e-5 * std::sqrt(magnitude) + 1e-6)
                << "token " << t << " row " << r;
          }
        }
        if (tokens == 1 && with_norm) alone = got;
        if (with_norm) {
          ASSERT_EQ(0, std::memcmp(alone.data(), got.data(), alone.size() * sizeof(float)))
              << "the rest of the batch changed a token's bits";
        }
      }
    }
  }
}

TEST_F(DeviceWeightsTest, GateAndUpInOneProduct) {
  const HostMatrix gate = MakeHost(DType::kBf16, 44, 96, 11), up = MakeHost(DType::kBf16, 44, 96, 12);
  auto a = Upload(gate.view, "stored"), b = Upload(up.view, "stored");
  ASSERT_TRUE(a && b);
  const auto wa = Decoded(gate.view), wb = Decoded(up.view), x = RandomFloats(2 * 96, 13);
  OnDevice<float> dx(x), out(2 * 44);
  MatvecArgs args;
  args.epilogue = Epilogue::kGateUp;
  args.a = a->matrix, args.b = b->matrix;
  args.x = dx.get();
  args.x_stride = 96;
  args.tokens = 2;
  args.out = out.get();
  args.out_stride = 44;
  const auto bias_a = RandomFloats(44, 14), bias_b = RandomFloats(44, 15);
  OnDevice<float> device_bias_a(bias_a), device_bias_b(bias_b);
  for (const bool biased : {false, true})
    for (const float limit : {0.0f, 0.5f})
      for (const auto activation : {DeviceActivation::kSilu, DeviceActivation::kRelu2}) {
        args.a_bias = biased ? device_bias_a.get() : nullptr,
        args.b_bias = biased ? device_bias_b.get() : nullptr;
        args.swiglu_limit = limit, args.activation = activation;
        ASSERT_EQ(cudaSuccess, LaunchMatvec(args, nullptr));
        const auto got = out.Read();
        for (int t = 0; t < 2; ++t)
          for (int r = 0; r < 44; ++r) {
            double g = biased ? bias_a[static_cast<size_t>(r)] : 0,
                   u = biased ? bias_b[static_cast<size_t>(r)] : 0;
            for (int i = 0; i < 96; ++i) {
              g += double{wa[static_cast<size_t>(r * 96 + i)]} * x[static_cast<size_t>(t * 96 + i)];
              u += double{wb[static_cast<size_t>(r * 96 + i)]} * x[static_cast<size_t>(t * 96 + i)];
            }
            double expected = activation == DeviceActivation::kSilu ? g / (1 + std::exp(-g)) * u
                                                                    : std::max(g, 0.0) * std::max(g, 0.0) * u;
            if (limit > 0) {
              g = std::min(g, double{limit});
              expected = g / (1 + std::exp(-1.702 * g)) * (std::clamp(u, -double{limit}, double{limit}) + 1);
            }
            ASSERT_NEAR(expected, got[static_cast<size_t>(t * 44 + r)], 1e-4);
          }
      }
}

// Weights and activations are rounded to bf16, errors of which nearly cancel out in a sum.
class Rounded {
 public:
  void Add(double term) {
    sum_ += term;
    squares_ += term * term;
    magnitude_ += std::abs(term);
  }
  double sum() const { return sum_; }
  double tolerance() const { return std::sqrt(squares_) * 3 / 256 + 1e-6; }
  double fine_tolerance() const { return magnitude_ * 2e-5 + 1e-6; }  // two parts of each

 private:
  double sum_ = 0, squares_ = 0, magnitude_ = 0;
};

TEST_F(DeviceWeightsTest, WideProductsAgreeWithDouble) {
  if (!WgmmaRuns()) GTEST_SKIP() << "no warpgroup products on this device";
  const ProductCase cases[] = {
      {"stored", DType::kF32, 33, 20},         {"stored", DType::kF16, 100, 576},
      {"stored", DType::kBf16, 7, 18},         {"stored", DType::kBf16, 300, 1536},
      {"stored", DType::kBf16, 4096, 4096},    {"int8", DType::kBf16, 70, 1000},
      {"int8-g32", DType::kBf16, 70, 960},     {"int8-g128", DType::kBf16, 1048, 4096},
      {"int4-g32", DType::kBf16, 70, 2528},    {"int4-g64", DType::kBf16, 23, 1600},
      {"int4-g128", DType::kBf16, 2048, 4096}, {"stored", DType::kQ4_K, 40, 2816},
      {"stored", DType::kQ8_0, 40, 11008},     {"stored", DType::kQ6_K, 40, 2816},
      {"stored", DType::kQ2_K, 70, 768},       {"fp8", DType::kBf16, 70, 1000},
      {"fp8", DType::kBf16, 2048, 4096},       {"fp8-g32", DType::kBf16, 70, 960},
      {"fp8-g64", DType::kBf16, 23, 1600},     {"fp8-g128", DType::kBf16, 1048, 4096},
      {"stored", DType::kMxfp4, 70, 2880},     {"stored", DType::kMxfp4, 1048, 4096},
  };
  OnDevice<float> partial(WgmmaPartialFloats());
  OnDevice<int32_t> tickets(std::vector<int32_t>(static_cast<size_t>(WgmmaTickets()), 0));
  for (const ProductCase& c : cases) {
    const HostMatrix host = MakeHost(c.stored, c.rows, c.cols, 7);
    auto uploaded = Upload(host.view, c.weights);
    ASSERT_TRUE(uploaded) << uploaded.error().message();
    const DeviceMatrix& m = uploaded->matrix;
    const auto w = ReadBack(m);
    for (const int tokens : {5, 8, 9, 17, 64, 100, 300}) {
      const auto x = RandomFloats(tokens * c.cols, 8, 3.0f), norm = RandomFloats(c.cols, 9),
                 before = RandomFloats(tokens * c.rows, 10);
      OnDevice<float> dx(x), dnorm(norm);
      for (const int tile : {16, 32, 64, 128, 256}) {
        if ((tile < tokens && tile < 128) || tile > WgmmaMostTile()) continue;
        const bool fine = tokens <= 8;
        if (fine && tile > 16) break;
        SCOPED_TRACE(std::string(c.weights) + " " + std::string(Name(c.stored)) + " " +
                     std::to_string(c.rows) + "x" + std::to_string(c.cols) + " tokens " +
                     std::to_string(tokens) + " tile " + std::to_string(tile));
        OnDevice<std::byte> memory(WgmmaActivations::Bytes(tokens, tile, m.padded));
        const WgmmaActivations activations{memory.get(), tile, m.padded, fine ? 2 : 1};
        ASSERT_EQ(cudaSuccess, LaunchWgmmaActivations(dx.get(), nullptr, tokens, static_cast<int>(c.cols),
                                                      dnorm.get(), 1e-5f, activations, nullptr));
        std::vector<float> first;
        for (int run = 0; run < 2; ++run) {
          OnDevice<float> out(before);
          WgmmaArgs args;
          args.w[0] = m;
          args.x = activations;
          args.tokens = tokens;
          args.epilogue = WgmmaEpilogue::kAdd;
          args.out = out.get();
          args.out_stride = c.rows;
          args.partial = partial.get();
          args.tickets = tickets.get();
          ASSERT_EQ(cudaSuccess, LaunchWgmma(args, nullptr));
          ASSERT_EQ(cudaSuccess, cudaDeviceSynchronize());
          const auto got = out.Read();
          if (run == 1) {
            ASSERT_EQ(0, std::memcmp(first.data(), got.data(), got.size() * sizeof(float)))
                << "another run gave other bits";
            break;
          }
          first = got;
          const int token_step = tokens > 20 ? 7 : 1;
          const int64_t row_step = c.rows > 200 ? 37 : 3;
          for (int t = 0; t < tokens; t += token_step) {
            double squares = 0;
            for (int64_t i = 0; i < c.cols; ++i)
              squares +=
                  double{x[static_cast<size_t>(t * c.cols + i)]} * x[static_cast<size_t>(t * c.cols + i)];
            const double scale = 1 / std::sqrt(squares / static_cast<double>(c.cols) + 1e-5);
            for (int64_t r = t % row_step; r < c.rows; r += row_step) {
              Rounded expected;
              for (int64_t i = 0; i < c.cols; ++i)
                expected.Add(double{w[static_cast<size_t>(r * c.cols + i)]} *
                             x[static_cast<size_t>(t * c.cols + i)] * norm[static_cast<size_t>(i)] * scale);
              ASSERT_NEAR(expected.sum() + before[static_cast<size_t>(t * c.rows + r)],
                          got[static_cast<size_t>(t * c.rows + r)],
                          fine ? expected.fine_tolerance() : expected.tolerance())
                  << "token " << t << " row " << r;
            }
          }
        }
      }
    }
    for (const int32_t ticket : tickets.Read()) ASSERT_EQ(0, ticket);
  }
}

// gate, up and down of a feed-forward network of odd width, and three matrices in one product.
TEST_F(DeviceWeightsTest, WideProductsFollowEachOther) {
  if (!WgmmaRuns()) GTEST_SKIP() << "no warpgroup products on this device";
  constexpr int kHidden = 96, kMiddle = 172;
  const HostMatrix gate = MakeHost(DType::kBf16, kMiddle, kHidden, 11),
                   up = MakeHost(DType::kBf16, kMiddle, kHidden, 12),
                   down = MakeHost(DType::kBf16, kHidden, kMiddle, 13),
                   other = MakeHost(DType::kBf16, 20, kHidden, 14);
  auto a = Upload(gate.view, "stored"), b = Upload(up.view, "stored"), d = Upload(down.view, "stored"),
       e = Upload(other.view, "stored");
  ASSERT_TRUE(a && b && d && e);
  const auto wa = Decoded(gate.view), wb = Decoded(up.view), wd = Decoded(down.view),
             we = Decoded(other.view);
  OnDevice<float> partial(WgmmaPartialFloats());
  OnDevice<int32_t> tickets(std::vector<int32_t>(static_cast<size_t>(WgmmaTickets()), 0));
  for (const auto& [tokens, tile] : {std::pair{9, 16}, {33, 64}, {128, 128}, {140, 128}, {270, 256}}) {
    if (tile > WgmmaMostTile()) continue;
    SCOPED_TRACE(std::to_string(tokens) + " tokens in tiles of " + std::to_string(tile));
    const auto x = RandomFloats(tokens * kHidden, 15, 2.0f);
    OnDevice<float> dx(x);
    OnDevice<std::byte> x_memory(WgmmaActivations::Bytes(tokens, tile, a->matrix.padded)),
        mid_memory(WgmmaActivations::Bytes(tokens, tile, d->matrix.padded));
    WgmmaArgs args;
    args.x = {x_memory.get(), tile, a->matrix.padded};
    ASSERT_EQ(cudaSuccess,
              LaunchWgmmaActivations(dx.get(), nullptr, tokens, kHidden, nullptr, 0, args.x, nullptr));
    args.tokens = tokens;
    args.partial = partial.get();
    args.tickets = tickets.get();

    WgmmaArgs stacked = args;
    stacked.w = {e->matrix, a->matrix, e->matrix};
    stacked.matrices = 3;
    OnDevice<float> rows(tokens * (40 + kMiddle));
    stacked.out = rows.get();
    stacked.out_stride = 40 + kMiddle;
    ASSERT_EQ(cudaSuccess, LaunchWgmma(stacked, nullptr));

    args.w = {a->matrix, b->matrix, {}};
    args.matrices = 2;
    args.epilogue = WgmmaEpilogue::kGateUp;
    args.mid = {mid_memory.get(), tile, d->matrix.padded};
    ASSERT_EQ(cudaSuccess, LaunchWgmma(args, nullptr));
    WgmmaArgs last = args;
    last.w = {d->matrix, {}, {}};
    last.matrices = 1;
    last.x = args.mid;
    last.epilogue = WgmmaEpilogue::kStore;
    OnDevice<float> out(tokens * kHidden);
    last.out = out.get();
    last.out_stride = kHidden;
    ASSERT_EQ(cudaSuccess, LaunchWgmma(last, nullptr));
    const auto got_rows = rows.Read(), got = out.Read();
    const auto dot = [&](const std::vector<float>& w, int r, int t) {
      Rounded sum;
      for (int i = 0; i < kHidden; ++i)
        sum.Add(double{w[static_cast<size_t>(r * kHidden + i)]} * x[static_cast<size_t>(t * kHidden + i)]);
      return sum;
    };
    for (int t = 0; t < tokens; ++t) {
      std::vector<double> mid(kMiddle);
      for (int r = 0; r < kMiddle; ++r) {
        const Rounded g = dot(wa, r, t);
        mid[static_cast<size_t>(r)] = g.sum() / (1 + std::exp(-g.sum())) * dot(wb, r, t).sum();
        ASSERT_NEAR(g.sum(), got_rows[static_cast<size_t>(t * (40 + kMiddle) + 20 + r)], g.tolerance());
      }
      for (int r = 0; r < 20; ++r) {
        const Rounded v = dot(we, r, t);
        for (const int first : {0, 20 + kMiddle})
          ASSERT_NEAR(v.sum(), got_rows[static_cast<size_t>(t * (40 + kMiddle) + first + r)], v.tolerance());
      }
      for (int r = 0; r < kHidden; ++r) {
        Rounded sum;
        for (int i = 0; i < kMiddle; ++i)
          sum.Add(double{wd[static_cast<size_t>(r * kMiddle + i)]} * mid[static_cast<size_t>(i)]);
        ASSERT_NEAR(sum.sum(), got[static_cast<size_t>(t * kHidden + r)], 2 * sum.tolerance() + 2e-3);
      }
    }
  }
}

// The loader's accounting: never more than the final weights and the two pieces on the way.
TEST_F(DeviceWeightsTest, StagingIsBounded) {
  const HostMatrix host = MakeHost(DType::kBf16, 8192, 1024, 14);
  auto uploaded = Upload(host.view, "int4-g128");
  ASSERT_TRUE(uploaded);
  EXPECT_LE(uploaded->store.peak_bytes(), uploaded->store.device_bytes() + (int64_t{512} << 20));
  EXPECT_LE(uploaded->store.device_bytes(), 8192 * 1024 / 2 * 11 / 10);
}

TEST_F(DeviceWeightsTest, WhatIsNotFiniteOrCannotBeHeldIsRefused) {
  for (const DType dtype : {DType::kF32, DType::kBf16, DType::kF16, DType::kQ8_0, DType::kQ5_1})
    for (const char* weights : {"stored", "bf16", "f16", "int8", "int4-g32", "fp8", "fp8-g128"}) {
      SCOPED_TRACE(std::string(Name(dtype)) + " as " + weights);
      HostMatrix host = MakeHost(dtype, 19, 512, 6);
      host.view.name = "blk.0.w";
      ASSERT_TRUE(Upload(host.view, weights));
      // The first number, or the first scale, of row 17.
      std::byte* at = host.bytes.data() + 17 * host.view.row_bytes;
      const uint32_t nan32 = 0x7fc00000;
      const uint16_t nan16 = dtype == DType::kBf16 ? 0x7fc0 : 0x7e00;
      std::memcpy(at, dtype == DType::kF32 ? static_cast<const void*>(&nan32) : &nan16,
                  dtype == DType::kF32 ? 4 : 2);
      const auto refused = Upload(host.view, weights);
      ASSERT_FALSE(refused);
      EXPECT_EQ(refused.error().code(), Error::Code::kCorrupt);
      EXPECT_NE(refused.error().message().find("tensor 'blk.0.w' holds nan at row 17, column 0"),
                std::string::npos)
          << refused.error().message();
    }
  HostMatrix host = MakeHost(DType::kF32, 5, 256, 6);
  host.view.name = "large";
  const float large = 1e5f;
  std::memcpy(host.bytes.data(), &large, 4);
  for (const char* weights : {"stored", "f32", "bf16", "int8"})
    EXPECT_TRUE(Upload(host.view, weights)) << weights;
  for (const char* weights : {"f16", "int4-g32"}) {
    const auto refused = Upload(host.view, weights);
    ASSERT_FALSE(refused) << weights;
    EXPECT_NE(refused.error().message().find("holds at most 65504"), std::string::npos);
  }
  const auto refused = Upload(host.view, "fp8");
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message().find("fp8 holds at most 57344"), std::string::npos);
  HostMatrix fp8 = MakeOwn({.kind = WeightKind::kFp8, .group = 128}, 19, 256, 3);
  fp8.bytes[17 * 256 + 5] = std::byte{0xff};
  const auto nan = Upload(fp8.view, "stored");
  ASSERT_FALSE(nan);
  EXPECT_NE(nan.error().message().find("nan at row 17, column 5"), std::string::npos)
      << nan.error().message();
}

}  // namespace
}  // namespace celer::cuda
