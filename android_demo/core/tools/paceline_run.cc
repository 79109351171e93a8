// paceline-run: continues a text with a bundle, on a phone through adb shell, a Raspberry Pi or a desktop.
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <iostream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "paceline.h"

namespace {

enum ExitCode { kSuccess = 0, kRefused = 2, kFailed = 3, kInterrupted = 130 };

constexpr char kHelp[] = R"(usage: paceline-run BUNDLE [options]

  -p, --prompt TEXT         what to continue (default: standard input)
      --chat                take the prompt as a user's turn
  -n, --new-tokens N        at most so many tokens (default: what the context holds)
      --draft auto|off|N    drafts a round (default auto: as many as pay)
      --temperature T       0 is greedy, the default; also --top-k K, --top-p P, --min-p P, --seed S
      --stop TEXT           end in front of it; may be given several times
  -t, --threads N           (default: the fast cores, at most 4)
  -c, --context N           KV rows, prompt and output together (default 4096)
      --backend cpu|gpu     where both models run (default cpu)
      --target-on cpu|npu|npu-on-cpu    where one of them runs; npu-on-cpu is the NPU's graphs on the CPU, for comparisons
      --drafter-on cpu|npu|npu-on-cpu
      --npu-libraries DIR   where LiteRT's dispatch library for the NPU is
      --soc NAME            the chip, such as SM8750 (default: what Android says)
      --allow-fallback      run on the CPU what the NPU cannot, and say why
      --library FILE        libLiteRt.so (default: where the system finds it)
      --cache DIR           for packed weights and measured costs
      --memory MB           refuse what needs more (default: what /proc/meminfo says is available)
      --stats               counts and times, to standard error
      --tokens              print token ids instead of text, one a line
      --prompt-ids 1,2,3    tokens to continue, as they are

  paceline-run my-bundle -p "Once upon a time" --library ./libLiteRt.so --cache . --stats

Exit codes: 0 success, 2 the input was refused, 3 failed.
)";

struct Arguments {
  std::string bundle, prompt, library, cache, npu_libraries, soc;
  std::vector<int32_t> prompt_ids;
  std::vector<std::string> stops;
  bool has_prompt = false, chat = false, stats = false, tokens = false;
  paceline_options options = paceline_default_options();
  paceline_settings settings = paceline_default_settings();
};

[[noreturn]] void refuse(const std::string &sentence) {
  std::fprintf(stderr, "paceline-run: %s\n", sentence.c_str());
  std::exit(kRefused);
}

double number(const std::string &name, const std::string &text, double low, double high, bool whole) {
  char *end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || *end || !(value >= low && value <= high) ||
      (whole && value != static_cast<double>(static_cast<int64_t>(value)))) {
    char allowed[80];
    std::snprintf(allowed, sizeof(allowed), "%s from %.10g to %.10g", whole ? "a whole number" : "a number", low, high);
    refuse(name + " is \"" + text + "\"; allowed is " + allowed + ".");
  }
  return value;
}

std::vector<int32_t> ids(const std::string &name, const std::string &text) {
  std::vector<int32_t> found;
  for (size_t at = 0; at <= text.size();) {
    const size_t comma = std::min(text.find(',', at), text.size());
    found.push_back(static_cast<int32_t>(number(name, text.substr(at, comma - at), 0, INT32_MAX, true)));
    at = comma + 1;
  }
  return found;
}

paceline_backend both_on(const std::string &text) {
  if (text != "cpu" && text != "gpu") refuse("--backend is \"" + text + "\"; allowed are cpu and gpu.");
  return text == "cpu" ? PACELINE_CPU : PACELINE_GPU;
}

paceline_backend one_on(const std::string &name, const std::string &text) {
  const std::map<std::string, paceline_backend> known = {
      {"cpu", PACELINE_CPU}, {"npu", PACELINE_NPU}, {"npu-on-cpu", PACELINE_NPU_ON_CPU}};
  const auto found = known.find(text);
  if (found == known.end()) refuse(name + " is \"" + text + "\"; allowed are cpu, npu and npu-on-cpu.");
  return found->second;
}

const char *or_null(const std::string &text) { return text.empty() ? nullptr : text.c_str(); }

int64_t available_memory() {
  std::ifstream stream("/proc/meminfo");
  for (std::string name; stream >> name;) {
    int64_t kilobytes = 0;
    if (name == "MemAvailable:" && stream >> kilobytes) return kilobytes << 10;
  }
  return 0;
}

Arguments parse(int count, char **words) {
  Arguments made;
  made.options.memory_budget = available_memory();
  const std::map<std::string, std::string> short_names = {
      {"-p", "--prompt"}, {"-n", "--new-tokens"}, {"-t", "--threads"}, {"-c", "--context"}};
  const std::map<std::string, std::function<void()>> flags = {
      {"--chat", [&] { made.chat = true; }},
      {"--stats", [&] { made.stats = true; }},
      {"--tokens", [&] { made.tokens = true; }},
      {"--allow-fallback", [&] { made.options.allow_fallback = 1; }}};
  std::string name;
  const auto integer = [&name](const std::string &text, double low, double high) {
    return static_cast<int64_t>(number(name, text, low, high, true));
  };
  const std::map<std::string, std::function<void(const std::string &)>> values = {
      {"--prompt", [&](const std::string &text) { made.prompt = text, made.has_prompt = true; }},
      {"--prompt-ids", [&](const std::string &text) { made.prompt_ids = ids(name, text); }},
      {"--new-tokens",
       [&](const std::string &text) { made.settings.max_new_tokens = static_cast<int>(integer(text, 1, INT32_MAX)); }},
      {"--draft",
       [&](const std::string &text) {
         made.settings.draft_length = text == "auto"  ? PACELINE_AUTO
                                      : text == "off" ? 0
                                                      : static_cast<int>(integer(text, 0, PACELINE_MOST_DRAFTS));
       }},
      {"--temperature",
       [&](const std::string &text) {
         made.settings.temperature = static_cast<float>(number(name, text, 0, 10000, false));
       }},
      {"--top-k",
       [&](const std::string &text) { made.settings.top_k = static_cast<int>(integer(text, 1, INT32_MAX)); }},
      {"--top-p", [&](const std::string &text) { made.settings.top_p = number(name, text, 0, 1, false); }},
      {"--min-p", [&](const std::string &text) { made.settings.min_p = number(name, text, 0, 1, false); }},
      {"--seed",
       [&](const std::string &text) {
         char *end = nullptr;
         errno = 0;
         made.settings.seed = std::strtoull(text.c_str(), &end, 10);
         if (text.empty() || text[0] == '-' || *end || errno)
           refuse("--seed is \"" + text + "\"; allowed is a whole number of 64 bits.");
         made.settings.has_seed = 1;
       }},
      {"--stop", [&](const std::string &text) { made.stops.push_back(text); }},
      {"--threads", [&](const std::string &text) { made.options.threads = static_cast<int>(integer(text, 1, 64)); }},
      {"--context",
       [&](const std::string &text) { made.options.capacity = static_cast<int>(integer(text, 1, INT32_MAX)); }},
      {"--backend", [&](const std::string &text) { made.options.target_on = made.options.drafter_on = both_on(text); }},
      {"--target-on", [&](const std::string &text) { made.options.target_on = one_on(name, text); }},
      {"--drafter-on", [&](const std::string &text) { made.options.drafter_on = one_on(name, text); }},
      {"--npu-libraries", [&](const std::string &text) { made.npu_libraries = text; }},
      {"--soc", [&](const std::string &text) { made.soc = text; }},
      {"--library", [&](const std::string &text) { made.library = text; }},
      {"--cache", [&](const std::string &text) { made.cache = text; }},
      {"--memory", [&](const std::string &text) { made.options.memory_budget = integer(text, 1, 1e7) * 1000000; }}};
  for (int i = 1; i < count; i++) {
    name = words[i];
    if (name == "-h" || name == "--help") {
      std::fputs(kHelp, stdout);
      std::exit(kSuccess);
    }
    if (const auto longer = short_names.find(name); longer != short_names.end()) name = longer->second;
    if (const auto flag = flags.find(name); flag != flags.end()) {
      flag->second();
    } else if (const auto value = values.find(name); value != values.end()) {
      if (i + 1 == count) refuse(name + " needs a value; see --help.");
      value->second(words[++i]);
    } else if (name[0] == '-' || !made.bundle.empty()) {
      refuse("\"" + name + "\" is not known here; see --help.");
    } else {
      made.bundle = name;
    }
  }
  if (made.bundle.empty()) refuse("a bundle is missing; make one with paceline export, and see --help.");
  return made;
}

std::atomic<paceline_generation *> running{nullptr};

void interrupted(int) {
  if (paceline_generation *generation = running) {
    paceline_cancel(generation);  // sets an atomic flag
  } else {
    std::_Exit(kInterrupted);
  }
}

// What runs where, if that is not the usual way, and why it is not what was asked for.
void say_places(const paceline_options &options, const paceline_info &info) {
  if (options.target_on != PACELINE_CPU || options.drafter_on != PACELINE_CPU)
    std::fprintf(stderr, "%s\n", info.ran_on);
  if (*info.fallback) std::fprintf(stderr, "%s\n", info.fallback);
}

void print_stats(const paceline_stats &stats, const paceline_info &info) {
  const double decode_ms = stats.draft_ms + stats.verify_ms;
  std::fprintf(stderr, "%s; weights %.0f MB, KV cache %.0f MB\n", info.ran_on, info.weights_bytes / 1e6,
               info.kv_bytes / 1e6);
  std::fprintf(stderr, "%d prompt tokens, first token after %.0f ms; %d tokens, %.1f tokens/s after the first\n",
               stats.prompt_tokens, stats.prefill_ms, stats.emitted,
               decode_ms > 0 ? 1000 * (stats.emitted - 1) / decode_ms : 0.0);
  std::fprintf(stderr,
               "%d rounds, %d of %d drafts accepted, %d trials, draft %.0f ms, verify %.0f ms; accepted at position:",
               stats.rounds, stats.accepted, stats.drafted, stats.trials, stats.draft_ms, stats.verify_ms);
  for (int i = 0; i < PACELINE_MOST_DRAFTS && stats.drafted_at[i]; i++) {
    std::fprintf(stderr, " %.0f%%", 100.0 * stats.accepted_at[i] / stats.drafted_at[i]);
  }
  std::fputc('\n', stderr);
}

}  // namespace

int main(int count, char **words) {
  Arguments arguments = parse(count, words);
  arguments.options.library = or_null(arguments.library);
  arguments.options.cache_dir = or_null(arguments.cache);
  arguments.options.npu_libraries = or_null(arguments.npu_libraries);
  arguments.options.soc = or_null(arguments.soc);
  std::vector<const char *> stops;
  for (const std::string &stop : arguments.stops) stops.push_back(stop.c_str());
  arguments.settings.stops = stops.data();
  arguments.settings.stop_count = stops.size();
  if (!arguments.has_prompt && arguments.prompt_ids.empty()) {
    arguments.prompt.assign(std::istreambuf_iterator<char>(std::cin), {});
  }

  paceline_error error = {};
  paceline_model *model = paceline_open(arguments.bundle.c_str(), &arguments.options, &error);
  if (!model) refuse(error.message);
  say_places(arguments.options, paceline_model_info(model));
  paceline_generation *generation;
  if (!arguments.prompt_ids.empty()) {
    generation = paceline_generate_tokens(model, arguments.prompt_ids.data(), arguments.prompt_ids.size(),
                                          &arguments.settings, &error);
  } else if (arguments.chat) {
    const paceline_turn turn = {0, arguments.prompt.c_str()};
    generation = paceline_chat(model, &turn, 1, &arguments.settings, &error);
  } else {
    generation = paceline_generate(model, arguments.prompt.c_str(), &arguments.settings, &error);
  }
  if (!generation) {
    paceline_close(model);
    refuse(error.message);
  }
  running = generation;
  std::signal(SIGINT, interrupted);
  paceline_piece piece = {};
  int status;
  while ((status = paceline_next(generation, &piece, &error)) == 1) {
    if (arguments.tokens && piece.token >= 0) {
      std::printf("%d\n", piece.token);
    } else if (!arguments.tokens) {
      std::fwrite(piece.text, 1, piece.text_size, stdout);
    }
    std::fflush(stdout);
  }
  if (!arguments.tokens) std::putchar('\n');
  if (status < 0) std::fprintf(stderr, "paceline-run: %s\n", error.message);
  if (arguments.stats) print_stats(paceline_generation_stats(generation), paceline_model_info(model));
  running = nullptr;
  paceline_end(generation);
  paceline_close(model);
  if (status < 0) return kFailed;
  return piece.finish == PACELINE_CANCELLED ? kInterrupted : kSuccess;
}
