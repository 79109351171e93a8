/* The C interface of paceline's core: opens a bundle, and continues texts by the draft-verify loop on LiteRT.
 *
 * A function that can fail takes a `paceline_error`, and writes one sentence for people into it. All text is UTF-8; what a
 * function returns belongs to the core, and lives as long as its owner. A model serves one thread at a time; `paceline_cancel`
 * alone may be called from any. One generation of a model runs at a time. */
#ifndef PACELINE_H_
#define PACELINE_H_

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define PACELINE_API __attribute__((visibility("default")))
#else
#define PACELINE_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef struct paceline_model paceline_model;
typedef struct paceline_generation paceline_generation;

typedef struct {
  char message[1024];
} paceline_error;

/* Where a model's graphs run; the values of the first three are LiteRT's. The GPU runs target and drafter, or none. An NPU
 * runs graphs of integers that were compiled ahead of time for the device's chip. The last one runs the same graphs, not
 * compiled, on the CPU's kernels: slow, and there for tests and comparisons. */
typedef enum { PACELINE_CPU = 1, PACELINE_GPU = 2, PACELINE_NPU = 4, PACELINE_NPU_ON_CPU = 8 } paceline_backend;

/* What loading is doing; `fraction` goes from 0 to 1 in each stage. */
typedef void (*paceline_progress)(void *user, const char *stage, double fraction);

typedef struct {
  const char *library;   /* libLiteRt.so; NULL finds it where the system does */
  const char *cache_dir; /* for packed weights and measured costs; NULL keeps none, which takes more memory and time */
  int threads;           /* of the target; 0 takes the fast cores, at most 4 */
  int capacity;          /* KV rows, prompt and output together; 0 takes 4096 or the model's own limit */
  paceline_backend target_on, drafter_on;
  const char *npu_libraries; /* the directory of LiteRT's dispatch library, an app's nativeLibraryDir; for an NPU */
  const char *soc;           /* the chip, such as SM8750; NULL takes what Android says of the device */
  int allow_fallback;        /* run on the CPU what the NPU cannot; paceline_info says why */
  int64_t memory_budget;     /* bytes that loading may take; 0 does not ask */
  paceline_progress progress; /* may be NULL */
  void *user;
} paceline_options;

/* A file of a bundle as an open descriptor, which the core does not close: from a file picker there is no path. */
typedef struct {
  const char *name;
  int fd;
  int64_t offset, size; /* size -1: up to the end */
} paceline_file;

PACELINE_API paceline_options paceline_default_options(void);
PACELINE_API paceline_model *paceline_open(const char *folder, const paceline_options *options, paceline_error *error);
PACELINE_API paceline_model *paceline_open_files(const paceline_file *files, size_t count, const paceline_options *options,
                                                 paceline_error *error);
PACELINE_API void paceline_close(paceline_model *model);

typedef struct {
  int capacity, threads, max_positions, vocab_size;
  int64_t weights_bytes, kv_bytes; /* of target and drafter; of the KV cache */
  const char *recipe;              /* how the weights are stored, such as mixed-wi4c */
  const char *ran_on;              /* the runtime, and what runs the graphs */
  const char *fallback;            /* why something runs on the CPU that should be on the NPU; empty where all is as asked */
  int can_chat;                    /* whether the bundle says how turns are written */
  float temperature;               /* the checkpoint's own sampling; temperature 0 is greedy, */
  double top_p;                    /* top_p 1 and top_k 0 are off */
  int top_k;
} paceline_info;

PACELINE_API paceline_info paceline_model_info(const paceline_model *model);

/* Why a backend cannot be used with the libraries at `library` and `npu_libraries` (as in the options); an empty text where
 * it can be tried. */
PACELINE_API void paceline_backend_reason(const char *library, const char *npu_libraries, paceline_backend backend,
                                          paceline_error *reason);

typedef struct {
  int from_model; /* 0: the user's turn, 1: the model's */
  const char *text;
} paceline_turn;

#define PACELINE_AUTO (-1) /* as many drafts as pay on this device */

typedef struct {
  int draft_length;   /* 0 is plain decoding, 1 to 7, or PACELINE_AUTO */
  int max_new_tokens; /* 0: no limit but the capacity */
  float temperature;  /* 0 is greedy */
  int top_k;          /* 0 is off */
  double top_p, min_p; /* 1 and 0 are off */
  int has_seed;       /* otherwise the seed is random */
  uint64_t seed;
  const char *const *stops; /* texts in front of which the output ends */
  size_t stop_count;
} paceline_settings;

PACELINE_API paceline_settings paceline_default_settings(void); /* greedy, PACELINE_AUTO */

/* Continue a text, or a conversation whose last turn is the user's. Rows that the prompt shares with the text before are kept.
 * The new generation ends the one before. */
PACELINE_API paceline_generation *paceline_generate(paceline_model *model, const char *text, const paceline_settings *settings,
                                                    paceline_error *error);
PACELINE_API paceline_generation *paceline_generate_tokens(paceline_model *model, const int32_t *tokens, size_t count,
                                                           const paceline_settings *settings, paceline_error *error);
PACELINE_API paceline_generation *paceline_chat(paceline_model *model, const paceline_turn *turns, size_t count,
                                                const paceline_settings *settings, paceline_error *error);
PACELINE_API void paceline_end(paceline_generation *generation);

typedef enum {
  PACELINE_GOES_ON = 0,
  PACELINE_STOP = 1,   /* a stop token or text */
  PACELINE_LENGTH = 2, /* the budget is spent, or the KV cache is full */
  PACELINE_CANCELLED = 3
} paceline_finish;

typedef struct {
  int32_t token;    /* -1 where a generation is cancelled before its first token */
  const char *text; /* what the token completes, often empty; until the next call */
  size_t text_size;
  int from_draft;
  int thought; /* part of what the model thinks before it answers */
  paceline_finish finish;
} paceline_piece;

/* 1 and the next token; 0 after the last one; -1 and a sentence. */
PACELINE_API int paceline_next(paceline_generation *generation, paceline_piece *piece, paceline_error *error);
/* Ends a generation after its next token, or chunk of the prompt. From any thread, while the generation exists. */
PACELINE_API void paceline_cancel(paceline_generation *generation);

#define PACELINE_MOST_DRAFTS 7

/* Counts of a generation so far. A draft after a rejected one counts as drafted. */
typedef struct {
  int prompt_tokens, kept_tokens; /* of the prompt; those of them whose rows were there already */
  int emitted, rounds, drafted, accepted, trials;
  int drafted_at[PACELINE_MOST_DRAFTS], accepted_at[PACELINE_MOST_DRAFTS]; /* by position in the round */
  int drafting;        /* drafts of the next round, as it looks now; 0 while drafting does not pay */
  double prefill_ms;   /* up to the first token */
  double draft_ms, verify_ms; /* after it */
} paceline_stats;

PACELINE_API paceline_stats paceline_generation_stats(const paceline_generation *generation);

#ifdef __cplusplus
}
#endif
#endif
