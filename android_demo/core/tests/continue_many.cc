// Continues token lists with one loaded bundle: continue_many BUNDLE LIBRARY CACHE (or - for none) [TARGET_ON
// DRAFTER_ON], which are numbers of paceline_backend.
//
// A request is a line of standard input: draft length, new tokens, temperature, top-k, top-p, min-p, seed, number of
// prompt tokens and these. Its answer is a line of tokens.
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <vector>

#include "check.h"
#include "paceline.h"

int main(int count, char **words) {
  CHECK(count == 4 || count == 6);
  paceline_error error = {};
  paceline_options options = paceline_default_options();
  options.library = words[2];
  options.cache_dir = std::strcmp(words[3], "-") ? words[3] : nullptr;
  options.threads = 1;
  if (count == 6) {
    options.target_on = static_cast<paceline_backend>(std::atoi(words[4]));
    options.drafter_on = static_cast<paceline_backend>(std::atoi(words[5]));
  }
  paceline_model *model = paceline_open(words[1], &options, &error);
  if (!model) std::fprintf(stderr, "%s\n", error.message);
  CHECK(model);
  paceline_settings settings = paceline_default_settings();
  settings.has_seed = 1;
  size_t size;
  while (std::cin >> settings.draft_length >> settings.max_new_tokens >> settings.temperature >> settings.top_k >>
         settings.top_p >> settings.min_p >> settings.seed >> size) {
    std::vector<int32_t> prompt(size);
    for (int32_t &token : prompt) CHECK(std::cin >> token);
    paceline_generation *generation = paceline_generate_tokens(model, prompt.data(), size, &settings, &error);
    if (!generation) std::fprintf(stderr, "%s\n", error.message);
    CHECK(generation);
    paceline_piece piece;
    while (paceline_next(generation, &piece, &error) == 1) std::printf("%d ", piece.token);
    std::printf("\n");
    paceline_end(generation);
  }
  paceline_close(model);
}
