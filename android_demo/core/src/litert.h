// The C interface of libLiteRt.so, found at run time: the library comes with the app or a Python wheel, its headers do
// not. Source: LiteRT's litert/c/*.h, version 2.3; the structures are declared stable there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace paceline {

namespace litert {

using Handle = void *;
using Deleter = void (*)(void *);

struct Layout {  // LiteRtLayout
  unsigned int rank : 7;
  unsigned int has_strides : 1;
  int32_t dimensions[8];
  uint32_t strides[8];
};

struct TensorType {  // LiteRtRankedTensorType
  int32_t element;
  Layout layout;
};

struct Option {  // LiteRtEnvOption, with the LiteRtAny that it holds: a number, or the address of a text
  int32_t tag;
  int32_t type, padding;
  int64_t value;
};

static_assert(sizeof(Layout) == 68 && sizeof(TensorType) == 72, "LiteRT's layout of a tensor type");

constexpr int32_t kFloat32 = 1, kInt32 = 2, kInt16 = 7, kInt8 = 9;  // LiteRtElementType: those of our graphs
constexpr int kVaries = -1;                                         // a size that is set when a graph is called

}  // namespace litert

// The loaded library. Every function is there, or the constructor throws.
class LiteRt {
 public:
  // Loads the library from a path, or finds it where the system does if that is empty. Throws Error.
  explicit LiteRt(const std::string &path);

  // Throws Error where a status is not 0.
  void check(int status, const char *what) const;

  int (*create_environment)(int, const litert::Option *, litert::Handle *);
  int (*create_model_from_buffer)(litert::Handle, const void *, size_t, litert::Handle *);
  int (*num_signatures)(litert::Handle, size_t *);
  int (*get_signature)(litert::Handle, size_t, litert::Handle *);
  int (*signature_key)(litert::Handle, const char **);
  int (*num_inputs)(litert::Handle, size_t *);
  int (*num_outputs)(litert::Handle, size_t *);
  int (*input_name)(litert::Handle, size_t, const char **);
  int (*output_name)(litert::Handle, size_t, const char **);
  int (*input_tensor)(litert::Handle, size_t, litert::Handle *);
  int (*output_tensor)(litert::Handle, size_t, litert::Handle *);
  int (*tensor_type)(litert::Handle, litert::TensorType *);
  int (*create_options)(litert::Handle *);
  int (*set_accelerators)(litert::Handle, int);
  int (*create_opaque)(const char *, void *, litert::Deleter, litert::Handle *);
  int (*add_opaque)(litert::Handle, litert::Handle);
  int (*compile)(litert::Handle, litert::Handle, litert::Handle, litert::Handle *);
  int (*run)(litert::Handle, size_t, size_t, litert::Handle *, size_t, litert::Handle *);
  int (*create_buffer)(const litert::TensorType *, void *, size_t, litert::Deleter, litert::Handle *);
  void (*destroy_environment)(litert::Handle);
  void (*destroy_model)(litert::Handle);
  void (*destroy_options)(litert::Handle);
  void (*destroy_compiled)(litert::Handle);
  void (*destroy_buffer)(litert::Handle);

 private:
  template <typename Function>
  void find(Function &function, const char *name);

  void *library_;  // stays loaded: LiteRT's threads and accelerators outlive any object of ours
};

// Frees a LiteRT object.
class Owned {
 public:
  Owned() = default;
  Owned(litert::Handle handle, litert::Deleter deleter) : handle_(handle), deleter_(deleter) {}
  Owned(Owned &&other) noexcept { *this = static_cast<Owned &&>(other); }
  Owned &operator=(Owned &&other) noexcept {
    std::swap(handle_, other.handle_);
    std::swap(deleter_, other.deleter_);
    return *this;
  }
  ~Owned() {
    if (handle_) deleter_(handle_);
  }
  litert::Handle get() const { return handle_; }

 private:
  litert::Handle handle_ = nullptr;
  litert::Deleter deleter_ = nullptr;
};

}  // namespace paceline
