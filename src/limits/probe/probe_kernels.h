// The loops that `celer probe` times, one function per instruction set. Only plain declarations here, because
// files built with newer instruction sets include it (see cmake/CelerModule.cmake).
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace celer::probe {

// Reads a buffer once, front to back, as four streams side by side or as one. Which is faster depends on the
// core (a Neoverse-V1: 28 GB/s with one, 45 with four; a Neoverse-N1: 20 with one, 15 with four). `data` is
// 64-byte aligned, `bytes` a multiple of kStreamBytes. Returns the xor of its 64-bit words.
using ReadFn = uint64_t (*)(const void* data, size_t bytes);

// Copies without overlap; the same alignment and multiple.
using CopyFn = void (*)(void* to, const void* from, size_t bytes);

// Runs `iterations` rounds of independent multiply-accumulates in registers and returns the operations done,
// a multiply-accumulate counting as two.
using PeakFn = int64_t (*)(int64_t iterations);

constexpr size_t kStreams = 4;
constexpr size_t kStreamBytes = kStreams * 512;

uint64_t ReadPortable(const void* data, size_t bytes);
void CopyPortable(void* to, const void* from, size_t bytes);
int64_t PeakF32Portable(int64_t iterations);
int64_t DependentCycles(int64_t iterations);  // returns the clock cycles that its dependency chain takes

#if defined(__aarch64__)
uint64_t ReadNeon(const void* data, size_t bytes);
uint64_t ReadNeonOne(const void* data, size_t bytes);
void CopyNeon(void* to, const void* from, size_t bytes);
int64_t PeakF32Neon(int64_t iterations);
int64_t PeakF16Neon(int64_t iterations);
int64_t PeakBf16Bfmmla(int64_t iterations);
int64_t PeakInt8Smmla(int64_t iterations);
int64_t PeakInt8Sdot(int64_t iterations);
#elif defined(__x86_64__)
uint64_t ReadAvx2(const void* data, size_t bytes);
uint64_t ReadAvx512(const void* data, size_t bytes);
void CopyAvx2(void* to, const void* from, size_t bytes);
void CopyAvx512(void* to, const void* from, size_t bytes);
int64_t PeakF32Avx2(int64_t iterations);
int64_t PeakF32Avx512(int64_t iterations);
int64_t PeakF16Avx512(int64_t iterations);
int64_t PeakBf16Avx512(int64_t iterations);
int64_t PeakBf16Amx(int64_t iterations);
int64_t PeakInt8Avx2(int64_t iterations);
int64_t PeakInt8AvxVnni(int64_t iterations);
int64_t PeakInt8Vnni(int64_t iterations);
int64_t PeakInt8Amx(int64_t iterations);
#endif

}  // namespace celer::probe
