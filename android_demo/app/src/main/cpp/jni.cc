// The core's C interface for the JVM: dev.paceline.core.Native, on a phone and on a desktop.
#include <jni.h>

#include <cstring>
#include <string>
#include <vector>

#include "paceline.h"

namespace {

std::string text_of(JNIEnv *env, jbyteArray bytes) {
  if (!bytes) return "";
  std::string made(static_cast<size_t>(env->GetArrayLength(bytes)), '\0');
  env->GetByteArrayRegion(bytes, 0, static_cast<jsize>(made.size()), reinterpret_cast<jbyte *>(&made[0]));
  return made;
}

jbyteArray bytes_of(JNIEnv *env, const char *text, size_t size) {
  jbyteArray made = env->NewByteArray(static_cast<jsize>(size));
  if (made) env->SetByteArrayRegion(made, 0, static_cast<jsize>(size), reinterpret_cast<const jbyte *>(text));
  return made;
}

std::vector<std::string> texts_of(JNIEnv *env, jobjectArray array) {
  std::vector<std::string> made;
  for (jsize i = 0; i < env->GetArrayLength(array); i++) {
    auto bytes = static_cast<jbyteArray>(env->GetObjectArrayElement(array, i));
    made.push_back(text_of(env, bytes));
    env->DeleteLocalRef(bytes);
  }
  return made;
}

// Null where the text is empty, as the C interface has it.
const char *or_null(const std::string &text) { return text.empty() ? nullptr : text.c_str(); }

void raise(JNIEnv *env, const paceline_error &error) {
  jclass type = env->FindClass("dev/paceline/core/PacelineException");
  if (!type) return;  // the JVM has an exception of its own then
  jmethodID constructor = env->GetMethodID(type, "<init>", "(Ljava/lang/String;)V");
  // NewStringUTF takes no bytes that are not its own form of UTF-8, so the text goes through String(byte[], charset).
  jclass string = env->FindClass("java/lang/String");
  jmethodID decode = env->GetMethodID(string, "<init>", "([BLjava/lang/String;)V");
  jstring charset = env->NewStringUTF("UTF-8");
  jbyteArray bytes = bytes_of(env, error.message, std::strlen(error.message));
  if (!bytes || !charset) return;
  jobject message = env->NewObject(string, decode, bytes, charset);
  if (message) env->Throw(static_cast<jthrowable>(env->NewObject(type, constructor, message)));
}

struct Listener {
  JNIEnv *env;
  jobject object;
  jmethodID report;
};

void report(void *user, const char *stage, double fraction) {
  auto *listener = static_cast<Listener *>(user);
  if (listener->env->ExceptionCheck()) return;        // thrown by an earlier report; it surfaces when loading ends
  jstring name = listener->env->NewStringUTF(stage);  // plain ASCII
  if (name) listener->env->CallVoidMethod(listener->object, listener->report, name, fraction);
  listener->env->DeleteLocalRef(name);
}

paceline_model *model_of(jlong handle) { return reinterpret_cast<paceline_model *>(handle); }
paceline_generation *generation_of(jlong handle) { return reinterpret_cast<paceline_generation *>(handle); }

}  // namespace

#define NATIVE(type, name) extern "C" JNIEXPORT type JNICALL Java_dev_paceline_core_Native_##name

NATIVE(jlong, open)
(JNIEnv *env, jobject, jbyteArray folder, jobjectArray names, jintArray fds, jbyteArray library, jbyteArray cache_dir,
 jint threads, jint context, jint target_on, jint drafter_on, jbyteArray npu_libraries, jboolean allow_fallback,
 jlong memory_budget, jobject progress) {
  Listener listener = {env, progress,
                       env->GetMethodID(env->GetObjectClass(progress), "report", "(Ljava/lang/String;D)V")};
  if (!listener.report) return 0;
  const std::string library_text = text_of(env, library), cache_text = text_of(env, cache_dir);
  const std::string npu_text = text_of(env, npu_libraries);
  const paceline_options options = {or_null(library_text),
                                    or_null(cache_text),
                                    threads,
                                    context,
                                    static_cast<paceline_backend>(target_on),
                                    static_cast<paceline_backend>(drafter_on),
                                    or_null(npu_text),
                                    nullptr,
                                    allow_fallback,
                                    memory_budget,
                                    report,
                                    &listener};
  paceline_error error = {};
  paceline_model *model;
  if (folder) {
    model = paceline_open(text_of(env, folder).c_str(), &options, &error);
  } else {
    const std::vector<std::string> held = texts_of(env, names);
    std::vector<jint> numbers(held.size());
    env->GetIntArrayRegion(fds, 0, static_cast<jsize>(numbers.size()), numbers.data());
    if (env->ExceptionCheck()) return 0;
    std::vector<paceline_file> files;
    for (size_t i = 0; i < held.size(); i++) files.push_back({held[i].c_str(), numbers[i], 0, -1});
    model = paceline_open_files(files.data(), files.size(), &options, &error);
  }
  if (env->ExceptionCheck()) {
    paceline_close(model);
    return 0;
  }
  if (!model) raise(env, error);
  return reinterpret_cast<jlong>(model);
}

NATIVE(void, close)(JNIEnv *, jobject, jlong model) { paceline_close(model_of(model)); }

NATIVE(jobjectArray, info)
(JNIEnv *env, jobject, jlong model, jintArray ints, jlongArray longs, jdoubleArray doubles) {
  const paceline_info info = paceline_model_info(model_of(model));
  const jint numbers[] = {info.capacity, info.threads, info.max_positions, info.vocab_size, info.can_chat, info.top_k};
  const jlong sizes[] = {info.weights_bytes, info.kv_bytes};
  const jdouble sampling[] = {info.temperature, info.top_p};
  env->SetIntArrayRegion(ints, 0, 6, numbers);
  env->SetLongArrayRegion(longs, 0, 2, sizes);
  env->SetDoubleArrayRegion(doubles, 0, 2, sampling);
  const char *texts[] = {info.recipe, info.ran_on, info.fallback};
  jobjectArray made = env->NewObjectArray(3, env->FindClass("[B"), nullptr);
  if (!made) return nullptr;
  for (int i = 0; i < 3; i++) env->SetObjectArrayElement(made, i, bytes_of(env, texts[i], std::strlen(texts[i])));
  return made;
}

NATIVE(jbyteArray, backendReason)(JNIEnv *env, jobject, jbyteArray library, jbyteArray npu_libraries, jint backend) {
  paceline_error reason = {};
  const std::string path = text_of(env, library), folder = text_of(env, npu_libraries);
  paceline_backend_reason(or_null(path), or_null(folder), static_cast<paceline_backend>(backend), &reason);
  return bytes_of(env, reason.message, std::strlen(reason.message));
}

NATIVE(jlong, generate)
(JNIEnv *env, jobject, jlong model, jobjectArray texts, jbooleanArray from_model, jint draft_length,
 jint max_new_tokens, jfloat temperature, jint top_k, jdouble top_p, jdouble min_p, jboolean has_seed, jlong seed,
 jobjectArray stops) {
  const std::vector<std::string> held = texts_of(env, texts), stop_texts = texts_of(env, stops);
  std::vector<jboolean> authors(static_cast<size_t>(env->GetArrayLength(from_model)));
  if (!authors.empty()) env->GetBooleanArrayRegion(from_model, 0, static_cast<jsize>(authors.size()), authors.data());
  if (env->ExceptionCheck()) return 0;
  std::vector<const char *> stop_list;
  for (const std::string &stop : stop_texts) stop_list.push_back(stop.c_str());
  const paceline_settings settings = {
      draft_length,     max_new_tokens,  temperature, top_k, top_p, min_p, has_seed, static_cast<uint64_t>(seed),
      stop_list.data(), stop_list.size()};
  paceline_error error = {};
  paceline_generation *generation;
  if (authors.empty() && held.size() == 1) {
    generation = paceline_generate(model_of(model), held[0].c_str(), &settings, &error);
  } else {
    std::vector<paceline_turn> turns;
    for (size_t i = 0; i < authors.size() && i < held.size(); i++) turns.push_back({authors[i], held[i].c_str()});
    generation = paceline_chat(model_of(model), turns.data(), turns.size(), &settings, &error);
  }
  if (!generation) raise(env, error);
  return reinterpret_cast<jlong>(generation);
}

NATIVE(jbyteArray, next)(JNIEnv *env, jobject, jlong generation, jintArray piece) {
  paceline_piece found = {};
  paceline_error error = {};
  const int status = paceline_next(generation_of(generation), &found, &error);
  if (status < 0) raise(env, error);
  if (status <= 0) return nullptr;
  const jint values[] = {found.token, found.from_draft, found.thought, found.finish};
  env->SetIntArrayRegion(piece, 0, 4, values);
  return bytes_of(env, found.text, found.text_size);
}

NATIVE(void, cancel)(JNIEnv *, jobject, jlong generation) { paceline_cancel(generation_of(generation)); }

NATIVE(void, stats)(JNIEnv *env, jobject, jlong generation, jintArray ints, jdoubleArray times) {
  const paceline_stats stats = paceline_generation_stats(generation_of(generation));
  std::vector<jint> numbers = {stats.prompt_tokens, stats.kept_tokens, stats.emitted, stats.rounds,
                               stats.drafted,       stats.accepted,    stats.trials};
  numbers.insert(numbers.end(), stats.drafted_at, stats.drafted_at + PACELINE_MOST_DRAFTS);
  numbers.insert(numbers.end(), stats.accepted_at, stats.accepted_at + PACELINE_MOST_DRAFTS);
  numbers.push_back(stats.drafting);
  const jdouble milliseconds[] = {stats.prefill_ms, stats.draft_ms, stats.verify_ms};
  env->SetIntArrayRegion(ints, 0, static_cast<jsize>(numbers.size()), numbers.data());
  env->SetDoubleArrayRegion(times, 0, 3, milliseconds);
}

NATIVE(void, end)(JNIEnv *, jobject, jlong generation) { paceline_end(generation_of(generation)); }
