// Runs a libFuzzer target without libFuzzer, on inputs and on changed copies of them; the same ones every time.
//   replay COUNT FILE...
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <random>
#include <string>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

namespace {

using Random = std::mt19937;

size_t below(size_t limit, Random *random) { return std::uniform_int_distribution<size_t>(0, limit - 1)(*random); }

void change(std::string *input, Random *random) {
  static const uint32_t numbers[] = {0, 1, 0x7F, 0xFF, 0x100, 0xFFFF, 0x10000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF};
  const size_t at = below(input->size(), random), length = 1 + below(8, random);
  switch (below(6, random)) {
    case 0: (*input)[at] = static_cast<char>(below(256, random)); break;
    case 1: (*input)[at] = static_cast<char>((*input)[at] ^ (1 << below(8, random))); break;
    case 2: {  // a number, which mostly lie at multiples of four
      const uint32_t number = numbers[below(std::size(numbers), random)];
      input->replace(at / 4 * 4, sizeof number, reinterpret_cast<const char *>(&number), sizeof number);
      break;
    }
    case 3: input->replace(at, length, input->substr(below(input->size(), random), length)); break;
    case 4: input->insert(at, input->substr(below(input->size(), random), length)); break;
    default: input->erase(at, length); break;
  }
}

void run(const std::string &input) { LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t *>(input.data()), input.size()); }

}  // namespace

int main(int count, char **arguments) {
  Random random(7);
  for (int i = 2; i < count; i++) {
    std::ifstream stream(arguments[i], std::ios::binary);
    const std::string original{std::istreambuf_iterator<char>(stream), {}};
    run(original);
    for (int n = std::atoi(arguments[1]); n > 0; n--) {
      std::string input = original;
      for (size_t changes = 1 + below(4, &random); changes > 0 && !input.empty(); changes--) change(&input, &random);
      run(input);
    }
  }
}
