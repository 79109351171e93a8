// SHA-256 (FIPS 180-4), for the hashes of a bundle's files.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace paceline {

// The hash in lower-case hexadecimal digits; `seen` is told the bytes hashed so far every few MB.
std::string sha256(std::string_view bytes, const std::function<void(size_t)> &seen = nullptr);

}  // namespace paceline
