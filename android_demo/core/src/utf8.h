// UTF-8 as bytes that nobody has checked (Unicode 15, table 3-7).
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace paceline {

constexpr char kReplacement[] = "\xEF\xBF\xBD";  // U+FFFD, which stands for what is not valid

struct Utf8Character {
  size_t size;  // 1 to 4
  bool valid;
};

// The character that `text`, which is not empty, begins with. Where it is none, the size is that of its maximal
// subpart: what one U+FFFD replaces (Unicode 15, 3.9, U+FFFD Substitution of Maximal Subparts).
Utf8Character utf8_character(std::string_view text);

bool utf8_valid(std::string_view text);

// With U+FFFD for what is not valid, as Python's bytes.decode("utf-8", "replace") puts it.
std::string utf8_repaired(std::string_view text);

}  // namespace paceline
