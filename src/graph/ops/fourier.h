// Discrete Fourier transforms of any length in n log n steps: a file may ask for any.
#pragma once

#include <cstdint>
#include <vector>

namespace celer::graph {

class Fourier {
 public:
  Fourier(int64_t length, bool inverse);  // the inverse divides by the length

  // Numbers are pairs of a real and an imaginary part; both lists have `length` of them, or more.
  void Transform(const std::vector<double>& in, std::vector<double>& out) const;

 private:
  int64_t length_;
  bool inverse_;
  int64_t padded_;              // a power of two: the length itself, or what Bluestein's algorithm needs
  std::vector<double> turns_;   // exp(-2 pi i k / padded), for k below padded / 2
  std::vector<double> chirp_;   // exp(-+ pi i k^2 / length); empty where the length is a power of two
  std::vector<double> filter_;  // the transform of the chirp's conjugate
};

}  // namespace celer::graph
