// Tries the C interface on a real bundle: c_api_test BUNDLE LIBRARY CACHE GENERATIONS
#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "paceline.h"

namespace {

paceline_error error;

paceline_generation *begun(paceline_model *model, const char *text, int new_tokens, int draft_length) {
  paceline_settings settings = paceline_default_settings();
  settings.max_new_tokens = new_tokens;
  settings.draft_length = draft_length;
  paceline_generation *made = paceline_generate(model, text, &settings, &error);
  CHECK(made);
  return made;
}

struct Text {
  std::string text;
  std::vector<int> tokens;
  paceline_finish finish = PACELINE_GOES_ON;
};

Text finished(paceline_generation *generation) {
  Text whole;
  paceline_piece piece;
  while (paceline_next(generation, &piece, &error) == 1) {
    whole.text.append(piece.text, piece.text_size);
    if (piece.token >= 0) whole.tokens.push_back(piece.token);
    CHECK(whole.finish == PACELINE_GOES_ON);  // nothing comes after the end
    whole.finish = piece.finish;
  }
  CHECK(whole.finish != PACELINE_GOES_ON);
  CHECK(paceline_next(generation, &piece, &error) == 0);
  return whole;
}

long resident_kb() {
  std::ifstream stream("/proc/self/status");
  for (std::string name; stream >> name;) {
    long kilobytes;
    if (name == "RssAnon:" && stream >> kilobytes) return kilobytes;
  }
  return 0;
}

// The files of a bundle as descriptors, one of them at an offset in a file that has other things before it.
void opens_descriptors(const std::string &bundle, const paceline_options &options, const Text &expected) {
  std::vector<std::string> names;
  DIR *folder = opendir(bundle.c_str());
  CHECK(folder);
  while (const dirent *entry = readdir(folder)) {
    if (entry->d_type == DT_REG) names.push_back(entry->d_name);
  }
  closedir(folder);
  const std::string joined_path = std::string(options.cache_dir) + "/joined";
  std::vector<paceline_file> files;
  for (const std::string &name : names) {
    if (name == "drafter.tflite") {
      std::ifstream source(bundle + "/" + name, std::ios::binary);
      std::ofstream joined(joined_path, std::ios::binary);
      joined << std::string(5000, 'x') << source.rdbuf();
      const int64_t size = static_cast<int64_t>(joined.tellp()) - 5000;
      joined << "behind it";
      joined.close();
      files.push_back({name.c_str(), open(joined_path.c_str(), O_RDONLY), 5000, size});
    } else {
      files.push_back({name.c_str(), open((bundle + "/" + name).c_str(), O_RDONLY), 0, -1});
    }
  }
  paceline_model *model = paceline_open_files(files.data(), files.size(), &options, &error);
  for (const paceline_file &file : files) close(file.fd);  // the core has mapped them
  CHECK(model);
  paceline_generation *generation = begun(model, "def read", 24, 3);
  CHECK(finished(generation).tokens == expected.tokens);
  paceline_end(generation);
  paceline_close(model);
  CHECK(!paceline_open_files(files.data(), 1, &options, &error));
  CHECK(std::strstr(error.message, "was not chosen") || std::strstr(error.message, "cannot be read"));
  unlink(joined_path.c_str());
}

void cancels(paceline_model *model) {
  paceline_generation *generation = begun(model, "def read", 0, 3);
  paceline_cancel(generation);
  const Text nothing = finished(generation);
  CHECK(nothing.tokens.empty() && nothing.finish == PACELINE_CANCELLED);
  paceline_end(generation);

  generation = begun(model, "def write", 0, PACELINE_AUTO);
  std::thread other([generation] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    paceline_cancel(generation);
  });
  const Text some = finished(generation);
  other.join();
  CHECK(some.finish == PACELINE_CANCELLED || some.finish == PACELINE_STOP || some.finish == PACELINE_LENGTH);
  paceline_end(generation);
}

// A conversation keeps its rows, and a kept sequence writes what a fresh one does.
void keeps_rows(paceline_model *model) {
  paceline_settings settings = paceline_default_settings();
  settings.max_new_tokens = 20;
  std::vector<paceline_turn> turns = {{0, "What does a queue do?"}};
  paceline_generation *generation = paceline_chat(model, turns.data(), turns.size(), &settings, &error);
  CHECK(generation);
  const Text first = finished(generation);
  paceline_end(generation);
  turns.push_back({1, first.text.c_str()});
  turns.push_back({0, "And a stack?"});
  generation = paceline_chat(model, turns.data(), turns.size(), &settings, &error);
  CHECK(generation);
  const Text second = finished(generation);
  const paceline_stats stats = paceline_generation_stats(generation);
  CHECK(stats.kept_tokens > 5 && stats.kept_tokens < stats.prompt_tokens);
  paceline_end(generation);

  generation = begun(model, "something else", 4, 0);  // moves the sequence elsewhere
  finished(generation);
  paceline_end(generation);
  generation = paceline_chat(model, turns.data(), turns.size(), &settings, &error);
  CHECK(finished(generation).tokens == second.tokens);
  CHECK(paceline_generation_stats(generation).kept_tokens <= 1);
  paceline_end(generation);

  turns.pop_back();
  CHECK(!paceline_chat(model, turns.data(), turns.size(), &settings, &error));
  CHECK(std::strstr(error.message, "last turn"));
}

void refuses(paceline_model *model) {
  const auto refused = [model](paceline_settings settings, const char *word) {
    CHECK(!paceline_generate(model, "text", &settings, &error));
    CHECK(std::strstr(error.message, word));
  };
  paceline_settings settings = paceline_default_settings();
  settings.draft_length = 8;
  refused(settings, "draft length");
  settings = paceline_default_settings();
  settings.top_p = 1.5;
  refused(settings, "top-p");
  settings = paceline_default_settings();
  settings.temperature = -1;
  refused(settings, "temperature");
  const char *empty[] = {""};
  settings = paceline_default_settings();
  settings.stops = empty;
  settings.stop_count = 1;
  refused(settings, "stop");
  const int32_t outside[] = {1 << 30};
  settings = paceline_default_settings();
  CHECK(!paceline_generate_tokens(model, outside, 1, &settings, &error));
  CHECK(std::strstr(error.message, "vocabulary"));
  const std::string endless(100000, 'q');
  CHECK(!paceline_generate(model, endless.c_str(), &settings, &error));
  CHECK(std::strstr(error.message, "do not fit"));
}

void refuses_places(const char *bundle, paceline_options options) {
  options.drafter_on = static_cast<paceline_backend>(3);
  CHECK(!paceline_open(bundle, &options, &error));
  CHECK(std::strstr(error.message, "place is unknown"));
  options.drafter_on = PACELINE_NPU;
  CHECK(!paceline_open(bundle, &options, &error));
  CHECK(std::strstr(error.message, "no graphs for an NPU"));
  options.allow_fallback = 1;
  paceline_model *model = paceline_open(bundle, &options, &error);
  CHECK(model && std::strstr(paceline_model_info(model).fallback, error.message));
  paceline_close(model);
}

// The memory after the first tenth of the generations, and after all of them.
void leaks_nothing(paceline_model *model, int generations) {
  long early = 0;
  for (int i = 0; i < generations; i++) {
    const std::string prompt = "prompt number " + std::to_string(i);
    paceline_generation *generation = begun(model, prompt.c_str(), 16, i % 8);
    finished(generation);
    paceline_end(generation);
    if (i == generations / 10) early = resident_kb();
  }
  const long late = resident_kb();
  std::printf("RssAnon %ld kB after %d generations, %ld kB after %d\n", early, generations / 10, late, generations);
  CHECK(late - early < 1024);
}

}  // namespace

int main(int count, char **words) {
  CHECK(count == 5);
  paceline_options options = paceline_default_options();
  options.library = words[2];
  options.cache_dir = words[3];
  options.threads = 1;
  options.capacity = 1024;
  int stages = 0;
  options.user = &stages;
  options.progress = [](void *user, const char *, double fraction) {
    CHECK(fraction >= 0 && fraction <= 1);
    ++*static_cast<int *>(user);
  };
  paceline_model *model = paceline_open(words[1], &options, &error);
  if (!model) std::fprintf(stderr, "%s\n", error.message);
  CHECK(model && stages > 0);
  CHECK(paceline_model_info(model).capacity == 1024 && paceline_model_info(model).weights_bytes > 0);
  CHECK(!*paceline_model_info(model).fallback);
  refuses_places(words[1], options);
  paceline_generation *generation = begun(model, "def read", 24, 0);
  const Text plain = finished(generation);
  paceline_end(generation);
  opens_descriptors(words[1], options, plain);
  cancels(model);
  keeps_rows(model);
  refuses(model);
  leaks_nothing(model, std::atoi(words[4]));
  paceline_close(model);
  std::puts("ok");
}
