// The C interface: no exception leaves it.
#include <dlfcn.h>

#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <random>

#include "error.h"
#include "generation.h"
#include "model.h"
#include "paceline.h"

using namespace paceline;

struct paceline_model {
  std::unique_ptr<Model> model;
  std::string recipe;
};

struct paceline_generation {
  Generation generation;
  Piece piece;
};

namespace {

void tell(paceline_error *error, const char *message) {
  std::snprintf(error->message, sizeof(error->message), "%s", message);
}

// Runs `work`, and turns what it throws into a sentence and `failed`.
template <typename Result, typename Work>
Result guarded(paceline_error *error, Result failed, Work work) {
  try {
    return work();
  } catch (const std::bad_alloc &) {
    tell(error, "there is not enough memory; close other apps, or choose a smaller context.");
  } catch (const std::exception &what) {
    tell(error, what.what());
  }
  return failed;
}

Options options_of(const paceline_options *given) {
  Options made;
  made.library = given->library ? given->library : "";
  made.cache_dir = given->cache_dir ? given->cache_dir : "";
  made.threads = given->threads;
  made.capacity = given->capacity;
  made.target_on = given->target_on;
  made.drafter_on = given->drafter_on;
  made.npu = {given->npu_libraries ? given->npu_libraries : "", given->soc ? given->soc : "",
              given->allow_fallback != 0};
  made.memory_budget = given->memory_budget;
  if (given->progress) {
    made.progress = [tell = given->progress, user = given->user](const char *stage, double fraction) {
      tell(user, stage, fraction);
    };
  }
  return made;
}

paceline_model *opened(Bundle bundle, const paceline_options *options) {
  if (options->target_on == PACELINE_GPU && options->drafter_on == PACELINE_GPU) {
    paceline_error reason;
    paceline_backend_reason(options->library, nullptr, PACELINE_GPU, &reason);
    if (*reason.message) throw Error(reason.message);
  }
  auto made = std::make_unique<paceline_model>();
  made->model = std::make_unique<Model>(std::move(bundle), options_of(options));
  made->recipe = made->model->manifest().recipe;
  return made.release();
}

Settings settings_of(const paceline_settings *given) {
  Settings made;
  made.draft_length = given->draft_length;
  made.max_new_tokens = given->max_new_tokens;
  made.sampling = {given->temperature, given->top_k, given->top_p, static_cast<float>(given->min_p)};
  std::random_device random;
  made.seed = given->has_seed ? given->seed : static_cast<uint64_t>(random()) << 32 | random();
  made.stops.assign(given->stops, given->stops + given->stop_count);
  return made;
}

paceline_generation *begun(paceline_model *model, std::vector<int32_t> tokens, const paceline_settings *settings) {
  return new paceline_generation{{*model->model, std::move(tokens), settings_of(settings)}, {}};
}

}  // namespace

paceline_options paceline_default_options(void) {
  return {nullptr, nullptr, 0, 0, PACELINE_CPU, PACELINE_CPU, nullptr, nullptr, 0, 0, nullptr, nullptr};
}

paceline_model *paceline_open(const char *folder, const paceline_options *options, paceline_error *error) {
  return guarded(error, static_cast<paceline_model *>(nullptr), [&] { return opened(Bundle::in(folder), options); });
}

paceline_model *paceline_open_files(const paceline_file *files, size_t count, const paceline_options *options,
                                    paceline_error *error) {
  return guarded(error, static_cast<paceline_model *>(nullptr),
                 [&] { return opened(Bundle::of(files, count), options); });
}

void paceline_close(paceline_model *model) { delete model; }

paceline_info paceline_model_info(const paceline_model *held) {
  const Model &model = *held->model;
  const Sampling &sampling = model.checkpoint_sampling();
  return {model.options().capacity,
          model.options().threads,
          model.manifest().max_positions,
          model.manifest().vocab_size,
          model.weights_bytes(),
          model.kv_bytes(),
          held->recipe.c_str(),
          model.ran_on().c_str(),
          model.fallback().c_str(),
          model.manifest().turns.has_value(),
          sampling.temperature,
          sampling.top_p,
          sampling.top_k};
}

void paceline_backend_reason(const char *library, const char *npu_libraries, paceline_backend backend,
                             paceline_error *reason) {
  *reason->message = '\0';
  if (backend == PACELINE_NPU && !has_dispatch_library(npu_libraries ? npu_libraries : "")) {
    tell(reason,
         "there is no NPU dispatch here (LiteRT's libLiteRtDispatch_*.so is not among the app's native libraries); "
         "choose "
         "the CPU.");
  }
  if (backend != PACELINE_GPU) return;
  const std::string folder =
      library && std::strrchr(library, '/') ? std::string(library, std::strrchr(library, '/') + 1) : "";
  for (const char *name : {"libLiteRtGpuAccelerator.so", "libLiteRtOpenClAccelerator.so"}) {
    if (void *found = dlopen((folder + name).c_str(), RTLD_LAZY | RTLD_LOCAL)) {
      dlclose(found);
      return;
    }
  }
  tell(reason, "there is no GPU accelerator here (none of the libraries of litert-gpu can be loaded); choose the CPU.");
}

paceline_settings paceline_default_settings(void) { return {PACELINE_AUTO, 0, 0, 0, 1, 0, 0, 0, nullptr, 0}; }

paceline_generation *paceline_generate(paceline_model *model, const char *text, const paceline_settings *settings,
                                       paceline_error *error) {
  return guarded(error, static_cast<paceline_generation *>(nullptr),
                 [&] { return begun(model, model->model->encode(text), settings); });
}

paceline_generation *paceline_generate_tokens(paceline_model *model, const int32_t *tokens, size_t count,
                                              const paceline_settings *settings, paceline_error *error) {
  return guarded(error, static_cast<paceline_generation *>(nullptr),
                 [&] { return begun(model, std::vector<int32_t>(tokens, tokens + count), settings); });
}

paceline_generation *paceline_chat(paceline_model *model, const paceline_turn *turns, size_t count,
                                   const paceline_settings *settings, paceline_error *error) {
  return guarded(error, static_cast<paceline_generation *>(nullptr), [&] {
    std::vector<std::pair<bool, std::string>> said;
    for (size_t i = 0; i < count; i++) said.emplace_back(turns[i].from_model != 0, turns[i].text);
    return begun(model, model->model->encode(model->model->written(said)), settings);
  });
}

void paceline_end(paceline_generation *generation) { delete generation; }

int paceline_next(paceline_generation *held, paceline_piece *piece, paceline_error *error) {
  return guarded(error, -1, [&] {
    if (!held->generation.next(held->piece)) return 0;
    const Piece &found = held->piece;
    *piece = {found.token, found.text.c_str(), found.text.size(), found.from_draft, found.thought, found.finish};
    return 1;
  });
}

void paceline_cancel(paceline_generation *generation) { generation->generation.cancel(); }

paceline_stats paceline_generation_stats(const paceline_generation *generation) {
  return generation->generation.stats();
}
