// Byte-level alphabet of GPT-2: every byte written as one printable character, so that vocabularies are plain
// text.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>

namespace celer {

// The character for each byte.
const std::array<char32_t, 256>& ByteLevelAlphabet();

std::string ByteLevelEncode(std::string_view bytes);

// nullopt when a character is not of the alphabet.
std::optional<std::string> ByteLevelDecode(std::string_view text);

// "<0x0A>" -> 0x0A: how SentencePiece vocabularies name the token of a byte.
std::optional<unsigned char> ParseByteToken(std::string_view token);
std::string ByteTokenName(unsigned char byte);

}  // namespace celer
