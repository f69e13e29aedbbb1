// How long ranks on GPUs take for an all-reduce.
#pragma once

#include "base/result.h"

// What ranks that share a GPU need of CUDA; before it is used first.
void PrepareRanks();

// Prints a line for each of several sizes: microseconds of one of many in a captured graph.
celer::Status BenchAllReduce(int ranks);
