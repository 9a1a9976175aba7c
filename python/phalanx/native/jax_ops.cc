// Collectives as calls of XLA's foreign function interface, on the CPU. A call waits for the other ranks; ordered effects make it the only one.
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "phalanx_native.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace {

const phalanx_table* g_table = nullptr;

int CodeOf(ffi::DataType type) {
  switch (type) {
    case ffi::DataType::U8: return 0;
    case ffi::DataType::S8: return 1;
    case ffi::DataType::U16: return 2;
    case ffi::DataType::S16: return 3;
    case ffi::DataType::S32: return 4;
    case ffi::DataType::S64: return 5;
    case ffi::DataType::F16: return 6;
    case ffi::DataType::BF16: return 7;
    case ffi::DataType::F32: return 8;
    case ffi::DataType::F64: return 9;
    case ffi::DataType::PRED: return 10;
    default: return -1;
  }
}

size_t Elements(const phalanx_tensor& tensor) {
  size_t n = 1;
  for (uint32_t d = 0; d < tensor.n_dims; ++d) n *= tensor.shape[d];
  return n;
}

size_t Bytes(const phalanx_tensor& tensor) {
  static const size_t kBytes[] = {1, 1, 2, 2, 4, 8, 2, 2, 4, 8, 1};
  return Elements(tensor) * kBytes[tensor.dtype];
}

struct Seen {
  std::vector<std::vector<uint64_t>> shapes;
  std::vector<phalanx_tensor> tensors;

  void Add(const ffi::AnyBuffer& buffer) {
    shapes.emplace_back(buffer.dimensions().begin(), buffer.dimensions().end());
    phalanx_tensor seen;
    seen.address = buffer.untyped_data();
    seen.shape = shapes.back().data();
    seen.n_dims = shapes.back().size();
    seen.dtype = CodeOf(buffer.element_type());
    tensors.push_back(seen);
  }
};

// Results that the engine made are copied to where XLA wants them.
struct Waiting {
  std::mutex lock;
  std::condition_variable answered;
  bool is_done = false;
  bool makes;
  uint32_t code = 0;
  std::string message;
  Seen outputs;
};

void Answered(void* context, const phalanx_result* result) {
  Waiting* waiting = static_cast<Waiting*>(context);
  std::lock_guard<std::mutex> held(waiting->lock);
  waiting->code = result->code;
  waiting->message.assign(result->message, result->n_message);
  for (size_t i = 0; result->code == 0 && waiting->makes && i < result->n_tensors; ++i) {
    const phalanx_tensor& made = result->tensors[i];
    const phalanx_tensor& wanted = waiting->outputs.tensors[i];
    if (Elements(made) != Elements(wanted)) {
      waiting->code = 1;
      waiting->message = "ranks have different numbers of rows, but shapes are fixed in JAX: pad the arrays to the same shape";
    } else if (Elements(made) > 0) {
      std::memcpy(wanted.address, made.address, Bytes(made));
    }
  }
  waiting->is_done = true;
  waiting->answered.notify_one();
}

double FromBits(int64_t bits) {
  double number;
  std::memcpy(&number, &bits, sizeof number);
  return number;
}

ffi::Error Collective(ffi::RemainingArgs args, ffi::RemainingRets rets, int64_t kind, int64_t op, int64_t grouped, int64_t set,
                      int64_t root, int64_t prescale, int64_t postscale, std::string_view name, std::string_view words,
                      std::string_view key) {
  if (g_table == nullptr) return ffi::Error(ffi::ErrorCode::kFailedPrecondition, "import phalanx.jax first");
  constexpr int64_t kCompare = 6;
  const uint64_t turn = kind == kCompare ? g_table->turn(set, key.data(), key.size()) : 0;
  if (kind == kCompare && turn == 0) return ffi::Error::Success();
  Waiting waiting;
  Seen inputs;
  inputs.shapes.reserve(args.size());
  waiting.outputs.shapes.reserve(rets.size());
  for (size_t i = 0; i < args.size(); ++i) {
    auto buffer = args.get<ffi::AnyBuffer>(i);
    // A token orders calls and has no elements to send.
    if (buffer.has_error()) return buffer.error();
    if (buffer->element_type() != ffi::DataType::TOKEN) inputs.Add(*buffer);
  }
  for (size_t i = 0; i < rets.size(); ++i) {
    auto buffer = rets.get<ffi::AnyBuffer>(i);
    if (buffer.has_error()) return buffer.error();
    if ((*buffer)->element_type() != ffi::DataType::TOKEN) waiting.outputs.Add(**buffer);
  }
  waiting.makes = kind != 0 && kind != 2 && kind != 5 && kind != kCompare;
  phalanx_request request;
  request.kind = kind;
  request.op = op;
  request.grouped = grouped;
  request.process_set = set;
  request.root = root;
  request.wire = -1;
  // This thread waits below in any case.
  request.patience_us = UINT32_MAX;
  request.prescale = FromBits(prescale);
  request.postscale = FromBits(postscale);
  request.name = name.data();
  request.n_name = name.size();
  request.note = nullptr;
  request.n_note = 0;
  request.inputs = inputs.tensors.data();
  request.outputs = waiting.makes || kind == kCompare || inputs.tensors.empty() ? nullptr : waiting.outputs.tensors.data();
  request.n_tensors = inputs.tensors.size();
  request.splits = nullptr;
  request.n_splits = 0;
  request.words = words.data();
  request.n_words = words.size();
  request.turn = turn;
  // XLA may give results the memory of their arguments: then it is done in place.
  bool in_place = false, apart = false;
  for (size_t i = 0; request.outputs != nullptr && i < inputs.tensors.size(); ++i) {
    (inputs.tensors[i].address == waiting.outputs.tensors[i].address ? in_place : apart) = true;
  }
  if (in_place) {
    for (size_t i = 0; apart && i < inputs.tensors.size(); ++i) {
      void* to = waiting.outputs.tensors[i].address;
      if (to != inputs.tensors[i].address) std::memcpy(to, inputs.tensors[i].address, Bytes(inputs.tensors[i]));
      inputs.tensors[i].address = to;
    }
    request.outputs = nullptr;
  }
  g_table->submit(&request, Answered, &waiting);
  std::unique_lock<std::mutex> held(waiting.lock);
  waiting.answered.wait(held, [&waiting] { return waiting.is_done; });
  if (waiting.code == 0) return ffi::Error::Success();
  ffi::ErrorCode codes[] = {ffi::ErrorCode::kOk, ffi::ErrorCode::kInvalidArgument, ffi::ErrorCode::kFailedPrecondition,
                            ffi::ErrorCode::kUnknown};
  return ffi::Error(codes[waiting.code], waiting.message);
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(phalanx_collective, Collective,
                              ffi::Ffi::Bind()
                                  .RemainingArgs()
                                  .RemainingRets()
                                  .Attr<int64_t>("kind")
                                  .Attr<int64_t>("op")
                                  .Attr<int64_t>("grouped")
                                  .Attr<int64_t>("process_set")
                                  .Attr<int64_t>("root")
                                  .Attr<int64_t>("prescale")
                                  .Attr<int64_t>("postscale")
                                  .Attr<std::string_view>("tensor_name")
                                  .Attr<std::string_view>("words")
                                  .Attr<std::string_view>("key"));

extern "C" int phalanx_attach(const phalanx_table* table) {
  if (table->version != PHALANX_NATIVE_VERSION) return 1;
  g_table = table;
  return 0;
}
