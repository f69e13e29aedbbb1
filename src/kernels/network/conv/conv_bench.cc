// Convolutions of real networks by the chosen variant, each way that can do them, with one core and with all:
// every distinct layer of ResNet-50, MobileNet-v2, YOLOv8n and a UNet of 3x3 layers that is worth a
// millisecond. Prints the ratio to the limit of the arithmetic that the definition asks for: Winograd's way
// does less of it and can exceed 1.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <string>

#include "device/aligned_vector.h"
#include "kernels/network/conv/conv.h"
#include "limits/measured_machine.h"
#include "limits/roofline.h"

namespace celer {
namespace {

struct Layer {
  const char* network;
  int64_t channels, size, out_channels, kernel, stride, groups;
};
constexpr Layer kLayers[] = {
    {"resnet50", 3, 224, 64, 7, 2, 1},      {"resnet50", 64, 56, 64, 1, 1, 1},
    {"resnet50", 64, 56, 64, 3, 1, 1},      {"resnet50", 64, 56, 256, 1, 1, 1},
    {"resnet50", 128, 56, 128, 3, 2, 1},    {"resnet50", 128, 28, 128, 3, 1, 1},
    {"resnet50", 512, 28, 128, 1, 1, 1},    {"resnet50", 512, 28, 1024, 1, 2, 1},
    {"resnet50", 256, 14, 256, 3, 1, 1},    {"resnet50", 256, 14, 1024, 1, 1, 1},
    {"resnet50", 512, 7, 512, 3, 1, 1},     {"resnet50", 512, 7, 2048, 1, 1, 1},
    {"mobilenet_v2", 3, 224, 32, 3, 2, 1},  {"mobilenet_v2", 32, 112, 32, 3, 1, 32},
    {"mobilenet_v2", 16, 112, 96, 1, 1, 1}, {"mobilenet_v2", 96, 112, 96, 3, 2, 96},
    {"mobilenet_v2", 24, 56, 144, 1, 1, 1}, {"mobilenet_v2", 144, 56, 144, 3, 1, 144},
    {"mobilenet_v2", 144, 56, 24, 1, 1, 1}, {"mobilenet_v2", 384, 14, 384, 3, 1, 384},
    {"mobilenet_v2", 96, 14, 576, 1, 1, 1}, {"mobilenet_v2", 960, 7, 960, 3, 1, 960},
    {"mobilenet_v2", 960, 7, 160, 1, 1, 1}, {"yolov8n", 3, 640, 16, 3, 2, 1},
    {"yolov8n", 16, 320, 32, 3, 2, 1},      {"yolov8n", 16, 160, 16, 3, 1, 1},
    {"yolov8n", 48, 160, 32, 1, 1, 1},      {"yolov8n", 32, 80, 32, 3, 1, 1},
    {"yolov8n", 64, 40, 64, 3, 1, 1},       {"yolov8n", 192, 40, 128, 1, 1, 1},
    {"yolov8n", 80, 80, 80, 3, 1, 1},       {"yolov8n", 128, 20, 128, 3, 1, 1},
    {"unet", 32, 256, 32, 3, 1, 1},         {"unet", 64, 128, 64, 3, 1, 1},
    {"unet", 128, 64, 128, 3, 1, 1},        {"unet", 256, 32, 256, 3, 1, 1},
    {"unet", 512, 16, 512, 3, 1, 1},        {"unet", 64, 256, 32, 3, 1, 1},
};
constexpr const char* kWayNames[] = {"product", "depthwise", "winograd"};

ConvShape ShapeOf(const Layer& l) {
  const int64_t pad = l.kernel / 2;
  return {.channels = l.channels,
          .in_h = l.size,
          .in_w = l.size,
          .out_channels = l.out_channels,
          .groups = l.groups,
          .kernel_h = l.kernel,
          .kernel_w = l.kernel,
          .stride_h = l.stride,
          .stride_w = l.stride,
          .pad_top = pad,
          .pad_left = pad,
          .pad_bottom = pad,
          .pad_right = pad};
}

void Measure(benchmark::State& state, const Layer& layer, ConvWay way, int threads) {
  ThreadPool pool({.threads = threads});
  const ConvShape s = ShapeOf(layer);
  const ConvPlan plan = PlanConv(s, way);
  const int64_t in_floats = s.channels * s.in_h * s.in_w;
  const int64_t out_floats = s.out_channels * s.out_h() * s.out_w();
  const int64_t weight_floats = s.out_channels * s.channels / s.groups * s.kernel_h * s.kernel_w;
  const AlignedVector<float> in(static_cast<size_t>(in_floats), 0.5f),
      weights(static_cast<size_t>(weight_floats), 0.25f), bias(static_cast<size_t>(s.out_channels), 0.1f);
  AlignedVector<float> packed(static_cast<size_t>(ConvPackedFloats(plan))),
      out(static_cast<size_t>(out_floats)),
      workspace(static_cast<size_t>(ConvWorkspaceFloats(plan, threads)));
  PackConv(plan, weights.data(), packed.data());
  double best = 1e30;
  for (auto _ : state) {
    const auto start = std::chrono::steady_clock::now();
    Conv(plan, {.in = in.data(),
                .weights = packed.data(),
                .bias = bias.data(),
                .f = Pointwise::Relu(),
                .out = out.data(),
                .workspace = workspace.data(),
                .pool = &pool});
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    state.SetIterationTime(seconds);
    best = std::min(best, seconds);
  }
  const auto machine = LoadOrMeasureThisMachine(/*allow_measure=*/true, Device::Cpu(), threads);
  if (!machine) return state.SkipWithError(machine.error().message().c_str());
  const auto roof = RoofOf(*machine, "f32");
  if (!roof) return state.SkipWithError(roof.error().message().c_str());
  const Work work{.read_bytes = 4.0 * static_cast<double>(in_floats + weight_floats),
                  .write_bytes = 4.0 * static_cast<double>(out_floats),
                  .flops = s.flops()};
  const RooflineLimit limit = LimitOf(work, *roof);
  state.counters["GFLOP/s"] = 1e-9 * s.flops() / best;
  state.counters["best_ms"] = best * 1e3;
  state.counters["ratio"] = RatioToLimit(limit, best);
  state.SetLabel("bound by " + BoundBy(limit, *roof));
}

const bool kRegistered = [] {
  for (const Layer& layer : kLayers)
    for (const ConvWay way : {ConvWay::kProduct, ConvWay::kDepthwise, ConvWay::kWinograd}) {
      if (!CanDo(way, ShapeOf(layer)) || (way == ConvWay::kProduct && layer.groups > 1)) continue;
      for (const int threads : {1, 2}) {
        if (threads > UsableCpus()) continue;
        const std::string name = "conv/" + std::string(layer.network) + "/" + std::to_string(layer.channels) +
                                 "x" + std::to_string(layer.size) + "_to_" +
                                 std::to_string(layer.out_channels) + "_k" + std::to_string(layer.kernel) +
                                 "s" + std::to_string(layer.stride) + "/" + kWayNames[static_cast<int>(way)] +
                                 "/threads:" + std::to_string(threads);
        benchmark::RegisterBenchmark(name.c_str(),
                                     [=](benchmark::State& state) { Measure(state, layer, way, threads); })
            ->UseManualTime()
            ->Unit(benchmark::kMillisecond)
            ->MinTime(0.1);
      }
    }
  return true;
}();

}  // namespace
}  // namespace celer
