#include "weights/pack_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>
#include <thread>
#include <vector>

#include "celer/log.h"
#include "formats/decode.h"
#include "io/file/test_folder.h"
#include "kernels/llm/matmul/matmul.h"
#include "weights/weight_store.h"

namespace celer {
namespace {

namespace fs = std::filesystem;

// Two matrices and a stack of three, of values that differ everywhere.
class Source final : public TensorSource {
 public:
  explicit Source(DType dtype = DType::kQ8_0, float first = 0.5f) {
    Add("a", dtype, {40, 64}, first);
    Add("b", dtype, {24, 128}, -0.25f);
    Add("stack", dtype, {3, 16, 64}, 1.5f);
  }
  const TensorRecord* Find(std::string_view name) const override {
    for (const TensorRecord& record : records_)
      if (record.name == name) return &record;
    return nullptr;
  }
  const std::vector<TensorRecord>& tensors() const override { return records_; }
  void DropPages(const TensorRecord&) const override {}
  const std::string& path() const override { return path_; }

 private:
  void Add(const std::string& name, DType dtype, Shape shape, float first) {
    const int64_t elements = *shape.elements();
    std::vector<float> values(elements);
    for (size_t i = 0; i < values.size(); ++i) values[i] = first + static_cast<float>(i * 7 % 101) / 50;
    auto& bytes = storage_.emplace_back(static_cast<size_t>(*BytesFor(dtype, elements)));
    EncodeRow(dtype, values.data(), elements, bytes.data());
    records_.push_back({name, dtype, shape, bytes});
  }

  std::string path_ = "no such file";
  std::vector<std::vector<std::byte>> storage_;
  std::vector<TensorRecord> records_;
};

ThreadPool& Pool() {
  static ThreadPool pool({.threads = 2});
  return pool;
}

struct Loaded {
  std::unique_ptr<WeightStore> store;
  std::vector<WeightView> views;

  std::vector<std::vector<std::byte>> Packed() const {
    std::vector<std::vector<std::byte>> out;
    for (const WeightView& view : views) {
      const auto bytes = static_cast<size_t>(ChosenMatmul().packed_bytes(view));
      out.emplace_back(view.packed, view.packed + bytes);
    }
    return out;
  }
};
Loaded Load(const TensorSource& source, const char* weights, const fs::path& folder) {
  Loaded out;
  out.store = std::make_unique<WeightStore>(
      source, WeightPlan::Make(*WeightOptions::Parse(weights), source.tensors()), Pool(), &ChosenMatmul(),
      folder);
  for (const auto& [name, rows, cols] : {std::tuple("a", 40, 64), {"b", 24, 128}}) {
    auto view = out.store->Matrix(name, rows, cols);
    EXPECT_TRUE(view) << view.error().message();
    out.views.push_back(*view);
  }
  auto stack = out.store->Stack("stack", 3, 16, 64);
  EXPECT_TRUE(stack) << stack.error().message();
  out.views.insert(out.views.end(), stack->begin(), stack->end());
  out.store->WritePackCache();
  return out;
}

std::vector<float> Products(const Loaded& loaded) {
  std::vector<float> all;
  for (const WeightView& view : loaded.views) {
    constexpr int64_t kTokens = 3;
    std::vector<float> x(kTokens * view.cols), out(kTokens * view.rows);
    for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 17) - 8;
    Matmul({.x = x.data(), .tokens = kTokens, .pool = &Pool()},
           {.w = view, .out = out.data(), .out_stride = view.rows});
    all.insert(all.end(), out.begin(), out.end());
  }
  return all;
}

fs::path OnlyFile(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder)) files.push_back(entry.path());
  EXPECT_EQ(files.size(), 1u);
  return files.empty() ? fs::path() : files[0];
}
std::string Content(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class PackCacheTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!ChosenMatmul().packed_bytes) GTEST_SKIP() << "the matmul variant of this machine packs nothing";
  }
  TestFolder folder_;
};

TEST_F(PackCacheTest, TheSecondStartMapsTheSameBytes) {
  for (const DType dtype : {DType::kQ8_0, DType::kBf16, DType::kF32})
    for (const char* weights : {"stored", "int8", "int8-g32", "int4", "f16"}) {
      SCOPED_TRACE(std::string(Name(dtype)) + " as " + weights);
      const TestFolder folder;
      const Source source(dtype);
      const Loaded plain = Load(source, weights, {}), first = Load(source, weights, folder / "packed"),
                   second = Load(source, weights, folder / "packed");
      EXPECT_GT(first.store->owned_bytes(), 0);
      EXPECT_EQ(second.store->owned_bytes(), 0) << "something was packed again";
      EXPECT_EQ(plain.Packed(), second.Packed());
      EXPECT_EQ(Products(plain), Products(second));
      EXPECT_EQ(plain.store->bytes_by_format(), second.store->bytes_by_format());
      for (size_t i = 0; i < plain.views.size(); ++i) {
        EXPECT_EQ(plain.views[i].data, second.views[i].data) << "rows are looked up in the same place";
        EXPECT_EQ(reinterpret_cast<uintptr_t>(second.views[i].packed) % 64, 0u);
      }
    }
}

TEST_F(PackCacheTest, WhatIsNotExactlyRightIsIgnoredAndWrittenAnew) {
  const Source source;
  const fs::path packed = folder_ / "packed";
  const Loaded first = Load(source, "stored", packed);
  const fs::path path = OnlyFile(packed);
  const std::string good = Content(path);
  std::vector<std::string> bad = {"", "x", good.substr(0, good.size() - 1), good.substr(0, 100), good + "x"};
  for (const size_t at :
       {size_t{0}, size_t{8}, size_t{12}, size_t{16}, size_t{30}, size_t{92}, size_t{100}}) {
    bad.push_back(good);
    bad.back()[at] = static_cast<char>(bad.back()[at] ^ 0x40);
  }
  {  // a valid file of another model under this one's name
    const TestFolder other;
    Load(Source(DType::kQ8_0, 9.0f), "stored", other.path());
    bad.push_back(Content(OnlyFile(other.path())));
  }
  for (size_t i = 0; i < bad.size(); ++i) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bad[i];
    const Loaded again = Load(source, "stored", packed);
    EXPECT_GT(again.store->owned_bytes(), 0) << i;
    EXPECT_EQ(first.Packed(), again.Packed()) << i;
    EXPECT_EQ(Content(OnlyFile(packed)), good) << i;
  }
}

TEST_F(PackCacheTest, EveryByteIsChecked) {
  const Source source;
  const fs::path packed = folder_ / "packed";
  SetLogSink(StderrLog());
  const Loaded first = Load(source, "stored", packed);
  const fs::path path = OnlyFile(packed);
  const std::string good = Content(path);
  // Values, what lies between them, and the end; a bit each.
  for (size_t at = 0; at < good.size(); at += at + 97 < good.size() ? 97 : 1) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 1 << at % 8);
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bad;
    testing::internal::CaptureStderr();
    const Loaded again = Load(source, "stored", packed);
    const std::string said = testing::internal::GetCapturedStderr();
    ASSERT_EQ(first.Packed(), again.Packed()) << "byte " << at << " of " << good.size();
    ASSERT_EQ(Content(OnlyFile(packed)), good) << at;
    if (at >= 8 && at < 12) continue;  // another version, which is no fault
    ASSERT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << at << ": " << said;
    ASSERT_NE(said.find("weights are packed again and the file is replaced"), std::string::npos) << said;
  }
}

TEST_F(PackCacheTest, TheKeyIsThatOfTheContent) {
  const Source source;
  const std::string key = PackKey(source, "how");
  EXPECT_EQ(key.size(), 64u);
  EXPECT_EQ(PackKey(Source(), "how"), key);
  EXPECT_NE(PackKey(source, "otherwise"), key);
  EXPECT_NE(PackKey(Source(DType::kQ8_0, 0.75f), "how"), key);
  EXPECT_NE(PackKey(Source(DType::kF16), "how"), key);
  // Each way of packing has its own file.
  for (const char* weights : {"stored", "int8", "int8-g32", "int4"}) Load(source, weights, folder_.path());
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_.path()), fs::directory_iterator()), 4);
}

TEST_F(PackCacheTest, WritersDoNotDisturbEachOther) {
  const Source source;
  const Loaded plain = Load(source, "int8", {});
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i)
    threads.emplace_back([&] {
      for (int n = 0; n < 5; ++n) {
        const Loaded loaded = Load(source, "int8", folder_.path());
        EXPECT_EQ(loaded.Packed(), plain.Packed());
        std::error_code ignored;
        if (n == 2)
          for (const auto& entry : fs::directory_iterator(folder_.path(), ignored))
            if (entry.path().string().find("partial") == std::string::npos) fs::remove(entry.path(), ignored);
      }
    });
  for (std::thread& thread : threads) thread.join();
  Load(source, "int8", folder_.path());
  EXPECT_EQ(Load(source, "int8", folder_.path()).store->owned_bytes(), 0);
  OnlyFile(folder_.path());  // and nothing half-written beside it
}

TEST_F(PackCacheTest, AFolderThatCannotBeWrittenIsNoError) {
  const Source source;
  folder_.Write("file", "not a folder");
  const Loaded loaded = Load(source, "stored", folder_ / "file/packed");
  EXPECT_EQ(loaded.Packed(), Load(source, "stored", {}).Packed());
}

}  // namespace
}  // namespace celer
