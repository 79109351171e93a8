#include "utf8.h"

namespace paceline {
namespace {

size_t valid_prefix(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    const Utf8Character character = utf8_character(text.substr(at));
    if (!character.valid) break;
    at += character.size;
  }
  return at;
}

}  // namespace

Utf8Character utf8_character(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return {1, true};
  if (first < 0xC2 || first > 0xF4) return {1, false};
  const size_t size = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  // The second byte has less room where a longer form, a surrogate or a number above U+10FFFF would come out.
  const unsigned char low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
  const unsigned char high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  for (size_t i = 1; i < size; i++) {
    const bool fits = i < text.size() && (i == 1 ? byte(i) >= low && byte(i) <= high : (byte(i) & 0xC0) == 0x80);
    if (!fits) return {i, false};
  }
  return {size, true};
}

bool utf8_valid(std::string_view text) { return valid_prefix(text) == text.size(); }

std::string utf8_repaired(std::string_view text) {
  std::string repaired;
  while (!text.empty()) {
    const size_t valid = valid_prefix(text);
    repaired += text.substr(0, valid);
    text.remove_prefix(valid);
    if (text.empty()) break;
    repaired += kReplacement;
    text.remove_prefix(utf8_character(text).size);
  }
  return repaired;
}

}  // namespace paceline
