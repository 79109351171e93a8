// Encodes or decodes what comes on standard input, for tests/android/test_tokenizer.py:
//   tokenizer_tool FILE encode     records of a 32-bit size and as many bytes -> of a size and as many 32-bit tokens
//   tokenizer_tool FILE decode     the other way round
//   tokenizer_tool FILE find       records of texts -> a 32-bit token each
//   tokenizer_tool FILE flags      nothing -> a byte for each token: 1 if special, 2 if byte
//   tokenizer_tool FILE open       nothing -> milliseconds that opening takes
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iterator>

#include "error.h"
#include "tokenizer.h"

namespace {

bool read_words(void *to, size_t count, size_t size) { return std::fread(to, size, count, stdin) == count; }

template <typename T>
bool read_record(std::vector<T> *record) {
  uint32_t size;
  if (!read_words(&size, 1, sizeof size)) return false;
  record->resize(size);
  return read_words(record->data(), size, sizeof(T));
}

template <typename T>
void write_record(const T &record) {
  const auto size = static_cast<uint32_t>(record.size());
  std::fwrite(&size, sizeof size, 1, stdout);
  std::fwrite(record.data(), sizeof *record.data(), size, stdout);
}

int run(const std::string &file, const std::string &command) {
  const auto before = std::chrono::steady_clock::now();
  const paceline::Tokenizer tokenizer(file);
  const std::chrono::duration<double, std::milli> taken = std::chrono::steady_clock::now() - before;
  if (command == "encode") {
    for (std::vector<char> text; read_record(&text);) write_record(tokenizer.encode({text.data(), text.size()}));
  } else if (command == "decode") {
    for (std::vector<int32_t> tokens; read_record(&tokens);)
      write_record(tokenizer.decode(tokens.data(), tokens.size()));
  } else if (command == "find") {
    for (std::vector<char> text; read_record(&text);) {
      const int32_t token = tokenizer.find({text.data(), text.size()});
      std::fwrite(&token, sizeof token, 1, stdout);
    }
  } else if (command == "flags") {
    for (int32_t i = 0; i < tokenizer.size(); i++) std::putchar(tokenizer.special(i) | tokenizer.byte(i) << 1);
  } else {
    std::printf("%.3f\n", taken.count());
  }
  return 0;
}

}  // namespace

int main(int, char **arguments) {
  std::ifstream stream(arguments[1], std::ios::binary);
  const std::string file{std::istreambuf_iterator<char>(stream), {}};
  try {
    return run(file, arguments[2]);
  } catch (const paceline::Error &error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
}
