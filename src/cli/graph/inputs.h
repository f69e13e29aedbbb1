// The inputs of a network on the command line: arrays and pictures from files, numbers, or random numbers.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "celer/graph.h"
#include "cli/graph/picture.h"
#include "graph/ir/operator.h"
#include "io/npy/npy.h"

namespace CLI {
class App;
}

namespace celer::cli {

struct PictureFlags {
  std::vector<double> mean, std;  // for each channel, after the scale; empty: 0 and 1
  double scale = 1.0 / 255;       // of pixels from 0 to 255
  std::string layout = "auto", channels = "rgb", fit = "stretch", size;
};

struct InputFlags {
  std::vector<std::string> inputs;  // NAME=FILE or NAME=NUMBERS
  std::vector<std::string> shapes;  // NAME=1,3,224,224: for random inputs
  uint64_t seed = 1;
  PictureFlags picture;
};
void AddInputFlags(CLI::App& app, InputFlags* flags);
void AddPictureFlags(CLI::App& app, PictureFlags* flags);
void AddShapeFlags(CLI::App& app, InputFlags* flags);  // --shape and --seed, for what is not given

// A picture as a network sees it, and the way back to its pixels.
struct Placed {
  Picture picture;                                     // as it was read
  std::string input;                                   // the input that it is for
  double scale_x = 1, scale_y = 1, left = 0, top = 0;  // network = picture * scale + offset
  int width = 0, height = 0;                           // of the network's input
};

struct Inputs {
  std::map<std::string, NpyArray> arrays;
  std::map<std::string, std::vector<std::string>>
      texts;                               // of inputs of strings, whose arrays hold their places
  std::optional<Placed> picture;           // the first one
  std::vector<std::string> random_inputs;  // those that were filled with random numbers
};

// Every input of the network. `fill_random`: those that are not given are random, floats from 0 to 1 and
// integers 0 or 1, the same for the same seed; else they are an error.
Result<Inputs> ReadInputs(const std::vector<GraphPort>& ports, const InputFlags& flags, bool fill_random);

// Converts an array of floats to the input's float type: NumPy's default is f64. An error if a number is out
// of range. Other types stay as they are, and the session rejects them.
Result<NpyArray> AsFloatsOf(const GraphPort& port, NpyArray array, const std::string& source);

// A picture as this input wants it.
Result<NpyArray> PictureInput(const GraphPort& port, const PictureFlags& flags, Picture picture);
Result<NpyArray> PictureInput(const GraphPort& port, const PictureFlags& flags,
                              const std::filesystem::path& path);

// For a session: views of the arrays, by name, or in the order of the graph's inputs.
std::map<std::string, GraphTensor> Views(const Inputs& inputs);
std::vector<graph::Data> DataOf(const graph::Graph& graph, const Inputs& inputs);

}  // namespace celer::cli
